"""Running a unit: the worker's use case. One call samples, assesses, qualifies and packs what is missing."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from domain.errors import ConfigurationError, NotFoundError, StoreError
from domain.ledger_ports import Transaction
from domain.lifecycle.admission import Admission, Claimant
from domain.lifecycle.deadline import all_or_cancel
from domain.lifecycle.demand import shaped, trial_demand
from domain.lifecycle.group import Group, GroupContext, GroupResult, run_group
from domain.lifecycle.lease import LEASE_TTL_S, UnitCancelledError, hold
from domain.lifecycle.schedule import unit_positions
from domain.lifecycle.trial import TrialContext
from domain.ports import Progress
from domain.records.assessment import AssessmentOutcome
from domain.records.experiment import Experiment, ExperimentKind, Lease, Unit, UnitState
from domain.records.manifest import AssessmentManifest, DatumManifest, GroupManifest, TrialManifest
from domain.records.task import ObjectRef, Task, TaskEntry, TaskSet
from domain.records.trial import AttemptKey, TrialOutcome, TrialRecord
from domain.service.learning import open_training
from domain.service.platform import Platform
from domain.service.samples import begin_sample
from domain.service.task_pages import entries_at


class Stage(StrEnum):
    """The products of a unit, in order."""

    TRIALS = "trials"
    ASSESSMENTS = "assessments"
    QUALIFIED_GROUPS = "qualified_groups"
    DATUMS = "datums"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitResult:
    """The manifests of a unit after a run, by reference and by value."""

    unit: Unit
    experiment: Experiment
    refs: dict[Stage, ObjectRef]
    trials: TrialManifest
    assessments: AssessmentManifest | None
    groups: GroupManifest | None
    datums: DatumManifest | None


def unit_spec(platform: Platform, unit: str) -> tuple[Unit, Experiment, TaskSet]:
    """Read and re-check what a unit pins.

    Raises:
        NotFoundError: no such unit.
        ConfigurationError: the pinned task set is not what was accepted.
    """
    with platform.ledger.snapshot() as tx:
        row = tx.units.get(unit)
        experiment = tx.experiments.get(row.experiment_id)
        task_set, _ = tx.catalog.task_set(experiment.spec.task_set)
    if task_set.digest != experiment.spec.task_set_digest:
        raise ConfigurationError(f"{unit}: task set {task_set.reference} changed since acceptance")
    return row, experiment, task_set


async def run_unit(
    platform: Platform,
    unit: str,
    holder: str,
    stages: frozenset[Stage],
    progress: Progress,
    *,
    fresh: str | None = None,
) -> UnitResult:
    """Bring a unit to the end of ``stages``: finished trials are kept, only what is missing runs.

    Without ``Stage.TRIALS`` nothing is sampled: retained trials are assessed, qualified and packed.

    Args:
        platform: the ports.
        unit: the partition.
        holder: who works; takes the lease.
        stages: the products wanted.
        progress: told of each trial and group as it is done.
        fresh: asks for a fresh sample, and names the request: the same name continues the sample it began.

    Raises:
        ConfigurationError: a fresh sample without ``Stage.TRIALS``, or the unit's trials were imported.
        ConflictError: a fresh sample of a batch whose optimizer step is taken.
        FenceError: another worker holds the unit.
        UnitCancelledError: the operator cancelled the experiment.
    """
    row, experiment, task_set = unit_spec(platform, unit)
    if experiment.spec.kind is ExperimentKind.IMPORTED:
        raise ConfigurationError(
            f"{unit}: its trials were imported, and ended elsewhere", hint="synth run regrade assesses them here"
        )
    if fresh is not None and Stage.TRIALS not in stages:
        raise ConfigurationError(f"{unit}: a fresh sample makes trials", hint="select `trials` too")
    before = row.state
    now_ms = platform.clock.now_ms()
    with platform.ledger.begin() as tx:
        lease = tx.units.acquire(unit, holder, now_ms, LEASE_TTL_S)
        tx.tokens.revoke_stale(unit, lease.fence)
        if fresh is not None:
            begin_sample(tx, row, experiment, fresh, now_ms)
            row = replace(row, first_attempt=tx.units.get(unit).first_attempt)
    try:
        work = _work(platform, row, experiment, task_set, lease, stages, progress)
        result = await hold(platform.ledger, platform.clock, lease, work)
    except UnitCancelledError as error:
        with platform.ledger.begin() as tx:
            tx.units.release(lease, UnitState.CANCELLED, detail=str(error))
        raise
    _settle(platform, result, lease, stages, before)
    return result


def _settle(platform: Platform, result: UnitResult, lease: Lease, stages: frozenset[Stage], before: UnitState) -> None:
    """Name the manifests, and end the lease unless the optimizer step of a training still follows in this run."""
    with platform.ledger.begin() as tx:
        for stage, ref in result.refs.items():
            tx.units.add_manifest(lease, stage.value, ref)
        if before.is_terminal():
            tx.units.release(lease, before)
        elif result.experiment.spec.kind is ExperimentKind.TRAINING:
            tx.units.check(lease)
        elif Stage.QUALIFIED_GROUPS in stages or result.experiment.spec.kind is ExperimentKind.UNSCORED:
            tx.units.release(lease, UnitState.SUCCEEDED)
            tx.events.append(result.experiment.experiment_id, "unit.succeeded", platform.clock.now_ms(), lease.unit)
        else:
            tx.units.release(lease, UnitState.ADMITTED)


async def _work(
    platform: Platform,
    row: Unit,
    experiment: Experiment,
    task_set: TaskSet,
    lease: Lease,
    stages: frozenset[Stage],
    progress: Progress,
) -> UnitResult:
    groups = _groups(platform, row, experiment, task_set)
    if row.policy is not None and Stage.TRIALS in stages:
        await platform.model.serve(row.policy)
    streams = False
    if experiment.spec.kind is ExperimentKind.TRAINING and Stage.DATUMS in stages:
        streams = await open_training(platform, experiment, row)
    async with admission_of(platform, experiment, lease) as admission:
        context = replace(
            _context(platform, row, experiment, lease, stages, _Tally(groups, progress), admission),
            streams_contributions=streams,
        )
        results = await all_or_cancel([run_group(context, group) for group in groups])
    return await asyncio.to_thread(_manifests, platform, row, experiment, groups, results)


def admission_of(platform: Platform, experiment: Experiment, lease: Lease) -> Admission:
    """Return what admits the work of a unit of an experiment."""
    claimant = Claimant(
        lease=lease,
        experiment_id=experiment.experiment_id,
        weight=experiment.spec.plan.weight,
        at_once=experiment.spec.plan.concurrency,
    )
    return Admission(platform.ledger, platform.clock, claimant, platform.budget)


class _Tally:
    """Counts what is done for the progress callback."""

    def __init__(self, groups: list[Group], progress: Progress) -> None:
        self._progress = progress
        self._totals = {"trial": sum(group.n_attempts for group in groups), "group": len(groups)}
        self._done = {"trial": 0, "group": 0}

    def note(self, what: str) -> None:
        """Count one."""
        self._done[what] += 1
        self._progress(what, self._done[what], self._totals[what])


def _context(
    platform: Platform,
    row: Unit,
    experiment: Experiment,
    lease: Lease,
    stages: frozenset[Stage],
    tally: _Tally,
    admission: Admission,
) -> GroupContext:
    spec = experiment.spec
    with platform.ledger.snapshot() as tx:
        profile = tx.catalog.profile(spec.actor_digest)
    scored = spec.kind is not ExperimentKind.UNSCORED and stages != frozenset({Stage.TRIALS})
    return GroupContext(
        trial=TrialContext(
            clock=platform.clock,
            ledger=platform.ledger,
            store=platform.store,
            sandbox=platform.sandboxes[spec.plan.sandbox],
            engine=platform.engines[profile.engine],
            model=platform.model,
            profile=profile,
            profile_digest=spec.actor_digest,
            plan=spec.plan,
            experiment_id=experiment.experiment_id,
            lease=lease,
            policy=row.policy.name if row.policy else None,
            # Whatever stages are asked for: a step is verified while its trial runs, or never.
            verifier=None if spec.kind is ExperimentKind.UNSCORED else platform.verifiers[spec.plan.sandbox],
            variables=platform.variables,
        ),
        verifier=platform.verifiers[spec.plan.sandbox] if scored else None,
        datum_tables=platform.datum_tables,
        trainer=platform.trainer,
        optimisation=spec.plan.optimisation if Stage.DATUMS in stages else None,
        admission=admission,
        archive_of=_archives(platform, spec.plan.concurrency),
        may_sample=Stage.TRIALS in stages,
        note=tally.note,
    )


def _groups(platform: Platform, row: Unit, experiment: Experiment, task_set: TaskSet) -> list[Group]:
    """Return the unit's groups with what earlier runs settled."""
    positions = unit_positions(experiment.spec, task_set.n_tasks, row.index)
    entries = entries_at(platform.records, task_set, positions)
    with platform.ledger.snapshot() as tx:
        trials = {(trial.key.group, trial.key.attempt): trial for trial in tx.trials.of_unit(row.unit)}
        settled = {
            assessment.trial_id: assessment
            for assessment in tx.trials.assessments(row.unit)
            if assessment.outcome is not AssessmentOutcome.UNGRADED
        }
        attempts = range(row.first_attempt, row.first_attempt + experiment.spec.plan.attempts)
        failures = _failures(tx, row.unit, entries, attempts, trials)
    tasks: dict[str, Task] = {}
    groups: list[Group] = []
    for index, entry in enumerate(entries):
        if entry.digest not in tasks:
            tasks[entry.digest] = shaped(platform.records.load(Task, entry.record), experiment.spec.plan)
        task = tasks[entry.digest]
        groups.append(
            Group(
                unit=row.unit,
                index=index,
                task=task,
                n_attempts=len(attempts),
                demand=trial_demand(task),
                trials={number: trials[index, number] for number in attempts if (index, number) in trials},
                assessments=settled,
                n_failures=failures.get(index, {}),
                first_attempt=row.first_attempt,
            )
        )
    return groups


