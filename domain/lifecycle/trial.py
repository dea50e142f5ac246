"""One trial: a fresh box, scoped model access, the recipe, what it leaves, and a terminal record."""

import asyncio
import hashlib
from dataclasses import dataclass, replace

from domain.errors import AgentError, SandboxError, SynthError
from domain.ledger_ports import Ledger
from domain.lifecycle.collect import collect_logs, collect_outputs
from domain.lifecycle.deadline import within
from domain.lifecycle.recipe import Ending, preparation, run_recipe
from domain.ports import Box, BoxSpec, Clock, Engine, Limits, ModelBinding, ModelService, Sandbox, Store
from domain.records.experiment import Lease, TokenScope
from domain.records.profile import Plan, Profile
from domain.records.task import ObjectRef, Task
from domain.records.trial import AttemptKey, EvidenceRef, TrialOutcome, TrialRecord, Usage

MODEL_NAME = "policy"
"""The one model name a box may ask for; which weights answer is the token's business."""
TAMPERED = "tampered: "
"""Prefix of a record's detail when its outputs try to leave the box."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialContext:
    """What all trials of a unit share."""

    clock: Clock
    ledger: Ledger
    store: Store
    sandbox: Sandbox
    engine: Engine
    model: ModelService
    profile: Profile
    profile_digest: str
    plan: Plan
    experiment_id: str
    lease: Lease
    policy: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What one trial is about."""

    key: AttemptKey
    task: Task
    archive: bytes
    seed: int
    n_infra_retries: int = 0


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
        record = await within(clock, context.plan.trial_deadline_s, _in_box(context, attempt, blank))
    except TimeoutError:
        record = replace(blank, detail=f"trial deadline of {context.plan.trial_deadline_s:g} s passed")
    except AgentError as error:
        record = replace(blank, outcome=TrialOutcome.AGENT_ERROR, detail=str(error))
    except SynthError as error:
        record = replace(blank, detail=f"{type(error).__name__}: {error}")
    wall_s = clock.monotonic_s() - started_s
    return replace(record, ended_ms=clock.now_ms(), usage=replace(record.usage, wall_s=round(wall_s, 4)))


async def _in_box(context: TrialContext, attempt: Attempt, blank: TrialRecord) -> TrialRecord:
    trial_id = blank.trial_id
    box = await context.sandbox.create(
        BoxSpec(
            box_id=f"{trial_id}-actor",
            experiment_id=context.experiment_id,
            trial_id=trial_id,
            fence=context.lease.fence,
            deadline_ms=blank.started_ms + int(context.plan.trial_deadline_s * 1000) + 60_000,
            environment=attempt.task.environment,
            archive=attempt.task.archive,
            limits=box_limits(attempt.task),
            model_access=context.engine.needs_model,
        )
    )
    binding: ModelBinding | None = None
    try:
        if context.engine.needs_model:
            binding = await asyncio.to_thread(_bind, context, attempt, trial_id, box)
        ending = await _agent_phase(context, attempt, box, binding)
        record = await _collect(
            context, attempt, box, replace(blank, outcome=ending.outcome, detail=ending.detail), ending
        )
        stats = await box.stats()
        usage = replace(blank.usage, cpu_s=stats.cpu_s, peak_memory_bytes=stats.peak_memory_bytes)
        record = replace(record, usage=usage, limits_enforced_by=stats.limits_enforced_by)
    finally:
        await box.destroy()
        if binding is not None:
            await asyncio.to_thread(_revoke, context.ledger, trial_id)
    if binding is None:
        return record
    evidence = await context.model.publish(trial_id)
    return replace(record, evidence=evidence, usage=_with_tokens(record.usage, evidence))


async def _agent_phase(context: TrialContext, attempt: Attempt, box: Box, binding: ModelBinding | None) -> Ending:
    for upload in preparation(context.profile, attempt.task, attempt.archive):
        await box.upload(upload.tar, upload.target)
    launch = context.engine.launch(context.profile, attempt.task, attempt.archive, binding)
    limit_s = context.plan.agent_timeout_s
    if attempt.task.agent.timeout_s is not None:
        limit_s = min(limit_s, attempt.task.agent.timeout_s)
    return await run_recipe(box, context.clock, context.profile, attempt.task, launch, limit_s)


async def _collect(
    context: TrialContext, attempt: Attempt, box: Box, record: TrialRecord, ending: Ending
) -> TrialRecord:
    logs = await collect_logs(box, ending.transcript, with_directory=context.engine.needs_model)
    logs_ref = await _put(context.store, logs)
    try:
        outputs, missing = await collect_outputs(box, attempt.task, context.profile)
    except SandboxError as error:
        return replace(record, logs=logs_ref, detail=f"{TAMPERED}{error.message}")
    return replace(record, logs=logs_ref, outputs=await _put(context.store, outputs), missing_artifacts=missing)


async def _put(store: Store, data: bytes) -> ObjectRef:
    return await asyncio.to_thread(store.put, data)


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
    )
    with context.ledger.begin() as tx:
        tx.tokens.issue(context.lease, hashlib.sha256(secret.encode()).hexdigest(), scope)
    return ModelBinding(
        base_url=box.proxy_url,
        socket=box.proxy_socket,
        token=secret,
        model=MODEL_NAME,
        max_tokens=sampling.max_tokens,
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
