"""One attempt at one task, run by this process: an evaluation of one trial whose worker is the command itself."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from domain.records.assessment import Assessment
from domain.records.trial import TrialRecord

if TYPE_CHECKING:
    from cli.submission import Actor
    from domain.ports import Progress
    from domain.records.experiment import Experiment
    from domain.records.task import TaskSet
    from domain.service.platform import Platform

_TOO_LONG = "prompt is too long"
"""How the proxy begins its refusal of a prompt. Source: Anthropic Messages API; adapters/servers/calls.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRun:
    """What came of it."""

    experiment_id: str
    trial: TrialRecord
    assessment: Assessment | None


async def run_once(
    platform: "Platform",
    *,
    actor: "Actor",
    directory: str,
    model: str | None,
    sandbox: str,
    host_runnable: bool,
    progress: "Progress",
) -> AgentRun:
    """Run one attempt in this process and return its records.

    Raises:
        ConfigurationError: profile, task or sandbox is wrong; nothing has run.
        SynthError: the trial left no record.
    """
    from domain.errors import SandboxError
    from domain.service.dispatch import conclude_evaluation, request_cancel
    from domain.service.units import Stage, run_unit

    task_set = _publish(platform, directory, host_runnable=host_runnable)
    experiment, unit, holder = _admit(platform, task_set, actor, model, sandbox)
    done = False
    try:
        stages = frozenset({Stage.TRIALS, Stage.ASSESSMENTS, Stage.QUALIFIED_GROUPS})
        result = await run_unit(platform, unit, holder, stages, progress)
        conclude_evaluation(platform, experiment.experiment_id, succeeded=True)
        done = True
    finally:
        if not done:
            request_cancel(platform, experiment.experiment_id)
    if not result.trials.trials:
        raise SandboxError(f"{unit}: the attempt left no record")
    assessments = result.assessments.assessments if result.assessments is not None else ()
    return AgentRun(
        experiment_id=experiment.experiment_id,
        trial=result.trials.trials[0],
        assessment=assessments[0] if assessments else None,
    )


def context_of(found: AgentRun, platform: "Platform") -> str | None:
    """Return what to know of a prompt that did not fit its model; None when all did."""
    trial = found.trial
    if trial.policy is None or _TOO_LONG not in trial.detail:
        return None
    with platform.ledger.snapshot() as tx:
        base = tx.catalog.base_policy(tx.updates.policy(trial.policy).base)
    return (
        f"base:{base.name} has a context of {base.context_tokens} tokens for prompt and answer together; "
        "a shorter task, or a policy with a larger one, fits"
    )


def _publish(platform: "Platform", directory: str, *, host_runnable: bool) -> "TaskSet":
    """Publish the task under a reference made of its own digest."""
    from domain.errors import TaskError
    from domain.records.names import Reference
    from domain.records.wording import counted
    from domain.service.publish import publish_task_set

    read = tuple(platform.tasks.read(directory, host_runnable=host_runnable))
    if len(read) != 1:
        raise TaskError(f"{directory}: holds {counted(len(read), 'task')}", hint="name the directory of one task")
    kind = "host" if host_runnable else "task"
    reference = Reference(team="local", name=f"{kind}-{read[0][0].digest[:16]}", version=1)
    return publish_task_set(platform, reference, directory, host_runnable=host_runnable)


def _admit(
    platform: "Platform", task_set: "TaskSet", actor: "Actor", model: str | None, sandbox: str
) -> "tuple[Experiment, str, str]":
    """Accept the evaluation and hold its unit in one step, so that the dispatcher leaves it to this process."""
    from domain.records.experiment import ExperimentKind
    from domain.records.names import unit_key
    from domain.records.profile import Plan
    from domain.service.accept import Submission, accept
    from domain.service.inspection import BY, BY_AGENT_RUN
    from domain.service.sources import written_in

    holder = f"agent-run-{platform.clock.new_id()}"
    submission = Submission(
        kind=ExperimentKind.EVALUATION,
        task_set=str(task_set.reference),
        actor=actor.profile,
        actor_file=actor.file,
        plan=Plan(sandbox=sandbox),
        model=model,
        labels={BY: BY_AGENT_RUN},
    )
    with written_in({"plan: sandbox": "--sandbox"}):
        experiment = accept(platform, submission, holder=holder).experiment
    return experiment, unit_key(experiment.experiment_id, 0), holder
