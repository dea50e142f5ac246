"""What is wrong with a document, in the words of somebody who writes JSON: the field, what is there, what belongs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from enum import EnumType, StrEnum
from typing import cast, get_args, get_type_hints

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from domain.errors import ConfigurationError
from domain.records.model import PolicyRecipe
from domain.records.profile import Plan, Profile
from domain.records.wording import did_you_mean

_MOST = 5
"""Problems that are named at once."""
_LONGEST = 60
"""Characters of a wrong value that are shown."""
_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller whole number",
    "float_type": "a number",
    "string_type": "a text in quotes",
    "bool_type": "true or false",
    "dict_type": "an object {...}",
    "mapping_type": "an object {...}",
    "dataclass_type": "an object {...}",
    "dataclass_exact_type": "an object {...}",
    "tuple_type": "a list [...]",
    "list_type": "a list [...]",
}
"""The validator's name of an error -> what the field takes. Source: pydantic 2, errors/validation_errors."""
_UNKNOWN = {"unexpected_keyword_argument", "extra_forbidden"}
_MISSING = {"missing", "missing_argument", "missing_keyword_only_argument", "missing_positional_only_argument"}
_KINDS: Mapping[type[object], tuple[str, str]] = {
    Profile: ("profile", "--actor"),
    Plan: ("plan", "--plan"),
    PolicyRecipe: ("recipe of a base policy", "synth policy make"),
}
"""Documents that are taken for one another -> what they are called, and what takes them."""


def wrong_document(kind: type[object], value: object, error: ValidationError, *, where: str) -> ConfigurationError:
    """Return the error to raise for a document that is no ``kind``.

    Args:
        kind: the record that was wanted.
        value: the document as decoded from JSON.
        error: what the strict reader found.
        where: the file, or another name of the document, for the message.
    """
    if (other := _taken_for(kind, value)) is not None:
        (name, place), (wanted, its_place) = _KINDS[other], _KINDS[kind]
        return ConfigurationError(
            f"{where}: this looks like a {name}, and a {wanted} is wanted here",
            hint=f"a {name} belongs to {place}; {its_place} takes a {wanted}",
        )
    found = error.errors(include_url=False)
    lines = [_line(kind, value, problem) for problem in found[:_MOST]]
    more = f"; and {len(found) - _MOST} more" if len(found) > _MOST else ""
    return ConfigurationError(f"{where}: {'; '.join(lines)}{more}", hint=_hint(kind, found))


def _taken_for(kind: type[object], value: object) -> type[object] | None:
    """Return the kind that the document's fields are of, when that is another one."""
    if kind not in _KINDS or not isinstance(value, dict):
        return None
    given = set(cast("dict[str, object]", value)) - {"schema_version"}
    n_fit = {other: len(given & set(_fields(other))) for other in _KINDS}
    best = max(n_fit, key=lambda other: n_fit[other])
    return best if n_fit[best] > n_fit[kind] and n_fit[best] == len(given) else None


def _line(kind: type[object], value: object, problem: ErrorDetails) -> str:
    where = ".".join(str(part) for part in problem["loc"]) or "the document"
    if problem["type"] in _UNKNOWN:
        meant = did_you_mean(str(problem["loc"][-1]), _fields(_section(kind, problem["loc"][:-1])))
        return f"{where}: unknown field ({meant})" if meant else f"{where}: unknown field"
    if problem["type"] in _MISSING:
        return f"{where}: missing"
    if problem["type"] == "json_invalid":
        return problem["msg"]
    given = _at(value, problem["loc"])
    choices = _choices(kind, problem["loc"])
    if choices and isinstance(given, str):
        meant = did_you_mean(given, choices)
        return f"{where}: {_shown(given)} is not {_either(choices)}" + (f" ({meant})" if meant else "")
    wanted = _either(choices) if choices else _WANTED.get(problem["type"])
    return f"{where}: {_shown(given)} is not {wanted}" if wanted else f"{where}: {problem['msg']}"


def _hint(kind: type[object], found: Sequence[ErrorDetails]) -> str:
    """Name the fields of a section that has an unknown one which resembles none; else say what to do."""
    for problem in found:
        fields = _fields(_section(kind, problem["loc"][:-1])) if problem["type"] in _UNKNOWN else ()
        if fields and not did_you_mean(str(problem["loc"][-1]), fields):
            section = ".".join(str(part) for part in problem["loc"][:-1]) or f"a {kind.__name__}"
            return f"fields of {section}: {', '.join(fields)}"
    return "correct the document; nothing has run"


def _either(choices: Sequence[str]) -> str:
    quoted = [json.dumps(choice) for choice in choices]
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else quoted[0]


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _at(value: object, location: tuple[int | str, ...]) -> object:
    """Return what stands at a place, or the innermost thing around it."""
    found: object = value
    for part in location:
        inner = _inside(found)
        if part not in inner:
            break
        found = inner[part]
    return found


def _inside(value: object) -> dict[int | str, object]:
    if isinstance(value, dict):
        return cast("dict[int | str, object]", value)
    return dict(enumerate(cast("list[object]", value))) if isinstance(value, list) else {}


def _fields(kind: object) -> tuple[str, ...]:
    return tuple(cast("dict[str, object]", getattr(kind, "__dataclass_fields__", {})))


def _section(kind: object, location: tuple[int | str, ...]) -> object:
    """Return the record, or the enumeration, that stands at a place of a document; None where there is neither."""
    for part in location:
        if isinstance(part, int):
            continue  # an element: the list was resolved to what it holds
        if not is_dataclass(kind):
            return None
        kind = next(_ours(get_type_hints(kind).get(part)), None)
    return kind


def _choices(kind: type[object], location: tuple[int | str, ...]) -> tuple[str, ...]:
    found = _section(kind, location)
    return tuple(str(item) for item in cast("type[StrEnum]", found)) if isinstance(found, EnumType) else ()


def _ours(annotation: object) -> Iterator[object]:
    """Yield the records and enumerations inside an annotation such as ``tuple[ProfileFile, ...] | None``."""
    if isinstance(annotation, type) and (is_dataclass(annotation) or isinstance(annotation, EnumType)):
        yield annotation
    for argument in get_args(annotation):
        yield from _ours(argument)
