"""Running a unit again after its run ended without it: at once while that helps, later and later while it does not."""

from domain.errors import NotFoundError
from domain.ledger_ports import Transaction
from domain.lifecycle.lease import LEASE_TTL_S
from domain.records.canonical import Json
from domain.records.experiment import Unit, UnitState

MAX_GENERATIONS = 50
"""Relaunches of one unit before it fails; finished trials are kept over all of them."""
MAX_STALLED = 12
"""Relaunches in a row that did nothing before it fails: with the waits between them some eight minutes."""
_AT_ONCE = 2
"""Of those, how many are not put off: a killed process is no reason to wait."""
_LONGEST_S = 120


def relaunch(tx: Transaction, unit: Unit, reason: str, now_ms: int) -> Unit:
    """Admit a unit again, put off when its last runs did nothing, or fail it when that does not help either."""
    done = _done(tx, unit)
    n_stalled = unit.n_stalled + 1 if done == unit.progress else 0
    if n_stalled >= MAX_STALLED:
        return _give_up(tx, unit, f"gave up: {n_stalled} runs in a row did nothing: {reason}", now_ms)
    if unit.generation + 1 >= MAX_GENERATIONS:
        return _give_up(tx, unit, f"gave up after {MAX_GENERATIONS} runs: {reason}", now_ms)
    generation = tx.units.next_generation(unit.unit)
    wait_s = 0 if n_stalled <= _AT_ONCE else min(_LONGEST_S, 2 ** (n_stalled - _AT_ONCE))
    tx.units.put_off(unit.unit, now_ms + wait_s * 1000 if wait_s else 0, n_stalled, done)
    detail = f"{reason}; again in {wait_s} s" if wait_s else reason
    tx.units.set_state(unit.unit, UnitState.ADMITTED, detail=detail)
    body: dict[str, Json] = {"reason": reason, "generation": generation, "wait_s": wait_s}
    tx.events.append(unit.experiment_id, "unit.relaunched", now_ms, unit.unit, body)
    return tx.units.get(unit.unit)


def end_lease(tx: Transaction, unit: Unit, holder: str, now_ms: int) -> Unit:
    """End all that a worker that is gone could still do: its writes are refused and its tokens answer no more.

    Its successor would see to both, but there may never be one: the experiment is cancelled, or the unit given up.

    Raises:
        FenceError: another holder than ``holder`` has the lease, and it holds.
    """
    lease = tx.units.acquire(unit.unit, holder, now_ms, LEASE_TTL_S)
    tx.tokens.revoke_stale(unit.unit, lease.fence)
    tx.units.release(lease, unit.state, detail=unit.detail)
    return tx.units.get(unit.unit)


def _done(tx: Transaction, unit: Unit) -> str:
    """Return a text that differs once anything of a unit was done: a trial, an assessment, a group, its step."""
    try:
        step = tx.updates.get(unit.unit).state.value
    except NotFoundError:
        step = "none"
    n_trials = len(tx.trials.of_unit(unit.unit, every_sample=True))
    n_assessed, n_groups = len(tx.trials.assessments(unit.unit)), len(tx.trials.groups(unit.unit))
    return f"{n_trials} trials, {n_assessed} assessments, {n_groups} groups, step {step}"


def _give_up(tx: Transaction, unit: Unit, detail: str, now_ms: int) -> Unit:
    tx.units.set_state(unit.unit, UnitState.FAILED, detail=detail)
    tx.events.append(unit.experiment_id, "unit.failed", now_ms, unit.unit, {"reason": detail})
    return tx.units.get(unit.unit)
