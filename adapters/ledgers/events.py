"""The ordered event log."""

import json
from collections.abc import Mapping
from typing import Any, cast

from sqlalchemy import bindparam, func, insert, literal_column, select

from adapters.ledgers.schema import events
from adapters.ledgers.session import Session, encoded
from domain.records.canonical import Json
from domain.records.experiment import Event

_C = events.c
_COLUMNS = ("experiment_id", "unit", "kind", "at_ms", "body", "fence")

# Writers take turns, so the next number is the newest plus one: no gap, and never visible before a smaller one.
_APPEND = (
    insert(events)
    .from_select(
        ["cursor", *_COLUMNS],
        select(
            func.coalesce(func.max(_C.cursor), literal_column("0")) + literal_column("1"),
            *(bindparam(name, type_=_C[name].type).label(name) for name in _COLUMNS),
        ),
    )
    .returning(_C.cursor)
)
_AFTER = select(events).where(_C.cursor > bindparam("after")).order_by(_C.cursor).limit(bindparam("count"))
_AFTER_OF = _AFTER.where(_C.experiment_id == bindparam("experiment_id"))


class SqlEvents:
    """Events inside one transaction. See domain.ledger_ports.Events."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def append(
        self,
        experiment_id: str,
        kind: str,
        at_ms: int,
        unit: str | None = None,
        body: Mapping[str, Json] | None = None,
    ) -> int:
        """Append and return the cursor; keeps the fence when the unit's lease was proven before it."""
        cursor: int = self._session.scalar(
            _APPEND,
            {
                "experiment_id": experiment_id,
                "unit": unit,
                "kind": kind,
                "at_ms": at_ms,
                "body": encoded(body or {}),
                "fence": self._session.fence_of(unit),
            },
        )
        return cursor

    def after(self, experiment_id: str | None, cursor: int, limit: int = 500) -> tuple[Event, ...]:
        """Return events with a larger cursor, in order; None: of all experiments."""
        rows = (
            self._session.all(_AFTER, after=cursor, count=limit)
            if experiment_id is None
            else self._session.all(_AFTER_OF, after=cursor, count=limit, experiment_id=experiment_id)
        )
        return tuple(_event(row) for row in rows)


def _event(row: Any) -> Event:
    return Event(
        cursor=row.cursor,
        experiment_id=row.experiment_id,
        unit=row.unit,
        kind=row.kind,
        at_ms=row.at_ms,
        body=cast("Mapping[str, Json]", json.loads(row.body)),
    )
