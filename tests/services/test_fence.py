"""The optimizer fence: whatever dies and whenever, an update is applied once or blocks."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from domain.errors import TrainerError, UnresolvedUpdateError
from domain.ports import StepStatus
from domain.records.assessment import Datum, Member, QualifiedGroup
from domain.records.canonical import digest_of
from domain.records.experiment import Experiment, ExperimentKind, ExperimentSpec, ExperimentState, UnitState
from domain.records.model import PolicyVersion, UpdateState
from domain.records.names import parse_reference, unit_key
from domain.records.profile import Optimisation, Plan, Profile
from domain.service.accept import admit_unit
from domain.service.dispatch import dispatch, evaluate_checkpoint
from domain.service.evaluate import evaluations_of
from domain.service.learning import Advance, advance, resolve
from domain.service.platform import Platform
from domain.service.publish import publish_profile, publish_task_set
from tests.fakes.platform import make_platform, write_task
from tests.fakes.scripted_trainer import ScriptedTrainer

TRAINING = "trn-0123456789abcdefghjkmnpqrs"
BASE = PolicyVersion(name="base-000000000000", base="0" * 64)


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    """Return a platform with an accepted training of three batches."""
    made = make_platform(tmp_path / "home")
    write_task(tmp_path / "tasks", "a1")
    reference = parse_reference("team/practice@v1", field="test")
    task_set = publish_task_set(made, reference, str(tmp_path / "tasks"))
    actor = publish_profile(made, Profile(name="actor", engine="nop"))
    plan = Plan(
        attempts=2,
        batches=3,
        groups_per_batch=2,
        optimisation=Optimisation(),
        sandbox="memory",
        evaluate_on="team/practice@v1",
    )
    spec = ExperimentSpec(
        kind=ExperimentKind.TRAINING,
        task_set=reference,
        task_set_digest=task_set.digest,
        actor_digest=actor,
        assessor="verifier",
        plan=plan,
        policy=BASE,
    )
    experiment = Experiment(
        experiment_id=TRAINING,
        spec=spec,
        spec_digest=digest_of(spec),
        state=ExperimentState.ACCEPTED,
        n_units=3,
        created_ms=1,
    )
    with made.ledger.begin() as tx:
        tx.experiments.add(experiment, None)
        admit_unit(tx, experiment, 0, BASE, 1)
    return made


def trainer_of(platform: Platform) -> ScriptedTrainer:
    """Return the platform's scripted trainer."""
    assert isinstance(platform.trainer, ScriptedTrainer)
    return platform.trainer


def settle_groups(platform: Platform, batch: int, with_signal: Sequence[bool] = (True, True)) -> str:
    """Write qualified groups and datums for a batch, as the unit's sampling would, and return the unit."""
    unit = unit_key(TRAINING, batch)
    ones = np.ones(2, dtype=np.float32)
    ids = np.array([1, 2], dtype=np.int32)
    with platform.ledger.begin() as tx:
        lease = tx.units.acquire(unit, "worker", platform.clock.now_ms(), 10.0)
        for index, signal in enumerate(with_signal):
            row = Datum(
                input_ids=ids,
                target_ids=np.array([2, 3 + index], dtype=np.int32),
                logprobs=-ones,
                advantages=ones,
                mask=ones,
                group=index,
            )
            member = Member(trial_id=f"t{index}", attempt=0, reward=1.0, advantage=0.5, n_sampled_tokens=2)
            group = QualifiedGroup(
                group_id=f"{unit}/g{index:03d}",
                unit=unit,
                group=index,
                task_name="t/a1",
                task_digest="0" * 64,
                policy=BASE.name,
                members=(member, replace(member, trial_id=f"u{index}", attempt=1, advantage=-0.5)),
                excluded=(),
                has_signal=signal,
            )
            tx.trials.add_group(lease, group, platform.datum_tables.write([row]) if signal else None)
    return unit


async def run_batch(platform: Platform, batch: int, with_signal: Sequence[bool] = (True, True)) -> Advance:
    """Settle a batch and advance it."""
    return await advance(platform, settle_groups(platform, batch, with_signal), "worker")


def update_states(platform: Platform) -> list[UpdateState]:
    """Return the states of all updates, in order."""
    with platform.ledger.snapshot() as tx:
        return [update.state for update in tx.updates.of(TRAINING)]


async def test_batches_follow_each_other_through_their_checkpoints(platform: Platform) -> None:
    """Each batch steps once from its parent and admits the next with the new policy."""
    for batch in range(3):
        done = await run_batch(platform, batch)
        assert done.checkpoint is not None
        assert done.checkpoint.next_batch == batch + 1
        assert done.checkpoint.groups == (f"{done.update.unit}/g000", f"{done.update.unit}/g001")
    assert update_states(platform) == [UpdateState.APPLIED] * 3
    trainer = trainer_of(platform)
    assert len(trainer.steps) == 3
    assert (
        trainer.opened[1:] == [trainer.steps[unit_key(TRAINING, batch)].state for batch in range(2)]
        or len(trainer.opened) == 1
    )
    with platform.ledger.snapshot() as tx:
        policies = [unit.policy.name for unit in tx.units.of(TRAINING) if unit.policy]
    assert policies == [BASE.name, "ckpt-000000000001", "ckpt-000000000002"]
    dispatch(platform)
    with platform.ledger.snapshot() as tx:
        assert tx.experiments.get(TRAINING).state is ExperimentState.SUCCEEDED