def _failures(
    tx: Transaction,
    unit: str,
    entries: Sequence[TaskEntry],
    attempts: range,
    settled: Mapping[tuple[int, int], TrialRecord],
) -> dict[int, dict[int, int]]:
    """Return, by group and attempt, how many trials of each open attempt infrastructure has cost."""
    found: dict[int, dict[int, int]] = {}
    for group in range(len(entries)):
        for attempt in attempts:
            if (group, attempt) not in settled:
                key = AttemptKey(unit=unit, group=group, attempt=attempt)
                found.setdefault(group, {})[attempt] = tx.trials.infra_failures(key)
    return found


def _archives(platform: Platform, n_kept: int) -> Callable[[Task], bytes]:
    """Return a reader of tasks' files that keeps those of the last ``n_kept`` tasks: attempts follow one another."""

    @lru_cache(n_kept)
    def read(name: str, ref: ObjectRef) -> bytes:
        try:
            return platform.store.get(ref)
        except NotFoundError as error:
            raise StoreError(f"{name}: its archive {ref.digest[:12]} is gone from the store") from error

    return lambda task: read(task.name, task.archive)


def _manifests(
    platform: Platform, row: Unit, experiment: Experiment, groups: list[Group], results: list[GroupResult]
) -> UnitResult:
    planned = sum(group.n_attempts for group in groups)
    records = platform.records
    refs: dict[Stage, ObjectRef] = {}
    trials = TrialManifest(
        unit=row.unit, n_planned=planned, trials=tuple(trial for result in results for trial in result.trials)
    )
    refs[Stage.TRIALS] = records.save(trials)
    assessments = groups_manifest = datums = None
    if any(result.qualified is not None for result in results):
        assessments = AssessmentManifest(
            unit=row.unit,
            n_planned=planned,
            source=refs[Stage.TRIALS].digest,
            assessments=tuple(item for result in results for item in result.assessments),
        )
        refs[Stage.ASSESSMENTS] = records.save(assessments)
        groups_manifest = GroupManifest(
            unit=row.unit,
            source=refs[Stage.ASSESSMENTS].digest,
            groups=tuple(result.qualified for result in results if result.qualified is not None),
        )
        refs[Stage.QUALIFIED_GROUPS] = records.save(groups_manifest)
        if experiment.spec.kind is ExperimentKind.TRAINING:
            tables = tuple(result.datums for result in results if result.datums is not None)
            datums = DatumManifest(unit=row.unit, source=refs[Stage.QUALIFIED_GROUPS].digest, tables=tables)
            refs[Stage.DATUMS] = records.save(datums)
    return UnitResult(
        unit=row,
        experiment=experiment,
        refs=refs,
        trials=trials,
        assessments=assessments,
        groups=groups_manifest,
        datums=datums,
    )


def outcome_counts(manifest: TrialManifest) -> dict[str, int]:
    """Return how many planned attempts ended how; attempts without a record count as ``missing``."""
    counts = dict.fromkeys((outcome.value for outcome in TrialOutcome), 0)
    for trial in manifest.trials:
        counts[trial.outcome.value] += 1
    counts["missing"] = manifest.n_planned - len(manifest.trials)
    return counts
