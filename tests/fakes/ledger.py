"""A ledger in memory: dictionaries, copied when a transaction begins and swapped in when it ends well."""

import dataclasses
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from domain.errors import ConflictError, FenceError, LedgerError
from domain.records.assessment import Assessment, AssessmentOutcome, QualifiedGroup
from domain.records.canonical import Json
from domain.records.experiment import Event, Experiment, ExperimentState, Lease, TokenScope, Unit, UnitState
from domain.records.model import BasePolicy, Checkpoint, PolicyVersion, Update, UpdateState
from domain.records.names import Reference
from domain.records.profile import Profile
from domain.records.task import ObjectRef, TaskSet
from domain.records.trial import AttemptKey, TrialOutcome, TrialRecord
from tests.fakes.ledger_grants import FakeGrants
from tests.fakes.ledger_state import State, counts, found, is_by, missing, same


class _Catalog:
    def __init__(self, state: State) -> None:
        self._state = state

    def add_task_set(self, task_set: TaskSet, record: ObjectRef) -> None:
        held = self._state.task_sets.setdefault(task_set.reference, (task_set, record))
        same(str(task_set.reference), held[0].digest, task_set.digest)

    def task_set(self, reference: Reference) -> tuple[TaskSet, ObjectRef]:
        return found(self._state.task_sets, reference)

    def task_sets(self) -> tuple[Reference, ...]:
        return tuple(self._state.task_sets)

    def add_profile(self, profile: Profile, digest: str, reference: Reference | None) -> None:
        if reference is not None:
            same(str(reference), self._state.published.setdefault(str(reference), digest), digest)
        self._state.profiles.setdefault(digest, profile)

    def profile(self, key: str) -> Profile:
        return found(self._state.profiles, self._state.published.get(key, key))

    def profiles(self) -> tuple[tuple[str, str], ...]:
        return tuple(self._state.published.items())

    def add_base_policy(self, policy: BasePolicy) -> None:
        same(policy.name, self._state.policies.setdefault(policy.name, policy).digest, policy.digest)

    def base_policy(self, key: str) -> BasePolicy:
        for policy in self._state.policies.values():
            if key in {policy.name, policy.digest}:
                return policy
        raise missing(key)

    def base_policies(self) -> tuple[BasePolicy, ...]:
        return tuple(self._state.policies.values())


class _Experiments:
    def __init__(self, state: State) -> None:
        self._state = state

    def add(self, experiment: Experiment, idempotency_key: str | None) -> Experiment:
        held = self._state.experiments.get(experiment.experiment_id)
        if held is None and idempotency_key in self._state.keys:
            held = self._state.experiments[self._state.keys[idempotency_key]]
        if held is not None:
            same(experiment.experiment_id, held.spec_digest, experiment.spec_digest)
            return held
        self._state.experiments[experiment.experiment_id] = experiment
        if idempotency_key is not None:
            self._state.keys[idempotency_key] = experiment.experiment_id
        return experiment

    def get(self, experiment_id: str) -> Experiment:
        return found(self._state.experiments, experiment_id)

    def all(self, limit: int = 200) -> tuple[Experiment, ...]:
        return tuple(reversed(self._state.experiments.values()))[:limit]

    def open(self) -> tuple[Experiment, ...]:
        return tuple(held for held in self._state.experiments.values() if not held.state.is_terminal())

    def set_state(self, experiment_id: str, state: ExperimentState) -> None:
        held = self.get(experiment_id)
        if not held.state.is_terminal():
            self._state.experiments[experiment_id] = dataclasses.replace(held, state=state)

    def reopen(self, experiment_id: str) -> None:
        held = self.get(experiment_id)
        if held.cancel_requested or held.state is ExperimentState.CANCELLED:
            message = f"{experiment_id} was cancelled"
            raise ConflictError(message)
        self._state.experiments[experiment_id] = dataclasses.replace(held, state=ExperimentState.RUNNING)

    def request_cancel(self, experiment_id: str) -> None:
        self._state.experiments[experiment_id] = dataclasses.replace(self.get(experiment_id), cancel_requested=True)


