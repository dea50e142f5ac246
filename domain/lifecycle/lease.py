"""Holding a unit: a lease with heartbeats around a worker's work."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from domain.errors import FenceError
from domain.ledger_ports import Ledger
from domain.ports import Clock
from domain.records.experiment import Lease

LEASE_TTL_S = 12.0
"""How long a dead worker keeps its unit. Four heartbeats: one lost to a busy machine does not cost the lease."""
HEARTBEAT_S = 3.0

T = TypeVar("T")


class UnitCancelledError(FenceError):
    """The operator asked for the end; conveyed by heartbeat."""


async def hold(ledger: Ledger, clock: Clock, lease: Lease, work: Coroutine[Any, Any, T]) -> T:
    """Await ``work`` while the lease is kept alive; cancel it when the lease is lost or cancellation is asked.

    Raises:
        FenceError: another worker took the unit.
        UnitCancelledError: the operator cancelled the experiment.
    """
    task = asyncio.ensure_future(work)
    heart = asyncio.ensure_future(_beat(ledger, clock, lease))
    try:
        await asyncio.wait({task, heart}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        heart.result()
        raise UnitCancelledError(f"{lease.unit}: cancelled by the operator")
    finally:
        task.cancel()
        heart.cancel()
        await asyncio.gather(task, heart, return_exceptions=True)


async def _beat(ledger: Ledger, clock: Clock, lease: Lease) -> None:
    """Return when cancellation is asked."""
    while not await asyncio.to_thread(_heartbeat, ledger, clock, lease):
        await clock.sleep(HEARTBEAT_S)


def _heartbeat(ledger: Ledger, clock: Clock, lease: Lease) -> bool:
    with ledger.begin() as tx:
        return tx.units.heartbeat(lease, clock.now_ms(), LEASE_TTL_S)
