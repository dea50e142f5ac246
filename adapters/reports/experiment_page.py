"""An experiment's report as one HTML file."""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass

from adapters.reports import formats
from adapters.reports.charts import learning_curve_png
from adapters.reports.content import ExperimentContent, LabelledEvaluation
from adapters.reports.pages import render
from adapters.reports.tables import Family, TaskRow, batches, families, task_rows
from domain.maths.comparison import Comparison
from domain.maths.scores import Coverage
from domain.maths.statistics import Estimate
from domain.records.assessment import Assessment, AssessmentOutcome
from domain.records.canonical import jsonable
from domain.records.experiment import ExperimentKind
from domain.records.trial import TrialRecord
from domain.records.wording import counted
from domain.service.ungraded import NOTHING_GRADED


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A key figure at the top of the page."""

    name: str
    value: str
    under: str = ""
    tone: str = ""
    """``good``, ``bad`` or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateRow:
    """An estimate as a table row."""

    name: str
    estimate: Estimate
    href: str | None = None

    @property
    def interval(self) -> str:
        """The 95 % interval."""
        return formats.interval(self.estimate.low, self.estimate.high)


def experiment_page(content: ExperimentContent) -> str:
    """Return a self-contained page: figures, curve, evaluations, comparison, families, tasks, coverage, the spec."""
    experiment = content.view.experiment
    return render(
        "experiment.html",
        content=content,
        experiment=experiment,
        figures=_figures(content),
        chart=_chart(content),
        estimates=_estimates(content),
        comparison=content.comparison,
        comparison_interval=_comparison_interval(content.comparison),
        comparison_p=formats.p_value(content.comparison.p_value if content.comparison else None),
        families=_families(content),
        compares_families=len(_ends(content)) > 1,
        tasks=_tasks(content),
        batches=batches(content.curve),
        coverage=_coverage(content),
        outcomes={name: count for name, count in sorted(_outcomes(content).items()) if count},
        usage=_usage(content),
        spec=json.dumps(jsonable(experiment.spec), indent=2, ensure_ascii=False),
        profile=json.dumps(jsonable(content.profile), indent=2, ensure_ascii=False),
    )


def _ends(content: ExperimentContent) -> list[LabelledEvaluation]:
    """Return the first and the last evaluation of a training; one when there is only one."""
    found = list(content.evaluations)
    return [found[0], found[-1]] if len(found) > 1 else found


def _figures(content: ExperimentContent) -> list[Figure]:
    if content.view.experiment.spec.kind is ExperimentKind.TRAINING:
        return _training_figures(content)
    return _evaluation_figures(content)


def _training_figures(content: ExperimentContent) -> list[Figure]:
    figures: list[Figure] = []
    if content.comparison is not None:
        difference = content.comparison.difference
        sure = difference.low is not None and difference.low > 0
        worse = difference.high is not None and difference.high < 0
        figures.append(
            Figure(
                name="paired gain on held-out tasks",
                value=formats.signed(difference.value),
                under=f"95 % {formats.interval(difference.low, difference.high, with_sign=True)}, "
                f"{counted(difference.n_tasks, 'task')}, {formats.p_value(content.comparison.p_value)}",
                tone="good" if sure else "bad" if worse else "",
            )
        )
    figures += [
        _mean_figure(f"held-out reward, {item.label}", item.report.mean, item.report.headline)
        for item in _ends(content)
    ]
    steps = sum(point.checkpoint is not None for point in content.curve)
    planned = content.view.experiment.spec.plan.batches
    figures.append(
        Figure(
            name="optimizer steps",
            value=str(steps),
            under=f"{len(content.curve)} of {counted(planned, 'batch')} done; a batch without signal takes no step",
        )
    )
    figures.append(_trials_figure(content))
    return figures


def _evaluation_figures(content: ExperimentContent) -> list[Figure]:
    report = content.evaluation
    if report is None:
        return [_trials_figure(content)]
    attempts = content.view.experiment.spec.plan.attempts
    figures = [_mean_figure("mean reward", report.mean, report.headline)]
    if attempts > 1 and attempts in report.pass_at:
        figures.append(_mean_figure(f"pass@{attempts}: any of {attempts} succeeds", report.pass_at[attempts], None))
        figures.append(_mean_figure(f"pass^{attempts}: all {attempts} succeed", report.pass_hat[attempts], None))
    figures.append(_trials_figure(content))
    return figures


def _mean_figure(name: str, mean: Estimate, headline: float | None) -> Figure:
    over = f"{counted(mean.n_tasks, 'task')}, {counted(mean.n_attempts, 'attempt')}"
    under = f"95 % {formats.interval(mean.low, mean.high)}, {over}"
    if headline is None and mean.value is not None and name.startswith(("mean", "held-out")):
        return Figure(name=name, value=formats.DASH, under="too many attempts are ungraded for a headline", tone="bad")
    if mean.value is None:
        return Figure(name=name, value=formats.DASH, under=NOTHING_GRADED, tone="bad")
    return Figure(name=name, value=formats.score(mean.value), under=under)


