"""Admission over a real ledger: no overshoot, no starvation, shares by weight, and a refusal of what never fits."""

import asyncio
from collections.abc import Generator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from adapters.clock import SystemClock
from adapters.ledgers.migrate import upgrade
from adapters.ledgers.sql import SqlLedger
from domain.errors import AdmissionError, FenceError
from domain.lifecycle.admission import Admission, Claimant
from domain.records.capacity import UNBOUNDED, Capacity
from domain.records.experiment import Lease
from domain.records.names import unit_key
from tests.contracts.ledger_scene import experiment, unit

ONE = Capacity(trials=1, cpus=1)
IDS = ("trn-01hzy3v9k4e8m2q7w5x6a0b1ca", "trn-01hzy3v9k4e8m2q7w5x6a0b1cb", "trn-01hzy3v9k4e8m2q7w5x6a0b1cc")


@dataclass
class Meter:
    """Counts what runs over all units."""

    now: Capacity = field(default_factory=Capacity)
    peak: Capacity = field(default_factory=Capacity)
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    order: list[str] = field(default_factory=list[str])

    async def work(self, admission: Admission, name: str, demand: Capacity, seconds: float) -> None:
        """Hold ``demand`` for some time."""
        async with admission.place(demand):
            self.now = self.now.plus(demand)
            self.peak = self.peak.larger(self.now)
            self.order.append(name)
            try:
                await asyncio.sleep(seconds)
            finally:
                self.now = self.now.minus(demand)
                self.seconds[name] = self.seconds.get(name, 0.0) + seconds * demand.trials


@pytest.fixture
def ledger(tmp_path: Path) -> Generator[SqlLedger]:
    """A ledger with three experiments of one unit each."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    upgrade(url)
    opened = SqlLedger(url)
    with opened.begin() as tx:
        for name in IDS:
            tx.experiments.add(experiment(name), None)
            tx.units.add(unit(0, name))
    yield opened
    opened.close()


def lease_of(ledger: SqlLedger, experiment_id: str, holder: str = "worker", ttl_s: float = 60.0) -> Lease:
    """Take a unit's lease."""
    with ledger.begin() as tx:
        return tx.units.acquire(unit_key(experiment_id, 0), holder, SystemClock().now_ms(), ttl_s)


def admission(
    ledger: SqlLedger, experiment_id: str, budget: Capacity, *, weight: float = 1.0, at_once: int = 100
) -> Admission:
    """Return the admission of an experiment's unit."""
    lease = lease_of(ledger, experiment_id)
    claimant = Claimant(lease=lease, experiment_id=experiment_id, weight=weight, at_once=at_once)
    return Admission(ledger, SystemClock(), claimant, budget)


async def test_the_plan_bounds_one_unit_without_a_budget(ledger: SqlLedger) -> None:
    """Four at once of twenty, and nothing is held afterwards."""
    meter = Meter()
    async with admission(ledger, IDS[0], UNBOUNDED, at_once=4) as placing:
        await asyncio.gather(*(meter.work(placing, "a", ONE, 0.01) for _ in range(20)))
    assert (meter.peak.trials, meter.now.trials, meter.seconds["a"]) == (4, 0, pytest.approx(0.2))
    with ledger.snapshot() as tx:
        assert tx.grants.live(SystemClock().now_ms()) == ()


async def test_what_runs_stays_within_the_budget_and_late_comers_get_their_share(ledger: SqlLedger) -> None:
    """One floods first; two come later; nobody is starved and the sum never exceeds the budget."""
    meter = Meter()
    budget = replace(UNBOUNDED, trials=6.0, cpus=6.0)
    async with AsyncExitStack() as stack:
        flood = await stack.enter_async_context(admission(ledger, IDS[0], budget, weight=2.0))
        jobs = [asyncio.ensure_future(meter.work(flood, "flood", ONE, 0.3)) for _ in range(400)]
        await asyncio.sleep(0.2)
        for name in IDS[1:]:
            late = await stack.enter_async_context(admission(ledger, name, budget))
            jobs += [asyncio.ensure_future(meter.work(late, name, ONE, 0.3)) for _ in range(12)]
        await asyncio.gather(*jobs[400:])
        while_all_wanted = dict(meter.seconds)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
    assert not meter.peak.lacking(budget)
    for name in IDS[1:]:
        assert while_all_wanted[name] == pytest.approx(3.6)
    assert while_all_wanted["flood"] < 40  # of 120: in line behind the flood they would have waited for all of it


