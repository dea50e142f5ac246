"""Typed records over a store."""

from typing import TypeVar

from adapters import codec
from domain.errors import StoreError
from domain.ports import Store
from domain.records.task import ObjectRef

T = TypeVar("T")


class StoredRecords:
    """Records as canonical JSON in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def save(self, record: object) -> ObjectRef:
        """Keep a dataclass record.

        Raises:
            StoreError: the record has no canonical form, or the store cannot keep it.
        """
        return self._store.put(codec.encode(record))

    def load(self, kind: type[T], ref: ObjectRef) -> T:
        """Return the record.

        Raises:
            NotFoundError: no such object.
            StoreError: the bytes are not those of a ``kind``; names the first wrong field.
        """
        try:
            return codec.decode(kind, self._store.get(ref))
        except StoreError as error:
            message = f"{self._store.location(ref)}: {error.message}"
            raise StoreError(message, hint=error.hint) from error
