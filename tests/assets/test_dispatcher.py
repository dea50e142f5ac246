"""The dispatcher and what follows the end of a run: generations, lost runs, fences, reports."""

from typing import Any

import dagster as dg
import pytest

from domain.records.experiment import ExperimentState, UnitState
from domain.service.dispatch import request_cancel
from sensors.dispatcher import REPORT_TRIES, dispatcher
from sensors.endings import run_cancelled, run_failed
from sensors.janitor import janitor
from sensors.launches import RUN_KEY
from tests.assets.graph import Graph, note
from tests.assets.test_unit_chain import state_of, submit


def _dead_run(graph: Graph, request: dg.RunRequest, status: dg.DagsterRunStatus) -> dg.DagsterRun:
    """Record a run of a request whose process is gone."""
    run = dg.DagsterRun(
        job_name=request.job_name or "", status=status, tags={**request.tags, RUN_KEY: request.run_key or ""}
    )
    return graph.instance.add_run(run)


def _only_request(graph: Graph) -> dg.RunRequest:
    (request,) = graph.tick(dispatcher).run_requests or []
    return request


def _unit(graph: Graph, experiment_id: str) -> Any:
    with graph.platform.ledger.snapshot() as tx:
        return tx.units.get(f"{experiment_id}.s000")


def test_a_tick_asks_for_key_admission_and_run_at_once(graph: Graph) -> None:
    """The unit's key, the token that pins it and its run come from one tick, tagged for people and for us."""
    experiment = submit(graph)
    result = graph.tick(dispatcher)
    unit = f"{experiment.experiment_id}.s000"
    (request,) = result.run_requests or []
    assert (request.run_key, request.job_name, request.partition_key) == (f"{unit}#0", "evaluation_job", unit)
    assert request.tags["experiment"] == experiment.experiment_id
    assert (request.tags["kind"], request.tags["unit"], request.tags["generation"]) == ("evaluation", unit, "0")
    (admission,) = result.asset_events
    assert isinstance(admission, dg.AssetMaterialization)
    assert (admission.asset_key.to_user_string(), admission.partition) == ("admissions", unit)
    assert admission.metadata["spec"].value == experiment.spec_digest


def test_a_tick_that_was_lost_is_made_again(graph: Graph) -> None:
    """The dispatcher keeps nothing in memory: while no run exists, the same request comes again."""
    submit(graph)
    assert _only_request(graph).run_key == _only_request(graph).run_key


def test_a_requested_run_is_not_requested_twice(graph: Graph) -> None:
    """While its run waits or works, a unit is left alone."""
    submit(graph)
    _dead_run(graph, _only_request(graph), dg.DagsterRunStatus.STARTING)
    result = graph.tick(dispatcher)
    assert not result.run_requests
    assert result.skip_reason is not None
    assert not result.asset_events


def test_a_run_that_died_before_taking_its_unit_gets_a_successor(graph: Graph) -> None:
    """Also when nobody reported the failure, the next generation runs under a new key."""
    submit(graph)
    first = _only_request(graph)
    _dead_run(graph, first, dg.DagsterRunStatus.FAILURE)
    assert not graph.tick(dispatcher).run_requests
    second = _only_request(graph)
    assert (first.run_key or "").endswith("#0")
    assert (second.run_key or "").endswith("#1")


def test_a_failed_run_is_noted_once(graph: Graph) -> None:
    """The failure sensor grows the generation; a late report about an older run changes nothing."""
    experiment = submit(graph)
    run = _dead_run(graph, _only_request(graph), dg.DagsterRunStatus.FAILURE)
    note(graph, run_failed, run, dg.DagsterEventType.RUN_FAILURE)
    note(graph, run_failed, run, dg.DagsterEventType.RUN_FAILURE)
    unit = _unit(graph, experiment.experiment_id)
    assert (unit.state, unit.generation) == (UnitState.ADMITTED, 1)
    assert run.run_id in unit.detail


