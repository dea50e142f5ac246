"""Inspection: what people and programs ask about experiments, trials and checkpoints."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from domain.errors import NotFoundError
from domain.ledger_ports import Transaction
from domain.maths.statistics import Estimate
from domain.records.assessment import Assessment, AssessmentOutcome
from domain.records.experiment import Event, Experiment, ExperimentKind, Unit
from domain.records.model import Checkpoint
from domain.records.profile import Profile
from domain.records.trial import Interaction, TrialRecord
from domain.service.evaluate import evaluation, mean_alone
from domain.service.platform import Platform
from domain.service.ungraded import ungraded_reasons

BY = "by"
"""Label of an experiment: what submitted it."""
BY_AGENT_RUN = "synth agent run"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentView:
    """An experiment at a glance."""

    experiment: Experiment
    units: tuple[Unit, ...]
    n_trials_planned: int
    outcomes: Mapping[str, int]
    """Counting trials by outcome."""
    assessed: Mapping[str, int]
    """Canonical assessments by outcome."""
    ungraded: Mapping[str, int] = field(default_factory=dict[str, int])
    """Canonical assessments without a reward by reason, the most frequent first."""
    mean: Estimate | None
    """Mean of task means over finished units, with its interval; None for trainings, whose policy changes on the way,
    and before the first unit has ended."""
    n_scored: int
    checkpoints: tuple[Checkpoint, ...]
    actor: Profile
    """The profile whose digest the specification holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRow:
    """An experiment in a list."""

    experiment: Experiment
    actor: Profile
    mean: Estimate | None
    """As in ``ExperimentView``, without its interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """Everything that is known of one trial."""

    trial: TrialRecord
    assessments: tuple[Assessment, ...]
    interactions: tuple[Interaction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLineage:
    """From a checkpoint to what fed it and what used it."""

    checkpoint: Checkpoint
    trials: tuple[str, ...]
    """Members of the groups that fed the step."""
    n_trained_tokens: int
    used_by: tuple[str, ...]
    """Experiments whose policy it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialLineage:
    """From a trial to what used it."""

    trial: TrialRecord
    assessments: tuple[Assessment, ...]
    group: str | None
    checkpoint: str | None
    """The checkpoint whose step it fed, when it was a member of a group with signal."""


def show(platform: Platform, experiment_id: str) -> ExperimentView:
    """Return an experiment with its units and counts. Raises NotFoundError."""
    with platform.ledger.snapshot() as tx:
        experiment = tx.experiments.get(experiment_id)
        units = tx.units.of(experiment_id)
        trials = tx.trials.of_experiment(experiment_id)
        assessments = [item for unit in units for item in tx.trials.assessments(unit.unit)]
        checkpoints = tx.updates.checkpoints(experiment_id)
        planned = _n_planned(tx, experiment)
        actor = tx.catalog.profile(experiment.spec.actor_digest)
    return ExperimentView(
        experiment=experiment,
        units=units,
        n_trials_planned=planned,
        outcomes=dict(Counter(trial.outcome.value for trial in trials)),
        assessed=dict(Counter(item.outcome.value for item in assessments)),
        ungraded=ungraded_reasons(assessments),
        mean=_mean(platform, experiment),
        n_scored=sum(item.outcome is not AssessmentOutcome.UNGRADED for item in assessments),
        checkpoints=checkpoints,
        actor=actor,
    )


def newest(platform: Platform, limit: int, *, every: bool = True) -> tuple[tuple[Experiment, ...], int]:
    """Return up to ``limit`` experiments, newest first, and how many newer ones than the last were left out.

    Args:
        platform: the ports.
        limit: the most to return.
        every: without it, single attempts of ``synth agent run`` are left out.
    """
    taken = limit
    with platform.ledger.snapshot() as tx:
        while True:
            found = tx.experiments.all(taken)
            shown = [item for item in found if every or item.spec.labels.get(BY) != BY_AGENT_RUN]
            if len(shown) >= limit or len(found) < taken:
                break
            taken *= 4
    kept = tuple(shown[:limit])
    end = found.index(kept[-1]) + 1 if len(kept) == limit else len(found)
    return kept, end - len(kept)


def row_of(platform: Platform, experiment: Experiment) -> ExperimentRow:
    """Return what a list shows of an experiment."""
    with platform.ledger.snapshot() as tx:
        actor = tx.catalog.profile(experiment.spec.actor_digest)
    is_scored = experiment.spec.kind not in {ExperimentKind.UNSCORED, ExperimentKind.TRAINING}
    return ExperimentRow(
        experiment=experiment, actor=actor, mean=mean_alone(platform, experiment) if is_scored else None
    )


