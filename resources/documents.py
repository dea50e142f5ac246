"""Documents as the graph receives them: typed into the Launchpad, or as ``@FILE`` like on the command line."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar, cast

from pydantic import ValidationError

from adapters import codec
from adapters.inputs.documents import (
    demonstrations_path,
    forgotten_file,
    read_demonstrations,
    read_plan,
    read_profile,
    read_recipe,
    reference_of_profile,
)
from adapters.inputs.faults import wrong_document
from domain.errors import ConfigurationError
from domain.records.canonical import Json
from domain.records.chat import Demonstration
from domain.records.experiment import ExperimentKind
from domain.records.model import PolicyRecipe
from domain.records.profile import Plan, Profile
from domain.records.wording import one_of
from domain.service.accept import Submission
from domain.service.plan_checks import check_plan_values, check_profile

T = TypeVar("T")
_WITHOUT_DOCUMENTS = {
    ExperimentKind.REGRADE: "say `synth run regrade EXPERIMENT`",
    ExperimentKind.IMPORTED: "say `synth run import DIRECTORY`",
}
"""Kinds that nobody submits, and what to say instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """A submission as written: the same documents as ``synth run start`` takes."""

    kind: str
    dataset: str
    actor: str = ""
    profile: Mapping[str, Json] = field(default_factory=dict[str, Json])
    plan: str = ""
    plan_values: Mapping[str, Json] = field(default_factory=dict[str, Json])
    model: str = ""
    idempotency_key: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A recurring experiment: what to submit, and when."""

    name: str
    cron: str
    """Five fields, UTC."""
    dataset: str
    actor: str
    plan: str
    kind: str = "evaluation"
    model: str = ""


def submission(documents: Documents) -> Submission:
    """Return what acceptance takes.

    Raises:
        ConfigurationError: naming the document and the field.
    """
    try:
        kind = ExperimentKind(documents.kind)
    except ValueError:
        known = [kind.value for kind in ExperimentKind if kind not in _WITHOUT_DOCUMENTS]
        message = f"kind: {documents.kind!r} is unknown"
        raise ConfigurationError(message, hint=one_of(documents.kind, known)) from None
    if kind in _WITHOUT_DOCUMENTS:
        raise ConfigurationError(f"kind: {kind.value} takes no documents", hint=_WITHOUT_DOCUMENTS[kind])
    return Submission(
        kind=kind,
        task_set=documents.dataset,
        actor=_actor(documents),
        actor_file=_file(documents.actor),
        plan=_plan(documents),
        plan_file=_file(documents.plan),
        model=documents.model or None,
        labels=documents.labels,
        idempotency_key=documents.idempotency_key or None,
    )


def recipe(path: str) -> tuple[PolicyRecipe, tuple[Demonstration, ...]]:
    """Return a recipe and the demonstrations beside it.

    Raises:
        ConfigurationError: naming the file and the field.
    """
    found = read_recipe(path)
    return found, read_demonstrations(demonstrations_path(path, found))


def read_benchmarks(path: Path) -> tuple[Benchmark, ...]:
    """Return the recurring benchmarks of a JSON list; none when there is no file. ``@FILE`` is relative to the list.

    Raises:
        ConfigurationError: naming the file, the entry and the field.
    """
    try:
        value: object = json.loads(path.read_bytes())
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: {error}", hint="write a JSON list of benchmarks") from error
    if not isinstance(value, list):
        raise ConfigurationError(f"{path}: holds no JSON list", hint='write [{"name": ..., "cron": ...}]')
    entries = cast("list[object]", value)
    found = tuple(_decoded(Benchmark, entry, f"{path}: {index}") for index, entry in enumerate(entries))
    names = [benchmark.name for benchmark in found]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"{path}: two benchmarks share a name", hint="give each its own")
    for benchmark in found:
        if not benchmark.name.replace("_", "").isalnum() or not benchmark.name.isascii():
            raise ConfigurationError(f"{path}: name: {benchmark.name!r}", hint="use letters, digits and _")
    return tuple(
        replace(benchmark, actor=_beside(path, benchmark.actor), plan=_beside(path, benchmark.plan))
        for benchmark in found
    )


def _beside(path: Path, text: str) -> str:
    return f"@{path.absolute().parent / text[1:]}" if text.startswith("@") else text


def _actor(documents: Documents) -> Profile | str:
    if bool(documents.actor) is bool(documents.profile):
        raise ConfigurationError("actor: give either a reference or a profile", hint="team/agent@v1, @FILE or fields")
    if documents.profile:
        return _checked(Profile, documents.profile, "profile", check_profile)
    file = _file(documents.actor)
    return read_profile(file) if file else reference_of_profile(documents.actor, where="actor")


def _file(text: str) -> str:
    return text[1:] if text.startswith("@") else ""


def _plan(documents: Documents) -> Plan:
    if not documents.plan:
        return _checked(Plan, documents.plan_values, "plan", check_plan_values)
    if documents.plan_values or not documents.plan.startswith("@"):
        forgotten = forgotten_file(documents.plan)
        hint = f"write @{forgotten}" if forgotten else "write @FILE, or the plan's fields, not both"
        raise ConfigurationError(f"plan: {documents.plan!r}", hint=hint)
    return read_plan(documents.plan[1:])


def _checked(kind: type[T], document: Mapping[str, Json], where: str, check: Callable[[T], None]) -> T:
    found = _decoded(kind, document, where)
    check(found)
    return found


def _decoded(kind: type[T], document: object, where: str) -> T:
    try:
        return codec.decode(kind, json.dumps(document, allow_nan=False), error=ConfigurationError)
    except ValueError as error:
        raise ConfigurationError(f"{where}: not a finite JSON value", hint="write finite numbers") from error
    except ConfigurationError as error:
        if not isinstance(error.__cause__, ValidationError):
            raise
        raise wrong_document(kind, document, error.__cause__, where=where) from None
