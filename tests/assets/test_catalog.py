"""Task sets and base policies in the graph: what was published, and what their checks find."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg

from domain.records.archive import pack_files, paths, read_file
from domain.records.model import BasePolicy
from domain.records.names import parse_reference
from domain.records.task import TaskEntry
from domain.service.publish import publish_task_set
from domain.service.task_pages import TaskSetWriter
from domain.service.vetting import CHECKS
from sensors.catalog import catalog
from tests.assets.graph import Graph, checks_of, metadata_of
from tests.fakes.platform import write_task

SOLVED = "if [ -e /app/done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


def _task_set(graph: Graph, directory: Path, **config: Any) -> Any:
    """Publish and materialize one task set, as somebody does with the Launchpad."""
    graph.instance.add_dynamic_partitions("task_set", ["team.made.v1"])
    request = dg.RunRequest(
        job_name="task_set_job",
        partition_key="team.made.v1",
        run_config={"ops": {"task_sets": {"config": {"directory": str(directory), **config}}}},
    )
    return graph.run(request)


def test_what_was_published_elsewhere_is_shown(graph: Graph) -> None:
    """The sensor materializes the ledger's task sets and base policies, once."""
    policy = BasePolicy(
        name="tiny",
        digest="0" * 64,
        family="qwen3",
        files=(),
        recipe_digest="1" * 64,
        context_tokens=128,
        n_parameters=7,
        metrics={"final_loss": 0.5},
    )
    with graph.platform.ledger.begin() as tx:
        tx.catalog.add_base_policy(policy)
    task_sets, policies = graph.drain(catalog)
    made = metadata_of(task_sets)["task_sets"]
    assert (made["reference"], made["n_tasks"]) == ("team/small@v1", 3)
    facts = metadata_of(policies)["base_policies"]
    assert (facts["model"], facts["n_parameters"], facts["final_loss"]) == ("base:tiny", 7, 0.5)
    assert not graph.tick(catalog).run_requests


def test_good_tasks_pass_their_checks(graph: Graph, tmp_path: Path) -> None:
    """The solution scores 1 and doing nothing scores below, in real boxes."""
    write_task(tmp_path / "good", "g1", test=SOLVED, solution="touch /app/done\n")
    run = _task_set(graph, tmp_path / "good")
    assert checks_of(run) == {**dict.fromkeys(CHECKS, True), "images_are_pinned": False}
    assert metadata_of(run)["task_sets"]["n_tasks_checked"] == 1


def test_bad_tasks_fail_the_check_that_names_them(graph: Graph, tmp_path: Path) -> None:
    """A wrong solution, a test that rewards doing nothing, and a task without a solution each fail their own check."""
    write_task(tmp_path / "bad", "w1", test=SOLVED, solution="touch /app/elsewhere\n")
    write_task(tmp_path / "bad", "n1")
    bare = write_task(tmp_path / "bad", "x1", test=SOLVED)
    (bare / "solution" / "solve.sh").rename(bare / "solution" / "readme")
    write_task(tmp_path / "bad", "d1", test='echo "$(( $(date +%s%N) % 1000 ))" > /logs/verifier/reward.txt\n')
    told = write_task(tmp_path / "bad", "l1", test=SOLVED, solution="touch /app/done # and nothing else\n")
    (told / "environment" / "hint").write_text("touch /app/done # and nothing else\n")
    write_task(tmp_path / "bad", "h1", test="true || pip install numpy\n" + SOLVED, solution="touch /app/done\n")
    run = _task_set(graph, tmp_path / "bad", checked_tasks=0)
    wrong = {check.check_name: check.metadata["wrong"].value for check in run.get_asset_check_evaluations()}
    assert {name for name, passed in checks_of(run).items() if passed} == {"texts_are_plain"}
    assert "t/w1" in {line.partition(":")[0] for line in wrong["oracle_scores_one"]}
    assert "t/n1" in {line.partition(":")[0] for line in wrong["nop_scores_below_one"]}
    assert [line.partition(":")[0] for line in wrong["verifier_is_deterministic"]] == ["t/d1"]
    assert [line.partition(":")[0] for line in wrong["nothing_leaks"]] == ["t/l1"]
    assert {line.partition(": ")[2] for line in wrong["images_are_pinned"]} == {
        "environment/Dockerfile: FROM debian:bookworm-slim has no digest"
    }
    assert wrong["lint"] == ["t/x1: solution/solve.sh is missing"]
    (line,) = wrong["harbor_lint"]
    assert line.startswith("t/h1: tests/test.sh:1: unpinned-python-dependency: numpy")


def test_a_set_from_another_system_fails_its_check(graph: Graph, tmp_path: Path) -> None:
    """Reading a directory refuses CRLF and byte order marks; a set that came in otherwise is found all the same."""
    platform = graph.platform
    write_task(tmp_path / "good", "c1", test=SOLVED, solution="touch /app/done\n")
    ((task, archive),) = platform.tasks.read(str(tmp_path / "good"), host_runnable=False)
    files = {name: read_file(archive, name) or b"" for name in paths(archive)}
    files["solution/solve.sh"] = b"touch /app/done\r\n"
    files["instruction.md"] = b"\xef\xbb\xbfDo it.\n"
    kept = platform.records.save(replace(task, archive=platform.store.put(pack_files(files))))
    writer = TaskSetWriter(platform.records, parse_reference("team/made@v1", field="test"))
    writer.add(TaskEntry(name=task.name, digest=task.digest, record=kept), "all")
    task_set = writer.close()
    with platform.ledger.begin() as tx:
        tx.catalog.add_task_set(task_set, platform.records.save(task_set))
    graph.instance.add_dynamic_partitions("task_set", ["team.made.v1"])
    run = graph.run(dg.RunRequest(job_name="task_set_job", partition_key="team.made.v1"))
    wrong = {check.check_name: check.metadata["wrong"].value for check in run.get_asset_check_evaluations()}
    assert wrong["texts_are_plain"] == [
        "t/c1: instruction.md: starts with a byte order mark",
        "t/c1: solution/solve.sh: has CRLF line ends",
    ]


def test_a_task_set_is_read_by_the_digest_it_was_published_with(graph: Graph, tmp_path: Path) -> None:
    """The data version is the content, so that publishing the same again changes nothing."""
    write_task(tmp_path / "same", "s1")
    found = publish_task_set(graph.platform, parse_reference("team/made@v1", field="test"), str(tmp_path / "same"))
    for _ in range(2):
        assert _task_set(graph, tmp_path / "same", sandbox="memory").success
    record = graph.instance.get_latest_data_version_record(dg.AssetKey("task_sets"), partition_key="team.made.v1")
    assert record is not None
    assert record.asset_materialization is not None
    assert (record.asset_materialization.tags or {})["dagster/data_version"] == found.digest
