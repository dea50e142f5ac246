"""Regrade: assess retained outputs again, side by side with the canonical assessment, without running the actor."""

from dataclasses import replace

from domain.errors import ConfigurationError, NotFoundError
from domain.ledger_ports import Transaction
from domain.lifecycle.deadline import all_or_cancel
from domain.lifecycle.demand import shaped, trial_demand
from domain.lifecycle.lease import LEASE_TTL_S, hold
from domain.lifecycle.reassess import cannot_reassess, reassess, ungraded
from domain.lifecycle.steps import is_verified_inside
from domain.lifecycle.trial_context import TAMPERED
from domain.ports import Progress, Verifier
from domain.records.assessment import Assessment
from domain.records.canonical import digest_of
from domain.records.experiment import Experiment, ExperimentKind, ExperimentState, Lease, UnitState
from domain.records.manifest import AssessmentManifest, TrialManifest
from domain.records.names import unit_key
from domain.records.task import ObjectRef, Task
from domain.records.trial import TrialRecord
from domain.service.accept import Accepted, admit_unit
from domain.service.platform import Platform
from domain.service.task_pages import entries_with
from domain.service.units import admission_of


def accept_regrade(platform: Platform, source_id: str, *, idempotency_key: str | None = None) -> Accepted:
    """Accept a regrade of a finished experiment by its tasks' verifiers; its id names the assessor dimension.

    Raises:
        NotFoundError: no such experiment, or it has no retained trials.
        ConfigurationError: the source is itself a regrade, or is still running, or none of its tasks has a verifier
            that can run again.
    """
    _check_tasks(platform, source_id)
    now_ms = platform.clock.now_ms()
    with platform.ledger.begin() as tx:
        source = tx.experiments.get(source_id)
        _check_source(tx, source)
        # Whoever assessed imported trials, it is the tasks' own verifiers now.
        assessor = "verifier" if source.spec.kind is ExperimentKind.IMPORTED else source.spec.assessor
        spec = replace(source.spec, kind=ExperimentKind.REGRADE, source=source_id, assessor=assessor)
        n_units = len(tx.units.of(source_id))
        wanted = Experiment(
            experiment_id=f"{spec.kind.prefix}-{platform.clock.new_id()}",
            spec=spec,
            spec_digest=digest_of(spec),
            state=ExperimentState.ACCEPTED,
            n_units=n_units,
            created_ms=now_ms,
        )
        held = tx.experiments.add(wanted, idempotency_key)
        if held.experiment_id != wanted.experiment_id:
            return Accepted(experiment=held, created=False)
        tx.events.append(held.experiment_id, "experiment.accepted", now_ms, None, {"source": source_id})
        for index in range(n_units):
            admit_unit(tx, held, index, None, now_ms)
    return Accepted(experiment=held, created=True)


def _check_tasks(platform: Platform, source_id: str) -> None:
    """Refuse what would leave every trial ungraded; where some can be verified, the others are, by name."""
    with platform.ledger.snapshot() as tx:
        task_set, _ = tx.catalog.task_set(tx.experiments.get(source_id).spec.task_set)
    found = {
        kind.example.name: cannot_reassess(platform.records.load(Task, kind.example.record))
        for kind in task_set.classes
    }
    if found and all(found.values()):
        name, why = next(iter(found.items()))
        raise ConfigurationError(
            f"{source_id}: no task of {task_set.reference} can be verified again: {name}: {why}",
            hint="run the experiment again, with separate verifiers",
        )


def _check_source(tx: Transaction, source: Experiment) -> None:
    if source.spec.kind is ExperimentKind.REGRADE:
        raise ConfigurationError(
            f"{source.experiment_id} is a regrade itself", hint=f"regrade its source {source.spec.source}"
        )
    if not source.state.is_terminal():
        raise ConfigurationError(f"{source.experiment_id} is still {source.state.value}", hint="wait for its end")
    if not tx.trials.of_experiment(source.experiment_id):
        raise NotFoundError(f"{source.experiment_id}: no retained trials to regrade")


async def regrade_unit(
    platform: Platform, regrade_id: str, source_unit: str, holder: str, progress: Progress
) -> tuple[ObjectRef, AssessmentManifest]:
    """Assess every retained trial of a source unit for one regrade, in fresh boxes.

    Raises:
        NotFoundError: the source unit holds no trials.
        FenceError: another worker holds the regrade's unit.
    """
    with platform.ledger.begin() as tx:
        source = tx.units.get(source_unit)
        regrade = tx.experiments.get(regrade_id)
        trials_ref = tx.units.manifest(source_unit, "trials")
        unit = unit_key(regrade_id, source.index)
        lease = tx.units.acquire(unit, holder, platform.clock.now_ms(), LEASE_TTL_S)
    if trials_ref is None or regrade.spec.source != source.experiment_id:
        raise NotFoundError(f"{regrade_id}: {source_unit} holds no retained trials of {regrade.spec.source}")
    manifest = platform.records.load(TrialManifest, trials_ref)
    work = _assess_all(platform, regrade, manifest, lease, progress)
    assessments = await hold(platform.ledger, platform.clock, lease, work)
    result = AssessmentManifest(
        unit=source_unit, n_planned=manifest.n_planned, source=trials_ref.digest, assessments=tuple(assessments)
    )
    ref = platform.records.save(result)
    with platform.ledger.begin() as tx:
        tx.units.add_manifest(lease, "trials", trials_ref)
        tx.units.add_manifest(lease, "assessments", ref)
        tx.units.release(lease, UnitState.SUCCEEDED)
        tx.events.append(regrade_id, "unit.succeeded", platform.clock.now_ms(), unit)
    return ref, result


async def _assess_all(
    platform: Platform, regrade: Experiment, manifest: TrialManifest, lease: Lease, progress: Progress
) -> list[Assessment]:
    with platform.ledger.snapshot() as tx:
        task_set, _ = tx.catalog.task_set(regrade.spec.task_set)
        is_imported = tx.experiments.get(regrade.spec.source or "").spec.kind is ExperimentKind.IMPORTED
    entries = entries_with(platform.records, task_set, {trial.task_digest for trial in manifest.trials})
    tasks = {
        digest: shaped(platform.records.load(Task, entry.record), regrade.spec.plan)
        for digest, entry in entries.items()
    }
    verifier = platform.verifiers[regrade.spec.plan.sandbox]
    demands = {digest: trial_demand(task) for digest, task in tasks.items()}
    done = 0

    async def one(trial: TrialRecord) -> Assessment:
        nonlocal done
        async with admission.place(demands[trial.task_digest]):
            found = _unknown(verifier, tasks[trial.task_digest], trial) if is_imported else None
            task = tasks[trial.task_digest]
            found = found or await reassess(verifier, platform.store, task, trial, fence=lease.fence)
        done += 1
        progress("trial", done, len(manifest.trials))
        return found

    async with admission_of(platform, regrade, lease) as admission:
        return await all_or_cancel([one(trial) for trial in manifest.trials])


def _unknown(verifier: Verifier, task: Task, trial: TrialRecord) -> Assessment | None:
    """Return the verdict on an imported trial whose job did not keep what the verifier would look at."""
    if trial.outputs is not None or trial.missing_artifacts or is_verified_inside(task):
        return None
    if not trial.outcome.is_assessable() or trial.detail.startswith(TAMPERED):
        return None
    return ungraded(verifier, task, trial, "the imported job did not keep what the verifier would look at")
