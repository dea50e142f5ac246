"""A finished job of another tool, read and checked, before it becomes trials of ours."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from domain.records.trial import Interaction, TrialOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFiles:
    """What one phase left, as tars; None where the job kept nothing."""

    outputs: bytes | None
    """Names are relative to ``/``."""
    logs: bytes | None
    verifier_logs: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignPhase:
    """A step, or the only phase of a task without steps."""

    name: str = ""
    outcome: TrialOutcome
    detail: str = ""
    rewards: Mapping[str, float] | None
    """As the job holds them; None or empty: none."""
    ungraded: str = ""
    """What the job says of a verifier that gave no verdict."""
    is_shared: bool = False
    """Its verifier ran in the agent's box, so that artifacts decided nothing."""
    lost: tuple[str, ...] = ()
    """Declared artifacts that are not in the job: nobody knows whether the agent made them."""
    missing: tuple[str, ...] = ()
    """Declared artifacts of which the job knows that the agent did not make them."""
    is_whole: bool = False
    """All outputs are in the job, the working directory where the task declares no artifacts."""
    reason: str = ""
    stopped: str = ""
    is_tampered: bool = False
    is_fail_closed: bool = False
    started_ms: int = 0
    ended_ms: int = 0
    files: Callable[[], ForeignFiles]
    """Reads the files: those of all trials are too much to hold at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignTrial:
    """One attempt as the job recorded it."""

    name: str
    """Of its directory."""
    task_name: str
    task_digests: frozenset[str]
    """Every name by which the job identifies the task's content, of whatever kind."""
    agent: str
    agent_version: str
    model: str | None
    sandbox: str
    outcome: TrialOutcome
    detail: str = ""
    phases: tuple[ForeignPhase, ...]
    started_ms: int
    ended_ms: int
    n_calls: int = 0
    n_prompt_tokens: int = 0
    n_sampled_tokens: int = 0
    interactions: Callable[[str], tuple[Interaction, ...]]
    """Reads the trajectory, for a trial id of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignJob:
    """A directory of trials; ``digest`` is of all that was read."""

    name: str
    where: str
    """The directory, for messages."""
    digest: str
    tool: str
    """``harbor``."""
    dataset: str | None
    """What the job says its tasks are from."""
    n_attempts: int
    created_ms: int
    trials: tuple[ForeignTrial, ...]
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