def _mean(platform: Platform, experiment: Experiment) -> Estimate | None:
    if experiment.spec.kind in {ExperimentKind.UNSCORED, ExperimentKind.TRAINING}:
        return None
    try:
        return evaluation(platform, experiment.experiment_id).mean
    except NotFoundError:
        return None


def _n_planned(tx: Transaction, experiment: Experiment) -> int:
    plan = experiment.spec.plan
    if plan.batches:
        return plan.batches * plan.groups_per_batch * plan.attempts
    n_tasks = tx.catalog.task_set(experiment.spec.task_set)[0].n_tasks
    return (n_tasks if plan.tasks is None else min(plan.tasks, n_tasks)) * plan.attempts


def events(platform: Platform, experiment_id: str, cursor: int = 0, limit: int = 500) -> tuple[Event, ...]:
    """Return events after a cursor. Raises NotFoundError for an unknown experiment."""
    with platform.ledger.snapshot() as tx:
        tx.experiments.get(experiment_id)
        return tx.events.after(experiment_id, cursor, limit)


async def transcript(platform: Platform, trial_id: str) -> Transcript:
    """Return a trial with its assessments and interactions. Raises NotFoundError."""
    with platform.ledger.snapshot() as tx:
        trial = tx.trials.get(trial_id)
        assessments = tx.trials.assessments_of(trial_id)
    interactions: tuple[Interaction, ...] = ()
    if trial.evidence is not None and trial.evidence.n_interactions > 0:
        interactions = await platform.model.read(trial.evidence)
    return Transcript(trial=trial, assessments=assessments, interactions=interactions)


def checkpoint_of(tx: Transaction, checkpoint_id: str, training_id: str | None) -> Checkpoint:
    """Return a checkpoint as a training made it; without one, as the first that reached these weights did.

    Two trainings from the same seeds reach the same weights, and an id names weights.

    Raises:
        NotFoundError: it is not in the ledger, or the training did not make it.
    """
    if training_id is None:
        return tx.updates.checkpoint(checkpoint_id)
    for item in reversed(tx.updates.checkpoints(training_id)):
        if item.checkpoint_id == checkpoint_id:
            return item
    raise NotFoundError(
        f"{training_id} made no checkpoint {checkpoint_id}", hint=f"synth run checkpoints {training_id}"
    )


def checkpoint_lineage(platform: Platform, checkpoint_id: str, *, training_id: str | None = None) -> CheckpointLineage:
    """Return what fed a checkpoint of a training and what used it. Raises NotFoundError.

    The evaluations that another training asked for of the same weights are that training's.
    """
    with platform.ledger.snapshot() as tx:
        checkpoint = checkpoint_of(tx, checkpoint_id, training_id)
        groups = [group for group, table in tx.trials.groups(checkpoint.unit) if table is not None]
        users = [
            item.experiment_id
            for item in tx.experiments.all(limit=10_000)
            if item.spec.policy is not None
            and item.spec.policy.name == checkpoint.version.name
            and item.spec.source in {None, checkpoint.experiment_id}
        ]
    members = [member for group in groups for member in group.members]
    return CheckpointLineage(
        checkpoint=checkpoint,
        trials=tuple(member.trial_id for member in members),
        n_trained_tokens=sum(member.n_sampled_tokens for member in members),
        used_by=tuple(users),
    )


def trial_lineage(platform: Platform, trial_id: str) -> TrialLineage:
    """Return what a trial fed. Raises NotFoundError."""
    with platform.ledger.snapshot() as tx:
        trial = tx.trials.get(trial_id)
        assessments = tx.trials.assessments_of(trial_id)
        in_sample = trial.key.attempt >= tx.units.get(trial.key.unit).first_attempt
        groups = [
            (group, table)
            for group, table in tx.trials.groups(trial.key.unit)
            if group.group == trial.key.group and in_sample
        ]
        made = [item for item in tx.updates.checkpoints(trial.experiment_id) if item.unit == trial.key.unit]
    group, table = groups[0] if groups else (None, None)
    member = group is not None and any(item.trial_id == trial_id for item in group.members)
    fed = made[0].checkpoint_id if made and member and table is not None else None
    return TrialLineage(trial=trial, assessments=assessments, group=group.group_id if group else None, checkpoint=fed)


def find_trial(platform: Platform, text: str) -> str:
    """Return the trial id for an id or an attempt key ``unit/g003/a1``. Raises NotFoundError."""
    if "/" not in text:
        return text
    unit = text.partition("/")[0]
    with platform.ledger.snapshot() as tx:
        for trial in tx.trials.of_unit(unit, every_sample=True):
            if str(trial.key) == text:
                return trial.trial_id
    raise NotFoundError(f"no counting trial for attempt {text!r}", hint="synth run trials EXPERIMENT lists them")
