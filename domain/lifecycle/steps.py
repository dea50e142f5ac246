"""Steps, one after another in one box, each with its own instruction, tests and gate."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from domain.errors import SandboxError
from domain.lifecycle.deadline import within
from domain.lifecycle.health import find_illness
from domain.lifecycle.phases import Left, Scene, act, gather
from domain.lifecycle.recipe import SETUP_TIMEOUT_S
from domain.lifecycle.step_rewards import gate_failure
from domain.lifecycle.step_view import SETUP, step_archive, step_files, step_view
from domain.lifecycle.trial_context import Attempt
from domain.lifecycle.variables import filled
from domain.ports import Command, Work
from domain.records.assessment import Assessment, AssessmentOutcome
from domain.records.task import Step, Task, VerifierMode
from domain.records.trial import StepRecord, TrialOutcome, TrialRecord

_EMPTY = "for d in {}; do find $d -mindepth 1 -delete || exit 1; done"
_LOGS = "/logs/agent"
_TESTS = "/tests /logs/verifier"


def is_verified_inside(task: Task) -> bool:
    """Say whether the task is verified while its trial runs: it has steps, or its verifier shares the agent's box."""
    return bool(task.steps) or task.verifier_mode is VerifierMode.SHARED


@dataclass(frozen=True, slots=True, kw_only=True)
class _Phase:
    """One step, or the only phase of a task without steps."""

    step: Step | None
    kept: Task
    """As published."""
    task: Task
    """With its variables filled."""
    archive: bytes
    files: bytes = b""
    """What goes into the working directory first."""
    has_setup: bool = False


async def run_steps(scene: Scene, attempt: Attempt, blank: TrialRecord) -> TrialRecord:
    """Run the steps in order until one stops the trial, and return its record.

    Raises:
        AgentError: the recipe is broken.
        SandboxError: the box failed, or was never ready: nobody's work is judged by it.
    """
    records: list[StepRecord] = []
    phases = _phases(scene, attempt)
    for number, phase in enumerate(phases):
        records.append(await _run(scene, phase, phases[:number], blank))
        if records[-1].stopped:
            break
    bad = next((record for record in records if record.outcome is not TrialOutcome.COMPLETED), None)
    last = records[-1]
    return replace(
        blank,
        outcome=TrialOutcome.COMPLETED if bad is None else bad.outcome,
        detail=last.stopped or (last if bad is None else bad).detail,
        outputs=last.outputs,
        logs=last.logs,
        missing_artifacts=last.missing_artifacts,
        steps=tuple(records),
    )


def _phases(scene: Scene, attempt: Attempt) -> list[_Phase]:
    task, archive, variables = attempt.task, attempt.archive, scene.context.variables
    if not task.steps:
        return [_Phase(step=None, kept=task, task=filled(task, variables), archive=archive)]
    phases: list[_Phase] = []
    for step in task.steps:
        view = step_view(task, step)
        files, has_setup = step_files(archive, step)
        phases.append(
            _Phase(
                step=step,
                kept=view,
                task=filled(view, variables),
                archive=step_archive(archive, step),
                files=files,
                has_setup=has_setup,
            )
        )
    return phases


async def _run(scene: Scene, phase: _Phase, earlier: Sequence[_Phase], blank: TrialRecord) -> StepRecord:
    clock = scene.context.clock
    name = phase.step.name if phase.step is not None else ""
    record = StepRecord(name=name, outcome=TrialOutcome.COMPLETED, started_ms=clock.now_ms())
    problem = await _prepare(scene, phase, earlier)
    if problem:
        assessment = _zero(scene, phase, blank, f"{problem}, in a box that the agent had worked in")
        return replace(record, detail=problem, assessment=assessment, stopped=problem, ended_ms=clock.now_ms())
    profile = replace(scene.context.profile, setup=()) if earlier else scene.context.profile
    ending = await act(scene, profile, phase.task, phase.archive)
    left = await gather(scene, phase.task, ending)
    assessment = await _verify(scene, phase, left, blank)
    return replace(
        record,
        outcome=ending.outcome,
        detail="; ".join(part for part in (ending.detail, left.note) if part),
        outputs=left.outputs,
        logs=left.logs,
        missing_artifacts=left.missing,
        assessment=assessment,
        stopped=_reason_to_stop(phase, assessment),
        ended_ms=clock.now_ms(),
    )


