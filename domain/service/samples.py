"""Fresh samples: new trials of a unit whose finished ones are otherwise kept.

A fresh sample numbers its attempts on from the last, so that each has its own key, seed and record. Nothing of the
earlier samples is overwritten: their trials, assessments, evidence and manifests stay, and only the present sample
counts in groups and means.
"""

from domain.errors import ConfigurationError, ConflictError, NotFoundError
from domain.ledger_ports import Transaction
from domain.records.canonical import Json
from domain.records.experiment import Experiment, ExperimentKind, Unit, UnitState
from domain.records.model import UpdateState
from domain.service.platform import Platform

_KINDS = ("trials", "assessments", "qualified_groups", "datums")


def request_fresh_sample(platform: Platform, unit: str) -> Unit:
    """Begin a fresh sample and let the dispatcher run the unit, also of an experiment that has ended.

    Raises:
        NotFoundError: no such unit.
        ConfigurationError: the unit is a regrade's: it samples nothing.
        ConflictError: a worker holds the unit, its optimizer step is behind the fence, or its end was asked for.
    """
    now_ms = platform.clock.now_ms()
    key = platform.clock.new_id()
    with platform.ledger.begin() as tx:
        row = tx.units.get(unit)
        experiment = tx.experiments.get(row.experiment_id)
        if row.lease_holder is not None and row.lease_expires_ms > now_ms:
            raise ConflictError(f"{unit} is held by {row.lease_holder}", hint="wait for its end, or cancel it")
        begin_sample(tx, row, experiment, key, now_ms)
        tx.experiments.reopen(experiment.experiment_id)
        tx.units.next_generation(unit)
        tx.units.set_state(unit, UnitState.ADMITTED, detail="a fresh sample was asked for")
        return tx.units.get(unit)


def begin_sample(tx: Transaction, row: Unit, experiment: Experiment, key: str, now_ms: int) -> bool:
    """Begin the sample that ``key`` names; False when it is the present one.

    Raises:
        ConfigurationError: the unit samples nothing.
        ConflictError: the batch has fed an optimizer step, or may have.
    """
    if experiment.spec.kind is ExperimentKind.REGRADE:
        raise ConfigurationError(
            f"{row.unit}: a regrade reads retained trials and samples none", hint="name the unit it reads"
        )
    if experiment.spec.kind is ExperimentKind.IMPORTED:
        raise ConfigurationError(
            f"{row.unit}: its trials were imported, and nothing here can run their agent", hint="start an experiment"
        )
    if row.sample_key == key:
        return False
    _check_step(tx, row)
    earlier = {kind: tx.units.manifest(row.unit, kind) for kind in _KINDS}
    tx.units.next_sample(row.unit, experiment.spec.plan.attempts, key)
    body: dict[str, Json] = {
        "first_attempt": row.first_attempt + experiment.spec.plan.attempts,
        "earlier": {kind: ref.digest for kind, ref in earlier.items() if ref is not None},
    }
    tx.events.append(experiment.experiment_id, "unit.resampled", now_ms, row.unit, body)
    return True


def _check_step(tx: Transaction, row: Unit) -> None:
    """Refuse a batch whose step is taken or under way: its checkpoint names the trials that fed it."""
    try:
        update = tx.updates.get(row.unit)
    except NotFoundError:
        return
    if update.state is not UpdateState.PREPARING:
        raise ConflictError(
            f"{row.unit}: its optimizer step is {update.state.value}, so its trials stay what they are",
            hint="start a new training to sample this batch afresh",
        )
