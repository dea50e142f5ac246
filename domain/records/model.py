"""Models: base policies, policy versions, checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from domain.records.canonical import Json
from domain.records.task import ObjectRef


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of a directory kept in the store."""

    path: str
    content: ObjectRef


@dataclass(frozen=True, slots=True, kw_only=True)
class BasePolicy:
    """An imported or locally made base model; identity = digest of its files."""

    schema_version: int = 1
    name: str
    digest: str
    """SHA-256 over (path, content digest) of every file."""
    family: str
    """The native format: ``qwen3``."""
    files: tuple[FileEntry, ...]
    recipe_digest: str
    context_tokens: int
    n_parameters: int
    metrics: Mapping[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRecipe:
    """How a base policy is made: sizes, steps, seed and the demonstrations it imitates."""

    schema_version: int = 1
    name: str
    family: str = "qwen3"
    demonstrations: str
    """Path of a JSON-lines file of demonstrations."""
    vocabulary: int = 1024
    hidden: int = 96
    layers: int = 2
    heads: int = 4
    context_tokens: int = 1024
    steps: int = 400
    batch: int = 32
    learning_rate: float = 3e-3
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """Exactly one set of weights. A sampler name never means two versions."""

    name: str
    """``base-<12 hex>`` or ``ckpt-<12 hex>``: unique per content, safe as a served model name."""
    base: str
    """Digest of the base policy."""
    adapter: tuple[FileEntry, ...] = ()
    """Files of the peft adapter; empty for the base itself."""
    n_optimizer_steps: int = 0


class UpdateState(StrEnum):
    """The optimizer fence."""

    PREPARING = "preparing"
    UNRESOLVED = "unresolved"
    APPLIED = "applied"
    SKIPPED = "skipped"
    """No group carried signal: no step was taken, the policy stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One optimizer step of a training experiment, as the ledger knows it."""

    update_id: str
    """The unit key: one update per batch."""
    experiment_id: str
    unit: str
    index: int
    """0-based batch index."""
    state: UpdateState
    parent: PolicyVersion
    contributions: tuple[str, ...] = ()
    """Contribution keys in group order, fixed when the step is intended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Resumable training state plus inference weights."""

    schema_version: int = 1
    checkpoint_id: str
    """``ckpt-<12 hex>`` of the sampler weights, the served name."""
    experiment_id: str
    unit: str
    version: PolicyVersion
    state: tuple[FileEntry, ...]
    """Trainer state: adapter, optimizer, RNG."""
    next_batch: int
    """Data cursor: the index of the next batch to run."""
    parent: str
    """Name of the policy version this one was stepped from."""
    groups: tuple[str, ...]
    """Ids of the groups whose contributions fed the step."""
    metrics: Mapping[str, Json] = field(default_factory=dict[str, Json])
