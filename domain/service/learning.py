"""Learning coordination: trainer sessions, the fence around the optimizer step, checkpoints, the next batch."""

from dataclasses import dataclass

from domain.errors import ConfigurationError, ConflictError, LedgerError, TrainerError, UnresolvedUpdateError
from domain.ledger_ports import Transaction
from domain.lifecycle.group import contribution_of
from domain.lifecycle.lease import LEASE_TTL_S, hold
from domain.ports import Contribution, StepResult, StepStatus, TrainingRun
from domain.records.experiment import Experiment, Lease, Unit, UnitState
from domain.records.model import Checkpoint, FileEntry, PolicyVersion, Update, UpdateState
from domain.records.names import is_training
from domain.records.profile import Optimisation
from domain.service.accept import admit_unit
from domain.service.platform import Platform

_RESOLVED = {
    UpdateState.PREPARING: ("its step has not been sent yet", "the batch goes on by itself while `synth up` runs"),
    UpdateState.APPLIED: ("its step is taken and recorded", "the training has gone on from its checkpoint"),
    UpdateState.SKIPPED: ("its groups carried no signal, so it took no step", "the training has gone on"),
}
"""Why an update needs no operator, and what becomes of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """What became of a unit's update."""

    update: Update
    checkpoint: Checkpoint | None
    """None when the batch carried no signal and the policy stayed."""


async def open_training(platform: Platform, experiment: Experiment, row: Unit) -> bool:
    """Bring the trainer to the state this unit starts from, and say whether groups may contribute as they end.

    False when the step is already behind the fence: then only evidence decides, and nothing is submitted.
    """
    with platform.ledger.snapshot() as tx:
        update = next((item for item in tx.updates.of(experiment.experiment_id) if item.unit == row.unit), None)
        state = _parent_state(tx, experiment, row)
    if update is not None and update.state is not UpdateState.PREPARING:
        return False
    await platform.trainer.open(_run(experiment), state)
    await platform.trainer.begin_update(experiment.experiment_id, row.unit)
    return True


async def advance(platform: Platform, unit: str, holder: str) -> Advance:
    """Take the unit's optimizer step, exactly once, and admit the next batch.

    Raises:
        UnresolvedUpdateError: a step may have happened and nothing proves whether; says how to resolve it.
        FenceError: another worker holds the unit.
    """
    with platform.ledger.begin() as tx:
        row = tx.units.get(unit)
        experiment = tx.experiments.get(row.experiment_id)
        lease = tx.units.acquire(unit, holder, platform.clock.now_ms(), LEASE_TTL_S)
    return await hold(platform.ledger, platform.clock, lease, _advance(platform, experiment, row, lease))


async def _advance(platform: Platform, experiment: Experiment, row: Unit, lease: Lease) -> Advance:
    if row.policy is None:
        raise LedgerError(f"{row.unit}: a training unit without a policy")
    with platform.ledger.begin() as tx:
        update = tx.updates.begin(
            lease,
            Update(
                update_id=row.unit,
                experiment_id=experiment.experiment_id,
                unit=row.unit,
                index=row.index,
                state=UpdateState.PREPARING,
                parent=row.policy,
            ),
        )
    if update.state is UpdateState.UNRESOLVED:
        update = await _resolve_by_evidence(platform, experiment, row, lease)
    if update.state is UpdateState.PREPARING:
        await _step(platform, experiment, row, lease)
    return _finish(platform, experiment, row, lease)


async def _step(platform: Platform, experiment: Experiment, row: Unit, lease: Lease) -> None:
    contributions = _contributions(platform, experiment, row)
    if not contributions:
        with platform.ledger.begin() as tx:
            tx.updates.skip(lease, row.unit)
        return
    metrics = await _submit_missing(platform, experiment, row, contributions)
    keys = tuple(contribution.key for contribution in contributions)
    with platform.ledger.begin() as tx:
        tx.updates.intend(lease, row.unit, keys)
        tx.events.append(experiment.experiment_id, "update.intended", platform.clock.now_ms(), row.unit)
    step = await platform.trainer.optim_step(experiment.experiment_id, row.unit, keys)
    checkpoint = _checkpoint(platform, experiment, row, step, metrics)
    with platform.ledger.begin() as tx:
        tx.updates.commit(lease, row.unit, checkpoint)
        _announce(tx, platform, checkpoint)


