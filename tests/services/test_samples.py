"""Fresh samples: finished trials are kept by default, and superseded, never overwritten, when the operator asks."""

from pathlib import Path

import pytest

from domain.errors import ConfigurationError, ConflictError
from domain.ledger_ports import Transaction
from domain.lifecycle.lease import LEASE_TTL_S
from domain.records.experiment import ExperimentKind, ExperimentState, UnitState
from domain.records.manifest import TrialManifest
from domain.records.model import PolicyVersion, Update, UpdateState
from domain.records.names import parse_reference
from domain.records.profile import Plan, Profile
from domain.service.accept import Submission, accept
from domain.service.dispatch import conclude_evaluation, dispatch
from domain.service.evaluate import evaluation
from domain.service.inspection import events, find_trial, show, trial_lineage
from domain.service.platform import Platform
from domain.service.publish import publish_task_set
from domain.service.regrade import accept_regrade
from domain.service.samples import begin_sample, request_fresh_sample
from domain.service.units import Stage, UnitResult, run_unit
from tests.fakes.platform import make_platform, write_task

SCORED = frozenset({Stage.TRIALS, Stage.ASSESSMENTS, Stage.QUALIFIED_GROUPS})


def silent(_what: str, _done: int, _total: int) -> None:
    """Report no progress."""


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    """Return a platform with two published no-op tasks."""
    made = make_platform(tmp_path / "home")
    for name in ("a1", "b1"):
        write_task(tmp_path / "tasks", name)
    publish_task_set(made, parse_reference("team/small@v1", field="test"), str(tmp_path / "tasks"))
    return made


async def ended(platform: Platform) -> UnitResult:
    """Return the one unit of an evaluation that has come to its end."""
    accepted = accept(
        platform,
        Submission(
            kind=ExperimentKind.EVALUATION,
            task_set="team/small@v1",
            actor=Profile(name="actor", engine="nop"),
            plan=Plan(attempts=2, sandbox="memory"),
        ),
    )
    (launch,) = dispatch(platform).launches
    result = await run_unit(platform, launch.unit, "worker", SCORED, silent)
    conclude_evaluation(platform, accepted.experiment.experiment_id, succeeded=True)
    return result


def ids(result: UnitResult) -> set[str]:
    """Return the trials of a result."""
    return {trial.trial_id for trial in result.trials.trials}


async def test_a_fresh_sample_is_new_trials_beside_the_kept_ones(platform: Platform) -> None:
    """New attempt numbers, new records, new manifests; the report counts the new ones and the old can be read."""
    first = await ended(platform)
    unit, experiment = first.unit.unit, first.experiment.experiment_id
    second = await run_unit(platform, unit, "other", SCORED, silent, fresh="run-2")
    assert not ids(first) & ids(second)
    assert {trial.key.attempt for trial in second.trials.trials} == {2, 3}
    assert second.trials.n_planned == len(second.trials.trials) == 4
    assert second.groups is not None
    assert {member.trial_id for group in second.groups.groups for member in group.members} == ids(second)
    assert show(platform, experiment).outcomes == {"completed": 4}
    assert evaluation(platform, experiment).sources == (second.refs[Stage.ASSESSMENTS].digest,)

    old = first.trials.trials[0]
    assert platform.records.load(TrialManifest, first.refs[Stage.TRIALS]) == first.trials
    lineage = trial_lineage(platform, find_trial(platform, str(old.key)))
    assert (lineage.trial, lineage.group, len(lineage.assessments)) == (old, None, 1)
    assert trial_lineage(platform, second.trials.trials[0].trial_id).group == f"{unit}/g000"
    (told,) = [event for event in events(platform, experiment) if event.kind == "unit.resampled"]
    assert told.body["first_attempt"] == 2
    assert told.body["earlier"] == {
        stage.value: first.refs[stage].digest for stage in (Stage.TRIALS, Stage.ASSESSMENTS, Stage.QUALIFIED_GROUPS)
    }


