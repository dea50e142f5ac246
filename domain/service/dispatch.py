"""Dispatch: reconcile the ledger into what should run next. Stateless: the same ledger gives the same answer."""

from dataclasses import dataclass, replace

from domain.errors import NotFoundError
from domain.ledger_ports import Transaction
from domain.records.canonical import Json
from domain.records.experiment import (
    Experiment,
    ExperimentKind,
    ExperimentState,
    Unit,
    UnitState,
)
from domain.records.model import UpdateState
from domain.records.profile import Plan
from domain.service.accept import Accepted, Submission, accept, admit_unit, derived_id
from domain.service.inspection import checkpoint_of
from domain.service.platform import Platform
from domain.service.relaunch import end_lease, relaunch

_DISPATCHER = "dispatcher"
"""Holds the lease of a worker that is gone, for as long as it takes to end it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitLaunch:
    """A unit to run, and the facts its admission pins."""

    unit: str
    experiment_id: str
    kind: ExperimentKind
    generation: int
    admission: dict[str, Json]

    @property
    def run_key(self) -> str:
        """Dagster's run key: never repeats for another generation."""
        return f"{self.unit}#{self.generation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """What one tick found."""

    launches: tuple[UnitLaunch, ...]
    reports: tuple[str, ...]
    """Experiments whose units have all ended and which now want their evaluation materialized."""
    blocked: tuple[str, ...]
    """Why something waits, one line each."""


def dispatch(platform: Platform, *, limit: int = 20) -> Dispatch:
    """Return what to launch now, and move what needs no run (cancelled, dead workers, finished trainings)."""
    launches: list[UnitLaunch] = []
    reports: list[str] = []
    blocked: list[str] = []
    ended: list[Experiment] = []
    now_ms = platform.clock.now_ms()
    with platform.ledger.begin() as tx:
        for experiment in tx.experiments.open():
            units = tuple(_revive(tx, unit, now_ms) for unit in tx.units.of(experiment.experiment_id))
            if experiment.cancel_requested:
                _cancel(tx, experiment, units, now_ms)
                continue
            units = _advance_training(tx, experiment, units, now_ms)
            blocked += [f"{unit.unit}: {unit.detail}" for unit in units if unit.state is UnitState.BLOCKED]
            waiting = [unit for unit in units if unit.state is UnitState.ADMITTED and unit.retry_at_ms <= now_ms]
            launches += [_launch(experiment, unit) for unit in waiting[: max(0, limit - len(launches))]]
            if waiting and experiment.state is ExperimentState.ACCEPTED:
                tx.experiments.set_state(experiment.experiment_id, ExperimentState.RUNNING)
            if _all_ended(experiment, units):
                if _wants_report(experiment, units):
                    reports.append(experiment.experiment_id)
                else:
                    ended.append(experiment)
    for experiment in ended:
        _conclude(platform, experiment)
    return Dispatch(launches=tuple(launches), reports=tuple(reports), blocked=tuple(blocked))


def unit_run_ended(platform: Platform, unit: str, *, reason: str, cancelled: bool = False) -> None:
    """Note that the run process of a unit failed or was cancelled in Dagster: the unit runs again unless cancelled."""
    with platform.ledger.begin() as tx:
        row = tx.units.get(unit)
        if row.state.is_terminal() or row.state is UnitState.BLOCKED:
            return
        if cancelled:
            tx.units.set_state(unit, UnitState.CANCELLED, detail=reason)
        else:
            relaunch(tx, row, reason, platform.clock.now_ms())


def request_cancel(platform: Platform, experiment_id: str) -> None:
    """Ask for the end of an experiment; its worker learns of it by heartbeat."""
    with platform.ledger.begin() as tx:
        experiment = tx.experiments.get(experiment_id)
        if not experiment.state.is_terminal() and not experiment.cancel_requested:
            tx.experiments.request_cancel(experiment_id)
            tx.events.append(experiment_id, "experiment.cancel_requested", platform.clock.now_ms())


def evaluate_checkpoint(
    platform: Platform, checkpoint_id: str, *, training_id: str | None = None, is_last: bool = False
) -> Accepted | None:
    """Accept the evaluation that a training's plan wants of a checkpoint; None when it wants none.

    The identity is derived from checkpoint and task set, so a replayed sensor tick changes nothing.

    Args:
        platform: the ports.
        checkpoint_id: names the weights.
        training_id: the training it is evaluated for; two trainings may reach the same weights, hence the same id.
        is_last: whether the training ends with it, whatever its batch.
    """
    with platform.ledger.snapshot() as tx:
        checkpoint = checkpoint_of(tx, checkpoint_id, training_id)
        training = tx.experiments.get(training_id or checkpoint.experiment_id)
    plan = training.spec.plan
    is_last = is_last or checkpoint.next_batch >= plan.batches
    due = is_last or (plan.evaluate_every > 0 and checkpoint.next_batch % plan.evaluate_every == 0)
    if plan.evaluate_on is None or not due:
        return None
    return accept(
        platform,
        Submission(
            kind=ExperimentKind.EVALUATION,
            task_set=plan.evaluate_on,
            actor=training.spec.actor_digest,
            plan=evaluation_plan(training),
            model=f"checkpoint:{checkpoint_id}",
            source=training.experiment_id,
            labels={"checkpoint": checkpoint_id, "batch": str(checkpoint.next_batch)},
            idempotency_key=derived_id("eval", checkpoint_id, plan.evaluate_on, training.experiment_id),
        ),
    )


def evaluation_plan(training: Experiment) -> Plan:
    """Return the plan with which a training's checkpoints are evaluated."""
    return replace(
        training.spec.plan,
        attempts=training.spec.plan.evaluate_attempts,
        tasks=None,
        batches=0,
        groups_per_batch=0,
        optimisation=None,
        evaluate_on=None,
        evaluate_every=0,
    )


