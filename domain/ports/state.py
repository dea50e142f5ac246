"""Ports of state: time, bytes, records, datum tables."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from domain.records.assessment import Datum
from domain.records.task import ObjectRef

T = TypeVar("T")

Progress = Callable[[str, int, int], None]
"""Called with (what, done, total)."""


class Clock(Protocol):
    """Time and identity, so that the domain never reads either."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970, UTC."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds of a clock that never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    def new_id(self) -> str:
        """Return a fresh lower-case ULID."""
        ...

    def new_secret(self) -> str:
        """Return 256 fresh random bits, URL safe."""
        ...


class Store(Protocol):
    """Create-only, content-addressed bytes. Blocking; call through a thread from async code."""

    def put(self, data: bytes) -> ObjectRef:
        """Keep ``data`` durably and return its name; the same bytes are kept once."""
        ...

    def get(self, ref: ObjectRef) -> bytes:
        """Return verified bytes. Raises NotFoundError, or StoreError when they do not match."""
        ...

    def has(self, digest: str) -> bool:
        """Say whether the object is here."""
        ...

    def location(self, ref: ObjectRef) -> str:
        """Return a URI people can open."""
        ...


class Records(Protocol):
    """Typed records over a store: canonical JSON in, the same record out."""

    def save(self, record: object) -> ObjectRef:
        """Keep a dataclass record."""
        ...

    def load(self, kind: type[T], ref: ObjectRef) -> T:
        """Return the record. Raises StoreError when the bytes are not of this kind."""
        ...


class DatumTables(Protocol):
    """Datums as Arrow tables in a store."""

    def write(self, datums: Sequence[Datum]) -> ObjectRef:
        """Keep rows in order, with a schema version; the same rows give the same bytes."""
        ...

    def read(self, ref: ObjectRef) -> tuple[Datum, ...]:
        """Return the rows."""
        ...
