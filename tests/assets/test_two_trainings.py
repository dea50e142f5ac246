"""Two trainings of one home that reach the same weights, hence the same checkpoint id, are not mixed up."""

from dataclasses import replace

import numpy as np
import pytest

from cli.reporting import read_content
from domain.errors import NotFoundError
from domain.records.assessment import Datum, Member, QualifiedGroup
from domain.records.canonical import digest_of
from domain.records.experiment import Experiment, ExperimentKind, ExperimentSpec, ExperimentState
from domain.records.model import BasePolicy, PolicyVersion
from domain.records.names import parse_reference, unit_key
from domain.records.profile import Optimisation, Plan, Profile
from domain.service.accept import admit_unit
from domain.service.evaluate import evaluations_of
from domain.service.inspection import checkpoint_lineage
from domain.service.publish import publish_profile
from sensors.dispatcher import dispatcher
from sensors.evaluate_new_checkpoints import evaluate_new_checkpoints
from tests.assets.graph import Graph, metadata_of
from tests.assets.test_unit_chain import select
from tests.fakes.scripted_trainer import ScriptedTrainer

TRAININGS = ("trn-0123456789abcdefghjkmnpqra", "trn-0123456789abcdefghjkmnpqrb")
BASE = PolicyVersion(name="base-000000000000", base="0" * 64)


def accept_trainings(graph: Graph) -> None:
    """Admit the first batch of each training; both evaluate every checkpoint."""
    platform = graph.platform
    reference = parse_reference("team/small@v1", field="test")
    with platform.ledger.snapshot() as tx:
        task_set, _ = tx.catalog.task_set(reference)
    plan = Plan(
        attempts=2,
        batches=2,
        groups_per_batch=1,
        optimisation=Optimisation(),
        sandbox="memory",
        evaluate_on=str(reference),
        evaluate_every=1,
        evaluate_attempts=1,
    )
    actor = publish_profile(platform, Profile(name="actor", engine="nop"))
    spec = ExperimentSpec(
        kind=ExperimentKind.TRAINING,
        task_set=reference,
        task_set_digest=task_set.digest,
        actor_digest=actor,
        assessor="verifier",
        plan=plan,
        policy=BASE,
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
        for number, training in enumerate(TRAININGS):
            experiment = Experiment(
                experiment_id=training,
                spec=replace(spec, labels={"number": str(number)}),
                spec_digest=digest_of([training]),
                state=ExperimentState.RUNNING,
                n_units=2,
                created_ms=1 + number,
            )
            tx.experiments.add(experiment, None)
            admit_unit(tx, experiment, 0, BASE, 1)


def step(graph: Graph, training: str) -> str:
    """Settle the first batch of a training as sampling would, and materialize its checkpoint; returns its id."""
    unit = unit_key(training, 0)
    ids, ones = np.array([1, 2], dtype=np.int32), np.ones(2, dtype=np.float32)
    row = Datum(input_ids=ids, target_ids=ids + 1, logprobs=-ones, advantages=ones, mask=ones)
    with graph.platform.ledger.begin() as tx:
        lease = tx.units.acquire(unit, "sampler", graph.platform.clock.now_ms(), 0.0)
        member = Member(trial_id=f"trial-of-{training}", attempt=0, reward=1.0, advantage=0.0, n_sampled_tokens=2)
        group = QualifiedGroup(
            group_id=f"{unit}/g000",
            unit=unit,
            group=0,
            task_name="t/a1",
            task_digest="0" * 64,
            policy=BASE.name,
            members=(member,),
            excluded=(),
            has_signal=True,
        )
        tx.trials.add_group(lease, group, graph.platform.datum_tables.write([row]))
    graph.instance.add_dynamic_partitions("unit", [unit])
    trainer = graph.platform.trainer
    assert isinstance(trainer, ScriptedTrainer)
    trainer.steps.clear()  # so that the first step of each training gets the same name, as the same weights do
    return str(metadata_of(select(graph, unit, "checkpoints"))["checkpoints"]["checkpoint"])


@pytest.fixture
def checkpoint(graph: Graph) -> str:
    """Return the id that the first checkpoints of both trainings share."""
    accept_trainings(graph)
    first, second = (step(graph, training) for training in TRAININGS)
    assert first == second
    return first


def test_each_training_has_its_own_evaluation_of_shared_weights(graph: Graph, checkpoint: str) -> None:
    """The sensor accepts one for each, and each report shows its own alone."""
    graph.tick(evaluate_new_checkpoints)
    by_training = {training: evaluations_of(graph.platform, training) for training in TRAININGS}
    assert [len(found) for found in by_training.values()] == [1, 1]
    for run in graph.tick(dispatcher).run_requests or []:
        if (run.job_name, run.tags.get("kind")) == ("evaluation_job", "evaluation"):
            graph.run(run)
    for training, (evaluation,) in by_training.items():
        assert evaluation.spec.labels == {"checkpoint": checkpoint, "batch": "1"}
        with graph.platform.ledger.begin() as tx:
            tx.experiments.set_state(evaluation.experiment_id, ExperimentState.SUCCEEDED)
        content = read_content(graph.platform, training)
        assert [item.report.experiment.experiment_id for item in content.evaluations] == [evaluation.experiment_id]
        assert [point.unit for point in content.curve] == [unit_key(training, 0)]
        assert [point.checkpoint.experiment_id for point in content.curve if point.checkpoint] == [training]


def test_lineage_of_shared_weights_is_the_trainings_own(graph: Graph, checkpoint: str) -> None:
    """What fed a checkpoint and what used it are asked of one training; what no training asked for is both's."""
    with graph.platform.ledger.begin() as tx:
        version = tx.updates.checkpoint(checkpoint).version
        made = tx.experiments.get(TRAININGS[0])
        for name, source in (("evl-a", TRAININGS[0]), ("evl-b", TRAININGS[1]), ("evl-c", None)):
            spec = replace(made.spec, kind=ExperimentKind.EVALUATION, policy=version, source=source)
            tx.experiments.add(replace(made, experiment_id=name, spec=spec, spec_digest=digest_of(spec)), None)
    for training, own in zip(TRAININGS, ("evl-a", "evl-b"), strict=True):
        lineage = checkpoint_lineage(graph.platform, checkpoint, training_id=training)
        assert lineage.trials == (f"trial-of-{training}",)
        assert lineage.checkpoint.experiment_id == training
        assert set(lineage.used_by) == {own, "evl-c"}
    assert checkpoint_lineage(graph.platform, checkpoint).checkpoint.experiment_id == TRAININGS[0]
    with pytest.raises(NotFoundError, match="trn-nobody made no checkpoint"):
        checkpoint_lineage(graph.platform, checkpoint, training_id="trn-nobody")