async def test_the_same_request_continues_its_sample(platform: Platform) -> None:
    """A run that is repeated, and every later one that asks for nothing, keeps the fresh trials."""
    first = await ended(platform)
    fresh = await run_unit(platform, first.unit.unit, "a", SCORED, silent, fresh="run-2")
    for request in ("run-2", None):
        again = await run_unit(platform, first.unit.unit, "b", SCORED, silent, fresh=request)
        assert again.refs == fresh.refs
    third = await run_unit(platform, first.unit.unit, "c", SCORED, silent, fresh="run-3")
    assert {trial.key.attempt for trial in third.trials.trials} == {4, 5}


async def test_an_operators_request_reopens_an_ended_evaluation(platform: Platform) -> None:
    """The dispatcher launches the unit under a new generation and wants a new report after it."""
    first = await ended(platform)
    unit, experiment = first.unit.unit, first.experiment.experiment_id
    row = request_fresh_sample(platform, unit)
    assert (row.first_attempt, row.generation, row.state) == (2, 1, UnitState.ADMITTED)
    (launch,) = dispatch(platform).launches
    assert launch.run_key == f"{unit}#1"
    second = await run_unit(platform, unit, "worker", SCORED, silent)
    assert not ids(first) & ids(second)
    assert dispatch(platform).reports == (experiment,)
    conclude_evaluation(platform, experiment, succeeded=True)
    with platform.ledger.snapshot() as tx:
        assert tx.experiments.get(experiment).state is ExperimentState.SUCCEEDED


async def test_what_cannot_be_sampled_afresh_says_why(platform: Platform) -> None:
    """Work under way, a regrade, a selection without trials, and an experiment whose end was asked for."""
    first = await ended(platform)
    unit, experiment = first.unit.unit, first.experiment.experiment_id
    regrade = accept_regrade(platform, experiment).experiment.experiment_id
    with pytest.raises(ConfigurationError, match="samples none"):
        request_fresh_sample(platform, f"{regrade}.s000")
    with pytest.raises(ConfigurationError, match="fresh sample makes trials"):
        await run_unit(platform, unit, "w", frozenset({Stage.ASSESSMENTS}), silent, fresh="x")
    with platform.ledger.begin() as tx:
        lease = tx.units.acquire(unit, "busy", platform.clock.now_ms(), LEASE_TTL_S)
    with pytest.raises(ConflictError, match="held by busy"):
        request_fresh_sample(platform, unit)
    with platform.ledger.begin() as tx:
        tx.units.release(lease, UnitState.SUCCEEDED)
        tx.experiments.request_cancel(experiment)
    with pytest.raises(ConflictError, match="cancelled"):
        request_fresh_sample(platform, unit)
    with platform.ledger.snapshot() as tx:
        assert tx.units.get(unit).first_attempt == 0


@pytest.mark.parametrize("state", [UpdateState.UNRESOLVED, UpdateState.SKIPPED])
async def test_a_batch_that_fed_a_step_keeps_its_trials(platform: Platform, state: UpdateState) -> None:
    """From the fence on, a checkpoint's lineage names these trials and no others."""
    first = await ended(platform)
    unit, experiment = first.unit.unit, first.experiment
    update = Update(
        update_id=unit,
        experiment_id=experiment.experiment_id,
        unit=unit,
        index=0,
        state=UpdateState.PREPARING,
        parent=PolicyVersion(name="base-000000000000", base="0" * 64),
    )

    def begin(tx: Transaction) -> bool:
        return begin_sample(tx, tx.units.get(unit), experiment, "again", 1)

    with platform.ledger.begin() as tx:
        lease = tx.units.acquire(unit, "w", platform.clock.now_ms(), LEASE_TTL_S)
        tx.updates.begin(lease, update)
        assert begin(tx)
        assert not begin(tx)
        if state is UpdateState.SKIPPED:
            tx.updates.skip(lease, unit)
        else:
            tx.updates.intend(lease, unit, ())
        tx.units.release(lease, UnitState.FAILED)
    with pytest.raises(ConflictError, match=f"optimizer step is {state.value}"):
        request_fresh_sample(platform, unit)