async def _submit_missing(
    platform: Platform, experiment: Experiment, row: Unit, contributions: tuple[Contribution, ...]
) -> dict[str, float]:
    """Submit what the stream has not; a trainer that holds anything else starts again from the saved state."""
    run = experiment.experiment_id
    wanted = {contribution.key for contribution in contributions}
    try:
        held = set(await platform.trainer.begin_update(run, row.unit))
    except TrainerError:
        held = None
    if held is None or not held <= wanted:
        with platform.ledger.snapshot() as tx:
            state = _parent_state(tx, experiment, row)
        await platform.trainer.open(_run(experiment), state)
        await platform.trainer.begin_update(run, row.unit)
    results = [await platform.trainer.forward_backward(run, contribution) for contribution in contributions]
    n_tokens = sum(result.n_tokens for result in results)
    metrics = {"loss_sum": sum(result.loss_sum for result in results), "n_trained_tokens": float(n_tokens)}
    for name in sorted({name for result in results for name in result.metrics}):
        weighted = [(result.metrics[name], result.n_tokens) for result in results if name in result.metrics]
        if name.endswith("_max"):
            metrics[name] = max(value for value, _ in weighted)
        elif weight := sum(tokens for _, tokens in weighted):
            metrics[name] = sum(value * tokens for value, tokens in weighted) / weight
    return metrics


async def _resolve_by_evidence(platform: Platform, experiment: Experiment, row: Unit, lease: Lease) -> Update:
    status, step = await platform.trainer.step_status(experiment.experiment_id, row.unit)
    if status is StepStatus.APPLIED and step is None:
        status = StepStatus.UNKNOWN
    checkpoint = _checkpoint(platform, experiment, row, step, {}) if step is not None else None
    detail = (
        f"the optimizer step of {row.unit} is unresolved and the trainer cannot prove whether it happened; "
        f"say `synth run resolve {row.unit} --applied` or `--not-applied`"
    )
    with platform.ledger.begin() as tx:
        tx.units.check(lease)
        if status is StepStatus.APPLIED and checkpoint is not None:
            tx.updates.resolve(row.unit, UpdateState.APPLIED, checkpoint)
            _announce(tx, platform, checkpoint)
        elif status is StepStatus.NOT_APPLIED:
            tx.updates.reopen(row.unit)
        else:
            tx.units.release(lease, UnitState.BLOCKED, detail=detail)
        body = {"status": status.value}
        tx.events.append(experiment.experiment_id, "update.resolved", platform.clock.now_ms(), row.unit, body)
    if status is StepStatus.UNKNOWN:
        raise UnresolvedUpdateError(detail)
    with platform.ledger.snapshot() as tx:
        return tx.updates.get(row.unit)


def _finish(platform: Platform, experiment: Experiment, row: Unit, lease: Lease) -> Advance:
    """End the unit and admit the next one; both in one transaction."""
    now_ms = platform.clock.now_ms()
    with platform.ledger.begin() as tx:
        update = tx.updates.get(row.unit)
        checkpoint = None
        policy = update.parent
        if update.state is UpdateState.APPLIED:
            checkpoint = tx.updates.checkpoint(f"{experiment.experiment_id}@{row.index}")
            policy = checkpoint.version
        tx.units.release(lease, UnitState.SUCCEEDED)
        tx.events.append(experiment.experiment_id, "unit.succeeded", now_ms, row.unit)
        if row.index + 1 < experiment.n_units and not experiment.cancel_requested:
            admit_unit(tx, experiment, row.index + 1, policy, now_ms)
    return Advance(update=update, checkpoint=checkpoint)


