"""The parts of a trial inside its box: the agent at work, and what it leaves."""

import asyncio
from dataclasses import dataclass, replace

from domain.lifecycle.collect import collect_logs, collect_surely, run_hooks
from domain.lifecycle.recipe import Ending, run_recipe
from domain.lifecycle.redaction import redact, redact_archive
from domain.lifecycle.trial_context import TrialContext
from domain.ports import Box, ModelBinding, Store
from domain.records.profile import Profile
from domain.records.task import ObjectRef, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One trial's box and what goes into it."""

    context: TrialContext
    box: Box
    binding: ModelBinding | None
    values: tuple[str, ...]
    """The operator's values in this task: whatever is kept loses them first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What a phase left."""

    logs: ObjectRef
    outputs: ObjectRef | None
    content: bytes | None
    """The outputs themselves."""
    missing: tuple[str, ...]
    problem: str
    """Why the outputs cannot be an honest agent's."""
    note: str
    """What went wrong beside it."""


async def act(scene: Scene, profile: Profile, task: Task, archive: bytes) -> Ending:
    """Let the agent work within its limit.

    Args:
        scene: the box.
        profile: the recipe; for later steps without what was set up already.
        task: as the phase sees it, its variables filled.
        archive: the task's files as the phase sees them.

    Raises:
        AgentError: the recipe is broken.
        SandboxError: the box failed.
    """
    context = scene.context
    launch = context.engine.launch(profile, task, archive, scene.binding)
    limit_s = context.plan.agent_timeout_s
    if task.agent.timeout_s is not None:
        limit_s = min(limit_s, task.agent.timeout_s)
    ending = await run_recipe(scene.box, context.clock, profile, task, launch, limit_s)
    return replace(ending, detail=redact(ending.detail, scene.values))


async def gather(scene: Scene, task: Task, ending: Ending) -> Left:
    """Take logs and outputs, the collect hooks first; every process of the agent is dead.

    Raises:
        SandboxError: the box failed.
    """
    context = scene.context
    logs = await collect_logs(scene.box, ending.transcript, with_directory=context.engine.needs_model)
    logs_ref = await _put(context.store, redact_archive(logs, scene.values))
    note = redact(await run_hooks(scene.box, task), scene.values)
    found = await collect_surely(scene.box, task, context.profile)
    return Left(
        logs=logs_ref,
        outputs=None if found.archive is None else await _put(context.store, found.archive),
        content=found.archive,
        missing=found.missing,
        problem=found.problem,
        note=note,
    )


async def _put(store: Store, data: bytes) -> ObjectRef:
    return await asyncio.to_thread(store.put, data)