async def test_the_last_checkpoint_is_evaluated_even_if_the_last_batch_made_none(platform: Platform) -> None:
    """The evaluation is accepted before the training counts as ended, once, whoever asks first."""
    first = await run_batch(platform, 0)
    for batch in (1, 2):
        await run_batch(platform, batch, (False, False))
    assert first.checkpoint is not None
    dispatch(platform)
    (evaluation,) = evaluations_of(platform, TRAINING)
    assert evaluation.spec.labels == {"checkpoint": first.checkpoint.checkpoint_id, "batch": "1"}
    again = evaluate_checkpoint(platform, first.checkpoint.checkpoint_id, is_last=True)
    assert again is not None
    assert (again.created, again.experiment.experiment_id) == (False, evaluation.experiment_id)
    with platform.ledger.snapshot() as tx:
        assert tx.experiments.get(TRAINING).state is ExperimentState.SUCCEEDED


async def test_a_batch_without_signal_takes_no_step(platform: Platform) -> None:
    """Adam's momentum would still move the weights, so no step is sent and the policy stays."""
    done = await run_batch(platform, 0, (False, False))
    assert (done.update.state, done.checkpoint) == (UpdateState.SKIPPED, None)
    assert trainer_of(platform).steps == {}
    with platform.ledger.snapshot() as tx:
        assert tx.units.get(unit_key(TRAINING, 1)).policy == BASE


@pytest.mark.parametrize("dies_at", ["before", "after"])
async def test_a_step_cut_short_is_settled_by_evidence(platform: Platform, dies_at: str) -> None:
    """The trainer's own record says whether the step happened: it is adopted or taken again, never doubled."""
    trainer = trainer_of(platform)
    trainer.dies_at = dies_at
    unit = settle_groups(platform, 0)
    with pytest.raises(TrainerError):
        await advance(platform, unit, "worker")
    assert update_states(platform) == [UpdateState.UNRESOLVED]
    done = await advance(platform, unit, "worker")
    assert done.update.state is UpdateState.APPLIED
    assert list(trainer.steps) == [unit]
    assert done.checkpoint is not None
    assert done.checkpoint.version.n_optimizer_steps == 1


async def test_an_update_that_nothing_proves_blocks_and_says_how_to_resolve_it(platform: Platform) -> None:
    """Without evidence the training waits for an operator's word, and the dispatcher names it."""
    trainer = trainer_of(platform)
    trainer.dies_at = "before"
    unit = settle_groups(platform, 0)
    with pytest.raises(TrainerError):
        await advance(platform, unit, "worker")
    trainer.knows = False
    with pytest.raises(UnresolvedUpdateError, match=f"synth run resolve {unit}"):
        await advance(platform, unit, "worker")
    found = dispatch(platform)
    assert found.launches == ()
    assert unit in found.blocked[0]

    status, step = await trainer.step_status(TRAINING, unit)
    assert (status, step) == (StepStatus.UNKNOWN, None)
    with pytest.raises(UnresolvedUpdateError, match="no state to continue from"):
        resolve(platform, unit, applied=True)
    resolve(platform, unit, applied=False)
    (launch,) = dispatch(platform).launches
    assert (launch.unit, launch.generation) == (unit, 1)
    done = await advance(platform, unit, "worker")
    assert done.update.state is UpdateState.APPLIED


async def test_a_finished_update_is_not_taken_again(platform: Platform) -> None:
    """Materializing the checkpoint of a finished batch returns it and steps nothing."""
    first = await run_batch(platform, 0)
    again = await advance(platform, first.update.unit, "someone-else")
    assert again.checkpoint == first.checkpoint
    assert len(trainer_of(platform).steps) == 1
    with platform.ledger.snapshot() as tx:
        assert tx.units.get(first.update.unit).state is UnitState.SUCCEEDED
        assert len(tx.units.of(TRAINING)) == 2


async def test_a_trainer_that_holds_something_else_starts_from_the_saved_state(platform: Platform) -> None:
    """Contributions of a superseded group are dropped: the session opens again and all are submitted once."""
    trainer = trainer_of(platform)
    unit = settle_groups(platform, 0)
    with pytest.raises(TrainerError):
        await trainer.begin_update(TRAINING, unit)
    trainer.dies_at = "before"
    with pytest.raises(TrainerError):
        await advance(platform, unit, "worker")
    settle_groups(platform, 0, (True, False))
    done = await advance(platform, unit, "worker")
    assert done.checkpoint is not None
    assert done.checkpoint.groups == (f"{unit}/g000",)
    assert len(trainer.opened) == 2
