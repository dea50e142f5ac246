"""Checks of plans, profiles and recipes that need nothing but the document itself."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from math import isfinite
from operator import ge

from domain.errors import ConfigurationError
from domain.lifecycle.refusals import KERNEL_DIRECTORIES
from domain.records.experiment import ExperimentKind
from domain.records.model import PolicyRecipe
from domain.records.names import parse_reference
from domain.records.profile import Plan, Profile

SCHEMA_VERSION = 1
MIN_ATTEMPTS_OF_A_GROUP = 2
"""An advantage compares attempts at one task, so a group of one has no signal."""

_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,79}$")
_MODEL = re.compile(r"^(base|checkpoint):[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")
_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")

_AT_LEAST_ONE = (
    "attempts", "tasks", "concurrency", "shard_tasks", "evaluate_attempts", "sampling.max_tokens",
    "sampling.trial_tokens", "optimisation.lora_rank", "optimisation.lora_alpha", "overrides.memory_mb",
    "overrides.storage_mb",
)  # fmt: skip
_NOT_NEGATIVE = (
    "infra_retries", "batches", "groups_per_batch", "evaluate_every", "sampling.temperature",
    "optimisation.weight_decay", "overrides.gpus",
)  # fmt: skip
_POSITIVE = (
    "agent_timeout_s", "verifier_timeout_s", "trial_deadline_s", "weight", "overrides.cpus",
    "optimisation.learning_rate", "optimisation.eps", "optimisation.grad_clip_norm",
)  # fmt: skip
_AT_MOST = {
    "attempts": 10_000, "tasks": 10**9, "concurrency": 10_000, "shard_tasks": 10**9, "infra_retries": 100,
    "batches": 10**6, "groups_per_batch": 10**6, "evaluate_every": 10**6, "evaluate_attempts": 10_000,
    "sampling.max_tokens": 10**7, "sampling.trial_tokens": 10**12, "sampling.temperature": 100,
    "optimisation.lora_rank": 10**5, "optimisation.lora_alpha": 10**6,
    "agent_timeout_s": 1e8, "verifier_timeout_s": 1e8, "trial_deadline_s": 1e8,
}  # fmt: skip
"""Far above what anybody means, and below what overflows a clock or fills the memory with waiting trials."""
_COLDEST = 1e-3
"""Logits divided by less leave the range of float32, and nothing can be drawn from what is left."""
_DECAYS = ("optimisation.beta1", "optimisation.beta2")

_RECIPE_AT_LEAST_ONE = ("hidden", "layers", "heads", "context_tokens", "steps", "batch", "vocabulary")


def check_plan(plan: Plan, kind: ExperimentKind) -> None:
    """Refuse a plan that this kind of experiment cannot follow.

    Raises:
        ConfigurationError: naming every wrong field.
    """
    _refuse("plan", [*_plan_values(plan), *_plan_for(plan, kind)], "correct the plan and submit it again")


def check_plan_values(plan: Plan) -> None:
    """Refuse values that no kind of experiment accepts.

    Raises:
        ConfigurationError: naming every wrong field.
    """
    _refuse("plan", list(_plan_values(plan)), "correct the plan")


def check_profile(profile: Profile) -> None:
    """Refuse a profile whose fields contradict themselves; its engine checks the settings.

    Raises:
        ConfigurationError: naming every wrong field.
    """
    _refuse("profile", list(_profile_values(profile)), "correct the profile")


def check_recipe(recipe: PolicyRecipe) -> None:
    """Refuse sizes that make no model.

    Raises:
        ConfigurationError: naming every wrong field.
    """
    _refuse("recipe", list(_recipe_values(recipe)), "correct the recipe")


def _refuse(document: str, problems: list[str], hint: str) -> None:
    if problems:
        raise ConfigurationError(f"{document}: {'; '.join(problems)}", hint=hint)


def _plan_values(plan: Plan) -> Iterator[str]:
    yield from _schema(plan.schema_version)
    yield from _bounded(plan, _AT_LEAST_ONE, lambda value: value >= 1, "must be at least 1")
    yield from _bounded(plan, _NOT_NEGATIVE, lambda value: value >= 0, "must not be negative")
    yield from _bounded(plan, _POSITIVE, lambda value: value > 0, "must be greater than 0")
    for field, most in _AT_MOST.items():
        yield from _bounded(plan, (field,), partial(ge, most), f"must be at most {most:g}")
    yield from _bounded(plan, _DECAYS, lambda value: 0 <= value < 1, "must be at least 0 and below 1")
    yield from _bounded(plan, ("ungraded_limit",), lambda value: 0 <= value <= 1, "must be between 0 and 1")
    if 0 < plan.sampling.temperature < _COLDEST:
        yield f"sampling.temperature: {plan.sampling.temperature} is neither 0 nor at least {_COLDEST}"
    if not _NAME.fullmatch(plan.sandbox):
        yield f"sandbox: {plan.sandbox!r} is no name of a sandbox"
    if plan.evaluate_on is not None:
        try:
            parse_reference(plan.evaluate_on, field="evaluate_on")
        except ConfigurationError as error:
            yield f"{error.message}, write {error.hint.removeprefix('write ')}"


def _plan_for(plan: Plan, kind: ExperimentKind) -> Iterator[str]:
    if kind is ExperimentKind.TRAINING:
        yield from _training(plan)
    # A regrade keeps the plan of what it regrades, whatever that was.
    if kind not in {ExperimentKind.EVALUATION, ExperimentKind.UNSCORED}:
        return
    for field in ("batches", "groups_per_batch", "optimisation", "evaluate_on"):
        if getattr(plan, field):
            yield f"{field}: only a training takes it, and this is an experiment of kind {kind.value}"


def _training(plan: Plan) -> Iterator[str]:
    for field in ("batches", "groups_per_batch"):
        if getattr(plan, field) == 0:
            yield f"{field}: a training needs at least 1"
    if plan.optimisation is None:
        yield "optimisation: missing, a training needs it (an empty object takes the defaults)"
    if plan.attempts < MIN_ATTEMPTS_OF_A_GROUP:
        yield f"attempts: a training compares at least {MIN_ATTEMPTS_OF_A_GROUP} attempts at each task"
    if plan.sampling.temperature != 1:
        yield "sampling.temperature: a training samples at 1, so that sampler and trainer share one scale"


def _profile_values(profile: Profile) -> Iterator[str]:
    yield from _schema(profile.schema_version)
    for field in ("name", "engine"):
        if not _NAME.fullmatch(getattr(profile, field)):
            yield f"{field}: {getattr(profile, field)!r} is not a name in lower case, digits, dots and dashes"
    if profile.model is not None and not _MODEL.fullmatch(profile.model):
        yield f"model: {profile.model!r} is not a model reference, write base:NAME or checkpoint:ID"
    if profile.workdir is not None and not _absolute(profile.workdir):
        yield f"workdir: {profile.workdir!r} is not an absolute path without .."
    wrong = [name for name in profile.environment if not _VARIABLE.fullmatch(name)]
    yield from (f"environment.{name}: not a name of an environment variable" for name in wrong)
    given = [(f"setup.{n}", text) for n, text in enumerate(profile.setup)]
    given += [(f"arguments.{n}", text) for n, text in enumerate(profile.arguments)]
    given += [(f"environment.{name}", text) for name, text in profile.environment.items()]
    yield from (f"{field}: holds a NUL character" for field, text in given if "\0" in text)
    yield from _profile_files(profile)


def _profile_files(profile: Profile) -> Iterator[str]:
    for index, path in enumerate(profile.required_outputs):
        if not _safe(path):
            yield f"required_outputs.{index}: {path!r} is not a path that stays where it is put"
        elif path.startswith("/") and _parts(path)[1] in KERNEL_DIRECTORIES:
            yield f"required_outputs.{index}: {path!r} belongs to the kernel and is never retained"
    seen: set[tuple[str, ...]] = set()
    for index, file in enumerate(profile.files):
        if not _safe(file.path):
            yield f"files.{index}.path: {file.path!r} is not a path that stays where it is put"
        elif _parts(file.path) in seen:
            yield f"files.{index}.path: {file.path!r} is there twice"
        elif any(
            _parts(file.path)[: len(other)] == other or other[: len(_parts(file.path))] == _parts(file.path)
            for other in seen
        ):
            yield f"files.{index}.path: {file.path!r} and another path cannot both be: one is the other's directory"
        seen.add(_parts(file.path))


def _recipe_values(recipe: PolicyRecipe) -> Iterator[str]:
    yield from _schema(recipe.schema_version)
    if not _NAME.fullmatch(recipe.name):
        yield f"name: {recipe.name!r} is not a name in lower case, digits, dots and dashes"
    yield from _bounded(recipe, _RECIPE_AT_LEAST_ONE, lambda value: value >= 1, "must be at least 1")
    yield from _bounded(recipe, ("learning_rate",), lambda value: value > 0, "must be greater than 0")
    if not recipe.demonstrations:
        yield "demonstrations: is empty, name a JSON-lines file"


def _schema(version: int) -> Iterator[str]:
    if version != SCHEMA_VERSION:
        yield f"schema_version: {version} is unknown, this Synth reads {SCHEMA_VERSION}"


def _bounded(
    record: object, fields: tuple[str, ...], holds: Callable[[float], bool], expectation: str
) -> Iterator[str]:
    """Check numbers by dotted path; a missing section or a None is left to others."""
    for path in fields:
        value: object = record
        for part in path.split("."):
            value = None if value is None else getattr(value, part)
        if isinstance(value, (int, float)) and not (isfinite(value) and holds(value)):
            yield f"{path}: {value} {expectation}"


def _absolute(path: str) -> bool:
    return path.startswith("/") and _safe(path)


def _safe(path: str) -> bool:
    parts = [part for part in _parts(path) if part != "/"]
    return bool(parts) and ".." not in parts and "\0" not in path


def _parts(path: str) -> tuple[str, ...]:
    """Split a POSIX path; an absolute one starts with its slash."""
    root = ("/",) if path.startswith("/") else ()
    return (*root, *(part for part in path.split("/") if part not in {"", "."}))
