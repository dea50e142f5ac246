"""The ledger port: state that must not be wrong, by aggregate, behind one unit of work.

``with ledger.begin() as tx`` is one serializable write transaction: it commits when the block ends and rolls
back on any exception. ``with ledger.snapshot() as tx`` only reads. Everything a worker writes takes its lease:
the row's fence is compared inside the same transaction, and a stale lease raises FenceError and changes nothing.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from domain.records.assessment import Assessment, QualifiedGroup
from domain.records.canonical import Json
from domain.records.capacity import Grant
from domain.records.experiment import (
    Event,
    Experiment,
    ExperimentState,
    Lease,
    TokenScope,
    Unit,
    UnitState,
)
from domain.records.model import BasePolicy, Checkpoint, PolicyVersion, Update, UpdateState
from domain.records.names import Reference
from domain.records.profile import Profile
from domain.records.task import ObjectRef, TaskSet
from domain.records.trial import AttemptKey, TrialRecord


class Catalog(Protocol):
    """Published, immutable things."""

    def add_task_set(self, task_set: TaskSet, record: ObjectRef) -> None:
        """Publish; the same digest again is fine, another raises ConflictError."""
        ...

    def task_set(self, reference: Reference) -> tuple[TaskSet, ObjectRef]:
        """Raises NotFoundError."""
        ...

    def task_sets(self) -> tuple[Reference, ...]:
        """Return all, oldest first."""
        ...

    def add_profile(self, profile: Profile, digest: str, reference: Reference | None) -> None:
        """Keep a profile under its digest, and publish it under a reference when given (ConflictError)."""
        ...

    def profile(self, key: str) -> Profile:
        """Return by digest or by ``team/name@v1``. Raises NotFoundError."""
        ...

    def profiles(self) -> tuple[tuple[str, str], ...]:
        """Return (reference, digest) of published profiles, oldest first."""
        ...

    def add_base_policy(self, policy: BasePolicy) -> None:
        """Keep under name and digest; the same again is fine. Raises ConflictError for another digest."""
        ...

    def base_policy(self, key: str) -> BasePolicy:
        """Return by name or digest. Raises NotFoundError."""
        ...

    def base_policies(self) -> tuple[BasePolicy, ...]:
        """Return all, oldest first."""
        ...


class Experiments(Protocol):
    """Accepted experiments."""

    def add(self, experiment: Experiment, idempotency_key: str | None) -> Experiment:
        """Insert, or return the experiment that holds the key already with the same spec digest.

        Raises ConflictError when the key holds another spec.
        """
        ...

    def get(self, experiment_id: str) -> Experiment:
        """Raises NotFoundError."""
        ...

    def all(self, limit: int = 200) -> tuple[Experiment, ...]:
        """Return newest first."""
        ...

    def open(self) -> tuple[Experiment, ...]:
        """Return those not terminal, oldest first."""
        ...

    def set_state(self, experiment_id: str, state: ExperimentState) -> None:
        """Move; a terminal state never changes."""
        ...

    def reopen(self, experiment_id: str) -> None:
        """Ended -> running, since a unit of it runs again. Raises ConflictError when its end was asked for."""
        ...

    def request_cancel(self, experiment_id: str) -> None:
        """Ask for the end; conveyed by heartbeat."""
        ...


class Units(Protocol):
    """Partitions and their leases."""

    def add(self, unit: Unit) -> bool:
        """Insert; False when it exists."""
        ...

    def get(self, unit: str) -> Unit:
        """Raises NotFoundError."""
        ...

    def of(self, experiment_id: str) -> tuple[Unit, ...]:
        """Return in order of index."""
        ...

    def set_state(self, unit: str, state: UnitState, *, detail: str = "") -> None:
        """Move a unit that no worker holds (dispatcher, sensors, operators)."""
        ...

    def next_generation(self, unit: str) -> int:
        """Grow the generation and return it."""
        ...

    def put_off(self, unit: str, retry_at_ms: int, n_stalled: int, progress: str) -> None:
        """Keep when the unit is launched again, and what its relaunches are counted by. Raises NotFoundError."""
        ...

    def next_sample(self, unit: str, n_attempts: int, key: str) -> bool:
        """Number the unit's attempts from ``n_attempts`` further on: what earlier ones left stays, and counts no more.

        False, and nothing changes, when ``key`` began the present sample.
        """
        ...

    def acquire(self, unit: str, holder: str, now_ms: int, ttl_s: float) -> Lease:
        """Take the lease when free or expired, with a higher fence; state becomes running.

        Raises FenceError when another live holder has it.
        """
        ...

    def heartbeat(self, lease: Lease, now_ms: int, ttl_s: float) -> bool:
        """Extend the lease; returns whether cancellation is asked. Raises FenceError."""
        ...

    def check(self, lease: Lease) -> None:
        """Raise FenceError unless the lease still holds."""
        ...

    def release(self, lease: Lease, state: UnitState, *, detail: str = "") -> None:
        """End the lease and move the unit. Raises FenceError."""
        ...

    def add_manifest(self, lease: Lease, kind: str, ref: ObjectRef) -> None:
        """Name the newest manifest (``trials``, ``assessments``, ``qualified_groups``, ``datums``) of a unit."""
        ...

    def manifest(self, unit: str, kind: str) -> ObjectRef | None:
        """Return the newest manifest."""
        ...


class Trials(Protocol):
    """Terminal trial records, their assessments and groups."""

    def add(self, lease: Lease, trial: TrialRecord) -> None:
        """Insert. Raises FenceError; ConflictError when the attempt already has a counting record."""
        ...

    def get(self, trial_id: str) -> TrialRecord:
        """Raises NotFoundError."""
        ...

    def of_unit(self, unit: str, *, every_sample: bool = False) -> tuple[TrialRecord, ...]:
        """Return the counting record of each attempt of the present sample, or of all, in order of key."""
        ...

    def of_experiment(self, experiment_id: str) -> tuple[TrialRecord, ...]:
        """Return counting records of the present samples of all units."""
        ...

    def infra_failures(self, key: AttemptKey) -> int:
        """Count infra_error records of an attempt; they never occupy it."""
        ...

    def add_assessment(self, lease: Lease, assessment: Assessment) -> None:
        """Insert or replace an *ungraded* one of (trial, assessor); anything else raises ConflictError."""
        ...

    def assessments(self, unit: str, assessor: str | None = None) -> tuple[Assessment, ...]:
        """Return those of present samples in order of attempt key; without an assessor, the canonical ones."""
        ...

    def assessments_of(self, trial_id: str) -> tuple[Assessment, ...]:
        """Return every assessor's."""
        ...

    def add_group(self, lease: Lease, group: QualifiedGroup, datums: ObjectRef | None) -> None:
        """Insert or replace the group of (unit, group)."""
        ...

    def groups(self, unit: str) -> tuple[tuple[QualifiedGroup, ObjectRef | None], ...]:
        """Return in order of group index, each with its datum table."""
        ...