def test_a_run_cancelled_in_dagster_ends_its_unit(graph: Graph) -> None:
    """Whoever presses Terminate does not get the unit back."""
    experiment = submit(graph)
    run = _dead_run(graph, _only_request(graph), dg.DagsterRunStatus.CANCELED)
    note(graph, run_cancelled, run, dg.DagsterEventType.RUN_CANCELED)
    assert _unit(graph, experiment.experiment_id).state is UnitState.CANCELLED
    graph.tick(dispatcher)
    assert state_of(graph, experiment) is ExperimentState.FAILED


def test_cancelling_an_experiment_launches_nothing_more(graph: Graph) -> None:
    """The operator's word ends units that no worker holds."""
    experiment = submit(graph)
    request_cancel(graph.platform, experiment.experiment_id)
    assert not graph.tick(dispatcher).run_requests
    assert state_of(graph, experiment) is ExperimentState.CANCELLED


def test_a_blocked_unit_is_named(graph: Graph) -> None:
    """An unresolved optimizer step is the reason a tick gives."""
    experiment = submit(graph)
    with graph.platform.ledger.begin() as tx:
        tx.units.set_state(f"{experiment.experiment_id}.s000", UnitState.BLOCKED, detail="step is unresolved")
    result = graph.tick(dispatcher)
    assert not result.run_requests
    assert "step is unresolved" in str(result.skip_reason)


def test_a_report_that_dies_is_made_again_and_then_given_up(graph: Graph) -> None:
    """Each try has its own key; after the last, the experiment fails and says why."""
    experiment = submit(graph)
    graph.run(_only_request(graph))
    keys: list[str] = []
    for _ in range(REPORT_TRIES):
        request = _only_request(graph)
        keys.append(request.run_key or "")
        _dead_run(graph, request, dg.DagsterRunStatus.FAILURE)
    assert keys == [f"{experiment.experiment_id}#report{number}" for number in range(REPORT_TRIES)]
    assert not graph.tick(dispatcher).run_requests
    assert state_of(graph, experiment) is ExperimentState.FAILED


@pytest.mark.parametrize(
    ("generation", "expected"), [(0, dg.DagsterRunStatus.STARTED), (1, dg.DagsterRunStatus.FAILURE)]
)
def test_the_janitor_ends_runs_that_were_overtaken(
    graph: Graph, generation: int, expected: dg.DagsterRunStatus
) -> None:
    """A run whose unit has a later generation has no process any more; it must not keep its slot."""
    experiment = submit(graph)
    run = _dead_run(graph, _only_request(graph), dg.DagsterRunStatus.STARTED)
    with graph.platform.ledger.begin() as tx:
        for _ in range(generation):
            tx.units.next_generation(f"{experiment.experiment_id}.s000")
    context: Any = dg.build_sensor_context(instance=graph.instance, resources={"synth": graph.synth})
    with context:
        janitor(context)
    kept = graph.instance.get_run_by_id(run.run_id)
    assert kept is not None
    assert kept.status is expected


def test_a_run_that_died_after_its_unit_was_done_is_repeated(graph: Graph) -> None:
    """What the ledger holds is shown by the graph, too: the repetition finds everything done."""
    submit(graph)
    request = _only_request(graph)
    assert graph.run(request).success
    assert request.partition_key is not None
    tags = {**request.tags, "dagster/partition": str(request.partition_key)}
    dead = graph.instance.add_run(
        dg.DagsterRun(
            job_name=request.job_name or "",
            status=dg.DagsterRunStatus.FAILURE,
            tags={**tags, RUN_KEY: request.run_key or ""},
        )
    )
    again = note(graph, run_failed, dead, dg.DagsterEventType.RUN_FAILURE)
    assert isinstance(again, dg.RunRequest)
    assert again.run_key == f"{request.run_key}+1"
    assert graph.run(again).success
