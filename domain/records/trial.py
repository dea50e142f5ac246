"""Trials: attempts as executed, the interactions captured, what they left behind."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from domain.records.assessment import Assessment
from domain.records.canonical import Json
from domain.records.task import ObjectRef


class TrialOutcome(StrEnum):
    """How a trial ended. Architecture, section 3."""

    COMPLETED = "completed"
    AGENT_ERROR = "agent_error"
    AGENT_TIMEOUT = "agent_timeout"
    INFRA_ERROR = "infra_error"
    CANCELLED = "cancelled"

    def is_assessable(self) -> bool:
        """Say whether the work may be assessed: the agent, not the platform, ended it."""
        return self in {TrialOutcome.COMPLETED, TrialOutcome.AGENT_ERROR, TrialOutcome.AGENT_TIMEOUT}


class StopReason(StrEnum):
    """Why sampling stopped."""

    STOP = "stop"
    LENGTH = "length"


class Purpose(StrEnum):
    """What a model call was for; only actions of agents may train.

    A summary shapes what follows, and yet nobody grades it: it is kept, and not trained on.
    """

    AGENT = "agent"
    """An action, of the main agent or a delegated one: ``Interaction.agent`` says whose."""
    TITLE = "title"
    COMPACTION = "compaction"
    """A summary with which the harness replaces a history that has become too long."""
    SEARCH = "search"
    """A harness's own search of the web, beside the conversation."""
    COUNT = "count"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interaction:
    """One captured model call, exactly as sampled. All ids are the model's own vocabulary."""

    schema_version: int = 1
    interaction_id: str
    trial_id: str
    sequence: int
    """0-based order of the call inside the trial."""
    agent: str
    """``main`` or the id of a delegated agent."""
    segment: int
    """Grows when the harness rewrote its history and the prompt no longer extends the previous one."""
    purpose: Purpose
    sampler_version: str
    prompt_ids: tuple[int, ...]
    sampled_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of each sampled id under the sampling distribution, natural logarithm."""
    stop_reason: StopReason
    temperature: float
    seed: int
    request: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """The suffix of the conversation that this call added (messages), for transcripts."""
    response: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """The message delivered to the harness."""
    started_ms: int = 0
    duration_s: float = 0.0

    @property
    def n_prompt_ids(self) -> int:
        """Length of the whole prompt."""
        return len(self.prompt_ids)

    @property
    def n_sampled_ids(self) -> int:
        """How many ids were sampled."""
        return len(self.sampled_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceRef:
    """The published interactions of one trial."""

    object: ObjectRef
    n_interactions: int
    n_prompt_tokens: int
    n_sampled_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptKey:
    """The k-th try at one task inside a unit: stable over infrastructure retries."""

    unit: str
    group: int
    attempt: int

    def __str__(self) -> str:
        """Return ``unit/g003/a1``."""
        return f"{self.unit}/g{self.group:03d}/a{self.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a trial consumed; None where the sandbox cannot measure it."""

    wall_s: float = 0.0
    cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    n_calls: int = 0
    n_prompt_tokens: int = 0
    n_sampled_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step of a trial, verified while the trial ran; a task with a shared verifier has one without a name."""

    name: str
    outcome: TrialOutcome
    detail: str = ""
    outputs: ObjectRef | None = None
    logs: ObjectRef | None = None
    missing_artifacts: tuple[str, ...] = ()
    assessment: Assessment | None = None
    """None: the experiment assesses nothing, or the step was not reached by its verifier."""
    stopped: str = ""
    """Why no later step ran; empty: the next one did, or there is none."""
    started_ms: int = 0
    ended_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """The record of one attempt. Exactly one terminal record per attempt key counts."""

    schema_version: int = 1
    trial_id: str
    key: AttemptKey
    experiment_id: str
    task_name: str
    task_digest: str
    profile_digest: str
    policy: str | None
    """Name of the policy version that sampled it; None without a model."""
    outcome: TrialOutcome
    detail: str = ""
    """One line for people: why it ended so."""
    outputs: ObjectRef | None = None
    """A tar of the declared artifacts or the retained working directory."""
    logs: ObjectRef | None = None
    """A tar of the harness's output and /logs/agent."""
    missing_artifacts: tuple[str, ...] = ()
    evidence: EvidenceRef | None = None
    started_ms: int = 0
    ended_ms: int = 0
    usage: Usage = field(default_factory=Usage)
    sandbox: str = ""
    limits_enforced_by: Mapping[str, str] = field(default_factory=dict[str, str])
    """Limit -> mechanism: ``{"memory": "cgroup"}`` or ``supervisor``."""
    made_from: Mapping[str, str] = field(default_factory=dict[str, str])
    """``image``, the id of the box's image, and ``created``, when that was built; empty: no image."""
    is_permanent: bool = False
    """Of an ``infra_error``: another try would meet the same, so there was none."""
    n_infra_retries: int = 0
    """Trials of this attempt lost to infrastructure before this one."""
    steps: tuple[StepRecord, ...] = ()
    """The steps that ran, in order; empty for a task of one phase with a separate verifier."""
