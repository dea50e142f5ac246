"""Runs that end without their unit: again at once while something is done, later and later while nothing is."""

from dataclasses import replace
from pathlib import Path

import pytest

from domain.errors import FenceError
from domain.lifecycle.lease import LEASE_TTL_S
from domain.records.experiment import ExperimentKind, TokenScope, UnitState
from domain.records.names import experiment_of, parse_reference
from domain.records.profile import Plan, Profile
from domain.service.accept import Submission, accept
from domain.service.dispatch import dispatch, request_cancel, unit_run_ended
from domain.service.platform import Platform
from domain.service.publish import publish_task_set
from domain.service.relaunch import MAX_STALLED
from domain.service.units import Stage, run_unit
from tests.fakes.platform import make_platform, write_task

REFERENCE = parse_reference("team/small@v1", field="test")


class _Late:
    """The platform's clock, ahead by as much as a test says."""

    def __init__(self, platform: Platform) -> None:
        self._clock = platform.clock
        self.ahead_s = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._clock, name)

    def now_ms(self) -> int:
        """Return the time plus what was added."""
        return self._clock.now_ms() + self.ahead_s * 1000


@pytest.fixture
def scene(tmp_path: Path) -> tuple[Platform, _Late, str]:
    """A platform, its clock, and a unit of two trials."""
    made = make_platform(tmp_path / "home")
    clock = _Late(made)
    platform = replace(made, clock=clock)  # pyright: ignore[reportArgumentType] - by __getattr__
    write_task(tmp_path / "tasks", "a1")
    publish_task_set(platform, REFERENCE, str(tmp_path / "tasks"))
    accept(
        platform,
        Submission(
            kind=ExperimentKind.EVALUATION,
            task_set=str(REFERENCE),
            actor=Profile(name="nop", engine="nop"),
            plan=Plan(attempts=2, sandbox="memory"),
        ),
    )
    (launch,) = dispatch(platform).launches
    return platform, clock, launch.unit


def silent(_what: str, _done: int, _total: int) -> None:
    """Report no progress."""


def test_a_unit_that_does_nothing_is_put_off_and_given_up(scene: tuple[Platform, _Late, str]) -> None:
    """The first runs follow at once, later ones wait, and the end says why; far fewer than fifty runs."""
    platform, clock, unit = scene
    waits: list[int] = []
    with platform.ledger.snapshot() as tx:
        row = tx.units.get(unit)
    for _ in range(MAX_STALLED + 1):
        unit_run_ended(platform, unit, reason="ImportError: no module")
        with platform.ledger.snapshot() as tx:
            row = tx.units.get(unit)
        if row.state is UnitState.FAILED:
            break
        wait_s = max(0, round((row.retry_at_ms - clock.now_ms()) / 1000)) if row.retry_at_ms else 0
        waits.append(wait_s)
        if wait_s:
            assert dispatch(platform).launches == ()
            clock.ahead_s += wait_s + 1
        assert len(dispatch(platform).launches) == 1
    assert waits == [0, 0, 0, 2, 4, 8, 16, 32, 64, 120, 120, 120][: len(waits)]
    assert row.state is UnitState.FAILED
    assert "12 runs in a row did nothing: ImportError" in row.detail


async def test_whatever_was_done_begins_the_count_anew(scene: tuple[Platform, _Late, str]) -> None:
    """A kill in the middle of work is followed at once, however often nothing was done before."""
    platform, clock, unit = scene
    for _ in range(5):
        unit_run_ended(platform, unit, reason="killed")
        clock.ahead_s += 60
    await run_unit(platform, unit, "worker", frozenset({Stage.TRIALS}), silent)
    unit_run_ended(platform, unit, reason="killed")
    with platform.ledger.snapshot() as tx:
        row = tx.units.get(unit)
    assert (row.n_stalled, row.retry_at_ms, row.progress) == (0, 0, "2 trials, 0 assessments, 0 groups, step none")
    assert len(dispatch(platform).launches) == 1


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_worker_that_is_gone_has_no_rights_left(scene: tuple[Platform, _Late, str], *, cancelled: bool) -> None:
    """After its lease its tokens answer no more and its writes are refused, whether anyone follows or not."""
    platform, clock, unit = scene
    experiment_id = experiment_of(unit)
    with platform.ledger.begin() as tx:
        lease = tx.units.acquire(unit, "gone", clock.now_ms(), LEASE_TTL_S)
        scope = TokenScope(
            experiment_id=experiment_id,
            unit=unit,
            trial_id="t1",
            model="policy",
            policy="base",
            expires_ms=clock.now_ms() + 600_000,
            max_tokens=8,
            temperature=1.0,
            seed=0,
        )
        tx.tokens.issue(lease, "a" * 64, scope)
    if cancelled:
        request_cancel(platform, experiment_id)
    clock.ahead_s += round(LEASE_TTL_S) + 1
    assert len(dispatch(platform).launches) == (not cancelled)
    with platform.ledger.snapshot() as tx:
        assert tx.tokens.scope("a" * 64, clock.now_ms()) is None
        assert tx.units.get(unit).state is (UnitState.CANCELLED if cancelled else UnitState.ADMITTED)
    with pytest.raises(FenceError), platform.ledger.begin() as tx:
        tx.units.heartbeat(lease, clock.now_ms(), LEASE_TTL_S)