class _Units:
    def __init__(self, state: State) -> None:
        self._state = state

    def add(self, unit: Unit) -> bool:
        if unit.unit in self._state.units:
            return False
        found(self._state.experiments, unit.experiment_id)
        self._state.units[unit.unit] = unit
        return True

    def get(self, unit: str) -> Unit:
        return found(self._state.units, unit)

    def of(self, experiment_id: str) -> tuple[Unit, ...]:
        mine = (unit for unit in self._state.units.values() if unit.experiment_id == experiment_id)
        return tuple(sorted(mine, key=lambda unit: unit.index))

    def set_state(self, unit: str, state: UnitState, *, detail: str = "") -> None:
        self._state.units[unit] = dataclasses.replace(self.get(unit), state=state, detail=detail)

    def next_generation(self, unit: str) -> int:
        held = self.get(unit)
        self._state.units[unit] = dataclasses.replace(held, generation=held.generation + 1)
        return held.generation + 1

    def put_off(self, unit: str, retry_at_ms: int, n_stalled: int, progress: str) -> None:
        self._state.units[unit] = dataclasses.replace(
            self.get(unit), retry_at_ms=retry_at_ms, n_stalled=n_stalled, progress=progress
        )

    def next_sample(self, unit: str, n_attempts: int, key: str) -> bool:
        held = self.get(unit)
        if held.sample_key == key:
            return False
        first = held.first_attempt + n_attempts
        self._state.units[unit] = dataclasses.replace(held, first_attempt=first, sample_key=key)
        return True

    def acquire(self, unit: str, holder: str, now_ms: int, ttl_s: float) -> Lease:
        held = self.get(unit)
        if held.lease_holder not in {None, holder} and held.lease_expires_ms > now_ms:
            message = f"{unit} is held by {held.lease_holder}"
            raise FenceError(message)
        self._state.units[unit] = dataclasses.replace(
            held,
            fence=held.fence + 1,
            lease_holder=holder,
            lease_expires_ms=now_ms + round(ttl_s * 1000),
            state=UnitState.RUNNING,
        )
        return Lease(unit=unit, holder=holder, fence=held.fence + 1)

    def heartbeat(self, lease: Lease, now_ms: int, ttl_s: float) -> bool:
        self._state.prove(lease)
        held = self.get(lease.unit)
        self._state.units[lease.unit] = dataclasses.replace(held, lease_expires_ms=now_ms + round(ttl_s * 1000))
        return self._state.experiments[held.experiment_id].cancel_requested

    def check(self, lease: Lease) -> None:
        self._state.prove(lease)

    def release(self, lease: Lease, state: UnitState, *, detail: str = "") -> None:
        self._state.prove(lease)
        self._state.units[lease.unit] = dataclasses.replace(
            self.get(lease.unit), lease_holder=None, lease_expires_ms=0, state=state, detail=detail
        )

    def add_manifest(self, lease: Lease, kind: str, ref: ObjectRef) -> None:
        self._state.prove(lease)
        self._state.manifests[lease.unit, kind] = ref

    def manifest(self, unit: str, kind: str) -> ObjectRef | None:
        return self._state.manifests.get((unit, kind))


class _Trials:
    def __init__(self, state: State) -> None:
        self._state = state

    def add(self, lease: Lease, trial: TrialRecord) -> None:
        self._state.prove(lease, trial.key.unit)
        taken = [held.trial_id for held in self._counting() if held.key == trial.key and counts(trial)]
        if taken or trial.trial_id in self._state.trials:
            message = f"attempt {trial.key} already has trial {taken or trial.trial_id}"
            raise ConflictError(message)
        self._state.trials[trial.trial_id] = trial

    def get(self, trial_id: str) -> TrialRecord:
        return found(self._state.trials, trial_id)

    def of_unit(self, unit: str, *, every_sample: bool = False) -> tuple[TrialRecord, ...]:
        mine = (trial for trial in self._counting() if trial.key.unit == unit)
        return tuple(trial for trial in mine if every_sample or self._is_present(trial))

    def of_experiment(self, experiment_id: str) -> tuple[TrialRecord, ...]:
        mine = (trial for trial in self._counting() if trial.experiment_id == experiment_id)
        return tuple(trial for trial in mine if self._is_present(trial))

    def infra_failures(self, key: AttemptKey) -> int:
        return sum(
            trial.key == key and trial.outcome is TrialOutcome.INFRA_ERROR for trial in self._state.trials.values()
        )

    def add_assessment(self, lease: Lease, assessment: Assessment) -> None:
        self._state.prove(lease)
        found(self._state.trials, assessment.trial_id)
        key = (assessment.trial_id, assessment.assessor)
        if key in self._state.assessments and self._state.assessments[key][1].outcome is not AssessmentOutcome.UNGRADED:
            message = f"trial {key[0]} is already assessed by {key[1]}"
            raise ConflictError(message)
        self._state.assessments[key] = (lease.unit, assessment)

    def assessments(self, unit: str, assessor: str | None = None) -> tuple[Assessment, ...]:
        wanted = self._pinned(unit) if assessor is None else assessor
        found: list[tuple[tuple[str, int, int], Assessment]] = []
        for author, held in self._state.assessments.values():
            trial = self._state.trials[held.trial_id]
            key = trial.key
            if key.unit == unit and not self._is_present(trial):
                continue
            if (author == unit or (assessor is not None and key.unit == unit)) and is_by(held.assessor, wanted):
                found.append(((key.unit, key.group, key.attempt), held))
        return tuple(held for _, held in sorted(found, key=lambda pair: pair[0]))

    def assessments_of(self, trial_id: str) -> tuple[Assessment, ...]:
        return tuple(held for _, held in self._state.assessments.values() if held.trial_id == trial_id)

    def add_group(self, lease: Lease, group: QualifiedGroup, datums: ObjectRef | None) -> None:
        self._state.prove(lease, group.unit)
        self._state.groups[group.unit, group.group] = (group, datums)

    def groups(self, unit: str) -> tuple[tuple[QualifiedGroup, ObjectRef | None], ...]:
        mine = (pair for pair in self._state.groups.values() if pair[0].unit == unit)
        return tuple(sorted(mine, key=lambda pair: pair[0].group))

    def _counting(self) -> list[TrialRecord]:
        counting = (trial for trial in self._state.trials.values() if counts(trial))
        return sorted(counting, key=lambda trial: (trial.key.unit, trial.key.group, trial.key.attempt))

    def _is_present(self, trial: TrialRecord) -> bool:
        return trial.key.attempt >= self._state.units[trial.key.unit].first_attempt

    def _pinned(self, unit: str) -> str:
        held = self._state.units.get(unit)
        return "" if held is None else self._state.experiments[held.experiment_id].spec.assessor


