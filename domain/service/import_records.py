"""Records of an imported job: outcomes, verdicts and what is retained, by our rules and not by the tool's.

No verdict is ungraded, a fault that nobody names is nobody's, and a step that did not run never makes the others
count more.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from domain.lifecycle.rewards import RewardReading, read_rewards
from domain.lifecycle.step_rewards import gate_failure, settle_steps
from domain.lifecycle.step_view import step_view
from domain.lifecycle.steps import is_verified_inside
from domain.ports import Store
from domain.ports.foreign import ForeignFiles, ForeignPhase, ForeignTrial
from domain.records.archive import paths
from domain.records.assessment import Assessment, AssessmentOutcome
from domain.records.experiment import Experiment
from domain.records.task import ObjectRef, Step, Task
from domain.records.trial import AttemptKey, EvidenceRef, Interaction, StepRecord, TrialRecord, Usage
from domain.service.accept import sortable_id

Encode = Callable[[str, Sequence[Interaction]], bytes]
"""Makes the published object of a trial's interactions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMaker:
    """Makes records of one import and keeps the bytes behind them; the same job gives the same ones."""

    store: Store
    encode: Encode
    experiment: Experiment
    seed: str
    """Trial ids come of it."""

    def record(self, source: ForeignTrial, task: Task, key: AttemptKey) -> tuple[TrialRecord, Assessment]:
        """Return a trial with its verdict."""
        trial_id = sortable_id(source.started_ms, f"{self.seed}/{source.name}")
        phases = [self._phase(task, phase, trial_id) for phase in source.phases]
        last = phases[-1] if phases else None
        trial = TrialRecord(
            trial_id=trial_id,
            key=key,
            experiment_id=self.experiment.experiment_id,
            task_name=task.name,
            task_digest=task.digest,
            profile_digest=self.experiment.spec.actor_digest,
            policy=source.model,
            outcome=source.outcome,
            detail=source.detail,
            outputs=None if last is None else last.outputs,
            logs=None if last is None else last.logs,
            missing_artifacts=() if last is None else last.missing_artifacts,
            evidence=self._evidence(source, trial_id),
            started_ms=source.started_ms,
            ended_ms=source.ended_ms,
            usage=Usage(
                wall_s=round(max(0, source.ended_ms - source.started_ms) / 1000, 3),
                n_calls=source.n_calls,
                n_prompt_tokens=source.n_prompt_tokens,
                n_sampled_tokens=source.n_sampled_tokens,
            ),
            sandbox=source.sandbox,
            steps=tuple(phases) if is_verified_inside(task) else (),
        )
        return trial, self._settled(task, trial, phases)

    def _settled(self, task: Task, trial: TrialRecord, phases: Sequence[StepRecord]) -> Assessment:
        """Return the trial's own verdict; that of steps is over all steps of the task, not over those that ran."""
        if not trial.outcome.is_assessable() or not phases:
            reason = f"{trial.outcome.value}: {trial.detail}"
            return self._verdict(trial.trial_id, RewardReading(reason=reason), logs=None)
        if not task.steps:
            only = phases[-1].assessment
            return only or self._verdict(trial.trial_id, RewardReading(reason="no verdict"), logs=None)
        found = settle_steps(task, trial)
        reading = RewardReading(panel=found.panel, reward=found.reward, reason=found.reason)
        return self._verdict(trial.trial_id, reading, logs=None, tampered=found.tampered)

    def _phase(self, task: Task, phase: ForeignPhase, trial_id: str) -> StepRecord:
        step = next((step for step in task.steps if step.name == phase.name), None)
        view = task if step is None else step_view(task, step)
        files = phase.files()
        assessment = None
        if phase.outcome.is_assessable():
            logs = self._put(files.verifier_logs)
            assessment = self._verdict(
                trial_id,
                _reading(phase),
                logs=logs,
                tampered=phase.is_tampered,
                fail_closed=phase.is_fail_closed,
            )
        return StepRecord(
            name=phase.name,
            outcome=phase.outcome,
            detail=phase.detail,
            outputs=self._put(_outputs(view, phase, files)),
            logs=self._put(files.logs),
            missing_artifacts=phase.missing,
            assessment=assessment,
            stopped=phase.stopped or _stopped(step, assessment),
            started_ms=phase.started_ms,
            ended_ms=phase.ended_ms,
        )

    def _verdict(
        self,
        trial_id: str,
        reading: RewardReading,
        *,
        logs: ObjectRef | None,
        tampered: bool = False,
        fail_closed: bool = False,
    ) -> Assessment:
        outcome = AssessmentOutcome.FAIL_CLOSED if fail_closed else AssessmentOutcome.SCORED
        return Assessment(
            trial_id=trial_id,
            assessor=self.experiment.spec.assessor,
            outcome=AssessmentOutcome.UNGRADED if reading.reward is None else outcome,
            panel=reading.panel,
            reward=reading.reward,
            reason=reading.reason,
            tampered=tampered and reading.reward is not None,
            logs=logs,
        )

    def _evidence(self, source: ForeignTrial, trial_id: str) -> EvidenceRef | None:
        found = source.interactions(trial_id)
        if not found:
            return None
        ref = self.store.put(self.encode(trial_id, found))
        return EvidenceRef(
            object=ref,
            n_interactions=len(found),
            n_prompt_tokens=sum(item.n_prompt_ids for item in found),
            n_sampled_tokens=sum(item.n_sampled_ids for item in found),
        )

    def _put(self, data: bytes | None) -> ObjectRef | None:
        return None if data is None else self.store.put(data)


def _reading(phase: ForeignPhase) -> RewardReading:
    """Return what a phase's rewards mean here; a reward beside a fault of its verifier means nothing."""
    if phase.ungraded or not phase.rewards:
        return RewardReading(reason=phase.reason or phase.ungraded or "the job holds no reward")
    if phase.lost and not phase.is_shared:
        lost = ", ".join(phase.lost)
        return RewardReading(reason=f"declared artifacts are not in the job, so nobody knows what was graded: {lost}")
    found = read_rewards(json.dumps(dict(phase.rewards)).encode(), None)
    return found if found.reward is None else RewardReading(panel=found.panel, reward=found.reward, reason=phase.reason)


def _outputs(task: Task, phase: ForeignPhase, files: ForeignFiles) -> bytes | None:
    """Return what a regrade may read; None where the job did not keep all that the verifier would have seen."""
    if phase.lost or files.outputs is None:
        return None
    if phase.is_whole or task.artifacts:
        return files.outputs
    workdir = task.environment.workdir.strip("/") + "/"
    return files.outputs if any(name.startswith(workdir) for name in paths(files.outputs)) else None


def _stopped(step: Step | None, assessment: Assessment | None) -> str:
    return "" if step is None or assessment is None else gate_failure(step, assessment)
