"""Grants of the ledger in memory."""

from domain.records.capacity import Grant
from domain.records.experiment import Lease
from tests.fakes.ledger_state import State


class FakeGrants:
    """See domain.ledger_ports.Grants."""

    def __init__(self, state: State) -> None:
        self._state = state

    def put(self, lease: Lease, grant: Grant) -> None:
        """Insert or replace."""
        self._state.prove(lease, grant.unit)
        self._state.grants[grant.unit] = (grant, lease.fence)

    def live(self, now_ms: int) -> tuple[Grant, ...]:
        """Return those whose lease holds."""
        rows = ((self._state.units[unit], grant, fence) for unit, (grant, fence) in sorted(self._state.grants.items()))
        return tuple(
            grant
            for unit, grant, fence in rows
            if unit.fence == fence and unit.lease_holder is not None and unit.lease_expires_ms > now_ms
        )

    def end(self, lease: Lease) -> None:
        """Remove the row of this lease."""
        _, fence = self._state.grants.get(lease.unit, (None, -1))
        if fence == lease.fence:
            del self._state.grants[lease.unit]
