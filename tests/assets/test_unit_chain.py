"""The canonical chain: a unit from admission to report, and what a second materialization does."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg

from domain.records.experiment import Experiment, ExperimentKind, ExperimentState
from domain.records.manifest import TrialManifest
from domain.records.names import parse_reference
from domain.records.profile import Plan, Profile
from domain.service.accept import Submission, accept
from domain.service.publish import publish_task_set
from domain.service.regrade import accept_regrade
from domain.service.samples import request_fresh_sample
from sensors.dispatcher import dispatcher
from tests.assets.graph import Graph, checks_of, metadata_of
from tests.fakes.platform import write_task


def submit(graph: Graph, kind: ExperimentKind = ExperimentKind.EVALUATION, **plan: Any) -> Experiment:
    """Accept an experiment over the small task set."""
    return accept(
        graph.platform,
        Submission(
            kind=kind,
            task_set="team/small@v1",
            actor=Profile(name="actor", engine="nop"),
            plan=replace(Plan(attempts=2, sandbox="memory"), **plan),
        ),
    ).experiment


def state_of(graph: Graph, experiment: Experiment) -> ExperimentState:
    """Return the state in the ledger."""
    with graph.platform.ledger.snapshot() as tx:
        return tx.experiments.get(experiment.experiment_id).state


def trials_of(graph: Graph, unit: str) -> list[str]:
    """Return the trial ids of a unit, in order."""
    with graph.platform.ledger.snapshot() as tx:
        return [trial.trial_id for trial in tx.trials.of_unit(unit)]


def select(graph: Graph, unit: str, *assets: str, run_config: Any = None, tags: Mapping[str, str] | None = None) -> Any:
    """Materialize some assets of a unit, as somebody does in the UI."""
    chosen = [item for item in graph.definitions.assets or [] if isinstance(item, dg.AssetsDefinition)]
    return dg.materialize(
        chosen,
        selection=dg.AssetSelection.assets(*assets),
        partition_key=unit,
        instance=graph.instance,
        resources={"synth": graph.synth},
        run_config=run_config,
        tags={"unit": unit, "generation": "0", **(tags or {})},
    )


def test_an_evaluation_runs_from_admission_to_report(graph: Graph) -> None:
    """Each product says what it holds, what it came from and under which digest; the experiment succeeds."""
    experiment = submit(graph)
    unit = f"{experiment.experiment_id}.s000"
    chain, report = graph.drain(dispatcher)
    made = metadata_of(chain)
    assert set(made) == {"experiment_specs", "trials", "assessments", "qualified_groups"}
    assert (made["trials"]["n_planned"], made["trials"]["n_completed"], made["trials"]["n_missing"]) == (6, 6, 0)
    assert made["assessments"]["mean"].startswith("1.000 [0.439, 1.000], n = 3 tasks, 6 attempts")
    assert made["assessments"]["source_trials_sha256"] == made["trials"]["manifest_sha256"]
    assert made["qualified_groups"]["source_assessments_sha256"] == made["assessments"]["manifest_sha256"]
    assert len(made["trials"]["groups"].records) == 3
    assert checks_of(chain) == dict.fromkeys(
        ("logprobs_match_sampled_ids", "rewards_are_finite", "advantages_sum_to_zero"), True
    )
    numbers = metadata_of(report)["evaluations"]
    assert numbers["source_assessments_sha256"] == [made["assessments"]["manifest_sha256"]]
    assert numbers["by_family"].startswith("![mean reward by family](data:image/png;base64,")
    assert (numbers["n_scored"], numbers["n_total"], numbers["source_units"]) == (6, 6, [unit])
    assert state_of(graph, experiment) is ExperimentState.SUCCEEDED


def test_data_versions_are_manifest_digests(graph: Graph) -> None:
    """What the graph calls a version is what the store calls the content."""
    experiment = submit(graph)
    (chain, _) = graph.drain(dispatcher)
    made = metadata_of(chain)
    for asset in ("trials", "assessments", "qualified_groups"):
        record = graph.instance.get_latest_data_version_record(
            dg.AssetKey(asset), partition_key=f"{experiment.experiment_id}.s000"
        )
        assert record is not None
        materialization = record.asset_materialization
        assert materialization is not None
        assert (materialization.tags or {})["dagster/data_version"] == made[asset]["manifest_sha256"]


def test_materializing_again_samples_nothing(graph: Graph) -> None:
    """Every finished trial is used again, and the manifests stay the same."""
    unit = f"{submit(graph).experiment_id}.s000"
    (chain, _) = graph.drain(dispatcher)
    before = trials_of(graph, unit)
    again = select(graph, unit, "experiment_specs", "trials", "assessments", "qualified_groups")
    assert trials_of(graph, unit) == before
    assert metadata_of(again)["trials"]["manifest_sha256"] == metadata_of(chain)["trials"]["manifest_sha256"]


def test_a_fresh_sample_is_a_matter_of_configuration(graph: Graph) -> None:
    """Asked for in the Launchpad, it makes new trials; the earlier ones stay, and a re-execution continues it."""
    experiment = submit(graph)
    unit = f"{experiment.experiment_id}.s000"
    (chain, _) = graph.drain(dispatcher)
    before = trials_of(graph, unit)
    config = {"ops": {"unit_products": {"config": {"fresh_sample": True}}}}
    made = select(graph, unit, "trials", "assessments", "qualified_groups", run_config=config)
    after = trials_of(graph, unit)
    assert (len(after), set(after) & set(before)) == (6, set())
    assert metadata_of(made)["trials"]["manifest_sha256"] != metadata_of(chain)["trials"]["manifest_sha256"]
    with graph.platform.ledger.snapshot() as tx:
        assert [tx.trials.get(trial).key.attempt for trial in before[:2]] == [0, 1]
    root = {"dagster/root_run_id": made.run_id, "dagster/parent_run_id": made.run_id}
    select(graph, unit, "trials", "assessments", "qualified_groups", run_config=config, tags=root)
    assert trials_of(graph, unit) == after
    assert not graph.tick(dispatcher).run_requests


def test_a_fresh_sample_from_the_command_line_ends_in_a_new_report(graph: Graph) -> None:
    """The ended experiment is launched again under a new run key, for its unit and for its report."""
    experiment = submit(graph)
    unit = f"{experiment.experiment_id}.s000"
    list(graph.drain(dispatcher))
    before = trials_of(graph, unit)
    request_fresh_sample(graph.platform, unit)
    chain, report = graph.drain(dispatcher)
    assert not set(trials_of(graph, unit)) & set(before)
    assert metadata_of(report)["evaluations"]["source_assessments_sha256"] == [
        metadata_of(chain)["assessments"]["manifest_sha256"]
    ]
    assert state_of(graph, experiment) is ExperimentState.SUCCEEDED


def test_a_subset_reads_retained_trials(graph: Graph) -> None:
    """Assessments alone are made over what was kept; nothing is sampled and nothing else is materialized."""
    unit = f"{submit(graph).experiment_id}.s000"
    list(graph.drain(dispatcher))
    before = trials_of(graph, unit)
    made = metadata_of(select(graph, unit, "assessments"))
    assert list(made) == ["assessments"]
    assert made["assessments"]["n_scored"] == 6
    assert trials_of(graph, unit) == before


def test_unscored_runs_have_no_assessment(graph: Graph) -> None:
    """An unscored experiment ends after its trials, without a report."""
    experiment = submit(graph, ExperimentKind.UNSCORED)
    (chain,) = graph.drain(dispatcher)
    assert set(metadata_of(chain)) == {"experiment_specs", "trials"}
    graph.tick(dispatcher)
    assert state_of(graph, experiment) is ExperimentState.SUCCEEDED


def test_shards_are_units_of_one_report(graph: Graph) -> None:
    """Three shards run on their own, and the report reads all of them."""
    experiment = submit(graph, shard_tasks=1)
    runs = list(graph.drain(dispatcher))
    assert len(runs) == 4
    assert metadata_of(runs[-1])["evaluations"]["n_scored"] == 6
    assert graph.instance.get_dynamic_partitions("unit") == [f"{experiment.experiment_id}.s00{n}" for n in range(3)]


def test_ungraded_is_never_zero(graph: Graph, tmp_path: Path) -> None:
    """A verifier that gives nothing leaves the mean undefined; report and last event say so, and why."""
    write_task(tmp_path / "broken", "x1", test="exit 3\n")
    publish_task_set(graph.platform, parse_reference("team/broken@v1", field="test"), str(tmp_path / "broken"))
    submission = Submission(
        kind=ExperimentKind.EVALUATION,
        task_set="team/broken@v1",
        actor=Profile(name="actor", engine="nop"),
        plan=Plan(sandbox="memory"),
    )
    experiment = accept(graph.platform, submission).experiment
    _, report = graph.drain(dispatcher)
    numbers = metadata_of(report)["evaluations"]
    assert numbers["mean"].startswith("undefined: nothing is scored")
    reason = "the verifier wrote no reward file"
    said = f"no trial was graded: 1 x {reason}"
    assert numbers["headline"] == said
    assert (numbers["n_scored"], numbers["n_ungraded"]) == (0, 1)
    assert "mean_reward" not in numbers
    assert [row.data for row in numbers["ungraded_by_reason"].records] == [{"reason": reason, "trials": 1}]
    with graph.platform.ledger.snapshot() as tx:
        last = tx.events.after(experiment.experiment_id, 0, 100)[-1]
    assert (last.kind, last.body["detail"]) == ("experiment.succeeded", said)


def test_a_regrade_stands_beside_the_canonical_assessment(graph: Graph) -> None:
    """The same retained outputs are assessed again under the regrade's key; the canonical panel stays."""
    experiment = submit(graph)
    list(graph.drain(dispatcher))
    unit = f"{experiment.experiment_id}.s000"
    before = trials_of(graph, unit)
    regrade = accept_regrade(graph.platform, experiment.experiment_id).experiment
    chain, report = graph.drain(dispatcher)
    made = metadata_of(chain)
    assert set(made) == {"regrades", "regraded_groups"}
    assert made["regrades"]["n_scored"] == 6
    assert made["regraded_groups"]["n_groups"] == 3
    assert (made["regrades"]["experiment"], made["regrades"]["unit"]) == (regrade.experiment_id, unit)
    with graph.platform.ledger.snapshot() as tx:
        canonical = tx.units.manifest(unit, "assessments")
        trials = tx.units.manifest(unit, "trials")
    assert canonical is not None
    assert trials is not None
    assert made["regrades"]["canonical_assessments_sha256"] == canonical.digest
    assert made["regrades"]["source_trials_sha256"] == trials.digest
    assert len(graph.platform.records.load(TrialManifest, trials).trials) == len(before)
    assert metadata_of(report)["evaluations"]["experiment"] == regrade.experiment_id
    assert state_of(graph, regrade) is ExperimentState.SUCCEEDED