class _Updates:
    def __init__(self, state: State) -> None:
        self._state = state

    def begin(self, lease: Lease, update: Update) -> Update:
        self._state.prove(lease, update.unit)
        fresh = dataclasses.replace(update, state=UpdateState.PREPARING, contributions=())
        return self._state.updates.setdefault(update.update_id, fresh)

    def get(self, update_id: str) -> Update:
        return found(self._state.updates, update_id)

    def of(self, experiment_id: str) -> tuple[Update, ...]:
        mine = (update for update in self._state.updates.values() if update.experiment_id == experiment_id)
        return tuple(sorted(mine, key=lambda update: update.index))

    def intend(self, lease: Lease, update_id: str, contributions: tuple[str, ...]) -> None:
        self._prove(lease, update_id)
        self._move(update_id, UpdateState.PREPARING, UpdateState.UNRESOLVED, contributions)

    def commit(self, lease: Lease, update_id: str, checkpoint: Checkpoint) -> None:
        self._prove(lease, update_id)
        self._apply(update_id, checkpoint)

    def skip(self, lease: Lease, update_id: str) -> None:
        self._prove(lease, update_id)
        self._move(update_id, UpdateState.PREPARING, UpdateState.SKIPPED)

    def reopen(self, update_id: str) -> None:
        self._move(update_id, UpdateState.UNRESOLVED, UpdateState.PREPARING, ())

    def resolve(self, update_id: str, state: UpdateState, checkpoint: Checkpoint | None) -> None:
        if state is not UpdateState.APPLIED or checkpoint is None:
            self.get(update_id)
            message = f"update {update_id} can only be resolved as applied"
            raise ConflictError(message)
        self._apply(update_id, checkpoint)

    def checkpoint(self, checkpoint_id: str) -> Checkpoint:
        experiment_id, mark, batch = checkpoint_id.rpartition("@")
        if mark and batch.isdecimal():
            return self._at_batch(experiment_id, int(batch))
        for held in self._state.checkpoints.values():
            if held.checkpoint_id == checkpoint_id:
                return held
        raise missing(checkpoint_id)

    def checkpoints(self, experiment_id: str | None = None) -> tuple[Checkpoint, ...]:
        return tuple(held for held in self._state.checkpoints.values() if experiment_id in {None, held.experiment_id})

    def policy(self, name: str) -> PolicyVersion:
        for policy in self._state.policies.values():
            if name == f"base-{policy.digest[:12]}":
                return PolicyVersion(name=name, base=policy.digest)
        return self.checkpoint(name).version

    def _at_batch(self, experiment_id: str, batch: int) -> Checkpoint:
        settled = {UpdateState.APPLIED, UpdateState.SKIPPED}
        mine = self.of(experiment_id)
        done = [update for update in mine if update.index <= batch and update.update_id in self._state.checkpoints]
        if not done or not any(update.index == batch and update.state in settled for update in mine):
            raise missing(f"{experiment_id}@{batch}")
        return self._state.checkpoints[done[-1].update_id]

    def _prove(self, lease: Lease, update_id: str) -> None:
        self._state.prove(lease)
        self._state.prove(lease, self.get(update_id).unit)

    def _apply(self, update_id: str, checkpoint: Checkpoint) -> None:
        update = self.get(update_id)
        if (checkpoint.unit, checkpoint.experiment_id) != (update.unit, update.experiment_id):
            message = f"checkpoint {checkpoint.checkpoint_id} is not of update {update_id}"
            raise ConflictError(message)
        for held in self._state.checkpoints.values():
            if held.checkpoint_id == checkpoint.checkpoint_id:
                weights = (checkpoint.version.base, checkpoint.version.adapter)
                same(held.checkpoint_id, (held.version.base, held.version.adapter), weights)
        self._move(update_id, UpdateState.UNRESOLVED, UpdateState.APPLIED)
        self._state.checkpoints[update_id] = checkpoint

    def _move(
        self, update_id: str, old: UpdateState, new: UpdateState, contributions: tuple[str, ...] | None = None
    ) -> None:
        held = self.get(update_id)
        if held.state is not old:
            message = f"update {update_id} is {held.state}, not {old}"
            raise ConflictError(message)
        kept = held.contributions if contributions is None else contributions
        self._state.updates[update_id] = dataclasses.replace(held, state=new, contributions=kept)


