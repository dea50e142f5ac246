"""Label and field selectors.

Source: Kubernetes, "Labels and Selectors"; "Field Selectors".
"""

import re
from collections.abc import Callable
from typing import Any

from tests.kubernetes_double.answers import RefusalError
from tests.kubernetes_double.objects import part

Json = dict[str, Any]
Test = Callable[[Json], bool]

_SET = re.compile(r"^\s*(\S+)\s+(in|notin)\s+\(([^)]*)\)\s*$")
_PARTS = re.compile(r",(?![^(]*\))")


def matcher(labels: str, fields: str) -> Test:
    """Return what says of an object whether both selectors match. Raises RefusalError."""
    tests = [*(_label(part) for part in _parts(labels)), *(_field(part) for part in _parts(fields))]
    return lambda thing: all(test(thing) for test in tests)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in _PARTS.split(text) if part.strip()]


def _labels(thing: Json) -> Json:
    return thing["metadata"].get("labels") or {}


def _label(text: str) -> Test:
    if found := _SET.match(text):
        key, operator, listed = found.groups()
        values = {value.strip() for value in listed.split(",")}
        if operator == "in":
            return lambda thing: _labels(thing).get(key) in values
        return lambda thing: _labels(thing).get(key) not in values
    if "=" in text:
        key, value, equal = _equation(text)
        return lambda thing: (_labels(thing).get(key) == value) is equal
    if " " in text:
        raise RefusalError(400, f"unable to parse requirement: found '{text}', expected: identifier")
    if text.startswith("!"):
        return lambda thing: text[1:] not in _labels(thing)
    return lambda thing: text in _labels(thing)


def _equation(text: str) -> tuple[str, str, bool]:
    """Return key, value, and whether they are to be equal."""
    key, _, value = text.partition("=")
    return key.rstrip("!").strip(), value.removeprefix("=").strip(), not key.endswith("!")


def _field(text: str) -> Test:
    if "=" not in text:
        raise RefusalError(400, f"invalid selector: '{text}'; can't understand '{text}'")
    path, value, equal = _equation(text)
    return lambda thing: (_value(thing, path) == value) is equal


def _value(thing: Json, path: str) -> str:
    *places, last = path.split(".")
    found: Any = part(thing, *places).get(last)
    return "" if found is None else str(found)
