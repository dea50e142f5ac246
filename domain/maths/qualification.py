"""Eligibility of a sampling group: who is kept, who is not and why, decided before the mean is taken."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from domain.errors import DatumError
from domain.maths.advantage import group_advantages, has_spread
from domain.maths.alignment import Captured, agent_interactions, find_defect
from domain.records.assessment import (
    Assessment,
    AssessmentOutcome,
    Exclusion,
    ExclusionReason,
    Member,
    QualifiedGroup,
)
from domain.records.task import Task, TaskEntry
from domain.records.trial import TrialRecord

_Verdict = tuple[ExclusionReason, str]


def qualify(
    *,
    unit: str,
    group: int,
    task: Task | TaskEntry,
    trials: Sequence[TrialRecord],
    assessments: Mapping[str, Assessment],
    interactions: Mapping[str, Sequence[Captured]] | None,
    policy: str | None,
    require_evidence: bool,
) -> QualifiedGroup:
    """Return the group with members, their advantages, and exclusions with reasons, both in order of attempt.

    Trainings (``require_evidence``) keep out tampered trials and demand aligned, finite, fresh tokens. Evaluations
    keep a tampered trial at its score of zero and look at no tokens.

    Args:
        unit: unit key.
        group: index of the group inside the unit.
        task: the group's task.
        trials: counting records of the group's attempts, in any order.
        assessments: by trial id.
        interactions: by trial id; None when none were captured.
        policy: name of the policy version that the unit pins.
        require_evidence: whether only trials that can train are members.

    Raises:
        DatumError: a trial belongs to another group, or two share an attempt.

    Source: the outcome table in facts/worlds section 5.2; facts/learning.md sections 0b, 0c and 1.2.
    """
    ordered = sorted(trials, key=lambda trial: trial.key.attempt)
    _refuse_strangers(unit, group, ordered)
    kept: list[Member] = []
    excluded: list[Exclusion] = []
    for trial in ordered:
        assessment = assessments.get(trial.trial_id)
        captured = None if interactions is None else interactions.get(trial.trial_id)
        verdict = _refuse_outcome(trial, assessment)
        if verdict is None and require_evidence:
            verdict = _refuse_evidence(trial, assessment, captured, policy)
        if verdict is None and assessment is not None and assessment.reward is not None:
            kept.append(_member(trial, assessment.reward, captured))
        else:
            excluded.append(_exclusion(trial, verdict or (ExclusionReason.UNGRADED, "no reward")))
    return QualifiedGroup(
        group_id=f"{unit}/g{group:03d}",
        unit=unit,
        group=group,
        task_name=task.name,
        task_digest=task.digest,
        policy=policy,
        members=_centred(kept),
        excluded=tuple(excluded),
        has_signal=has_spread([member.reward for member in kept]),
    )


def _member(trial: TrialRecord, reward: float, captured: Sequence[Captured] | None) -> Member:
    if captured is None:
        n_sampled = trial.usage.n_sampled_tokens
    else:
        n_sampled = sum(call.n_sampled_ids for call in agent_interactions(captured))
    return Member(
        trial_id=trial.trial_id,
        attempt=trial.key.attempt,
        reward=float(reward),
        advantage=0.0,
        n_sampled_tokens=n_sampled,
    )


def _exclusion(trial: TrialRecord, verdict: _Verdict) -> Exclusion:
    reason, detail = verdict
    return Exclusion(trial_id=trial.trial_id, attempt=trial.key.attempt, reason=reason, detail=detail)


def _centred(members: Sequence[Member]) -> tuple[Member, ...]:
    """Return the members with their advantages: the mean is over these alone."""
    advantages = group_advantages([member.reward for member in members], [member.trial_id for member in members])
    return tuple(
        replace(member, advantage=float(advantage)) for member, advantage in zip(members, advantages, strict=True)
    )


def _refuse_strangers(unit: str, group: int, trials: Sequence[TrialRecord]) -> None:
    for position, trial in enumerate(trials):
        if (trial.key.unit, trial.key.group) != (unit, group):
            raise DatumError(f"trial {trial.trial_id}: attempt {trial.key} is not of group {unit}/g{group:03d}")
        if position and trial.key.attempt == trials[position - 1].key.attempt:
            message = f"trials {trials[position - 1].trial_id} and {trial.trial_id}: both are attempt {trial.key}"
            raise DatumError(message, hint="only the counting record of an attempt belongs to its group")


def _refuse_outcome(trial: TrialRecord, assessment: Assessment | None) -> _Verdict | None:
    if not trial.outcome.is_assessable():
        return ExclusionReason.NOT_ASSESSABLE, trial.detail or trial.outcome.value
    if assessment is None:
        return ExclusionReason.UNGRADED, "no assessment"
    if assessment.outcome is AssessmentOutcome.UNGRADED:
        return ExclusionReason.UNGRADED, assessment.reason
    if assessment.reward is None:
        return ExclusionReason.UNGRADED, f"{assessment.outcome.value} without a reward"
    if not math.isfinite(assessment.reward):
        return ExclusionReason.NON_FINITE, f"reward {assessment.reward}"
    return None


def _refuse_evidence(
    trial: TrialRecord, assessment: Assessment | None, captured: Sequence[Captured] | None, policy: str | None
) -> _Verdict | None:
    if assessment is not None and assessment.tampered:
        return ExclusionReason.TAMPERED, assessment.reason
    if not captured:
        return ExclusionReason.NO_EVIDENCE, "no interaction was published"
    calls = agent_interactions(captured)
    defect = find_defect(trial.trial_id, calls)
    if defect is not None:
        return defect.reason, defect.detail
    stale = next((call for call in calls if call.sampler_version != policy), None)
    if stale is not None:
        detail = f"interaction {stale.interaction_id}: sampled by {stale.sampler_version}, the unit pins {policy}"
        return ExclusionReason.STALE_POLICY, detail
    if not any(call.n_sampled_ids for call in calls):
        return ExclusionReason.NO_SAMPLED_TOKENS, f"{len(captured)} interactions, none with a sampled action"
    return None
