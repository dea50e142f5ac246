"""Profiles and plans: who works, and how the experiment runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from domain.records.canonical import Json


class InstructionDelivery(StrEnum):
    """How the task's instruction reaches the harness."""

    ARGUMENT = "argument"
    STDIN = "stdin"
    FILE = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFile:
    """A file the profile supplies; relative to the working directory unless absolute."""

    path: str
    content: str
    executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """An executable agent recipe; immutable once published, identity = digest of canonical bytes."""

    schema_version: int = 1
    name: str
    engine: str
    """``nop``, ``oracle``, ``mini``, ``claude-code``."""
    engine_version: str | None = None
    model: str | None = None
    """A model reference: ``base:NAME`` or ``checkpoint:ID``; None for engines without a model."""
    files: tuple[ProfileFile, ...] = ()
    setup: tuple[str, ...] = ()
    """Shell commands run in the box before the harness starts."""
    workdir: str | None = None
    """None: the task's."""
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    instruction_delivery: InstructionDelivery = InstructionDelivery.ARGUMENT
    required_outputs: tuple[str, ...] = ()
    settings: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """The engine's own settings, checked by the engine."""


class Order(StrEnum):
    """In which order tasks are taken."""

    LISTED = "listed"
    SHUFFLED = "shuffled"


class Objective(StrEnum):
    """The loss a contribution is computed with."""

    IMPORTANCE_SAMPLING = "importance_sampling"
    CROSS_ENTROPY = "cross_entropy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimisation:
    """How a training experiment learns. Defaults: facts/learning.md sections 2.5 and 4."""

    objective: Objective = Objective.IMPORTANCE_SAMPLING
    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    grad_clip_norm: float | None = None
    lora_rank: int = 32
    lora_alpha: int = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the policy is sampled; T=1 and full support keep sampler and trainer on one scale."""

    temperature: float = 1.0
    max_tokens: int = 256
    trial_tokens: int | None = None
    """Bound on prompt and sampled tokens of all calls of one trial; past it the model answers no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Sizes of boxes instead of the tasks' own; None: the task's."""

    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How an experiment runs: attempts, order, batches, limits, concurrency, seeds, optimisation."""

    schema_version: int = 1
    attempts: int = 1
    """Attempts at each task: the size of a sampling group."""
    tasks: int | None = None
    """Take only the first so many tasks (after ordering); None: all."""
    order: Order = Order.LISTED
    seed: int = 0
    concurrency: int = 4
    """Trials at once inside one unit, as far as the budget and other experiments let it."""
    weight: float = 1.0
    """Share of the budget against other experiments that want more than there is."""
    overrides: Overrides = field(default_factory=Overrides)
    sandbox: str = "local"
    shard_tasks: int = 1000
    """Tasks in one shard of an evaluation."""
    agent_timeout_s: float = 120.0
    """Upper limit on the agent phase; the task's own limit holds when lower."""
    verifier_timeout_s: float = 120.0
    trial_deadline_s: float = 600.0
    infra_retries: int = 2
    ungraded_limit: float = 0.05
    """No headline when a larger share of trials is ungraded."""
    sampling: Sampling = field(default_factory=Sampling)
    batches: int = 0
    """Optimizer steps of a training experiment; 0 for evaluations."""
    groups_per_batch: int = 0
    optimisation: Optimisation | None = None
    evaluate_on: str | None = None
    """Task set reference on which every ``evaluate_every``-th checkpoint is evaluated by the sensor."""
    evaluate_every: int = 0
    """0: only the last checkpoint."""
    evaluate_attempts: int = 4
