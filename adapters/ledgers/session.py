"""What the aggregates of one transaction share: the connection and the leases proven in it."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, Delete, Executable, Insert, Select, Update, bindparam, select

from adapters import codec
from adapters.ledgers.schema import units
from domain.errors import FenceError, LedgerError
from domain.records.experiment import Lease
from domain.records.task import ObjectRef

T = TypeVar("T")

_HELD = select(units.c.fence, units.c.lease_holder).where(units.c.unit == bindparam("unit"))


class Session:
    """One transaction's connection."""

    __slots__ = ("_connection", "_proven")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._proven: dict[str, Lease] = {}

    def one(self, statement: Select[*tuple[Any, ...]], **key: object) -> Any:
        """Return the first row or None."""
        return self._connection.execute(statement, key).first()

    def all(self, statement: Select[*tuple[Any, ...]], **key: object) -> Sequence[Any]:
        """Return every row."""
        return self._connection.execute(statement, key).all()

    def run(self, statement: Insert | Update | Delete, values: Mapping[str, object]) -> int:
        """Write; returns the number of rows changed."""
        return self._connection.execute(statement, dict(values)).rowcount

    def scalar(self, statement: Executable, values: Mapping[str, object]) -> Any:
        """Run and return the one value it gives back."""
        return self._connection.execute(statement, dict(values)).scalar_one()

    def prove(self, lease: Lease, unit: str | None = None) -> None:
        """Compare the lease with the unit's row, once per transaction: nobody else writes meanwhile.

        Args:
            lease: the writer's lease.
            unit: the unit written about, when the record names one; it must be the lease's.

        Raises:
            FenceError: the lease does not hold, or is for another unit.
        """
        if unit is not None and unit != lease.unit:
            message = f"the lease on {lease.unit} gives no right to write about {unit}"
            raise FenceError(message, hint="take the lease of that unit")
        if self._proven.get(lease.unit) == lease:
            return
        row = self.one(_HELD, unit=lease.unit)
        if row is None or row.fence != lease.fence or row.lease_holder != lease.holder:
            now = "no such unit" if row is None else f"now fence {row.fence}, holder {row.lease_holder or 'nobody'}"
            message = f"{lease.holder} no longer holds {lease.unit} with fence {lease.fence}: {now}"
            raise FenceError(message, hint="stop this worker: another one owns the unit; nothing was changed")
        self._proven[lease.unit] = lease

    def forget(self, unit: str) -> None:
        """Drop what is proven of a unit, because its lease changes in this transaction."""
        self._proven.pop(unit, None)

    def fence_of(self, unit: str | None) -> int | None:
        """Return the fence of the lease proven for ``unit`` in this transaction."""
        lease = self._proven.get(unit) if unit is not None else None
        return None if lease is None else lease.fence


def encoded(record: object) -> str:
    """Return the JSON text of a record for a column.

    Raises:
        LedgerError: it has no canonical form.
    """
    return codec.encode(record, error=LedgerError).decode()


def decoded(kind: type[T], text: str) -> T:
    """Return the record in a column.

    Raises:
        LedgerError: the text is of another kind or version.
    """
    return codec.decode(kind, text, error=LedgerError)


def object_ref(digest: str | None, size_bytes: int | None) -> ObjectRef | None:
    """Return the reference in two columns."""
    return None if digest is None or size_bytes is None else ObjectRef(digest=digest, size_bytes=size_bytes)
