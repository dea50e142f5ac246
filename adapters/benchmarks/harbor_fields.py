"""Every field of ``task.toml`` by its path, and what a misspelled one was probably meant to be."""

from collections.abc import Iterator
from functools import cache
from typing import get_args, get_origin

from pydantic import BaseModel, ValidationError

from adapters.benchmarks.harbor_schema import HarborTask
from domain.records.wording import did_you_mean


@cache
def tables() -> dict[str, tuple[str, ...]]:
    """Return the fields of each table by path: ``""``, ``environment``, ``steps[].verifier.collect[]``."""
    return dict(_walk(HarborTask, ""))


def field_paths() -> tuple[str, ...]:
    """Return the path of every field, tables included, in order of the schema."""
    return tuple(f"{table}.{name}".lstrip(".") for table, names in tables().items() for name in names)


def _walk(model: type[BaseModel], path: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield path, tuple(model.model_fields)
    for name, field in model.model_fields.items():
        for inner, is_list in _models(field.annotation):
            yield from _walk(inner, f"{path}.{name}".lstrip(".") + ("[]" if is_list else ""))


def _models(annotation: object) -> Iterator[tuple[type[BaseModel], bool]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, False
    is_list = get_origin(annotation) is list
    for argument in get_args(annotation):
        yield from ((model, inner or is_list) for model, inner in _models(argument))


def explain(error: ValidationError) -> list[str]:
    """Return one line for each problem: path, what is wrong, and for unknown fields what is meant perhaps."""
    lines: list[str] = []
    for problem in error.errors(include_url=False, include_context=False):
        where = ".".join(str(part) for part in problem["loc"]) or "the document"
        if problem["type"] == "extra_forbidden":
            lines.append(f"{where}: unknown field{_hint(problem['loc'])}")
        else:
            lines.append(f"{where}: {problem['msg'].removeprefix('Value error, ')}")
    return lines


def _hint(location: tuple[int | str, ...]) -> str:
    """Return the field that is meant: one of the same table that reads alike, else the tables that have the name."""
    *outer, name = location
    table = ""
    for part in outer:
        longer = f"{table}[]" if isinstance(part, int) else f"{table}.{part}".lstrip(".")
        table = longer if longer in tables() or f"{longer}[]" in tables() else table
    if meant := did_you_mean(str(name), tables().get(table, ())):
        return f" ({meant})"
    elsewhere = [path for path, names in tables().items() if name in names]
    return f" (it belongs to {' or '.join(path or 'the top' for path in elsewhere)})" if elsewhere else ""