async def test_a_large_one_is_not_starved_by_small_ones_and_holds_up_only_what_it_lacks(ledger: SqlLedger) -> None:
    """It waits for CPUs: small tasks behind it wait too, those that take no CPU go on."""
    meter = Meter()
    budget = replace(UNBOUNDED, trials=10.0, cpus=2.0)
    small, large, idle = ONE, Capacity(trials=1, cpus=2), Capacity(trials=1)
    async with admission(ledger, IDS[0], budget) as placing:
        jobs = [meter.work(placing, f"early{index}", small, 0.2) for index in range(2)]
        jobs.append(meter.work(placing, "large", large, 0.05))
        jobs += [meter.work(placing, f"late{index}", small, 0.05) for index in range(4)]
        jobs.append(meter.work(placing, "idle", idle, 0.05))
        await asyncio.gather(*jobs)
    assert meter.order.index("idle") < meter.order.index("large") < meter.order.index("late0")
    assert meter.peak.cpus == 2


async def test_exports_have_a_bound_of_their_own(ledger: SqlLedger) -> None:
    """A full house of trials does not hold up an export, nor the other way round."""
    meter = Meter()
    budget = replace(UNBOUNDED, trials=2.0, exports=1.0)
    async with admission(ledger, IDS[0], budget) as placing:
        trials = [meter.work(placing, "trial", ONE, 0.5) for _ in range(2)]
        exports = [meter.work(placing, "export", Capacity(exports=1), 0.05) for _ in range(3)]
        await asyncio.gather(*trials, *exports)
    assert (meter.peak.trials, meter.peak.exports) == (2, 1)


async def test_what_never_fits_is_refused_at_once(ledger: SqlLedger) -> None:
    """Waiting would never end."""
    async with admission(ledger, IDS[0], replace(UNBOUNDED, cpus=2.0)) as placing:
        with pytest.raises(AdmissionError, match="cpus"):
            async with placing.place(Capacity(trials=1, cpus=3)):
                pass


async def test_who_gives_up_leaves_the_line(ledger: SqlLedger) -> None:
    """A cancelled wait takes nothing, and the next one starts."""
    meter = Meter()
    async with admission(ledger, IDS[0], UNBOUNDED, at_once=1) as placing:
        first = asyncio.ensure_future(meter.work(placing, "first", ONE, 0.2))
        await asyncio.sleep(0.05)
        second = asyncio.ensure_future(meter.work(placing, "second", ONE, 5.0))
        third = asyncio.ensure_future(meter.work(placing, "third", ONE, 0.01))
        await asyncio.sleep(0.05)
        second.cancel()
        await asyncio.gather(first, third)
    assert (meter.order, meter.now) == (["first", "third"], Capacity())


async def test_a_unit_that_another_worker_took_admits_nothing_more(ledger: SqlLedger) -> None:
    """Who waits learns why."""
    meter = Meter()
    budget = replace(UNBOUNDED, trials=1.0)
    lease_of(ledger, IDS[0], "first", ttl_s=0.0)
    placing = admission(ledger, IDS[0], budget)
    await asyncio.sleep(0.01)
    async with placing:
        with ledger.begin() as tx:
            tx.units.acquire(unit_key(IDS[0], 0), "worker", SystemClock().now_ms(), 60.0)
        with pytest.raises(FenceError, match="no longer holds"):
            await meter.work(placing, "a", ONE, 0.01)