def resolve(platform: Platform, unit: str, *, applied: bool, step: StepResult | None = None) -> None:
    """Settle an unresolved update by an operator's word, and let the unit run again.

    Raises:
        UnresolvedUpdateError: ``applied`` without the trainer's result: there is no state to continue from.
    """
    with platform.ledger.snapshot() as tx:
        row = tx.units.get(unit)
        experiment = tx.experiments.get(row.experiment_id)
    if applied and step is None:
        raise UnresolvedUpdateError(
            f"{unit}: the trainer holds no result of this step, so there is no state to continue from",
            hint=f"say `synth run resolve {unit} --not-applied` to take the step again from the last checkpoint",
        )
    checkpoint = _checkpoint(platform, experiment, row, step, {}) if applied and step is not None else None
    with platform.ledger.begin() as tx:
        if checkpoint is None:
            tx.updates.reopen(unit)
        else:
            tx.updates.resolve(unit, UpdateState.APPLIED, checkpoint)
            _announce(tx, platform, checkpoint)
        tx.units.next_generation(unit)
        tx.units.set_state(unit, UnitState.ADMITTED, detail="resolved by the operator")
        body = {"status": "applied" if applied else "not_applied", "by": "operator"}
        tx.events.append(experiment.experiment_id, "update.resolved", platform.clock.now_ms(), unit, body)


def check_unresolved(platform: Platform, unit: str) -> None:
    """Refuse what there is nothing to resolve of.

    Raises:
        NotFoundError: no such unit, or its batch has not reached the optimizer.
        ConfigurationError: it is no batch of a training.
        ConflictError: its step is no question any more, or none yet.
    """
    with platform.ledger.snapshot() as tx:
        row = tx.units.get(unit)
        if not is_training(unit):
            message = f"{unit} takes no optimizer step, so there is nothing to resolve"
            raise ConfigurationError(message, hint="only batches of trainings are resolved, and only when blocked")
        update = tx.updates.get(unit)
    if update.state is not UpdateState.UNRESOLVED:
        said, hint = _RESOLVED[update.state]
        raise ConflictError(
            f"{unit}: nothing to resolve: {said}", hint=f"{hint}; `synth run show {row.experiment_id}` tells more"
        )


def _announce(tx: Transaction, platform: Platform, checkpoint: Checkpoint) -> None:
    body = {"checkpoint": checkpoint.checkpoint_id, "next_batch": checkpoint.next_batch}
    tx.events.append(checkpoint.experiment_id, "checkpoint.committed", platform.clock.now_ms(), checkpoint.unit, body)


def _checkpoint(
    platform: Platform, experiment: Experiment, row: Unit, step: StepResult, metrics: dict[str, float]
) -> Checkpoint:
    with platform.ledger.snapshot() as tx:
        groups = [group.group_id for group, table in tx.trials.groups(row.unit) if table is not None]
    return Checkpoint(
        checkpoint_id=step.sampler.name,
        experiment_id=experiment.experiment_id,
        unit=row.unit,
        version=step.sampler,
        state=step.state,
        next_batch=row.index + 1,
        parent=_parent_name(row.policy),
        groups=tuple(groups),
        metrics={**metrics, "grad_norm": step.grad_norm},
    )


def _parent_name(policy: PolicyVersion | None) -> str:
    return policy.name if policy else ""


def _parent_state(tx: Transaction, experiment: Experiment, row: Unit) -> tuple[FileEntry, ...]:
    """Return the trainer state of the newest checkpoint before this batch; empty for a fresh adapter."""
    earlier = [item for item in tx.updates.checkpoints(experiment.experiment_id) if item.next_batch <= row.index]
    return earlier[-1].state if earlier else ()


def _contributions(platform: Platform, experiment: Experiment, row: Unit) -> tuple[Contribution, ...]:
    with platform.ledger.snapshot() as tx:
        groups = tx.trials.groups(row.unit)
    return tuple(
        contribution_of(row.unit, group.group, table, _optimisation(experiment))
        for group, table in groups
        if table is not None
    )


def _optimisation(experiment: Experiment) -> Optimisation:
    if experiment.spec.plan.optimisation is None:
        raise LedgerError(f"{experiment.experiment_id}: a training without optimisation settings")
    return experiment.spec.plan.optimisation


def _run(experiment: Experiment) -> TrainingRun:
    if experiment.spec.policy is None:
        raise LedgerError(f"{experiment.experiment_id}: a training without a first policy")
    return TrainingRun(
        run=experiment.experiment_id,
        base=experiment.spec.policy,
        optimisation=_optimisation(experiment),
        seed=experiment.spec.plan.seed,
    )