class _Events:
    def __init__(self, state: State) -> None:
        self._state = state

    def append(
        self,
        experiment_id: str,
        kind: str,
        at_ms: int,
        unit: str | None = None,
        body: Mapping[str, Json] | None = None,
    ) -> int:
        cursor = len(self._state.events) + 1
        self._state.events[cursor] = Event(
            cursor=cursor, experiment_id=experiment_id, unit=unit, kind=kind, at_ms=at_ms, body=body or {}
        )
        return cursor

    def after(self, experiment_id: str | None, cursor: int, limit: int = 500) -> tuple[Event, ...]:
        return tuple(
            event
            for event in self._state.events.values()
            if event.cursor > cursor and experiment_id in {None, event.experiment_id}
        )[:limit]


class _Tokens:
    def __init__(self, state: State) -> None:
        self._state = state

    def issue(self, lease: Lease, secret_sha256: str, scope: TokenScope) -> None:
        self._state.prove(lease, scope.unit)
        self._add(secret_sha256, scope, lease.fence)

    def issue_session(self, secret_sha256: str, scope: TokenScope) -> None:
        self._add(secret_sha256, dataclasses.replace(scope, unit=""), 0)

    def _add(self, secret_sha256: str, scope: TokenScope, fence: int) -> None:
        if secret_sha256 in self._state.tokens:
            message = f"the token of trial {scope.trial_id} was issued before"
            raise ConflictError(message)
        self._state.tokens[secret_sha256] = (scope, fence, False)

    def scope(self, secret_sha256: str, now_ms: int) -> TokenScope | None:
        scope, _, revoked = self._state.tokens.get(secret_sha256, (None, 0, True))
        return scope if scope is not None and not revoked and scope.expires_ms > now_ms else None

    def revoke_trial(self, trial_id: str) -> None:
        for secret, (scope, fence, _) in self._state.tokens.items():
            if scope.trial_id == trial_id:
                self._state.tokens[secret] = (scope, fence, True)

    def revoke_stale(self, unit: str, below_fence: int) -> None:
        for secret, (scope, fence, _) in self._state.tokens.items():
            if scope.unit == unit and fence < below_fence:
                self._state.tokens[secret] = (scope, fence, True)


class _Transaction:
    def __init__(self, state: State) -> None:
        self.catalog = _Catalog(state)
        self.experiments = _Experiments(state)
        self.units = _Units(state)
        self.trials = _Trials(state)
        self.updates = _Updates(state)
        self.events = _Events(state)
        self.tokens = _Tokens(state)
        self.grants = FakeGrants(state)


class FakeLedger:
    """See domain.ledger_ports.Ledger. Safe for threads; one transaction writes at a time."""

    def __init__(self) -> None:
        self._state = State()
        self._turn = threading.Lock()
        self._owner: int | None = None

    @contextmanager
    def begin(self) -> Generator[_Transaction]:
        """Open a write transaction on a copy, which becomes the state when the block ends well."""
        if self._owner == threading.get_ident():
            message = "this thread is already inside a write transaction"
            raise LedgerError(message)
        with self._turn:
            self._owner = threading.get_ident()
            try:
                state = self._state.copy()
                yield _Transaction(state)
                self._state = state
            finally:
                self._owner = None

    @contextmanager
    def snapshot(self) -> Generator[_Transaction]:
        """Open a read transaction; what it writes is lost."""
        yield _Transaction(self._state.copy())
