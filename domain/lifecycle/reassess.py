"""Assessing again what a trial left: steps too are verified anew, each over what was retained of it."""

import asyncio
from dataclasses import replace

from domain.lifecycle.group import assess
from domain.lifecycle.step_rewards import gate_failure
from domain.lifecycle.step_view import step_archive, step_view
from domain.ports import Store, Verifier, Work
from domain.records.assessment import Assessment, AssessmentOutcome
from domain.records.task import Step, Task, VerifierMode
from domain.records.trial import StepRecord, TrialRecord


def cannot_reassess(task: Task) -> str:
    """Say which verifier of a task cannot run again; empty: all can."""
    why = "'shared': it ran in the agent's box, and that is gone"
    if not task.steps:
        return f"verifier.environment_mode = {why}" if task.verifier_mode is VerifierMode.SHARED else ""
    shared = [step.name for step in task.steps if step.verifier_mode is VerifierMode.SHARED]
    return f"steps.{shared[0]}.verifier.environment_mode = {why}" if shared else ""


async def reassess(verifier: Verifier, store: Store, task: Task, trial: TrialRecord, *, fence: int) -> Assessment:
    """Return a new assessment of a trial's retained outputs; what cannot be verified again is ungraded by name."""
    reason = cannot_reassess(task) if trial.outcome.is_assessable() else ""
    if reason:
        return ungraded(verifier, task, trial, reason)
    if task.steps and trial.outcome.is_assessable():
        archive = await asyncio.to_thread(store.get, task.archive)
        trial = replace(trial, steps=await _steps(verifier, store, task, archive, trial, fence))
    return await assess(verifier, task, trial, fence=fence)


def ungraded(verifier: Verifier, task: Task, trial: TrialRecord, reason: str) -> Assessment:
    """Return that nothing is known, and why."""
    return Assessment(
        trial_id=trial.trial_id,
        assessor=verifier.identity(task),
        outcome=AssessmentOutcome.UNGRADED,
        reason=reason,
    )


async def _steps(
    verifier: Verifier, store: Store, task: Task, archive: bytes, trial: TrialRecord, fence: int
) -> tuple[StepRecord, ...]:
    """Return the steps with new verdicts, up to the first whose new verdict would have let no later one run.

    Where only the new verdict lets the trial go on, nobody knows what the next step would have been worth.
    """
    known = {record.name: record for record in trial.steps}
    found: list[StepRecord] = []
    for step in task.steps:
        record = known.get(step.name)
        if record is None:
            break
        if _was_reached(record):
            record = await _verify(verifier, store, task, archive, step, record, trial, fence)
        found.append(record)
        if record.stopped:
            break
    return tuple(found)


def _was_reached(record: StepRecord) -> bool:
    """Say whether the tests would have run: not where the step's set-up failed, nor over forged outputs."""
    if record.assessment is not None and record.assessment.tampered:
        return False
    return record.outputs is not None or bool(record.missing_artifacts) or not record.stopped


async def _verify(
    verifier: Verifier,
    store: Store,
    task: Task,
    archive: bytes,
    step: Step,
    record: StepRecord,
    trial: TrialRecord,
    fence: int,
) -> StepRecord:
    if record.outputs is None and not record.missing_artifacts:
        reason = f"step {step.name!r}: nothing was retained that its verifier could look at"
        verdict = ungraded(verifier, task, trial, reason)
        return replace(record, assessment=verdict, stopped=reason)
    outputs = None if record.outputs is None else await asyncio.to_thread(store.get, record.outputs)
    work = Work(
        task=step_view(task, step),
        archive=step_archive(archive, step),
        trial=trial,
        fence=fence,
        outputs=outputs,
        missing_artifacts=record.missing_artifacts,
    )
    verdict = await verifier.verify(work)
    stopped = gate_failure(step, verdict)
    if verdict.reward is None:
        stopped = f"step {step.name!r} is ungraded: {verdict.reason}"
    return replace(record, assessment=verdict, stopped=stopped)
