"""Admission inside one unit: work starts when it fits into what the ledger grants the unit of the budget."""

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import islice
from types import TracebackType
from typing import Self

from domain.errors import AdmissionError
from domain.ledger_ports import Ledger
from domain.maths.fair_share import newcomer_service, serviced, settle
from domain.ports import Clock
from domain.records.capacity import UNBOUNDED, Capacity, Grant
from domain.records.experiment import Lease

REFRESH_S = 1.0
"""How often a unit asks again: what another one returned is used after so long at most."""
_SOON_S = 0.1
"""How soon it asks when more waits than before, or when what has ended belongs to others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    """For whom work is admitted."""

    lease: Lease
    experiment_id: str
    weight: float
    """Of the experiment against others."""
    at_once: int
    """The plan's own bound on trials under way in one unit."""


@dataclass(slots=True, eq=False)
class _Ticket:
    number: int
    """The place in the order of arrival."""
    demand: Capacity
    turn: asyncio.Future[None]
    is_placed: bool = False


class Admission:
    """Places the work of one unit within its grant; an async context, of one event loop.

    First come, first served: who comes later overtakes only with what no earlier one lacks, so that small tasks never
    starve a large one.
    """

    def __init__(self, ledger: Ledger, clock: Clock, claimant: Claimant, budget: Capacity) -> None:
        """Prepare; the first grant is asked for by the first piece of work.

        Args:
            ledger: keeps the grants of all units.
            clock: time.
            claimant: the unit.
            budget: of the installation; infinity is no bound.
        """
        self._ledger, self._clock, self._claimant, self._budget = ledger, clock, claimant, budget
        self._bound = replace(UNBOUNDED, trials=float(claimant.at_once))
        self._used = self._share = Capacity()
        self._limit = Capacity().open_where(budget).smaller(self._bound)
        self._n_tickets = 0
        self._lines: dict[Capacity, deque[_Ticket]] = {}
        """Who waits, by what they take, so that a look costs as much as there are kinds of work."""
        self._wake = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Start to keep the grant."""
        self._keeper = asyncio.ensure_future(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Return the grant. A lease that is lost has returned it already."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await asyncio.to_thread(self._end)

    @asynccontextmanager
    async def place(self, demand: Capacity) -> AsyncGenerator[None]:
        """Wait until ``demand`` fits, and hold it for the block.

        Raises:
            AdmissionError: it can never fit.
            FenceError: the unit is another worker's.
            LedgerError: no grant can be asked for.
        """
        if lacking := demand.lacking(self._budget.smaller(self._bound)):
            raise AdmissionError(
                f"{self._claimant.lease.unit}: {', '.join(lacking)}: work that takes more than the budget has",
                hint="raise SYNTH_BUDGET, or lower the plan's overrides",
            )
        self._n_tickets += 1
        turn = asyncio.get_running_loop().create_future()
        ticket = _Ticket(number=self._n_tickets, demand=demand, turn=turn)
        self._lines.setdefault(demand, deque()).append(ticket)
        try:
            self._admit()
            if not ticket.is_placed:
                self._refuse_without_keeper()
                self._wake.set()
            await turn
            yield
        finally:
            turn.cancel()
            if ticket.is_placed:
                self._used = self._used.minus(demand)
                if self._used.lacking(self._limit):
                    self._wake.set()  # what ended belongs to others now
                self._admit()

    def _admit(self) -> None:
        """Start whatever fits, in order; nobody takes what somebody earlier lacks."""
        missing: set[str] = set()
        heads = [(line[0].number, demand) for demand, line in self._lines.items()]
        heapq.heapify(heads)
        while heads:
            _, demand = heapq.heappop(heads)
            if any(getattr(demand, name) > 0 for name in missing):
                continue
            lacking = self._used.plus(demand).lacking(self._limit)
            if lacked := [name for name in lacking if getattr(demand, name) > 0]:
                missing.update(lacked)
                continue
            line = self._lines[demand]
            ticket = line.popleft()
            if line:
                heapq.heappush(heads, (line[0].number, demand))
            else:
                del self._lines[demand]
            if not ticket.turn.done():
                ticket.is_placed = True
                self._used = self._used.plus(demand)
                ticket.turn.set_result(None)

    def _in_line(self) -> Iterator[_Ticket]:
        """Yield who waits, in order of arrival; those who gave up stay until it would be their turn."""
        tickets = heapq.merge(*self._lines.values(), key=lambda ticket: ticket.number)
        return (ticket for ticket in tickets if not ticket.turn.done())

    async def _keep(self) -> None:
        """Settle with the ledger while there is work, and once more when it has ended."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._refresh()
                await self._pause()
                if self._lines or self._used != Capacity() or self._share != Capacity():
                    self._wake.set()
        except Exception as error:
            for ticket in self._in_line():
                ticket.turn.set_exception(error)
            raise

    async def _pause(self) -> None:
        """Wait for the next time to settle: soon when somebody asks for it."""
        await self._clock.sleep(_SOON_S)
        asked = asyncio.ensure_future(self._wake.wait())
        turn = asyncio.ensure_future(self._clock.sleep(REFRESH_S - _SOON_S))
        try:
            await asyncio.wait({asked, turn}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            turn.cancel()
            await asyncio.gather(asked, turn, return_exceptions=True)

    async def _refresh(self) -> None:
        """Settle with the ledger. It is told of what runs now, so nothing grows beyond that meanwhile."""
        used, wanted, head = self._used, self._wish(), self._head()
        self._limit = self._limit.smaller(used.open_where(self._budget))
        grant = await asyncio.to_thread(self._settle, used, wanted, head)
        self._share = grant.share
        self._limit = grant.share.open_where(self._budget).smaller(self._bound)
        self._admit()

    def _settle(self, used: Capacity, wanted: Capacity, head: Capacity) -> Grant:
        claimant = self._claimant
        with self._ledger.begin() as tx:
            now_ms = self._clock.now_ms()
            live = tx.grants.live(now_ms)
            others = [grant for grant in live if grant.unit != claimant.lease.unit]
            before = next((grant for grant in live if grant.unit == claimant.lease.unit), None)
            service = newcomer_service(others) if before is None else serviced(before, live, self._budget, now_ms)
            asked = Grant(
                unit=claimant.lease.unit,
                experiment_id=claimant.experiment_id,
                weight=claimant.weight,
                wanted=wanted,
                head=head,
                used=used,
                share=Capacity(),
                held=used,
                service=service,
                at_ms=now_ms,
            )
            grant = settle(asked, others, self._budget)
            tx.grants.put(claimant.lease, grant)
        return grant

    def _wish(self) -> Capacity:
        """Return what is under way, and what would start at once within the plan's bound."""
        wanted = self._used
        for ticket in islice(self._in_line(), self._claimant.at_once):
            if not wanted.plus(ticket.demand).lacking(self._bound):
                wanted = wanted.plus(ticket.demand)
        return wanted.smaller(self._budget.larger(self._used))

    def _head(self) -> Capacity:
        return next((ticket.demand for ticket in self._in_line()), Capacity())

    def _end(self) -> None:
        with self._ledger.begin() as tx:
            tx.grants.end(self._claimant.lease)

    def _refuse_without_keeper(self) -> None:
        """Raise instead of waiting for a grant that nobody asks for."""
        if self._keeper is None or self._keeper.done():
            error = None if self._keeper is None or self._keeper.cancelled() else self._keeper.exception()
            raise error or AdmissionError(f"{self._claimant.lease.unit}: no grant is kept any more")
