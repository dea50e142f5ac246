"""Scores of tasks: every planned attempt counted once, as scored, fail-closed or ungraded."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from domain.records.assessment import Assessment, AssessmentOutcome
from domain.records.trial import TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What stands behind an aggregate: scored + fail-closed + ungraded = total."""

    n_scored: int
    n_ungraded: int
    n_fail_closed: int
    n_total: int

    @property
    def ungraded_share(self) -> float:
        """Share of planned attempts without a score; 0 when nothing was planned."""
        return self.n_ungraded / self.n_total if self.n_total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScores:
    """Every planned attempt at one task."""

    task: str
    """Digest or name; pairs two systems."""
    scores: tuple[float, ...]
    """Of scored and fail-closed attempts, finite."""
    n_ungraded: int = 0
    n_fail_closed: int = 0
    """How many of ``scores`` are fail-closed."""
    family: str | None = None
    """Cluster key."""

    @property
    def mean(self) -> float | None:
        """Mean score; None when nothing is scored."""
        return math.fsum(self.scores) / len(self.scores) if self.scores else None


def scores_by_task(
    trials: Sequence[TrialRecord],
    assessments: Mapping[str, Assessment],
    *,
    families: Mapping[str, str | None] | None = None,
    planned: Mapping[str, int] | None = None,
) -> tuple[TaskScores, ...]:
    """Return the attempts grouped by task digest, in order of first appearance.

    Args:
        trials: counting records.
        assessments: of one assessor, by trial id; a trial without one counts as ungraded.
        families: cluster keys by task digest.
        planned: attempts planned by task digest; those without a counting record count as ungraded.
    """
    by_task: dict[str, list[Assessment | None]] = {digest: [] for digest in planned or {}}
    for trial in trials:
        by_task.setdefault(trial.task_digest, []).append(assessments.get(trial.trial_id))
    return tuple(
        _task_scores(digest, attempts, (families or {}).get(digest), max(len(attempts), (planned or {}).get(digest, 0)))
        for digest, attempts in by_task.items()
    )


def _task_scores(digest: str, attempts: Sequence[Assessment | None], family: str | None, n_planned: int) -> TaskScores:
    graded = [
        (attempt.reward, attempt.outcome)
        for attempt in attempts
        if attempt is not None
        and attempt.outcome is not AssessmentOutcome.UNGRADED
        and attempt.reward is not None
        and math.isfinite(attempt.reward)
    ]
    return TaskScores(
        task=digest,
        scores=tuple(float(reward) for reward, _ in graded),
        n_ungraded=n_planned - len(graded),
        n_fail_closed=sum(outcome is AssessmentOutcome.FAIL_CLOSED for _, outcome in graded),
        family=family,
    )


def coverage_of(tasks: Sequence[TaskScores]) -> Coverage:
    """Return the counts over all planned attempts."""
    n_scores = sum(len(task.scores) for task in tasks)
    n_fail_closed = sum(task.n_fail_closed for task in tasks)
    n_ungraded = sum(task.n_ungraded for task in tasks)
    return Coverage(
        n_scored=n_scores - n_fail_closed,
        n_ungraded=n_ungraded,
        n_fail_closed=n_fail_closed,
        n_total=n_scores + n_ungraded,
    )


def merged_scores(
    parts: Iterable[TaskScores], *, families: Mapping[str, str | None], planned: Mapping[str, int]
) -> tuple[TaskScores, ...]:
    """Return one entry for each task: first the planned ones, in their order, then others as they appear.

    Args:
        parts: for example of each unit; a task may be in several.
        families: cluster keys by task digest.
        planned: attempts planned by task digest; those without a counting record count as ungraded.
    """
    found = {task: TaskScores(task=task, scores=()) for task in planned}
    for part in parts:
        before = found.get(part.task, TaskScores(task=part.task, scores=()))
        found[part.task] = replace(
            before,
            scores=before.scores + part.scores,
            n_ungraded=before.n_ungraded + part.n_ungraded,
            n_fail_closed=before.n_fail_closed + part.n_fail_closed,
        )
    return tuple(
        replace(
            scores,
            family=families.get(task),
            n_ungraded=max(scores.n_ungraded, planned.get(task, 0) - len(scores.scores)),
        )
        for task, scores in found.items()
    )
