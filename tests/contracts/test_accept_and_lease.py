"""Acceptance for a worker that runs the unit itself: one transaction, over every ledger."""

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cli.agent_run import run_once
from cli.submission import Actor
from domain.errors import FenceError
from domain.ledger_ports import Ledger, Transaction
from domain.lifecycle.lease import LEASE_TTL_S
from domain.records.experiment import ExperimentKind, ExperimentState, UnitState
from domain.records.names import parse_reference, unit_key
from domain.records.profile import Plan, Profile
from domain.service.accept import Submission, accept
from domain.service.dispatch import UnitLaunch, dispatch
from domain.service.platform import Platform
from domain.service.publish import publish_task_set
from domain.service.units import Stage, run_unit
from tests.fakes.platform import make_platform, write_task

ACTOR = Profile(name="actor", engine="nop")


class TickedLedger:
    """A ledger after each of whose commits a dispatcher looks: the worst moment for every step of a worker."""

    def __init__(self, inner: Ledger, platform: Platform) -> None:
        self._inner = inner
        self._dispatcher = replace(platform, ledger=inner)
        self.launches: list[UnitLaunch] = []

    @contextmanager
    def begin(self) -> Generator[Transaction]:
        """Open a write transaction, and tick once it is committed."""
        with self._inner.begin() as tx:
            yield tx
        self.launches += dispatch(self._dispatcher).launches

    def snapshot(self) -> AbstractContextManager[Transaction]:
        """Open a read transaction."""
        return self._inner.snapshot()


def silent(_what: str, _done: int, _total: int) -> None:
    """Report no progress."""


@pytest.fixture
def platform(ledger: Ledger, tmp_path: Path) -> Platform:
    """Return a platform over the ledger in turn, with one published task."""
    made = replace(make_platform(tmp_path / "home"), ledger=ledger)
    write_task(tmp_path / "tasks", "a1")
    publish_task_set(made, parse_reference("team/one@v1", field="test"), str(tmp_path / "tasks"))
    return made


def submission(key: str | None = None) -> Submission:
    """Return an evaluation of the one task."""
    return Submission(
        kind=ExperimentKind.EVALUATION,
        task_set="team/one@v1",
        actor=ACTOR,
        plan=Plan(sandbox="memory"),
        idempotency_key=key,
    )


async def test_no_tick_launches_what_an_agent_run_has_accepted(platform: Platform, tmp_path: Path) -> None:
    """A dispatcher that looks after every commit of ``agent run`` never finds its unit waiting."""
    ticked = TickedLedger(platform.ledger, platform)
    found = await run_once(
        replace(platform, ledger=ticked),
        actor=Actor(profile=ACTOR),
        directory=str(tmp_path / "tasks" / "a1"),
        model=None,
        sandbox="memory",
        host_runnable=False,
        progress=silent,
    )
    assert ticked.launches == []
    assert found.assessment is not None
    with platform.ledger.snapshot() as tx:
        assert tx.experiments.get(found.experiment_id).state is ExperimentState.SUCCEEDED


async def test_acceptance_holds_the_unit_until_its_lease_expires(platform: Platform) -> None:
    """The unit is admitted running and held; a worker that dies there loses it to the dispatcher after the lease."""
    accepted = accept(platform, submission(), holder="here")
    unit = unit_key(accepted.experiment.experiment_id, 0)
    with platform.ledger.snapshot() as tx:
        row = tx.units.get(unit)
    assert (row.state, row.lease_holder, row.fence) == (UnitState.RUNNING, "here", 1)
    assert accepted.experiment.state is ExperimentState.RUNNING
    assert dispatch(platform).launches == ()
    with pytest.raises(FenceError):
        await run_unit(platform, unit, "another", frozenset({Stage.TRIALS}), silent)

    with platform.ledger.begin() as tx:
        tx.units.heartbeat(tx.units.acquire(unit, "here", 0, LEASE_TTL_S), 0, LEASE_TTL_S)  # long ago
    (launch,) = dispatch(platform).launches
    assert (launch.unit, launch.generation) == (unit, 1)


def test_a_known_key_gives_no_right_to_its_unit(platform: Platform) -> None:
    """Whoever repeats a submission gets the experiment, and takes nothing from who runs it."""
    first = accept(platform, submission("k"))
    again = accept(platform, submission("k"), holder="late")
    assert (again.created, again.experiment.experiment_id) == (False, first.experiment.experiment_id)
    with platform.ledger.snapshot() as tx:
        assert tx.units.get(unit_key(first.experiment.experiment_id, 0)).lease_holder is None
