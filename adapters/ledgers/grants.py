"""What each unit may use of the budget."""

from sqlalchemy import and_, bindparam, delete, insert, select, update

from adapters.ledgers.schema import grants, units
from adapters.ledgers.session import Session, decoded, encoded
from domain.records.capacity import Grant
from domain.records.experiment import Lease

_C = grants.c
_ADD = insert(grants)
_REPLACE = update(grants).where(_C.unit == bindparam("key"))
_LIVE = (
    select(_C.record)
    .join(units, and_(units.c.unit == _C.unit, units.c.fence == _C.fence))
    .where(units.c.lease_holder.is_not(None), units.c.lease_expires_ms > bindparam("now_ms"))
    .order_by(_C.unit)
)
_END = delete(grants).where(_C.unit == bindparam("key"), _C.fence == bindparam("held_fence"))


class SqlGrants:
    """Grants inside one transaction. See domain.ledger_ports.Grants."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def put(self, lease: Lease, grant: Grant) -> None:
        """Insert or replace the unit's row. Raises FenceError."""
        self._session.prove(lease, grant.unit)
        values = {"record": encoded(grant), "fence": lease.fence}
        if self._session.run(_REPLACE, {"key": grant.unit, **values}) == 0:
            self._session.run(_ADD, {"unit": grant.unit, **values})

    def live(self, now_ms: int) -> tuple[Grant, ...]:
        """Return those of units whose lease holds now, in order of unit."""
        return tuple(decoded(Grant, row.record) for row in self._session.all(_LIVE, now_ms=now_ms))

    def end(self, lease: Lease) -> None:
        """Remove the row written under this lease."""
        self._session.run(_END, {"key": lease.unit, "held_fence": lease.fence})
