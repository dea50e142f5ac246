"""Publishing: task sets and profiles become immutable, named versions."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from domain.errors import ConfigurationError, ConflictError, TaskError
from domain.lifecycle.refusals import needs
from domain.ports import Engine, Progress
from domain.records.canonical import digest_of
from domain.records.chat import Demonstration, ToolSpec
from domain.records.model import BasePolicy, PolicyRecipe
from domain.records.names import Reference
from domain.records.profile import Profile
from domain.records.task import TaskEntry, TaskSet
from domain.records.wording import one_of
from domain.service.platform import Platform
from domain.service.task_pages import TaskSetWriter


def publish_task_set(
    platform: Platform, reference: Reference, directory: str, *, host_runnable: bool = False
) -> TaskSet:
    """Read, pin and publish the tasks below ``directory``; the same content again returns the same version.

    Raises:
        TaskError: naming file and field of every bad task, or when two tasks share a name.
        ConflictError: the version holds other tasks.
    """
    writer = TaskSetWriter(platform.records, reference)
    for task, archive in platform.tasks.read(directory, host_runnable=host_runnable):
        stored = platform.store.put(archive)
        if stored != task.archive:
            raise TaskError(f"{task.name}: archive digest differs from what was read", hint="publish again")
        record = platform.records.save(task)
        entry = TaskEntry(name=task.name, digest=task.digest, record=record, family=task.family)
        writer.add(entry, needs(task))
    task_set = writer.close()
    if not task_set.n_tasks:
        raise TaskError(f"{directory}: no task found", hint="a task is a directory with task.toml")
    with platform.ledger.begin() as tx:
        tx.catalog.add_task_set(task_set, platform.records.save(task_set))
    return task_set


def publish_profile(platform: Platform, profile: Profile, reference: Reference | None = None) -> str:
    """Keep a profile, under a reference when given, and return its digest.

    Raises:
        ConfigurationError: there is no such engine, or it refuses a field.
        ConflictError: the reference holds another profile.
    """
    engine_of(platform, profile).check(profile)
    digest = digest_of(profile)
    with platform.ledger.begin() as tx:
        tx.catalog.add_profile(profile, digest, reference)
    return digest


def engine_of(platform: Platform, profile: Profile) -> Engine:
    """Return the engine of a profile. Raises ConfigurationError when there is none of that name."""
    engine = platform.engines.get(profile.engine)
    if engine is None:
        message = f"profile {profile.name!r}: engine: no engine {profile.engine!r}"
        raise ConfigurationError(message, hint=one_of(profile.engine, sorted(platform.engines)))
    return engine


def recipe_digest(recipe: PolicyRecipe, demonstrations: Sequence[Demonstration]) -> str:
    """Return the identity of a base policy before it is made: recipe and demonstrations, not their path."""
    return digest_of({"recipe": replace(recipe, demonstrations=""), "demonstrations": demonstrations})


async def make_base_policy(
    platform: Platform,
    recipe: PolicyRecipe,
    demonstrations: Sequence[Demonstration],
    tools: Sequence[ToolSpec],
    progress: Progress,
) -> BasePolicy:
    """Make the base policy of a recipe, or return the one that was made from it before.

    Raises:
        ConflictError: the name holds a policy of another recipe.
    """
    digest = recipe_digest(recipe, demonstrations)
    with platform.ledger.snapshot() as tx:
        for policy in tx.catalog.base_policies():
            if policy.recipe_digest == digest:
                return policy
            if policy.name == recipe.name:
                raise ConflictError(
                    f"base policy {recipe.name!r} was made from another recipe", hint="give the recipe another name"
                )
    made = await asyncio.to_thread(platform.policies.make, recipe, demonstrations, tools, progress)
    policy = replace(made, recipe_digest=digest)  # the identity that the look-up above asks for, whoever made it
    with platform.ledger.begin() as tx:
        tx.catalog.add_base_policy(policy)
    return policy
