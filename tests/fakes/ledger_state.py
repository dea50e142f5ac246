"""What the ledger in memory holds."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from domain.errors import ConflictError, FenceError, NotFoundError
from domain.records.assessment import Assessment, QualifiedGroup
from domain.records.capacity import Grant
from domain.records.experiment import Event, Experiment, Lease, TokenScope, Unit
from domain.records.model import BasePolicy, Checkpoint, Update
from domain.records.names import Reference
from domain.records.profile import Profile
from domain.records.task import ObjectRef, TaskSet
from domain.records.trial import TrialOutcome, TrialRecord

K = TypeVar("K")
V = TypeVar("V")


@dataclass
class State:
    """Everything; values are immutable, so a copy of each dictionary is a copy of all."""

    task_sets: dict[Reference, tuple[TaskSet, ObjectRef]] = field(
        default_factory=dict[Reference, tuple[TaskSet, ObjectRef]]
    )
    profiles: dict[str, Profile] = field(default_factory=dict[str, Profile])
    published: dict[str, str] = field(default_factory=dict[str, str])
    policies: dict[str, BasePolicy] = field(default_factory=dict[str, BasePolicy])
    experiments: dict[str, Experiment] = field(default_factory=dict[str, Experiment])
    keys: dict[str, str] = field(default_factory=dict[str, str])
    units: dict[str, Unit] = field(default_factory=dict[str, Unit])
    manifests: dict[tuple[str, str], ObjectRef] = field(default_factory=dict[tuple[str, str], ObjectRef])
    trials: dict[str, TrialRecord] = field(default_factory=dict[str, TrialRecord])
    assessments: dict[tuple[str, str], tuple[str, Assessment]] = field(
        default_factory=dict[tuple[str, str], tuple[str, Assessment]]
    )
    groups: dict[tuple[str, int], tuple[QualifiedGroup, ObjectRef | None]] = field(
        default_factory=dict[tuple[str, int], tuple[QualifiedGroup, ObjectRef | None]]
    )
    updates: dict[str, Update] = field(default_factory=dict[str, Update])
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict[str, Checkpoint])
    events: dict[int, Event] = field(default_factory=dict[int, Event])
    tokens: dict[str, tuple[TokenScope, int, bool]] = field(default_factory=dict[str, tuple[TokenScope, int, bool]])

    grants: dict[str, tuple[Grant, int]] = field(default_factory=dict[str, tuple[Grant, int]])

    def copy(self) -> "State":
        """Return a state that can be changed apart."""
        return State(**{entry.name: dict(getattr(self, entry.name)) for entry in dataclasses.fields(self)})

    def prove(self, lease: Lease, unit: str | None = None) -> None:
        """Raise FenceError unless the lease holds, and is for ``unit`` when one is named."""
        held = self.units.get(lease.unit)
        if unit is not None and unit != lease.unit:
            message = f"the lease on {lease.unit} gives no right to write about {unit}"
            raise FenceError(message)
        if held is None or held.fence != lease.fence or held.lease_holder != lease.holder:
            message = f"{lease.holder} no longer holds {lease.unit}"
            raise FenceError(message)


def same(name: str, held: object, wanted: object) -> None:
    """Raise ConflictError unless what is held is what is wanted."""
    if held != wanted:
        message = f"{name} is already {held}, not {wanted}"
        raise ConflictError(message)


def missing(key: object) -> NotFoundError:
    """Return the error for an unknown key."""
    return NotFoundError(f"{key} is not in the ledger")


def found(held: Mapping[K, V], key: K) -> V:
    """Return the value. Raises NotFoundError."""
    if key not in held:
        raise missing(key)
    return held[key]


def counts(trial: TrialRecord) -> bool:
    """Say whether the record occupies its attempt."""
    return trial.outcome not in {TrialOutcome.INFRA_ERROR, TrialOutcome.CANCELLED}


def is_by(assessor: str, wanted: str) -> bool:
    """Match ``verifier``, ``judge:<profile digest>`` or an identity."""
    kind, _, digest = wanted.partition(":")
    if wanted == "verifier":
        return assessor.startswith("verifier:")
    return assessor == (f"judge:{digest[:12]}" if kind == "judge" else wanted)
