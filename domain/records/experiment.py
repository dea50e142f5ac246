"""Experiments and units: one accepted, pinned spec and its partitions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from domain.records.canonical import Json
from domain.records.model import PolicyVersion
from domain.records.names import Reference
from domain.records.profile import Plan

_PREFIXES = {"unscored": "uns", "evaluation": "evl", "training": "trn", "regrade": "rgr", "imported": "imp"}


class ExperimentKind(StrEnum):
    """What an experiment is for."""

    UNSCORED = "unscored"
    EVALUATION = "evaluation"
    TRAINING = "training"
    REGRADE = "regrade"
    IMPORTED = "imported"
    """Trials of another tool, already ended: nothing of it runs here but a regrade."""

    @property
    def prefix(self) -> str:
        """The first three letters of its experiments' ids."""
        return _PREFIXES[self.value]


class ExperimentState(StrEnum):
    """The life of an experiment."""

    ACCEPTED = "accepted"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    def is_terminal(self) -> bool:
        """Say whether nothing more will happen."""
        return self in {ExperimentState.SUCCEEDED, ExperimentState.FAILED, ExperimentState.CANCELLED}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSpec:
    """Everything an experiment depends on, pinned at acceptance."""

    schema_version: int = 1
    kind: ExperimentKind
    task_set: Reference
    task_set_digest: str
    actor_digest: str
    assessor: str
    """``verifier`` or ``judge:<profile digest>``."""
    plan: Plan
    policy: PolicyVersion | None = None
    """The model snapshot of evaluations; the first one of a training."""
    source: str | None = None
    """Experiment whose retained outputs a regrade reads, or the training a checkpoint evaluation serves."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """An accepted experiment."""

    experiment_id: str
    spec: ExperimentSpec
    spec_digest: str
    state: ExperimentState
    n_units: int
    created_ms: int
    cancel_requested: bool = False


class UnitState(StrEnum):
    """The life of a unit."""

    ADMITTED = "admitted"
    LAUNCHED = "launched"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    BLOCKED = "blocked"
    """An unresolved optimizer step: only evidence or an operator's word continues."""

    def is_terminal(self) -> bool:
        """Say whether the unit will not run again by itself."""
        return self in {UnitState.SUCCEEDED, UnitState.FAILED, UnitState.CANCELLED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One partition: a batch of a training or a shard of an evaluation."""

    unit: str
    experiment_id: str
    index: int
    state: UnitState
    generation: int
    """Grows with each relaunch, so that Dagster's run keys never repeat."""
    policy: PolicyVersion | None
    fence: int = 0
    lease_holder: str | None = None
    lease_expires_ms: int = 0
    detail: str = ""
    first_attempt: int = 0
    """The attempts of the present sample are numbered from here; those below belong to earlier samples."""
    sample_key: str = ""
    """Names the request that began the present sample, so that asking again for it begins no other."""
    retry_at_ms: int = 0
    """Not launched before: runs that end without having done anything wait longer and longer."""
    n_stalled: int = 0
    """Relaunches in a row between which nothing was done."""
    progress: str = ""
    """What was done at the last relaunch, to be compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to write about a unit; refused once another holder has a higher fence."""

    unit: str
    holder: str
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An ordered fact about an experiment."""

    cursor: int
    experiment_id: str
    unit: str | None
    kind: str
    """``experiment.accepted``, ``trial.ended``, ``assessment.made``, ``update.applied`` ..."""
    at_ms: int
    body: Mapping[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScope:
    """What a trial's model token may do."""

    experiment_id: str
    unit: str
    trial_id: str
    model: str
    """The one model name the box may ask for."""
    policy: str
    """The policy version that answers."""
    expires_ms: int
    max_tokens: int
    temperature: float
    seed: int
    trial_tokens: int | None = None
    """Bound on prompt and sampled tokens of all calls; None: none."""
