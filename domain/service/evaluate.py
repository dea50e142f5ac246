"""What an evaluation found: estimates with intervals and coverage, read from its units' manifests."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from domain.errors import NotFoundError
from domain.maths.comparison import Comparison, paired_difference
from domain.maths.scores import TaskScores, merged_scores, scores_by_task
from domain.maths.statistics import Estimate, mean_score, pass_at_k_over_tasks, pass_hat_k_over_tasks
from domain.records.experiment import Experiment
from domain.records.manifest import AssessmentManifest, TrialManifest
from domain.records.model import Checkpoint, Update, UpdateState
from domain.records.task import ObjectRef, TaskEntry
from domain.service.platform import Platform
from domain.service.task_pages import entries_of
from domain.service.ungraded import ungraded_reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """The numbers of one evaluation."""

    experiment: Experiment
    sources: tuple[str, ...]
    """Digests of the assessment manifests the numbers were read from, in order of unit."""
    mean: Estimate
    headline: float | None
    """The mean, or None when the share of ungraded attempts is over the plan's limit."""
    pass_at: dict[int, Estimate]
    pass_hat: dict[int, Estimate]
    tasks: tuple[TaskScores, ...]
    task_names: dict[str, str]
    """By digest."""
    families: dict[str, Estimate]
    outcomes: dict[str, int]
    """Trials by outcome, with ``missing`` for planned attempts without a record."""
    n_tampered: int
    n_prompt_tokens: int
    n_sampled_tokens: int
    sandbox_s: float
    ungraded: dict[str, int] = field(default_factory=dict[str, int])
    """Assessments without a reward by reason, the most frequent first."""

    @property
    def nothing_graded(self) -> bool:
        """Whether not one trial has a reward: there is no number here, however the run ended."""
        return self.mean.coverage.n_scored + self.mean.coverage.n_fail_closed == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPoint:
    """One batch of a training on its learning curve."""

    index: int
    unit: str
    mean: Estimate
    """Reward of the batch's trials, sampled by the policy before the step."""
    update: Update | None
    checkpoint: Checkpoint | None
    n_groups: int
    n_groups_with_signal: int


def evaluation(platform: Platform, experiment_id: str) -> EvaluationReport:
    """Return the report over all units that have been assessed.

    Raises:
        NotFoundError: no such experiment, or nothing of it is assessed yet.
    """
    with platform.ledger.snapshot() as tx:
        experiment = tx.experiments.get(experiment_id)
        units = [unit.unit for unit in tx.units.of(experiment_id)]
        refs = [(tx.units.manifest(unit, "trials"), tx.units.manifest(unit, "assessments")) for unit in units]
        task_set, _ = tx.catalog.task_set(experiment.spec.task_set)
    tally = _tally(platform, refs)
    if not tally.sources:
        raise NotFoundError(f"{experiment_id}: nothing is assessed yet", hint=f"synth run show {experiment_id}")
    return _report(experiment, {entry.digest: entry for entry in entries_of(platform.records, task_set)}, tally)


def mean_alone(platform: Platform, experiment: Experiment) -> Estimate | None:
    """Return the mean of task means over the units that have been assessed, for lists; None before the first.

    It is ``evaluation``'s but for the interval: families, which only the task set knows, are left out.
    """
    with platform.ledger.snapshot() as tx:
        units = [unit.unit for unit in tx.units.of(experiment.experiment_id)]
        refs = [(tx.units.manifest(unit, "trials"), tx.units.manifest(unit, "assessments")) for unit in units]
    tally = _tally(platform, refs)
    return mean_score(merged_scores(tally.scores, families={}, planned={})) if tally.sources else None


@dataclass(slots=True)
class _Tally:
    """What is kept of a unit once its manifests are counted: scores, not records."""

    sources: list[str] = field(default_factory=list[str])
    scores: list[TaskScores] = field(default_factory=list[TaskScores])
    outcomes: Counter[str] = field(default_factory=Counter[str])
    ungraded: Counter[str] = field(default_factory=Counter[str])
    n_planned: int = 0
    n_tampered: int = 0
    n_prompt_tokens: int = 0
    n_sampled_tokens: int = 0
    sandbox_s: float = 0.0

    def add(self, manifest: TrialManifest, panel: AssessmentManifest, source: str) -> None:
        """Count one unit."""
        assessments = {assessment.trial_id: assessment for assessment in panel.assessments}
        self.sources.append(source)
        self.scores += scores_by_task(manifest.trials, assessments)
        self.outcomes.update(trial.outcome.value for trial in manifest.trials)
        self.ungraded.update(ungraded_reasons(panel.assessments))
        self.n_planned += manifest.n_planned
        self.n_tampered += sum(assessment.tampered for assessment in panel.assessments)
        self.n_prompt_tokens += sum(trial.usage.n_prompt_tokens for trial in manifest.trials)
        self.n_sampled_tokens += sum(trial.usage.n_sampled_tokens for trial in manifest.trials)
        self.sandbox_s += sum(trial.usage.wall_s for trial in manifest.trials)


