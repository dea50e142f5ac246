"""Trainings in the graph: the step, its lineage, the admission of the next batch, the evaluation of a checkpoint."""

from typing import Any

import dagster as dg
import numpy as np
import pytest

from domain.records.assessment import Datum, Member, QualifiedGroup
from domain.records.canonical import digest_of
from domain.records.experiment import Experiment, ExperimentKind, ExperimentSpec, ExperimentState, UnitState
from domain.records.model import BasePolicy, PolicyVersion
from domain.records.names import parse_reference, unit_key
from domain.records.profile import Optimisation, Plan, Profile
from domain.service.accept import admit_unit
from domain.service.publish import publish_profile
from sensors.dispatcher import dispatcher
from sensors.endings import run_failed
from sensors.evaluate_new_checkpoints import evaluate_new_checkpoints
from tests.assets.graph import Graph, checks_of, metadata_of, note
from tests.assets.test_unit_chain import select
from tests.fakes.scripted_trainer import ScriptedTrainer

TRAINING = "trn-0123456789abcdefghjkmnpqrs"
BASE = PolicyVersion(name="base-000000000000", base="0" * 64)


@pytest.fixture
def training(graph: Graph) -> Experiment:
    """Return an accepted training of two batches that wants its last checkpoint evaluated."""
    platform = graph.platform
    reference = parse_reference("team/small@v1", field="test")
    with platform.ledger.snapshot() as tx:
        task_set, _ = tx.catalog.task_set(reference)
    spec = ExperimentSpec(
        kind=ExperimentKind.TRAINING,
        task_set=reference,
        task_set_digest=task_set.digest,
        actor_digest=publish_profile(platform, Profile(name="actor", engine="nop")),
        assessor="verifier",
        plan=Plan(
            attempts=2,
            batches=2,
            groups_per_batch=2,
            optimisation=Optimisation(),
            sandbox="memory",
            evaluate_on=str(reference),
            evaluate_attempts=1,
        ),
        policy=BASE,
    )
    experiment = Experiment(
        experiment_id=TRAINING,
        spec=spec,
        spec_digest=digest_of(spec),
        state=ExperimentState.ACCEPTED,
        n_units=2,
        created_ms=1,
    )
    base = BasePolicy(
        name="tiny",
        digest=BASE.base,
        family="qwen3",
        files=(),
        recipe_digest="1" * 64,
        context_tokens=128,
        n_parameters=1,
    )
    with platform.ledger.begin() as tx:
        tx.catalog.add_base_policy(base)
        tx.experiments.add(experiment, None)
        admit_unit(tx, experiment, 0, BASE, 1)
    return experiment


def _settle(graph: Graph, batch: int) -> str:
    """Write groups with signal for a batch, as sampling would, and return its unit."""
    unit = unit_key(TRAINING, batch)
    ones = np.ones(2, dtype=np.float32)
    ids = np.array([1, 2], dtype=np.int32)
    with graph.platform.ledger.begin() as tx:
        lease = tx.units.acquire(unit, "sampler", graph.platform.clock.now_ms(), 0.0)
        for index in range(2):
            row = Datum(
                input_ids=ids,
                target_ids=np.array([2, 3 + index], dtype=np.int32),
                logprobs=-ones,
                advantages=ones,
                mask=ones,
                group=index,
            )
            member = Member(trial_id=f"t{index}", attempt=0, reward=1.0, advantage=0.0, n_sampled_tokens=2)
            group = QualifiedGroup(
                group_id=f"{unit}/g{index:03d}",
                unit=unit,
                group=index,
                task_name="t/a1",
                task_digest="0" * 64,
                policy=BASE.name,
                members=(member,),
                excluded=(),
                has_signal=True,
            )
            tx.trials.add_group(lease, group, graph.platform.datum_tables.write([row]))
    return unit


def _states(graph: Graph) -> list[tuple[str, UnitState]]:
    with graph.platform.ledger.snapshot() as tx:
        return [(unit.unit, unit.state) for unit in tx.units.of(TRAINING)]


def _state(graph: Graph) -> ExperimentState:
    with graph.platform.ledger.snapshot() as tx:
        return tx.experiments.get(TRAINING).state


