"""Records as bytes and back: canonical JSON out, strictly the same record in.

Stores and ledgers both keep records, and adapters do not import each other's folders, so the codec lies beside them.
"""

from functools import cache
from typing import Any, TypeVar

from pydantic import ConfigDict, JsonValue, TypeAdapter, ValidationError

from domain.errors import StoreError, SynthError
from domain.records.canonical import canonical_bytes

T = TypeVar("T")

_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, defer_build=True)


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    """Return the reader of ``kind``; nested plain dataclasses inherit its configuration."""
    # A bare dataclass refuses a configuration from outside; a union with None takes one.
    shape: Any = kind | None
    adapter = TypeAdapter[Any](shape, config=_STRICT)
    # The domain's recursive ``Json`` alias has no end for pydantic; its own JSON value means the same.
    adapter.rebuild(force=True, raise_errors=True, _types_namespace={"Json": JsonValue})
    return adapter


def encode(record: object, *, error: type[SynthError] = StoreError) -> bytes:
    """Return the canonical bytes of a record.

    Args:
        record: a dataclass of domain.records.
        error: the class to raise, of the caller's boundary.

    Raises:
        SynthError: of class ``error``, when the record holds a non-finite number or something without a JSON form.
    """
    try:
        return canonical_bytes(record)
    except (TypeError, ValueError) as cause:
        message = f"{type(record).__name__} cannot be encoded: {cause}"
        raise error(message, hint="records hold JSON values and finite numbers only") from cause


def decode(kind: type[T], data: bytes | str, *, error: type[SynthError] = StoreError) -> T:
    """Return the record that ``encode`` made ``data`` from.

    Args:
        kind: the record's class.
        data: its canonical bytes.
        error: the class to raise, of the caller's boundary.

    Raises:
        SynthError: of class ``error``, naming the kind and the first wrong field.
    """
    hint = f"these bytes are another kind of record, or another version of Synth wrote this {kind.__name__}"
    try:
        record: T | None = _adapter(kind).validate_json(data)
    except ValidationError as cause:
        first = cause.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "document"
        raise error(f"{kind.__name__}.{field}: {first['msg']}", hint=hint) from cause
    if record is None:
        raise error(f"{kind.__name__}.document: is null", hint=hint)
    return record
