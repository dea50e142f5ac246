"""What turns stale and what does not: new versions and new units leave finished work fresh."""

from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from domain.records.experiment import ExperimentKind
from domain.records.names import parse_reference
from domain.records.profile import Plan, Profile
from domain.service.accept import Submission, accept
from domain.service.publish import publish_task_set
from sensors.catalog import catalog
from sensors.dispatcher import dispatcher
from tests.assets.graph import Graph, instance_at
from tests.fakes.platform import write_task


def _status(instance: dg.DagsterInstance, definitions: dg.Definitions, asset: str, key: str) -> StaleStatus:
    resolver = CachingStaleStatusResolver(instance, definitions.resolve_asset_graph(), LoadingContextForTest(instance))
    return resolver.get_status(dg.AssetKey(asset), key)


def _evaluate(graph: Graph) -> str:
    accepted = accept(
        graph.platform,
        Submission(
            kind=ExperimentKind.EVALUATION,
            task_set="team/small@v1",
            actor=Profile(name="actor", engine="nop"),
            plan=Plan(sandbox="memory"),
        ),
    )
    assert all(result.success for result in graph.drain(dispatcher))
    return accepted.experiment.experiment_id


def test_a_new_task_set_version_leaves_old_units_fresh(graph: Graph, tmp_path: Path) -> None:
    """The pin is by digest, so nothing that ran turns stale when the next version is published."""
    assert all(result.success for result in graph.drain(catalog))
    experiment = _evaluate(graph)
    write_task(tmp_path / "more", "c1")
    publish_task_set(graph.platform, parse_reference("team/small@v2", field="test"), str(tmp_path / "more"))
    assert [result.success for result in graph.drain(catalog)] == [True]
    assert graph.instance.get_dynamic_partitions("task_set") == ["team.small.v1", "team.small.v2"]
    for asset in ("experiment_specs", "trials", "assessments", "qualified_groups"):
        assert _status(graph.instance, graph.definitions, asset, f"{experiment}.s000") is StaleStatus.FRESH


def test_new_units_leave_finished_evaluations_fresh(graph: Graph) -> None:
    """An evaluation stands for the manifests it has read."""
    first = _evaluate(graph)
    second = _evaluate(graph)
    for experiment in (first, second):
        assert _status(graph.instance, graph.definitions, "evaluations", experiment) is StaleStatus.FRESH


def test_an_edge_over_all_units_would_turn_evaluations_stale(tmp_path: Path) -> None:
    """Why ``evaluations`` has no edge to ``assessments``, and ``experiment_specs`` none to ``task_sets``."""
    units = dg.DynamicPartitionsDefinition(name="some_units")
    experiments = dg.DynamicPartitionsDefinition(name="some_experiments")

    @dg.asset(partitions_def=units)
    def panels(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        return _versioned(context.partition_key)

    @dg.asset(partitions_def=experiments, deps=[dg.AssetDep(panels, partition_mapping=dg.AllPartitionMapping())])
    def reports(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        return _versioned(context.partition_key)

    instance = instance_at(tmp_path)
    definitions = dg.Definitions(assets=[panels, reports])

    def make(asset: Any, kind: str, key: str) -> None:
        instance.add_dynamic_partitions(kind, [key])
        assert dg.materialize([asset], partition_key=key, instance=instance).success

    make(panels, "some_units", "u1")
    make(reports, "some_experiments", "e1")
    assert _status(instance, definitions, "reports", "e1") is StaleStatus.FRESH
    make(panels, "some_units", "u2")
    assert _status(instance, definitions, "reports", "e1") is StaleStatus.STALE


def _versioned(version: str) -> Any:
    return dg.MaterializeResult(data_version=dg.DataVersion(version))
