"""From the verdicts of steps to the reward of a trial: over all steps of the task, not over those that ran.

Harbor divides by the steps that have a result, so that a step which never ran, or whose verifier failed, makes the
others count more: a set-up that fails in step 2 leaves a reward of 1. Source: facts/harbor.md section 2.6.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum

from domain.records.assessment import Assessment
from domain.records.task import RewardStrategy, Step, Task
from domain.records.trial import StepRecord, TrialOutcome, TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsReading:
    """What the steps say together. ``reward`` is None exactly when ``reason`` says why nothing is known."""

    panel: Mapping[str, float] = field(default_factory=dict[str, float])
    """The headline as ``reward``, and each step's panel as ``STEP/KEY``."""
    reward: float | None = None
    reason: str = ""
    tampered: bool = False


def gate_failure(step: Step, assessment: Assessment | None) -> str:
    """Return which of the step's least rewards was missed; empty: the next step may run."""
    for key, least in step.min_reward.items():
        value = None if assessment is None else assessment.panel.get(key)
        if value is None or value < least:
            return f"step {step.name!r}: {key} = {'nothing' if value is None else f'{value:g}'}, below {least:g}"
    return ""


def settle_steps(task: Task, trial: TrialRecord) -> StepsReading:
    """Return the reading of a trial whose phases were verified while it ran.

    A step that never ran because one before it stopped the trial counts 0; a step that ran and has no verdict
    leaves the trial ungraded.
    """
    if not task.steps:
        return _shared(trial)
    records = {record.name: record for record in trial.steps}
    unknown = _without_verdict(task.steps, records, trial)
    if unknown:
        return StepsReading(reason=unknown)
    verdicts = {name: record.assessment for name, record in records.items() if record.assessment is not None}
    tampered = [name for name, verdict in verdicts.items() if verdict.tampered]
    rewards = [_reward(verdicts.get(step.name)) for step in task.steps]
    reward = rewards[-1] if task.reward_strategy is RewardStrategy.FINAL else fsum(rewards) / len(rewards)
    panel = {f"{name}/{key}": value for name, verdict in verdicts.items() for key, value in verdict.panel.items()}
    reasons = [record.stopped for record in trial.steps if record.stopped]
    reasons += [f"step {name!r}: {verdict.reason}" for name, verdict in verdicts.items() if verdict.reason]
    if tampered:
        reward = 0.0
    return StepsReading(
        panel={**panel, "reward": reward}, reward=reward, reason="; ".join(reasons), tampered=bool(tampered)
    )


def _shared(trial: TrialRecord) -> StepsReading:
    """Return the one verdict that a task with a shared verifier has."""
    verdict = trial.steps[0].assessment if trial.steps else None
    if verdict is None:
        return StepsReading(reason="the trial keeps no verdict of its shared verifier")
    return StepsReading(panel=verdict.panel, reward=verdict.reward, reason=verdict.reason, tampered=verdict.tampered)


def _without_verdict(steps: Sequence[Step], records: Mapping[str, StepRecord], trial: TrialRecord) -> str:
    """Return why nothing is known of the trial as a whole; empty: every step has a verdict or counts 0."""
    stopped = trial.outcome is TrialOutcome.AGENT_ERROR and not trial.steps
    for step in steps:
        record = records.get(step.name)
        if record is None:
            if not stopped:
                return f"step {step.name!r} did not run, and nothing says why"
            continue
        if record.assessment is None:
            return f"step {step.name!r} ran without a verifier"
        if record.assessment.reward is None:
            return f"step {step.name!r} is ungraded: {record.assessment.reason}"
        stopped = stopped or bool(record.stopped)
    return ""


def _reward(verdict: Assessment | None) -> float:
    return 0.0 if verdict is None or verdict.reward is None else verdict.reward
