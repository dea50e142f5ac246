"""Scores of one task from several places, as the scores of one task."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from domain.maths.statistics import TaskScores


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
