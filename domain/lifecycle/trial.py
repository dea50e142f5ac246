"""One trial: a fresh box, scoped model access, the recipe, what it leaves, and a terminal record."""

import asyncio
import hashlib
from dataclasses import replace

from domain.errors import AgentError, SandboxError, SynthError, boundary
from domain.ledger_ports import Ledger
from domain.lifecycle.deadline import within
from domain.lifecycle.health import find_illness
from domain.lifecycle.phases import Scene, act, gather
from domain.lifecycle.recipe import preparation
from domain.lifecycle.refusals import toolchains_of
from domain.lifecycle.steps import is_verified_inside, run_steps
from domain.lifecycle.teardown import end_box
from domain.lifecycle.trial_context import TAMPERED, Attempt, TrialContext
from domain.lifecycle.variables import filled, used_values
from domain.ports import Box, BoxSpec, Limits, ModelBinding
from domain.records.experiment import TokenScope
from domain.records.task import Task, TaskEnvironment
from domain.records.trial import EvidenceRef, TrialOutcome, TrialRecord, Usage

__all__ = ["MODEL_NAME", "TAMPERED", "Attempt", "TrialContext", "actor_environment", "box_limits", "run_trial"]

MODEL_NAME = "policy"
"""The one model name a box may ask for; which weights answer is the token's business."""


async def run_trial(context: TrialContext, attempt: Attempt) -> TrialRecord:
    """Run one attempt to a terminal record. A failure is a record, not an exception; cancellation passes."""
    clock = context.clock
    trial_id = clock.new_id()
    started_ms = clock.now_ms()
    blank = TrialRecord(
        trial_id=trial_id,
        key=attempt.key,
        experiment_id=context.experiment_id,
        task_name=attempt.task.name,
        task_digest=attempt.task.digest,
        profile_digest=context.profile_digest,
        policy=context.policy,
        outcome=TrialOutcome.INFRA_ERROR,
        started_ms=started_ms,
        sandbox=context.sandbox.name,
        n_infra_retries=attempt.n_infra_retries,
    )
    started_s = clock.monotonic_s()
    try:
        record = await within(clock, context.plan.trial_deadline_s, _contained(context, attempt, blank))
    except TimeoutError:
        record = replace(blank, detail=f"trial deadline of {context.plan.trial_deadline_s:g} s passed")
    except AgentError as error:
        record = replace(blank, outcome=TrialOutcome.AGENT_ERROR, detail=str(error))
    except SandboxError as error:
        record = replace(blank, detail=f"{type(error).__name__}: {error}", is_permanent=error.is_permanent)
    except SynthError as error:
        record = replace(blank, detail=f"{type(error).__name__}: {error}")
    wall_s = clock.monotonic_s() - started_s
    return replace(record, ended_ms=clock.now_ms(), usage=replace(record.usage, wall_s=round(wall_s, 4)))


async def _contained(context: TrialContext, attempt: Attempt, blank: TrialRecord) -> TrialRecord:
    """Let no fault of one trial, foreseen or not, end the unit with all its other trials."""
    with boundary(SandboxError, f"trial {blank.trial_id}"):
        return await _in_box(context, attempt, blank)


async def _in_box(context: TrialContext, attempt: Attempt, blank: TrialRecord) -> TrialRecord:
    trial_id = blank.trial_id
    task = filled(attempt.task, context.variables)
    box = await context.sandbox.create(
        BoxSpec(
            box_id=f"{trial_id}-actor",
            experiment_id=context.experiment_id,
            trial_id=trial_id,
            fence=context.lease.fence,
            deadline_ms=blank.started_ms + int(context.plan.trial_deadline_s * 1000) + 60_000,
            environment=actor_environment(task),
            archive=attempt.task.archive,
            limits=box_limits(task),
            model_access=context.engine.needs_model,
            toolchains=toolchains_of(context.profile, context.engine, context.sandbox),
        )
    )
    binding: ModelBinding | None = None
    left = ""
    try:
        if context.engine.needs_model:
            binding = await asyncio.to_thread(_bind, context, attempt, trial_id, box)
        values = used_values(attempt.task, context.variables)
        record = await _work(Scene(context=context, box=box, binding=binding, values=values), attempt, task, blank)
        stats = await box.stats()
        usage = replace(blank.usage, cpu_s=stats.cpu_s, peak_memory_bytes=stats.peak_memory_bytes)
        record = replace(record, usage=usage, limits_enforced_by=stats.limits_enforced_by, made_from=stats.made_from)
    finally:
        left = await end_box(box, context.clock)
        if binding is not None:
            await asyncio.to_thread(_revoke, context.ledger, trial_id)
    if left:
        record = replace(record, detail="; ".join(part for part in (record.detail, left) if part))
    if binding is None:
        return record
    evidence = await context.model.publish(trial_id)
    return replace(record, evidence=evidence, usage=_with_tokens(record.usage, evidence))


