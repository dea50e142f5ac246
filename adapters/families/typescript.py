"""Tool declarations as TypeScript, the way Harmony shows them.

Source: ``native_formats.json`` (``gpt_oss_no_sysprompt``); chat template in PyPI ``trl`` 1.16.0 (``gptoss.jinja``).
"""

import json
from collections.abc import Iterator, Mapping, Sequence

from domain.records.canonical import Json
from domain.records.chat import ToolSpec

_NAMES = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean", "null": "null"}
_MAX_DEPTH = 32


def namespace(name: str, tools: Sequence[ToolSpec]) -> str:
    """Return ``namespace NAME { ... }`` with one type per tool."""
    types = "".join(f"{_comment(tool.description)}type {tool.name} = {_signature(tool.schema)};\n\n" for tool in tools)
    return f"## {name}\n\nnamespace {name} {{\n\n{types}}} // namespace {name}"


def _signature(schema: Mapping[str, Json]) -> str:
    properties = schema.get("properties")
    return f"(_:\n{_object(schema, 0)}) => any" if isinstance(properties, Mapping) and properties else "() => any"


def _object(schema: Mapping[str, Json], depth: int) -> str:
    properties, required = schema.get("properties"), schema.get("required")
    needed = required if isinstance(required, Sequence) else ()
    lines: list[str] = []
    for name, fields in properties.items() if isinstance(properties, Mapping) else ():
        known = fields if isinstance(fields, Mapping) else dict[str, Json]()
        description = known.get("description")
        comment = _comment(description) if isinstance(description, str) else ""
        default = f" // default: {_default(known)}" if "default" in known else ""
        lines.append(f"{comment}{name}{'' if name in needed else '?'}: {_type(known, depth + 1)},{default}\n")
    return "{\n" + "".join(lines) + "}"


def _default(schema: Mapping[str, Json]) -> str:
    """Return a default: bare among named values, else JSON."""
    value = schema["default"]
    return value if isinstance(value, str) and "enum" in schema else json.dumps(value, ensure_ascii=False)


def _type(schema: Mapping[str, Json], depth: int) -> str:
    values = schema.get("enum")
    if isinstance(values, Sequence) and not isinstance(values, str):
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in values)
    branches = list(_branches(schema))
    if depth > _MAX_DEPTH:
        return "any"
    if branches:
        return " | ".join(dict.fromkeys(_type(branch, depth + 1) for branch in branches))
    return _single(schema, depth)


def _single(schema: Mapping[str, Json], depth: int) -> str:
    declared = schema.get("type")
    if declared == "array":
        items = schema.get("items")
        inner = _type(items, depth + 1) if isinstance(items, Mapping) else "any"
        return f"({inner})[]" if " | " in inner else f"{inner}[]"
    if declared == "object":
        return _object(schema, depth) if schema.get("properties") else "object"
    return _NAMES.get(declared, "any") if isinstance(declared, str) else "any"


def _branches(schema: Mapping[str, Json]) -> Iterator[Mapping[str, Json]]:
    """Return the alternatives of a schema, also those of a list of types."""
    declared = schema.get("type")
    if isinstance(declared, Sequence) and not isinstance(declared, str):
        yield from ({**schema, "type": name} for name in declared)
    for key in ("anyOf", "oneOf"):
        found = schema.get(key)
        if isinstance(found, Sequence) and not isinstance(found, str):
            yield from (branch for branch in found if isinstance(branch, Mapping))


def _comment(text: str) -> str:
    return "".join(f"// {line}\n" for line in text.splitlines())