def _launch(experiment: Experiment, unit: Unit) -> UnitLaunch:
    spec = experiment.spec
    return UnitLaunch(
        unit=unit.unit,
        experiment_id=experiment.experiment_id,
        kind=spec.kind,
        generation=unit.generation,
        admission={
            "experiment": experiment.experiment_id,
            "kind": spec.kind.value,
            "task_set": str(spec.task_set),
            "task_set_digest": spec.task_set_digest,
            "actor": spec.actor_digest,
            "assessor": spec.assessor,
            "policy": unit.policy.name if unit.policy else None,
            "spec": experiment.spec_digest,
            "source": spec.source,
        },
    )


def _revive(tx: Transaction, unit: Unit, now_ms: int) -> Unit:
    if unit.state is UnitState.RUNNING and unit.lease_expires_ms < now_ms:
        return relaunch(tx, end_lease(tx, unit, _DISPATCHER, now_ms), "the worker's lease expired", now_ms)
    return unit


def _cancel(tx: Transaction, experiment: Experiment, units: tuple[Unit, ...], now_ms: int) -> None:
    held = [unit for unit in units if unit.state is UnitState.RUNNING]
    for unit in units:
        if not unit.state.is_terminal() and unit not in held:
            tx.units.set_state(unit.unit, UnitState.CANCELLED, detail="cancelled by the operator")
    if not held:
        tx.experiments.set_state(experiment.experiment_id, ExperimentState.CANCELLED)
        tx.events.append(experiment.experiment_id, "experiment.cancelled", now_ms)


def _advance_training(
    tx: Transaction, experiment: Experiment, units: tuple[Unit, ...], now_ms: int
) -> tuple[Unit, ...]:
    """Admit the next batch when an operator's word resolved the last one outside a run."""
    last = units[-1] if units else None
    if experiment.spec.kind is not ExperimentKind.TRAINING or last is None:
        return units
    if last.state is not UnitState.SUCCEEDED or last.index + 1 >= experiment.n_units:
        return units
    try:
        update = tx.updates.get(last.unit)
    except NotFoundError:
        return units
    policy = update.parent
    if update.state is UpdateState.APPLIED:
        policy = tx.updates.checkpoint(f"{experiment.experiment_id}@{last.index}").version
    admit_unit(tx, experiment, last.index + 1, policy, now_ms)
    return tx.units.of(experiment.experiment_id)


def _all_ended(experiment: Experiment, units: tuple[Unit, ...]) -> bool:
    if any(unit.state in {UnitState.FAILED, UnitState.CANCELLED} for unit in units):
        return all(unit.state.is_terminal() for unit in units)
    return len(units) == experiment.n_units and all(unit.state.is_terminal() for unit in units)


def _wants_report(experiment: Experiment, units: tuple[Unit, ...]) -> bool:
    reported = experiment.spec.kind in {ExperimentKind.EVALUATION, ExperimentKind.REGRADE}
    return reported and all(unit.state is UnitState.SUCCEEDED for unit in units)


def _conclude(platform: Platform, experiment: Experiment) -> None:
    """End an experiment that needs no report; a training's last checkpoint has its evaluation accepted before."""
    experiment_id = experiment.experiment_id
    with platform.ledger.snapshot() as tx:
        succeeded = all(unit.state is UnitState.SUCCEEDED for unit in tx.units.of(experiment_id))
        checkpoints = tx.updates.checkpoints(experiment_id)
    if succeeded and checkpoints:
        # The last batch may have carried no signal, so the last checkpoint need not be the last batch's.
        evaluate_checkpoint(platform, checkpoints[-1].checkpoint_id, training_id=experiment_id, is_last=True)
    state = ExperimentState.SUCCEEDED if succeeded else ExperimentState.FAILED
    with platform.ledger.begin() as tx:
        tx.experiments.set_state(experiment_id, state)
        tx.events.append(experiment_id, f"experiment.{state.value}", platform.clock.now_ms())


def conclude_evaluation(platform: Platform, experiment_id: str, *, succeeded: bool, detail: str = "") -> None:
    """End an evaluation once its report is materialized, or could not be."""
    with platform.ledger.begin() as tx:
        if tx.experiments.get(experiment_id).state.is_terminal():
            return
        state = ExperimentState.SUCCEEDED if succeeded else ExperimentState.FAILED
        tx.experiments.set_state(experiment_id, state)
        tx.events.append(experiment_id, f"experiment.{state.value}", platform.clock.now_ms(), None, {"detail": detail})
