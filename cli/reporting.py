"""Writing an experiment's report: reads through the use cases, renders, writes files."""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adapters.reports.content import ExperimentContent, LabelledEvaluation
    from domain.ports import Progress
    from domain.records.assessment import Assessment
    from domain.records.experiment import Experiment
    from domain.records.profile import Plan
    from domain.records.trial import TrialRecord
    from domain.service.platform import Platform

Assessed = tuple["TrialRecord", "Assessment | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What was written."""

    path: Path
    n_transcripts: int


def write_report(
    platform: "Platform", experiment_id: str, directory: Path, *, n_transcripts: int, progress: "Progress"
) -> Written:
    """Write ``index.html`` and ``transcripts/*.html`` below ``directory``.

    Raises:
        NotFoundError: no such experiment.
        SamplerError: transcripts cannot be read.
    """
    from adapters.reports.experiment_page import experiment_page, transcripts_worth_reading
    from adapters.reports.transcript_page import transcript_page
    from domain.service import inspection

    content = read_content(platform, experiment_id)
    shown = [*content.trials] if not content.evaluations else []
    for item in content.evaluations:
        shown += item.trials
    chosen = transcripts_worth_reading(shown, n_transcripts)
    pages = directory / "transcripts"
    pages.mkdir(parents=True, exist_ok=True)
    links: dict[str, str] = {}
    for number, trial in enumerate(chosen, start=1):
        found = asyncio.run(inspection.transcript(platform, trial.trial_id))
        (pages / f"{trial.trial_id}.html").write_text(transcript_page(found, home="../index.html"), encoding="utf-8")
        links[trial.trial_id] = f"transcripts/{trial.trial_id}.html"
        progress("transcripts", number, len(chosen))
    path = directory / "index.html"
    path.write_text(experiment_page(replace(content, links=links)), encoding="utf-8")
    return Written(path=path, n_transcripts=len(chosen))


def read_content(platform: "Platform", experiment_id: str) -> "ExperimentContent":
    """Return everything the report of an experiment shows, without links. Raises NotFoundError."""
    from adapters.reports.content import ExperimentContent
    from domain.maths.comparison import paired_difference
    from domain.records.experiment import ExperimentKind
    from domain.service import evaluate, inspection

    view = inspection.show(platform, experiment_id)
    with platform.ledger.snapshot() as tx:
        profile = tx.catalog.profile(view.experiment.spec.actor_digest)
    content = ExperimentContent(
        view=view,
        profile=profile,
        made_ms=platform.clock.now_ms(),
        trials=tuple(assessed_trials(platform, experiment_id)),
    )
    kind = view.experiment.spec.kind
    if kind is ExperimentKind.TRAINING:
        evaluations = tuple(_evaluations(platform, view.experiment))
        comparison = None
        if len(evaluations) > 1 and evaluations[0].batch == 0:
            comparison = paired_difference(evaluations[-1].report.tasks, evaluations[0].report.tasks)
        curve = evaluate.learning_curve(platform, experiment_id)
        return replace(content, curve=curve, evaluations=evaluations, comparison=comparison)
    if kind is not ExperimentKind.UNSCORED and view.assessed:
        return replace(content, evaluation=evaluate.evaluation(platform, experiment_id))
    return content


def assessed_trials(platform: "Platform", experiment_id: str) -> list[Assessed]:
    """Return the counting trials of an experiment in order of attempt key, each with its canonical assessment."""
    with platform.ledger.snapshot() as tx:
        tx.experiments.get(experiment_id)
        trials = tx.trials.of_experiment(experiment_id)
        by_trial = {
            item.trial_id: item for unit in tx.units.of(experiment_id) for item in tx.trials.assessments(unit.unit)
        }
    return [(trial, by_trial.get(trial.trial_id)) for trial in trials]


def _evaluations(platform: "Platform", training: "Experiment") -> "list[LabelledEvaluation]":
    """Return the finished evaluations of a training's policies: the first policy's, then each checkpoint's."""
    from adapters.reports.content import LabelledEvaluation
    from domain.records.experiment import ExperimentState
    from domain.service import evaluate

    labelled = [("base", 0, item) for item in (base_evaluation(platform, training),) if item is not None]
    labelled += [
        (item.spec.labels.get("checkpoint", ""), int(item.spec.labels.get("batch", "0")), item)
        for item in evaluate.evaluations_of(platform, training.experiment_id)
        if item.spec.labels.get("checkpoint")
    ]
    return [
        LabelledEvaluation(
            label=label,
            batch=batch,
            report=evaluate.evaluation(platform, item.experiment_id),
            trials=tuple(assessed_trials(platform, item.experiment_id)),
        )
        for label, batch, item in sorted(labelled, key=lambda row: row[1])
        if item.state is ExperimentState.SUCCEEDED
    ]


def base_evaluation(platform: "Platform", training: "Experiment") -> "Experiment | None":
    """Return the newest finished evaluation of the training's first policy under the conditions of its checkpoints'.

    The same held-out task set, actor, attempts, sampling and sandbox: anything else would compare two setups.
    """
    from domain.records.experiment import ExperimentKind, ExperimentState
    from domain.service.dispatch import evaluation_plan

    spec, plan = training.spec, evaluation_plan(training)
    with platform.ledger.snapshot() as tx:
        for item in tx.experiments.all(limit=10_000):
            other = item.spec
            if (
                other.kind is ExperimentKind.EVALUATION
                and item.state is ExperimentState.SUCCEEDED
                and str(other.task_set) == spec.plan.evaluate_on
                and other.actor_digest == spec.actor_digest
                and other.policy == spec.policy
                and _conditions(other.plan) == _conditions(plan)
            ):
                return item
    return None


def _conditions(plan: "Plan") -> tuple[object, ...]:
    return (
        plan.attempts,
        plan.tasks,
        plan.sandbox,
        plan.agent_timeout_s,
        plan.verifier_timeout_s,
        plan.sampling,
    )