def _tally(platform: Platform, refs: Sequence[tuple[ObjectRef | None, ObjectRef | None]]) -> _Tally:
    """Count the units whose trials and assessments are both there."""
    tally = _Tally()
    for trial_ref, assessment_ref in refs:
        if trial_ref is not None and assessment_ref is not None:
            manifest = platform.records.load(TrialManifest, trial_ref)
            tally.add(manifest, platform.records.load(AssessmentManifest, assessment_ref), assessment_ref.digest)
    return tally


def _report(experiment: Experiment, entries: Mapping[str, TaskEntry], tally: _Tally) -> EvaluationReport:
    plan = experiment.spec.plan
    n_taken = len(entries) if plan.tasks is None else min(plan.tasks, len(entries))
    present = {scores.task for scores in tally.scores}
    planned = dict.fromkeys(entries if n_taken == len(entries) else sorted(present), plan.attempts)
    families = {digest: entry.family for digest, entry in entries.items()}
    tasks = merged_scores(tally.scores, families=families, planned=planned)
    mean = mean_score(tasks)
    n_trials = tally.outcomes.total()
    return EvaluationReport(
        experiment=experiment,
        sources=tuple(tally.sources),
        mean=mean,
        headline=mean.headline(plan.ungraded_limit),
        pass_at={k: pass_at_k_over_tasks(tasks, k) for k in range(1, plan.attempts + 1)},
        pass_hat={k: pass_hat_k_over_tasks(tasks, k) for k in range(1, plan.attempts + 1)},
        tasks=tasks,
        task_names={digest: entry.name for digest, entry in entries.items()},
        families=_by_family(tasks),
        outcomes={**tally.outcomes, "missing": tally.n_planned - n_trials},
        n_tampered=tally.n_tampered,
        n_prompt_tokens=tally.n_prompt_tokens,
        n_sampled_tokens=tally.n_sampled_tokens,
        sandbox_s=tally.sandbox_s,
        ungraded=dict(tally.ungraded.most_common()),
    )


def _by_family(tasks: Sequence[TaskScores]) -> dict[str, Estimate]:
    """Return the mean of each family over its tasks; inside a family each task stands for itself."""
    found: dict[str, list[TaskScores]] = {}
    for task in tasks:
        if task.family is not None:
            found.setdefault(task.family, []).append(replace(task, family=None))
    return {family: mean_score(members) for family, members in sorted(found.items())}


def compare(platform: Platform, experiment_a: str, experiment_b: str) -> Comparison:
    """Return A less B, paired by task digest."""
    return paired_difference(evaluation(platform, experiment_a).tasks, evaluation(platform, experiment_b).tasks)


def learning_curve(platform: Platform, experiment_id: str) -> tuple[BatchPoint, ...]:
    """Return the batches of a training that have been assessed, in order."""
    with platform.ledger.snapshot() as tx:
        experiment = tx.experiments.get(experiment_id)
        units = tx.units.of(experiment_id)
        updates = {update.unit: update for update in tx.updates.of(experiment_id)}
        checkpoints = {checkpoint.unit: checkpoint for checkpoint in tx.updates.checkpoints(experiment_id)}
        rows = [
            (unit, tx.trials.of_unit(unit.unit), tx.trials.assessments(unit.unit), tx.trials.groups(unit.unit))
            for unit in units
        ]
    points: list[BatchPoint] = []
    for unit, trials, assessments, groups in rows:
        if not groups:
            continue
        planned = {group.task_digest: experiment.spec.plan.attempts for group, _ in groups}
        by_trial = {assessment.trial_id: assessment for assessment in assessments}
        update = updates.get(unit.unit)
        applied = update is not None and update.state is UpdateState.APPLIED
        points.append(
            BatchPoint(
                index=unit.index,
                unit=unit.unit,
                mean=mean_score(scores_by_task(trials, by_trial, planned=planned)),
                update=update,
                checkpoint=checkpoints.get(unit.unit) if applied else None,
                n_groups=len(groups),
                n_groups_with_signal=sum(group.has_signal for group, _ in groups),
            )
        )
    return tuple(points)


def evaluations_of(platform: Platform, training_id: str) -> tuple[Experiment, ...]:
    """Return the evaluations of a training's checkpoints, oldest first."""
    with platform.ledger.snapshot() as tx:
        found = [item for item in tx.experiments.all(limit=10_000) if item.spec.source == training_id]
    return tuple(sorted(found, key=lambda item: item.created_ms))
