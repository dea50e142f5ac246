"""Submission from the Launchpad and from schedules: the acceptance of the command line."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.snap.snap_to_yaml import default_values_yaml_from_type_snap

from domain.errors import ConfigurationError
from domain.records.experiment import ExperimentKind
from domain.records.names import parse_reference
from domain.records.profile import Plan, Profile
from domain.service.accept import Submission, accept
from domain.service.publish import publish_task_set
from resources.documents import Benchmark, Documents, read_benchmarks, submission
from sensors.benchmarks import schedule_of
from sensors.submission import EXAMPLE, SubmissionConfig
from tests.assets.graph import Graph
from tests.fakes.platform import write_task

PROFILE = {"name": "actor", "engine": "nop"}
PLAN = {"attempts": 2, "sandbox": "memory"}


def _launch(graph: Graph, *, raise_on_error: bool = True, **config: Any) -> Any:
    run_config = {"ops": {"submit_experiment": {"config": {"dataset": "team/small@v1", **config}}}}
    return graph.run(
        dg.RunRequest(job_name="submit_experiment_job", run_config=run_config), raise_on_error=raise_on_error
    )


def _experiments(graph: Graph) -> list[str]:
    with graph.platform.ledger.snapshot() as tx:
        return [experiment.experiment_id for experiment in tx.experiments.all()]


def test_the_launchpad_and_the_command_line_end_in_the_same_acceptance(graph: Graph, tmp_path: Path) -> None:
    """The same key with the same documents is the same experiment, whichever way it comes."""
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    accepted = accept(
        graph.platform,
        Submission(
            kind=ExperimentKind.EVALUATION,
            task_set="team/small@v1",
            actor=Profile(name="actor", engine="nop"),
            plan=Plan(attempts=2, sandbox="memory"),
            idempotency_key="one",
        ),
    )
    assert _launch(graph, profile=PROFILE, plan=PLAN, idempotency_key="one").success
    assert _launch(graph, profile=PROFILE, plan_file=f"@{tmp_path / 'plan.json'}", idempotency_key="one").success
    assert _experiments(graph) == [accepted.experiment.experiment_id]


def _scaffold(graph: Graph) -> Any:
    """Return what the Launchpad's editor is filled with, by Dagster's own way from the job's schema."""
    job: Any = graph.definitions.resolve_job_def("submit_experiment_job")
    snapshot: Any = job.get_config_schema_snapshot()
    root = snapshot.get_config_snap(job.get_job_snapshot().mode_def_snaps[0].root_config_key)
    return dg.config_from_yaml_strings([default_values_yaml_from_type_snap(snapshot, root)])


def test_the_launchpad_shows_an_example_that_runs(graph: Graph, tmp_path: Path) -> None:
    """What stands there unedited is accepted as it is, once its task set is published."""
    scaffold = _scaffold(graph)
    config = scaffold["ops"]["submit_experiment"]["config"]
    assert config == EXAMPLE["ops"]["submit_experiment"]["config"]
    write_task(tmp_path / "held-out", "c1")
    publish_task_set(graph.platform, parse_reference(config["dataset"], field="test"), str(tmp_path / "held-out"))
    assert graph.run(dg.RunRequest(job_name="submit_experiment_job", run_config=scaffold)).success
    (experiment,) = _experiments(graph)
    assert experiment.startswith("evl-")


def test_the_example_completes_nothing_that_was_left_out(graph: Graph) -> None:
    """Whoever writes a form of their own and forgets the task set is told so, and does not get the example's."""
    run_config = {"ops": {"submit_experiment": {"config": {"profile": PROFILE, "plan": PLAN}}}}
    with pytest.raises(dg.DagsterInvalidConfigError, match="dataset"):
        graph.run(dg.RunRequest(job_name="submit_experiment_job", run_config=run_config))
    assert _experiments(graph) == []


def test_every_field_of_the_form_says_what_it_is() -> None:
    """The Launchpad shows the description beside the editor."""
    assert [name for name, field in SubmissionConfig.model_fields.items() if not field.description] == []


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"profile": PROFILE, "plan": {"attempt": 2}}, "plan: attempt"),
        ({"profile": {"name": "actor"}, "plan": PLAN}, "profile: engine"),
        ({"plan": PLAN}, "actor"),
        ({"profile": PROFILE, "plan": PLAN, "kind": "regrade"}, "kind"),
        ({"profile": PROFILE, "plan": PLAN, "dataset": "team/small"}, "dataset"),
    ],
)
def test_a_wrong_form_names_its_field_and_nothing_is_accepted(graph: Graph, config: dict[str, Any], named: str) -> None:
    """The run fails with the words that the command line would say."""
    with pytest.raises(ConfigurationError, match=named):
        _launch(graph, **config)
    assert _experiments(graph) == []


def test_a_benchmark_names_its_experiments_by_the_tick(graph: Graph, tmp_path: Path) -> None:
    """A tick that is repeated finds its experiment, and the next tick makes another."""
    for name, document in (("agent", PROFILE), ("plan", PLAN)):
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    entry = {
        "name": "nightly",
        "cron": "0 3 * * *",
        "dataset": "team/small@v1",
        "actor": "@agent.json",
        "plan": "@plan.json",
    }
    (tmp_path / "benchmarks.json").write_text(json.dumps([entry]))
    (benchmark,) = read_benchmarks(tmp_path / "benchmarks.json")
    schedule: Any = schedule_of(benchmark)
    for day in (1, 1, 2):
        context = dg.build_schedule_context(scheduled_execution_time=datetime(2026, 1, day, 3, tzinfo=UTC))
        (request,) = schedule.evaluate_tick(context).run_requests
        assert graph.run(dg.RunRequest(job_name="submit_experiment_job", run_config=request.run_config)).success
    assert len(_experiments(graph)) == 2


def test_a_wrong_time_names_its_benchmark() -> None:
    """Instead of a code location that does not load for an unknown reason."""
    benchmark = Benchmark(name="nightly", cron="never", dataset="t/s@v1", actor="t/a@v1", plan="@p")
    with pytest.raises(ConfigurationError, match="'nightly': cron: 'never'"):
        schedule_of(benchmark)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "benchmarks.json"),
        ("{}", "holds no JSON list"),
        ('[{"name": "a", "cron": "0 3 * * *", "dataset": "t/s@v1", "actor": "t/a@v1"}]', "0: plan"),
        ('[{"name": "a b", "cron": "0 3 * * *", "dataset": "t/s@v1", "actor": "t/a@v1", "plan": "@p"}]', "name"),
    ],
)
def test_a_wrong_list_of_benchmarks_names_file_and_field(tmp_path: Path, text: str, named: str) -> None:
    """Found when the code location loads and before `synth up` starts anything."""
    (tmp_path / "benchmarks.json").write_text(text)
    with pytest.raises(ConfigurationError, match=named):
        read_benchmarks(tmp_path / "benchmarks.json")


def test_a_submission_takes_a_reference_or_a_profile_not_both() -> None:
    """Nobody has to guess which of two actors worked."""
    documents = Documents(kind="evaluation", dataset="t/s@v1", actor="t/a@v1", profile=PROFILE)
    with pytest.raises(ConfigurationError, match="actor"):
        submission(documents)
