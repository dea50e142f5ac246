"""Canonical bytes and digests: the identity of everything immutable."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import cast

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
"""A JSON value; non-finite numbers are refused when it is encoded."""


def jsonable(value: object) -> Json:
    """Return ``value`` with dataclasses as mappings and tuples as lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        mapping = cast("Mapping[object, object]", value)
        return {str(key): jsonable(item) for key, item in mapping.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in cast("Sequence[object]", value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    msg = f"{type(value).__name__} has no JSON form"
    raise TypeError(msg)


def canonical_bytes(value: object) -> bytes:
    """Encode as UTF-8 JSON with sorted keys, no spaces and no non-finite numbers.

    Raises:
        ValueError: the value holds NaN or an infinity.
    """
    return json.dumps(
        jsonable(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def digest_bytes(data: bytes) -> str:
    """Return the SHA-256 of ``data`` in lower-case hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest_of(value: object) -> str:
    """Return the SHA-256 of the canonical bytes of ``value``."""
    return digest_bytes(canonical_bytes(value))