@pytest.mark.usefixtures("training")
def test_batches_without_signal_skip_their_steps(graph: Graph) -> None:
    """One run per batch goes through the whole chain; the policy stays, and the next batch is admitted."""
    runs = list(graph.drain(dispatcher))
    assert len(runs) == 2
    for run in runs:
        made = metadata_of(run)
        assert set(made) == {
            "experiment_specs",
            "trials",
            "assessments",
            "qualified_groups",
            "datums",
            "checkpoints",
        }
        assert made["checkpoints"]["update_state"] == "skipped"
        assert made["checkpoints"]["parent"] == BASE.name
        assert "checkpoint" not in made["checkpoints"]
        assert made["qualified_groups"]["excluded_by_reason"] == {"no_evidence": 4}
        assert all(checks_of(run).values())
        assert {"adapter_loads", "datums_align"} <= set(checks_of(run))
    graph.tick(dispatcher)
    assert _state(graph) is ExperimentState.SUCCEEDED


@pytest.mark.usefixtures("training")
def test_a_checkpoint_names_what_fed_it_and_what_follows(graph: Graph) -> None:
    """The step's metadata leads back to groups and parent; the new policy is served and pins the next unit."""
    unit = _settle(graph, 0)
    graph.instance.add_dynamic_partitions("unit", [unit])
    run = select(graph, unit, "checkpoints")
    made = metadata_of(run)["checkpoints"]
    assert made["update_state"] == "applied"
    assert made["checkpoint"] == "ckpt-000000000001"
    assert made["groups"] == [f"{unit}/g000", f"{unit}/g001"]
    assert (made["parent"], made["next_batch"], made["n_contributions"]) == (BASE.name, 1, 2)
    assert (made["grad_norm"], made["kl_v1"], made["n_trained_tokens"]) == (1.0, 0.5, 4.0)
    assert checks_of(run) == {"adapter_loads": True}
    with graph.platform.ledger.snapshot() as tx:
        following = tx.units.get(unit_key(TRAINING, 1))
    assert following.policy is not None
    assert following.policy.name == "ckpt-000000000001"


@pytest.mark.usefixtures("training")
def test_materializing_a_checkpoint_again_steps_no_more(graph: Graph) -> None:
    """The recorded step is shown again."""
    unit = _settle(graph, 0)
    graph.instance.add_dynamic_partitions("unit", [unit])
    first = metadata_of(select(graph, unit, "checkpoints"))["checkpoints"]
    again = metadata_of(select(graph, unit, "checkpoints"))["checkpoints"]
    assert again["checkpoint"] == first["checkpoint"]
    trainer = graph.platform.trainer
    assert isinstance(trainer, ScriptedTrainer)
    assert len(trainer.steps) == 1


@pytest.mark.usefixtures("training")
def test_an_unresolved_step_fails_the_run_and_blocks_the_training(graph: Graph) -> None:
    """Nobody steps again by accident: the dispatcher launches nothing and says how to go on."""
    unit = _settle(graph, 0)
    graph.instance.add_dynamic_partitions("unit", [unit])
    trainer = graph.platform.trainer
    assert isinstance(trainer, ScriptedTrainer)
    trainer.dies_at, trainer.knows = "after", False
    with pytest.raises(Exception, match="died after the step"):
        select(graph, unit, "checkpoints")
    (run,) = graph.instance.get_runs()
    note(graph, run_failed, run, dg.DagsterEventType.RUN_FAILURE)
    with pytest.raises(Exception, match="synth run resolve"):
        select(graph, unit, "checkpoints")
    assert _states(graph) == [(unit, UnitState.BLOCKED)]
    result = graph.tick(dispatcher)
    assert not result.run_requests
    assert "synth run resolve" in str(result.skip_reason)


def test_new_checkpoints_are_evaluated_once(graph: Graph, training: Experiment) -> None:
    """The last checkpoint's evaluation is accepted by the sensor, however often the tick is replayed."""
    for batch in range(2):
        unit = _settle(graph, batch)
        graph.instance.add_dynamic_partitions("unit", [unit])
        select(graph, unit, "checkpoints")
    accepted: list[dg.SensorResult] = [graph.tick(evaluate_new_checkpoints) for _ in range(2)]
    assert [bool(result.cursor) for result in accepted] == [True, True]
    with graph.platform.ledger.snapshot() as tx:
        found = [item for item in tx.experiments.all() if item.spec.source == training.experiment_id]
    assert [item.spec.labels for item in found] == [{"checkpoint": "ckpt-000000000002", "batch": "2"}]


def test_the_curve_is_drawn_at_the_end(graph: Graph, training: Experiment) -> None:
    """The last batch carries the table and, once two batches are scored, the picture."""
    runs: list[Any] = list(graph.drain(dispatcher))
    last = metadata_of(runs[-1])["checkpoints"]
    assert len(last["batches"].records) == training.n_units
    assert last["learning_curve"].startswith("![mean reward of the batch](data:image/png;base64,")
