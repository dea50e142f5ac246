"""One sampling group through a unit: attempts, assessments, eligibility, datums, contribution.

Groups are independent: each moves on as soon as its own attempts have ended, while others still sample.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from domain.errors import DatumError
from domain.ledger_ports import Transaction
from domain.lifecycle.admission import Admission
from domain.lifecycle.deadline import all_or_cancel, within
from domain.lifecycle.schedule import attempt_seed
from domain.lifecycle.trial import TAMPERED, Attempt, TrialContext, run_trial
from domain.maths.packing import pack_group
from domain.maths.qualification import qualify
from domain.maths.row_checks import check_rows
from domain.maths.stitching import stitch
from domain.ports import Contribution, ContributionResult, DatumTables, Trainer, Verifier
from domain.records.assessment import Assessment, AssessmentOutcome, QualifiedGroup
from domain.records.capacity import Capacity
from domain.records.manifest import GroupDatums
from domain.records.profile import Optimisation
from domain.records.task import ObjectRef, Task
from domain.records.trajectory import TokenCall, TokenTrajectory
from domain.records.trial import AttemptKey, TrialOutcome, TrialRecord

_EXPORT = Capacity(exports=1.0)
_CENTRED = 1e-5
"""How far advantages may sum from 0, relative to their sizes: each one is rounded to float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupContext:
    """What all groups of a unit share."""

    trial: TrialContext
    verifier: Verifier | None
    """None: unscored."""
    datum_tables: DatumTables
    trainer: Trainer
    optimisation: Optimisation | None
    """None: no learning."""
    admission: Admission
    archive_of: Callable[[Task], bytes]
    """Blocking; a task's files are read when an attempt at it begins."""
    may_sample: bool
    streams_contributions: bool = False
    """Submit each group to the trainer as it ends; otherwise the optimizer step submits what is missing."""
    note: Callable[[str], None]
    """Called with ``trial`` or ``group`` as each one is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group as scheduled, with what an earlier run of the unit already settled."""

    unit: str
    index: int
    task: Task
    n_attempts: int
    demand: Capacity
    """What each trial takes of the budget."""
    trials: dict[int, TrialRecord]
    """Counting records by attempt."""
    assessments: dict[str, Assessment]
    """Settled assessments by trial."""
    n_failures: dict[int, int]
    """Infrastructure failures by attempt."""
    first_attempt: int = 0
    """Attempts are numbered from here: a fresh sample repeats no number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """What became of a group."""

    trials: tuple[TrialRecord, ...]
    assessments: tuple[Assessment, ...]
    qualified: QualifiedGroup | None
    datums: GroupDatums | None
    contribution: ContributionResult | None


async def run_group(context: GroupContext, group: Group) -> GroupResult:
    """Bring a group to its end: nothing that is settled is done again."""
    attempts = range(group.first_attempt, group.first_attempt + group.n_attempts)
    pairs = await all_or_cancel([_attempt(context, group, number) for number in attempts])
    trials = tuple(trial for trial, _ in pairs if trial is not None)
    assessments = tuple(assessment for _, assessment in pairs if assessment is not None)
    if context.verifier is None:
        context.note("group")
        return GroupResult(trials=trials, assessments=(), qualified=None, datums=None, contribution=None)
    counting = [trial for trial in trials if trial.outcome is not TrialOutcome.INFRA_ERROR]
    if context.optimisation is None:
        qualified, datums = _qualified(context, group, counting, assessments, None), None
    else:
        async with context.admission.place(_EXPORT):
            calls = await _calls(context, counting)
            qualified = _qualified(context, group, counting, assessments, calls)
            datums = None
            if qualified.has_signal:
                datums = await asyncio.to_thread(write_datums, context.datum_tables, qualified, calls)
    await _write(context.trial, lambda tx: tx.trials.add_group(context.trial.lease, qualified, datums and datums.table))
    contribution = await _contribute(context, group, datums)
    context.note("group")
    return GroupResult(
        trials=trials, assessments=assessments, qualified=qualified, datums=datums, contribution=contribution
    )


def _qualified(
    context: GroupContext,
    group: Group,
    trials: Sequence[TrialRecord],
    assessments: Sequence[Assessment],
    calls: Mapping[str, Sequence[TokenCall]] | None,
) -> QualifiedGroup:
    return qualify(
        unit=group.unit,
        group=group.index,
        task=group.task,
        trials=trials,
        assessments={assessment.trial_id: assessment for assessment in assessments},
        interactions=calls,
        policy=context.trial.policy,
        require_evidence=calls is not None,
    )


async def _attempt(context: GroupContext, group: Group, number: int) -> tuple[TrialRecord | None, Assessment | None]:
    trial = group.trials.get(number)
    if trial is None and not context.may_sample:
        return None, None
    assessment = None if trial is None else group.assessments.get(trial.trial_id)
    if trial is None or (context.verifier is not None and assessment is None):
        async with context.admission.place(group.demand):
            trial = trial or await _sample(context, group, number)
            if context.verifier is not None:
                assessment = await _assess_in_time(context, context.verifier, group.task, trial)
                if trial.outcome is not TrialOutcome.INFRA_ERROR:
                    await _write(context.trial, _assessed(context.trial, group.unit, trial, assessment))
    context.note("trial")
    return trial, assessment


async def _assess_in_time(context: GroupContext, verifier: Verifier, task: Task, trial: TrialRecord) -> Assessment:
    """Assess within the plan's limit; the task's own limit is the verifier's business."""
    limit_s = context.trial.plan.verifier_timeout_s
    try:
        return await within(
            context.trial.clock, limit_s, assess(verifier, task, trial, fence=context.trial.lease.fence)
        )
    except TimeoutError:
        return Assessment(
            trial_id=trial.trial_id,
            assessor=verifier.identity(task),
            outcome=AssessmentOutcome.UNGRADED,
            reason=f"the verifier did not end within the plan's {limit_s:g} s",
        )