async def _work(scene: Scene, attempt: Attempt, task: Task, blank: TrialRecord) -> TrialRecord:
    """Let the agent work in a box that is ready, and take what it leaves.

    Raises:
        AgentError: the recipe is broken.
        SandboxError: the box failed or never became ready.
    """
    context, profile = scene.context, scene.context.profile
    for upload in preparation(profile, task, attempt.archive):
        await scene.box.upload(upload.tar, upload.target)
    illness = await find_illness(scene.box, context.clock, task, task.environment.healthcheck)
    if illness:
        raise SandboxError(illness)
    if is_verified_inside(task):
        return await run_steps(scene, attempt, blank)
    ending = await act(scene, profile, task, attempt.archive)
    left = await gather(scene, task, ending)
    record = replace(
        blank,
        outcome=ending.outcome,
        detail="; ".join(part for part in (ending.detail, left.note) if part),
        logs=left.logs,
        outputs=left.outputs,
        missing_artifacts=left.missing,
    )
    return replace(record, detail=f"{TAMPERED}{left.problem}") if left.problem else record


def actor_environment(task: Task) -> TaskEnvironment:
    """Return what the agent's box is made of: its own phase's network, for its whole life."""
    policy = task.agent_network
    if policy is None:
        return task.environment
    return replace(task.environment, network_mode=policy.mode, allowed_hosts=policy.allowed_hosts)


def _bind(context: TrialContext, attempt: Attempt, trial_id: str, box: Box) -> ModelBinding:
    if context.policy is None or box.proxy_url is None:
        raise SandboxError(f"sandbox {context.sandbox.name!r} gives no model access")
    secret = context.clock.new_secret()
    sampling = context.plan.sampling
    scope = TokenScope(
        experiment_id=context.experiment_id,
        unit=attempt.key.unit,
        trial_id=trial_id,
        model=MODEL_NAME,
        policy=context.policy,
        expires_ms=context.clock.now_ms() + int(context.plan.trial_deadline_s * 1000),
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        seed=attempt.seed,
        trial_tokens=sampling.trial_tokens,
    )
    with context.ledger.begin() as tx:
        tx.tokens.issue(context.lease, hashlib.sha256(secret.encode()).hexdigest(), scope)
        context_tokens = tx.catalog.base_policy(tx.updates.policy(context.policy).base).context_tokens
    return ModelBinding(
        base_url=box.proxy_url,
        socket=box.proxy_socket,
        token=secret,
        model=MODEL_NAME,
        max_tokens=sampling.max_tokens,
        context_tokens=context_tokens,
    )


def _revoke(ledger: Ledger, trial_id: str) -> None:
    with ledger.begin() as tx:
        tx.tokens.revoke_trial(trial_id)


def _with_tokens(usage: Usage, evidence: EvidenceRef) -> Usage:
    return replace(
        usage,
        n_calls=evidence.n_interactions,
        n_prompt_tokens=evidence.n_prompt_tokens,
        n_sampled_tokens=evidence.n_sampled_tokens,
    )


def box_limits(task: Task) -> Limits:
    """Return the limits of a task's box: the task's own, else ours."""
    ours = Limits()
    return replace(
        ours,
        memory_mb=task.environment.memory_mb or ours.memory_mb,
        disk_mb=task.environment.storage_mb or ours.disk_mb,
    )
