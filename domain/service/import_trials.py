"""Import: a finished job of another tool becomes an experiment with trials, retained outputs and assessments.

Nothing is written to the ledger unless everything can be, and the same job is never there twice.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from domain.errors import ConfigurationError, NotFoundError
from domain.ledger_ports import Transaction
from domain.lifecycle.lease import LEASE_TTL_S
from domain.maths.qualification import qualify
from domain.ports.foreign import ForeignJob, ForeignTrial
from domain.records.assessment import Assessment, QualifiedGroup
from domain.records.canonical import digest_of
from domain.records.experiment import Experiment, ExperimentKind, ExperimentSpec, ExperimentState, UnitState
from domain.records.manifest import AssessmentManifest, GroupManifest, TrialManifest
from domain.records.names import Reference, unit_key
from domain.records.profile import Plan, Profile
from domain.records.task import ObjectRef, Task, TaskEntry, TaskSet
from domain.records.trial import AttemptKey, TrialOutcome, TrialRecord
from domain.records.wording import counted, one_of
from domain.service.accept import Accepted, admit_unit, derived_id, sortable_id
from domain.service.import_records import Encode, RecordMaker
from domain.service.platform import Platform
from domain.service.task_pages import entries_of

_MOST_PROBLEMS = 10
MOST_TRIALS = 20_000
"""Written in one transaction: some eight seconds, in which no worker's heartbeat gets through."""
_UNCOUNTED = {TrialOutcome.INFRA_ERROR, TrialOutcome.CANCELLED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Importer:
    """What an import needs beside the platform: how the tool names a task, and how evidence is kept."""

    platform: Platform
    task_digests: Callable[[bytes], frozenset[str]]
    """By which digests the tool knows the content of a task's archive; empty: nobody can tell."""
    encode: Encode


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """A trial at its place among the attempts."""

    trial: ForeignTrial
    entry: TaskEntry
    task: Task
    group: int
    attempt: int


def import_job(importer: Importer, job: ForeignJob, reference: Reference, *, sandbox: str, actor: str) -> Accepted:
    """Keep a job's trials as one experiment; the same job again returns the same experiment.

    Args:
        importer: the ports.
        job: read and checked.
        reference: the published task set with the job's tasks.
        sandbox: where a regrade will assess.
        actor: only trials of this agent, ``NAME`` or ``NAME MODEL``; empty: the only one there is.

    Raises:
        ConfigurationError: naming trial and field: its task is not in the set, or is another version of it; or there
            are too many trials.
        NotFoundError: no such task set.
    """
    platform = importer.platform
    with platform.ledger.snapshot() as tx:
        task_set, _ = tx.catalog.task_set(reference)
    if sandbox not in platform.sandboxes:
        raise ConfigurationError(f"--sandbox: no sandbox {sandbox!r}", hint=one_of(sandbox, sorted(platform.sandboxes)))
    trials = _of_actor(job, actor)
    if len(trials) > MOST_TRIALS:
        raise ConfigurationError(
            f"{job.where}: {len(trials)} trials, and one import takes {MOST_TRIALS}", hint="divide the directory"
        )
    placed = _placed(importer, job, trials, task_set)
    profile = Profile(name=trials[0].agent, engine=trials[0].agent, engine_version=trials[0].agent_version)
    spec = _spec(job, placed, task_set, profile, sandbox)
    key = derived_id("import", job.digest, str(reference), task_set.digest, sandbox, actor)
    wanted = Experiment(
        experiment_id=f"{spec.kind.prefix}-{sortable_id(job.created_ms, key)}",
        spec=spec,
        spec_digest=digest_of(spec),
        state=ExperimentState.RUNNING,
        n_units=1,
        created_ms=platform.clock.now_ms(),
    )
    if (held := _held(platform, wanted.experiment_id)) is not None:
        return Accepted(experiment=held, created=False)
    # Bytes first: a transaction holds up every worker's heartbeat.
    made = _make(importer, wanted, placed, key)
    with platform.ledger.begin() as tx:
        tx.experiments.add(wanted, key)
        if tx.units.of(wanted.experiment_id):
            return Accepted(experiment=tx.experiments.get(wanted.experiment_id), created=False)
        tx.catalog.add_profile(profile, spec.actor_digest, None)
        _write(tx, wanted, made, platform.clock.now_ms())
        return Accepted(experiment=tx.experiments.get(wanted.experiment_id), created=True)


def _held(platform: Platform, experiment_id: str) -> Experiment | None:
    with platform.ledger.snapshot() as tx:
        try:
            return tx.experiments.get(experiment_id)
        except NotFoundError:
            return None


def _of_actor(job: ForeignJob, actor: str) -> list[ForeignTrial]:
    actors = sorted({_actor(trial) for trial in job.trials})
    if not actor and len(actors) > 1:
        raise ConfigurationError(
            f"{job.where}: trials of {counted(len(actors), 'agent')}: {', '.join(actors)}", hint="name one with --agent"
        )
    trials = [trial for trial in job.trials if not actor or actor in {_actor(trial), trial.agent}]
    chosen = sorted({_actor(trial) for trial in trials})
    if len(chosen) != 1:
        raise ConfigurationError(
            f"--agent: {actor!r} names {counted(len(chosen), 'agent')}", hint=one_of(actor, actors)
        )
    return trials


def _actor(trial: ForeignTrial) -> str:
    return " ".join(part for part in (trial.agent, trial.model) if part)


def _placed(
    importer: Importer, job: ForeignJob, trials: Sequence[ForeignTrial], task_set: TaskSet
) -> tuple[_Placed, ...]:
    """Return the trials in order of task and start.

    Raises:
        ConfigurationError: naming each trial whose task is not in the set.
    """
    platform = importer.platform
    taken = {trial.task_name for trial in trials}
    entries = {entry.name: entry for entry in entries_of(platform.records, task_set) if entry.name in taken}
    order = {name: position for position, name in enumerate(entries)}
    known: dict[str, tuple[Task, frozenset[str]]] = {}
    numbers: dict[str, int] = {}
    problems: list[str] = []
    found: list[_Placed] = []
    for trial in sorted(trials, key=lambda item: (item.started_ms, item.name)):
        name = trial.task_name
        if name not in entries:
            problems.append(f"{trial.name}/result.json: task_name: {name!r} is not in {task_set.reference}")
            continue
        if name not in known:
            task = platform.records.load(Task, entries[name].record)
            known[name] = task, importer.task_digests(platform.store.get(task.archive)) | {task.digest}
        task, digests = known[name]
        problems += _strangers(trial, task, digests)
        numbers[name] = numbers.get(name, -1) + 1
        found.append(_Placed(trial=trial, entry=entries[name], task=task, group=order[name], attempt=numbers[name]))
    if problems:
        more = f"; and {len(problems) - _MOST_PROBLEMS} more" if len(problems) > _MOST_PROBLEMS else ""
        raise ConfigurationError(
            f"{job.where}: {'; '.join(problems[:_MOST_PROBLEMS])}{more}",
            hint="publish the tasks that the job ran, and name them with --dataset",
        )
    return tuple(sorted(found, key=lambda item: (item.group, item.attempt)))


def _strangers(trial: ForeignTrial, task: Task, digests: frozenset[str]) -> list[str]:
    """Return what of a trial cannot be of this task. What one task's trial left says nothing about another."""
    problems: list[str] = []
    if len(digests) > 1 and not digests & trial.task_digests:
        problems.append(f"{trial.name}/lock.json: task.digest: another version of {task.name!r} than the set has")
    declared = {step.name for step in task.steps}
    ran = {phase.name for phase in trial.phases if phase.name}
    if ran - declared or (trial.phases and bool(declared) != bool(ran)):
        names = ", ".join(sorted(ran)) or "none"
        problems.append(f"{trial.name}/result.json: step_results: {names}, and the task has {len(declared)} steps")
    return problems


def _spec(
    job: ForeignJob, placed: Sequence[_Placed], task_set: TaskSet, profile: Profile, sandbox: str
) -> ExperimentSpec:
    n_tasks = len({item.group for item in placed})
    attempts = max(job.n_attempts, *(item.attempt + 1 for item in placed))
    model = placed[0].trial.model
    labels = {"imported_from": job.tool, "job": job.name, "job_digest": job.digest, **job.labels}
    return ExperimentSpec(
        kind=ExperimentKind.IMPORTED,
        task_set=task_set.reference,
        task_set_digest=task_set.digest,
        actor_digest=digest_of(profile),
        assessor=f"import:{job.tool}",
        plan=Plan(attempts=attempts, tasks=n_tasks, sandbox=sandbox, shard_tasks=max(n_tasks, Plan().shard_tasks)),
        labels=labels if model is None else {**labels, "model": model},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """Every record of an import, before the ledger knows of it."""

    unit: str
    trials: tuple[TrialRecord, ...]
    assessments: Mapping[str, Assessment]
    groups: tuple[QualifiedGroup, ...]
    manifests: Mapping[str, ObjectRef]


def _make(importer: Importer, experiment: Experiment, placed: Sequence[_Placed], seed: str) -> _Made:
    """Keep the bytes and make the records; nothing refers to them until the ledger does."""
    unit = unit_key(experiment.experiment_id, 0)
    maker = RecordMaker(store=importer.platform.store, encode=importer.encode, experiment=experiment, seed=seed)
    pairs = [
        maker.record(item.trial, item.task, AttemptKey(unit=unit, group=item.group, attempt=item.attempt))
        for item in placed
    ]
    trials = tuple(trial for trial, _ in pairs)
    assessments = {trial.trial_id: assessment for trial, assessment in pairs}
    entries = {item.group: item.entry for item in placed}
    groups = tuple(_group(unit, number, entry, trials, assessments) for number, entry in sorted(entries.items()))
    return _Made(
        unit=unit,
        trials=trials,
        assessments=assessments,
        groups=groups,
        manifests=_manifests(importer.platform, experiment.spec.plan, unit, trials, assessments, groups),
    )


def _group(
    unit: str, number: int, entry: TaskEntry, trials: Sequence[TrialRecord], assessments: Mapping[str, Assessment]
) -> QualifiedGroup:
    return qualify(
        unit=unit,
        group=number,
        task=entry,
        trials=[item for item in trials if item.key.group == number and item.outcome not in _UNCOUNTED],
        assessments=assessments,
        interactions=None,
        policy=None,
        require_evidence=False,
    )


def _manifests(
    platform: Platform,
    plan: Plan,
    unit: str,
    trials: tuple[TrialRecord, ...],
    assessments: Mapping[str, Assessment],
    groups: tuple[QualifiedGroup, ...],
) -> dict[str, ObjectRef]:
    save, planned = platform.records.save, (plan.tasks or 0) * plan.attempts
    first = save(TrialManifest(unit=unit, n_planned=planned, trials=trials))
    panel = tuple(assessments[trial.trial_id] for trial in trials)
    second = save(AssessmentManifest(unit=unit, n_planned=planned, source=first.digest, assessments=panel))
    third = save(GroupManifest(unit=unit, source=second.digest, groups=groups))
    return {"trials": first, "assessments": second, "qualified_groups": third}


def _write(tx: Transaction, experiment: Experiment, made: _Made, now_ms: int) -> None:
    """Write everything, from acceptance to the end, in one transaction."""
    experiment_id = experiment.experiment_id
    tx.events.append(
        experiment_id, "experiment.accepted", now_ms, None, {"spec_digest": experiment.spec_digest, "n_units": 1}
    )
    admit_unit(tx, experiment, 0, None, now_ms)
    lease = tx.units.acquire(made.unit, "import", now_ms, LEASE_TTL_S)
    for trial in made.trials:
        tx.trials.add(lease, trial)
        if trial.outcome not in _UNCOUNTED:
            tx.trials.add_assessment(lease, made.assessments[trial.trial_id])
    for group in made.groups:
        tx.trials.add_group(lease, group, None)
    for kind, ref in made.manifests.items():
        tx.units.add_manifest(lease, kind, ref)
    tx.units.release(lease, UnitState.SUCCEEDED)
    tx.events.append(experiment_id, "unit.succeeded", now_ms, made.unit)
    tx.experiments.set_state(experiment_id, ExperimentState.SUCCEEDED)
    tx.events.append(experiment_id, "experiment.succeeded", now_ms, None, {"n_trials": len(made.trials)})