async def _prepare(scene: Scene, phase: _Phase, earlier: Sequence[_Phase]) -> str:
    """Bring the box to where the step starts; return why that did not work.

    Raises:
        SandboxError: the box failed, or the first step's set-up did: no agent has had its hands on it.
    """
    if phase.step is None:
        return ""
    if earlier:
        await _clean(scene, with_tests=any(other.task.verifier_mode is VerifierMode.SHARED for other in earlier))
    task = phase.task
    await scene.box.upload(phase.files, task.environment.workdir)
    problem = ""
    if phase.has_setup:
        script = Command(
            argv=("bash", SETUP),
            cwd=task.environment.workdir,
            env=task.environment.env,
            timeout_s=SETUP_TIMEOUT_S,
            user=task.agent.user,
        )
        result = await scene.box.exec(script)
        if result.exit_code != 0:
            how = "did not end in time" if result.timed_out else f"ended with {result.exit_code}"
            problem = f"step {phase.step.name!r}: {SETUP} {how}"
    problem = problem or await find_illness(scene.box, scene.context.clock, task, phase.step.healthcheck)
    if problem and not earlier:
        raise SandboxError(problem)
    return problem


async def _clean(scene: Scene, *, with_tests: bool) -> None:
    """Take away what the step before left in the log directories, and the tests that it was verified with.

    Raises:
        SandboxError: it could not be removed; the next step would see how the last one was graded.
    """
    places = f"{_LOGS} {_TESTS}" if with_tests else _LOGS
    result = await scene.box.exec(Command(argv=("/bin/sh", "-c", _EMPTY.format(places)), cwd="/", user="root"))
    if result.exit_code != 0:
        words = result.stderr.decode(errors="replace").strip()[:200]
        raise SandboxError(f"{places} could not be emptied between steps: {words}")


async def _verify(scene: Scene, phase: _Phase, left: Left, blank: TrialRecord) -> Assessment | None:
    context = scene.context
    if context.verifier is None:
        return None
    shared = phase.task.verifier_mode is VerifierMode.SHARED
    if left.problem and not shared:
        return _zero(scene, phase, blank, f"tampering: {left.problem}", tampered=True)
    work = Work(
        task=phase.kept,
        archive=phase.archive,
        trial=blank,
        fence=context.lease.fence,
        outputs=left.content,
        missing_artifacts=left.missing,
        box=scene.box if shared else None,
    )
    limit_s = context.plan.verifier_timeout_s
    try:
        return await within(context.clock, limit_s, context.verifier.verify(work))
    except TimeoutError:
        return Assessment(
            trial_id=blank.trial_id,
            assessor=context.verifier.identity(phase.kept),
            outcome=AssessmentOutcome.UNGRADED,
            reason=f"the verifier did not end within the plan's {limit_s:g} s",
        )


def _reason_to_stop(phase: _Phase, assessment: Assessment | None) -> str:
    """Return why no later step may run; without a verifier there is no gate."""
    if phase.step is None or assessment is None:
        return ""
    if assessment.reward is None:
        return f"step {phase.step.name!r} is ungraded: {assessment.reason}"
    return gate_failure(phase.step, assessment)


def _zero(scene: Scene, phase: _Phase, blank: TrialRecord, reason: str, *, tampered: bool = False) -> Assessment | None:
    verifier = scene.context.verifier
    if verifier is None:
        return None
    return Assessment(
        trial_id=blank.trial_id,
        assessor=verifier.identity(phase.kept),
        outcome=AssessmentOutcome.SCORED,
        panel={"reward": 0.0},
        reward=0.0,
        reason=reason,
        tampered=tampered,
    )