class Updates(Protocol):
    """Optimizer updates and checkpoints: the fence."""

    def begin(self, lease: Lease, update: Update) -> Update:
        """Insert as preparing, or return what is there."""
        ...

    def get(self, update_id: str) -> Update:
        """Raises NotFoundError."""
        ...

    def of(self, experiment_id: str) -> tuple[Update, ...]:
        """Return in order of index."""
        ...

    def intend(self, lease: Lease, update_id: str, contributions: tuple[str, ...]) -> None:
        """Mark unresolved, durably, before the step is sent. Raises ConflictError unless preparing."""
        ...

    def commit(self, lease: Lease, update_id: str, checkpoint: Checkpoint) -> None:
        """Applied, together with its checkpoint and data cursor, in one transaction."""
        ...

    def skip(self, lease: Lease, update_id: str) -> None:
        """No signal: the policy stays and the cursor moves. Raises ConflictError unless preparing."""
        ...

    def reopen(self, update_id: str) -> None:
        """Unresolved -> preparing: it is proven, or an operator says, that the step did not happen."""
        ...

    def resolve(self, update_id: str, state: UpdateState, checkpoint: Checkpoint | None) -> None:
        """Unresolved -> applied (with its checkpoint) by evidence or an operator's word."""
        ...

    def checkpoint(self, checkpoint_id: str) -> Checkpoint:
        """Return by id, or by ``<experiment>@<batch>``: the policy after that batch (from 0). Raises NotFoundError."""
        ...

    def checkpoints(self, experiment_id: str | None = None) -> tuple[Checkpoint, ...]:
        """Return in order of creation."""
        ...

    def policy(self, name: str) -> PolicyVersion:
        """Return the version a served name means (base or checkpoint). Raises NotFoundError."""
        ...