def _trials_figure(content: ExperimentContent) -> Figure:
    usage = _usage(content)
    sampled = f"{counted(usage['n_sampled_tokens'], 'sampled token')} in {formats.duration(usage['span_s'])}"
    return Figure(
        name="trials",
        value=formats.count(usage["n_trials"]),
        under=f"of {formats.count(content.view.n_trials_planned)} planned; {sampled}",
    )


def _chart(content: ExperimentContent) -> str | None:
    if not content.curve:
        return None
    return base64.b64encode(learning_curve_png(content.curve, content.evaluations)).decode()


def _estimates(content: ExperimentContent) -> list[EstimateRow]:
    if content.evaluation is not None:
        report = content.evaluation
        rows = [EstimateRow(name="mean reward", estimate=report.mean)]
        rows += [EstimateRow(name=f"pass@{k}", estimate=found) for k, found in sorted(report.pass_at.items()) if k > 1]
        rows += [EstimateRow(name=f"pass^{k}", estimate=found) for k, found in sorted(report.pass_hat.items()) if k > 1]
        return rows
    return [
        EstimateRow(name=f"{item.label} (after {counted(item.batch, 'batch')})", estimate=item.report.mean)
        for item in content.evaluations
    ]


def _comparison_interval(comparison: Comparison | None) -> str:
    if comparison is None:
        return formats.DASH
    return formats.interval(comparison.difference.low, comparison.difference.high, with_sign=True)


def _families(content: ExperimentContent) -> list[Family]:
    if content.evaluation is not None:
        return families(None, content.evaluation)
    ends = _ends(content)
    if not ends:
        return []
    return families(ends[0].report if len(ends) > 1 else None, ends[-1].report)


def _tasks(content: ExperimentContent) -> list[TaskRow]:
    if content.evaluation is not None:
        return task_rows([content.trials], content.links)
    # Without a held-out evaluation the experiment's own trials are all there is to read.
    return task_rows([item.trials for item in _ends(content)] or [content.trials], content.links)


def _coverage(content: ExperimentContent) -> Coverage:
    if content.evaluation is not None:
        return content.evaluation.mean.coverage
    found = [assessment.outcome for _, assessment in content.trials if assessment is not None]
    n_scored, n_fail_closed = found.count(AssessmentOutcome.SCORED), found.count(AssessmentOutcome.FAIL_CLOSED)
    n_total = content.view.n_trials_planned
    return Coverage(
        n_scored=n_scored,
        n_fail_closed=n_fail_closed,
        n_ungraded=n_total - n_scored - n_fail_closed,
        n_total=n_total,
    )


def _outcomes(content: ExperimentContent) -> dict[str, int]:
    counts = dict(content.view.outcomes)
    counts["missing"] = content.view.n_trials_planned - sum(counts.values())
    return counts


def _usage(content: ExperimentContent) -> dict[str, float]:
    trials = [trial for trial, _ in content.trials]
    return {
        "n_trials": len(trials),
        "n_calls": sum(trial.usage.n_calls for trial in trials),
        "n_prompt_tokens": sum(trial.usage.n_prompt_tokens for trial in trials),
        "n_sampled_tokens": sum(trial.usage.n_sampled_tokens for trial in trials),
        "box_s": sum(trial.usage.wall_s for trial in trials),
        "cpu_s": sum(trial.usage.cpu_s or 0.0 for trial in trials),
        "n_infra_retries": sum(trial.n_infra_retries for trial in trials),
        "n_tampered": sum(assessment is not None and assessment.tampered for _, assessment in content.trials),
        "span_s": _span_s(trials),
    }


def _span_s(trials: Sequence[TrialRecord]) -> float:
    """Return the time from the first trial's start to the last one's end."""
    if not trials:
        return 0.0
    return (max(trial.ended_ms for trial in trials) - min(trial.started_ms for trial in trials)) / 1000


def transcripts_worth_reading(
    trials: Sequence[tuple[TrialRecord, Assessment | None]], limit: int
) -> tuple[TrialRecord, ...]:
    """Return up to ``limit`` trials, spread over tasks: the first attempt at each task, then the second, ..."""
    ranks: dict[str, int] = {}
    ranked: list[tuple[int, int, TrialRecord]] = []
    for position, (trial, _) in enumerate(trials):
        rank = ranks.get(trial.task_digest, 0)
        ranks[trial.task_digest] = rank + 1
        ranked.append((rank, position, trial))
    return tuple(trial for _, _, trial in sorted(ranked, key=lambda item: item[:2])[:limit])
