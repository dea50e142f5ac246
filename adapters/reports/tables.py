"""Rows of a report's tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adapters.reports import formats
from domain.maths.statistics import Estimate
from domain.records.assessment import Assessment, AssessmentOutcome
from domain.records.canonical import Json
from domain.records.trial import TrialRecord
from domain.service.evaluate import BatchPoint, EvaluationReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family of tasks, before and after when there are two sides."""

    name: str
    before: Estimate | None
    after: Estimate

    @property
    def change(self) -> str:
        """After less before."""
        if self.before is None or self.before.value is None or self.after.value is None:
            return formats.DASH
        return formats.signed(self.after.value - self.before.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One attempt."""

    tone: str
    """``full``, ``part``, ``zero`` or ``none`` (ungraded)."""
    title: str
    href: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """The attempts at one task, one list for each side."""

    name: str
    sides: tuple[tuple[Dot, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch of a training."""

    index: int
    mean: Estimate
    interval: str
    signal: str
    update: str
    checkpoint: str
    metrics: Mapping[str, str]


METRICS = {
    "grad_norm": "gradient norm",
    "kl_v1": "drift (KL)",
    "entropy": "entropy",
}
"""What a trainer measures -> the heading of its column."""


def families(before: EvaluationReport | None, after: EvaluationReport) -> list[Family]:
    """Return the families of ``after`` by name."""
    return [
        Family(name=name, before=before.families.get(name) if before is not None else None, after=found)
        for name, found in sorted(after.families.items())
    ]


def task_rows(
    sides: Sequence[Sequence[tuple[TrialRecord, Assessment | None]]], links: Mapping[str, str]
) -> list[TaskRow]:
    """Return one row for each task of any side, in order of first appearance."""
    names = dict.fromkeys(trial.task_name for side in sides for trial, _ in side)
    by_side = [_dots(side, links) for side in sides]
    return [TaskRow(name=name, sides=tuple(tuple(dots.get(name, ())) for dots in by_side)) for name in names]


def _dots(side: Sequence[tuple[TrialRecord, Assessment | None]], links: Mapping[str, str]) -> dict[str, list[Dot]]:
    found: dict[str, list[Dot]] = {}
    for trial, assessment in side:
        found.setdefault(trial.task_name, []).append(
            Dot(tone=_tone(assessment), title=_title(trial, assessment), href=links.get(trial.trial_id))
        )
    return found


def _tone(assessment: Assessment | None) -> str:
    if assessment is None or assessment.outcome is AssessmentOutcome.UNGRADED or assessment.reward is None:
        return "none"
    if assessment.reward >= 1:
        return "full"
    return "part" if assessment.reward > 0 else "zero"


def _title(trial: TrialRecord, assessment: Assessment | None) -> str:
    said = "not assessed" if assessment is None else f"{assessment.outcome.value}, {formats.score(assessment.reward)}"
    return f"attempt {trial.key.attempt}: {trial.outcome.value}, {said}"


def batches(curve: Sequence[BatchPoint]) -> list[Batch]:
    """Return the batches in order."""
    return [
        Batch(
            index=point.index,
            mean=point.mean,
            interval=formats.interval(point.mean.low, point.mean.high),
            signal=f"{point.n_groups_with_signal} of {point.n_groups}",
            update=point.update.state.value if point.update is not None else formats.DASH,
            checkpoint=point.checkpoint.checkpoint_id if point.checkpoint is not None else formats.DASH,
            metrics=_metrics(point),
        )
        for point in curve
    ]


def _metrics(point: BatchPoint) -> dict[str, str]:
    found: Mapping[str, Json] = point.checkpoint.metrics if point.checkpoint is not None else {}
    n_tokens, loss_sum = found.get("n_trained_tokens"), found.get("loss_sum")
    shown = {"trained tokens": formats.DASH, "loss / token": formats.DASH}
    if isinstance(n_tokens, (int, float)) and n_tokens > 0:
        shown["trained tokens"] = formats.count(n_tokens)
        if isinstance(loss_sum, (int, float)):
            shown["loss / token"] = formats.number(loss_sum / n_tokens, 3)
    return shown | {title: formats.number(found.get(name), 3) for name, title in METRICS.items()}