class Events(Protocol):
    """The ordered event log."""

    def append(
        self,
        experiment_id: str,
        kind: str,
        at_ms: int,
        unit: str | None = None,
        body: Mapping[str, Json] | None = None,
    ) -> int:
        """Append and return the cursor (1, 2, ... without reuse)."""
        ...

    def after(self, experiment_id: str | None, cursor: int, limit: int = 500) -> tuple[Event, ...]:
        """Return events with a larger cursor, in order; None: of all experiments."""
        ...


class Tokens(Protocol):
    """Scoped model credentials; only hashes are kept."""

    def issue(self, lease: Lease, secret_sha256: str, scope: TokenScope) -> None:
        """Keep a scope under the hash of its secret."""
        ...

    def issue_session(self, secret_sha256: str, scope: TokenScope) -> None:
        """Keep the scope of a developer's session: of no unit, so that no worker's lease stands behind it.

        Raises ConflictError when the hash is taken.
        """
        ...

    def scope(self, secret_sha256: str, now_ms: int) -> TokenScope | None:
        """Return the live scope; None when unknown, expired or revoked."""
        ...

    def revoke_trial(self, trial_id: str) -> None:
        """End every token of a trial."""
        ...

    def revoke_stale(self, unit: str, below_fence: int) -> None:
        """End tokens issued under a smaller fence: their worker is gone."""
        ...


class Grants(Protocol):
    """Who may use how much of the budget: one row for each unit, live while its lease is."""

    def put(self, lease: Lease, grant: Grant) -> None:
        """Insert or replace the unit's row. Raises FenceError."""
        ...

    def live(self, now_ms: int) -> tuple[Grant, ...]:
        """Return those of units whose lease holds now, under the fence they were written with, in order of unit."""
        ...

    def end(self, lease: Lease) -> None:
        """Remove the row written under this lease; another worker's stays."""
        ...


class Transaction(Protocol):
    """The aggregates inside one transaction."""

    @property
    def catalog(self) -> Catalog: ...  # noqa: D102
    @property
    def experiments(self) -> Experiments: ...  # noqa: D102
    @property
    def units(self) -> Units: ...  # noqa: D102
    @property
    def trials(self) -> Trials: ...  # noqa: D102
    @property
    def updates(self) -> Updates: ...  # noqa: D102
    @property
    def events(self) -> Events: ...  # noqa: D102
    @property
    def tokens(self) -> Tokens: ...  # noqa: D102
    @property
    def grants(self) -> Grants: ...  # noqa: D102


class Ledger(Protocol):
    """Opens transactions."""

    def begin(self) -> AbstractContextManager[Transaction]:
        """Open a write transaction. Raises LedgerError when it cannot commit."""
        ...

    def snapshot(self) -> AbstractContextManager[Transaction]:
        """Open a read transaction."""
        ...
