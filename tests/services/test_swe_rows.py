"""Rows as SWE-bench has them become tasks whose gold patch is worth 1, the rest is refused by its field."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from adapters.benchmarks.harbor import HarborTaskSource
from adapters.benchmarks.swe_rows import import_rows
from domain.errors import ConflictError, TaskError
from domain.lifecycle.preflight import leaks
from tests.security.bench import Attack, Range, make_range

WORKLOAD = Path("examples/workload")
PASSING = ("TextTest::test_backwards", "ClockTest::test_round_trip")
NEW_TESTS = {
    "spans-nested": ("test_inside", "self.assertEqual(SpanSet.of((1, 10), (2, 3)).spans, (Span(1, 10),))"),
    "spans-difference": ("test_less", "self.assertEqual(list(SpanSet.of((0, 5)) - SpanSet.of((1, 4))), [0, 4])"),
}


def _git(where: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    return subprocess.run(("git", *identity, *words), cwd=where, check=True, capture_output=True, text=True).stdout


def make_row(directory: Path, name: str, *, bundle: bool = False) -> dict[str, Any]:
    """Return a row about a repository, or a bundle of it, made from a task of the workload."""
    repository = directory / name
    subprocess.run(("cp", "-r", str(WORKLOAD / name / "environment/files"), str(repository)), check=True)
    for words in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "base")):
        _git(repository, *words)
    if bundle:
        _git(repository, "bundle", "create", "-q", str(directory / f"{name}.bundle"), "HEAD", "main")
    suite = repository / "tests/test_spans.py"
    test, line = NEW_TESTS[name]
    before = "    def test_gaps(self):\n"
    added = f"    def {test}(self):\n        {line}\n\n"
    suite.write_text(suite.read_text("utf-8").replace(before, added + before), encoding="utf-8")
    return {
        "instance_id": name,
        "repo": f"{name}.bundle" if bundle else name,
        "base_commit": _git(repository, "rev-parse", "HEAD").strip(),
        "problem_statement": (WORKLOAD / name / "instruction.md").read_text("utf-8"),
        "patch": (WORKLOAD / name / "solution/fix.patch").read_text("utf-8"),
        "test_patch": _git(repository, "diff"),
        "FAIL_TO_PASS": [f"tests/test_spans.py::SetTest::{test}"],
        "PASS_TO_PASS": json.dumps([f"tests/test_spans.py::{name}" for name in ("SetTest::test_gaps", *PASSING)]),
    }


def write_rows(directory: Path, *rows: dict[str, Any]) -> Path:
    """Write rows beside their repositories."""
    path = directory / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


async def test_the_gold_patch_scores_one_and_nothing_scores_zero(tmp_path: Path) -> None:
    """A row about a directory and one about a bundle: tasks that leak nothing and grade as their rows say."""
    rows = write_rows(tmp_path, make_row(tmp_path, "spans-nested"), make_row(tmp_path, "spans-difference", bundle=True))
    directories = import_rows(rows, tmp_path / "tasks")
    assert [path.name for path in directories] == ["spans-nested", "spans-difference"]
    arena = await make_range("local", tmp_path / "scratch")
    for task, archive in HarborTaskSource().read(str(tmp_path / "tasks"), host_runnable=False):
        assert list(leaks(task, archive)) == []
        arena.bench.store.put(archive)
        found = await Range(bench=arena.bench, task=task, archive=archive).both(Attack())
        assert {arm: assessment.reward for arm, assessment in found.items()} == {"right": 1.0, "wrong": 0.0}


async def test_the_agents_tests_and_configuration_do_not_count(tmp_path: Path) -> None:
    """Tests that the agent emptied are replaced by the row's, and a conftest or a link beside them is not read."""
    rows = write_rows(tmp_path, make_row(tmp_path, "spans-nested"))
    import_rows(rows, tmp_path / "tasks")
    arena = await make_range("local", tmp_path / "scratch")
    ((task, archive),) = HarborTaskSource().read(str(tmp_path / "tasks"), host_runnable=False)
    arena.bench.store.put(archive)
    script = (
        "echo 'import os; os._exit(0)' | tee conftest.py tests/conftest.py sitecustomize.py; : > tests/test_spans.py"
    )
    found = await Range(bench=arena.bench, task=task, archive=archive).both(Attack(script=script))
    assert {arm: assessment.reward for arm, assessment in found.items()} == {"right": 1.0, "wrong": 0.0}


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("surprise", 1, "row 1: surprise"),
        ("repo", "nowhere", "row 1: repo: nowhere"),
        ("base_commit", "f" * 40, "row 1: base_commit"),
        ("base_commit", "main", "row 1: base_commit"),
        ("patch", "nonsense", "row 1: patch"),
        ("test_patch", "", "row 1: test_patch"),
        ("FAIL_TO_PASS", [], "row 1: FAIL_TO_PASS"),
        (
            "FAIL_TO_PASS",
            ["tests/test_spans.py::SetTest::test_nothing"],
            r"row 1: FAIL_TO_PASS\[0\]: .* not in its file",
        ),
        ("PASS_TO_PASS", ["../x.py::test"], r"row 1: PASS_TO_PASS\[0\]"),
        ("PASS_TO_PASS", "not a list", "row 1: PASS_TO_PASS"),
        ("instance_id", "../x", "row 1: instance_id"),
    ],
)
def test_a_bad_row_is_refused_by_its_field(tmp_path: Path, field: str, value: object, words: str) -> None:
    """The message names row and field, and nothing is written."""
    row = make_row(tmp_path, "spans-nested") | {field: value}
    with pytest.raises(TaskError, match=words):
        import_rows(write_rows(tmp_path, row), tmp_path / "tasks")
    assert not (tmp_path / "tasks").exists()


def test_what_is_there_is_never_overwritten(tmp_path: Path) -> None:
    """A directory with content is refused."""
    with pytest.raises(ConflictError, match="not empty"):
        import_rows(write_rows(tmp_path, make_row(tmp_path, "spans-nested")), tmp_path)


def test_the_applier_of_the_workload_is_the_importers() -> None:
    """One program applies patches, wherever a solution is one."""
    ours = Path("adapters/benchmarks/box/apply_patch.py").read_bytes()
    assert (WORKLOAD / "spans-nested/solution/apply_patch.py").read_bytes() == ours