async def _sample(context: GroupContext, group: Group, number: int) -> TrialRecord:
    """Run the attempt, replacing trials lost to infrastructure as often as the plan allows and it makes sense."""
    plan = context.trial.plan
    archive = await asyncio.to_thread(context.archive_of, group.task)
    failures = group.n_failures.get(number, 0)
    tries = 0
    while True:
        attempt = Attempt(
            key=AttemptKey(unit=group.unit, group=group.index, attempt=number),
            task=group.task,
            archive=archive,
            seed=attempt_seed(plan, group.unit, group.index, number),
            n_infra_retries=failures,
        )
        trial = await run_trial(context.trial, attempt)
        await _write(context.trial, _ended(context.trial, trial))
        if trial.outcome is not TrialOutcome.INFRA_ERROR or trial.is_permanent or tries >= plan.infra_retries:
            return trial
        tries += 1
        failures += 1


async def assess(verifier: Verifier, task: Task, trial: TrialRecord, *, fence: int) -> Assessment:
    """Return the assessment of a trial, whatever its outcome. Source: facts/worlds section 5.2."""
    if not trial.outcome.is_assessable():
        return Assessment(
            trial_id=trial.trial_id,
            assessor=verifier.identity(task),
            outcome=AssessmentOutcome.UNGRADED,
            reason=f"{trial.outcome.value}: {trial.detail}",
        )
    if trial.detail.startswith(TAMPERED):
        return Assessment(
            trial_id=trial.trial_id,
            assessor=verifier.identity(task),
            outcome=AssessmentOutcome.SCORED,
            panel={"reward": 0.0},
            reward=0.0,
            reason=trial.detail,
            tampered=True,
        )
    return await verifier.assess(task, trial, fence=fence)


def write_datums(tables: DatumTables, group: QualifiedGroup, calls: Mapping[str, Sequence[TokenCall]]) -> GroupDatums:
    """Write the rows of a group's members, each sampled token once.

    Args:
        tables: where to.
        group: qualified; each member's advantage goes on each of its sampled tokens.
        calls: of each member, by trial id.

    Raises:
        DatumError: the advantages are not centred, a member has other sampled ids than were counted when it was
            qualified, or a row differs from what was seen and sampled.
    """
    advantages_G = [member.advantage for member in group.members]
    if not abs(math.fsum(advantages_G)) <= _CENTRED * math.fsum(map(abs, advantages_G)):
        raise DatumError(f"group {group.group_id}: advantages sum to {math.fsum(advantages_G)}, not to 0")
    trajectories: list[TokenTrajectory] = []
    advantages: list[float] = []
    for member in group.members:
        own = stitch(calls[member.trial_id], trial_id=member.trial_id)
        n_sampled = sum(len(trajectory.logprobs) for trajectory in own)
        if n_sampled != member.n_sampled_tokens:
            message = f"trial {member.trial_id}: {n_sampled} sampled ids, {member.n_sampled_tokens} were qualified"
            raise DatumError(message)
        trajectories += own
        advantages += [member.advantage] * len(own)
    rows = pack_group(trajectories, advantages=advantages, group=group.group)
    check_rows(rows, trajectories, advantages)
    return GroupDatums(
        group=group.group,
        table=tables.write(rows),
        n_datums=len(rows),
        n_trained_tokens=sum(member.n_sampled_tokens for member in group.members),
    )


async def _contribute(context: GroupContext, group: Group, datums: GroupDatums | None) -> ContributionResult | None:
    if context.optimisation is None or datums is None or not context.streams_contributions:
        return None
    return await context.trainer.forward_backward(
        context.trial.experiment_id, contribution_of(group.unit, datums.group, datums.table, context.optimisation)
    )


def contribution_of(unit: str, group: int, table: ObjectRef, optimisation: Optimisation) -> Contribution:
    """Return the contribution of one group to its unit's update."""
    return Contribution(update_id=unit, group=group, datums=table, objective=optimisation.objective)


async def _calls(context: GroupContext, trials: Sequence[TrialRecord]) -> dict[str, tuple[TokenCall, ...]]:
    found: dict[str, tuple[TokenCall, ...]] = {}
    for trial in trials:
        if trial.evidence is not None and trial.evidence.n_interactions > 0:
            found[trial.trial_id] = await context.trial.model.read_calls(trial.evidence)
    return found


def _ended(context: TrialContext, trial: TrialRecord) -> Callable[[Transaction], None]:
    def write(tx: Transaction) -> None:
        tx.trials.add(context.lease, trial)
        tx.events.append(
            trial.experiment_id,
            "trial.ended",
            trial.ended_ms,
            trial.key.unit,
            {
                "trial": trial.trial_id,
                "attempt": str(trial.key),
                "outcome": trial.outcome.value,
                "detail": trial.detail,
            },
        )

    return write


def _assessed(
    context: TrialContext, unit: str, trial: TrialRecord, assessment: Assessment
) -> Callable[[Transaction], None]:
    def write(tx: Transaction) -> None:
        tx.trials.add_assessment(context.lease, assessment)
        tx.events.append(
            trial.experiment_id,
            "assessment.made",
            context.clock.now_ms(),
            unit,
            {"trial": trial.trial_id, "outcome": assessment.outcome.value, "reward": assessment.reward},
        )

    return write


async def _write(context: TrialContext, work: Callable[[Transaction], None]) -> None:
    def transaction() -> None:
        with context.ledger.begin() as tx:
            work(tx)

    await asyncio.to_thread(transaction)
