"""Typing of tool arguments by the tool's JSON schema.

Source: facts/proxy.md section 2 ("Parsing rules"), the rules of vLLM 0.32: candidate types from ``type``, ``enum``
and ``anyOf``/``oneOf``/``allOf``, tried in the order null, integer, number, boolean, object, array, string.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from domain.records.canonical import Json, canonical_bytes
from domain.records.chat import ToolCall, ToolSpec

ORDER = ("null", "integer", "number", "boolean", "object", "array", "string")
MAX_DEPTH = 64
MAX_DIGITS = 4000
"""Python refuses longer integers. Source: ``sys.int_info.default_max_str_digits`` is 4300."""

_INTEGER = re.compile(rf"[+-]?\d{{1,{MAX_DIGITS}}}")
_EXACT = 2**53  # floats up to here hold every integer
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def parameter_schema(tools: Sequence[ToolSpec], tool: str, parameter: str) -> Mapping[str, Json] | None:
    """Return the schema of one parameter; None when nothing is known about any tool.

    A parameter (or tool) that is not declared has the empty schema: its values are strings.
    """
    if not tools:
        return None
    for one in tools:
        properties = one.schema.get("properties")
        if one.name == tool and isinstance(properties, Mapping):
            found = properties.get(parameter)
            return found if isinstance(found, Mapping) else dict[str, Json]()
    return dict[str, Json]()


def typed_text(text: str, schema: Mapping[str, Json] | None) -> Json:
    """Return the value of an argument that was written as bare text.

    Args:
        text: as written.
        schema: of the parameter; None (no tool is known): the text as JSON when it is JSON, else as it is.
    """
    if schema is None:
        read = read_json(text)
        return text if read is None and text.strip() != "null" else read
    types = candidate_types(schema)
    for name in ORDER:
        if name in types and name != "string":
            value = _READERS[name](text)
            if value is not _NOTHING:
                return cast("Json", value)
    return text


def typed_json(value: Json, schema: Mapping[str, Json] | None) -> Json:
    """Return the value of an argument that was written as JSON: a string becomes what the schema wants instead."""
    if not isinstance(value, str) or not schema or "string" in candidate_types(schema):
        return value
    return typed_text(value, schema)


def typed_object(arguments: Mapping[str, Json], tools: Sequence[ToolSpec], tool: str) -> Mapping[str, Json]:
    """Return a JSON object of arguments with each value typed."""
    return {key: typed_json(value, parameter_schema(tools, tool, key)) for key, value in arguments.items()}


def written_arguments(call: ToolCall) -> str:
    """Return a call's arguments as JSON; those that could not be read are written back as they were."""
    return (call.raw or "{}") if call.arguments is None else json.dumps(call.arguments, ensure_ascii=False)


def candidate_types(schema: Mapping[str, Json], depth: int = 0) -> frozenset[str]:
    """Return the JSON types that a schema lets through; ``string`` when it says nothing."""
    return frozenset(_types(schema, depth)) or frozenset({"string"})


def read_json(text: str) -> Json:
    """Return the JSON value in ``text``; None when there is none that could be recorded."""
    try:
        value = cast("Json", json.loads(text))
        canonical_bytes(value)
    except (ValueError, TypeError, RecursionError):
        # Bad JSON, not-a-number, integers of thousands of digits, lone surrogates, nesting without end.
        return None
    return value


def _types(schema: Mapping[str, Json], depth: int) -> Iterator[str]:
    declared = schema.get("type")
    names = (declared,) if isinstance(declared, str) else declared if isinstance(declared, Sequence) else ()
    yield from (name for name in names if isinstance(name, str) and name in ORDER)
    values = schema.get("enum")
    if isinstance(values, Sequence) and not isinstance(values, str):
        yield from (_type_of(value) for value in values)
    for key in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(key)
        if depth < MAX_DEPTH and isinstance(branches, Sequence) and not isinstance(branches, str):
            for branch in branches:
                if isinstance(branch, Mapping):
                    yield from _types(branch, depth + 1)


def _type_of(value: Json) -> str:
    """Return the JSON type of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) else "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, Mapping) else "array"


_NOTHING = object()


def _null(text: str) -> object:
    return None if text.strip().lower() == "null" else _NOTHING


def _integer(text: str) -> object:
    found = _INTEGER.fullmatch(text.strip())
    return int(found.group()) if found else _NOTHING


def _number(text: str) -> object:
    try:
        value = float(text)
    except ValueError:
        return _NOTHING
    if not math.isfinite(value):
        return _NOTHING  # stays a string: JSON has no such number
    return int(value) if value == int(value) and abs(value) <= _EXACT else value


def _boolean(text: str) -> object:
    return _BOOLEANS.get(text.strip().lower(), _NOTHING)


def _object(text: str) -> object:
    value = read_json(text)
    return value if isinstance(value, Mapping) else _NOTHING


def _array(text: str) -> object:
    value = read_json(text)
    return value if isinstance(value, list) else _NOTHING


_READERS = {
    "null": _null,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "object": _object,
    "array": _array,
}
