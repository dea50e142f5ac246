"""The example workload: four tasks of one small library, each a commit without its history, and a judge outside."""

import subprocess
from pathlib import Path

import pytest

from adapters.benchmarks.harbor import HarborTaskSource
from tests.security.bench import Attack, Range, make_range

WORKLOAD = Path("examples/workload")
TASKS = sorted(path.name for path in WORKLOAD.iterdir() if path.is_dir())
_SHARED = ("tests/judge.py", "tests/worker.py", "tests/operations.py", "tests/test.sh", "solution/apply_patch.py")


@pytest.fixture
async def arena(tmp_path: Path) -> Range:
    """Local boxes and a verifier."""
    return await make_range("local", tmp_path / "scratch")


@pytest.mark.parametrize("name", TASKS)
async def test_the_solution_scores_one_and_nothing_scores_zero(arena: Range, name: str) -> None:
    """Each task's own solution is worth 1 in its own verifier, and the untouched project 0."""
    ((task, archive),) = HarborTaskSource().read(str(WORKLOAD / name), host_runnable=False)
    arena.bench.store.put(archive)
    found = await Range(bench=arena.bench, task=task, archive=archive).both(Attack())
    assert {arm: assessment.reward for arm, assessment in found.items()} == {"right": 1.0, "wrong": 0.0}


def test_the_fixes_lead_to_one_project(tmp_path: Path) -> None:
    """The four checkouts are one project at four commits: with its fix, each is the same tree."""
    trees: list[dict[str, bytes]] = []
    for name in TASKS:
        root = tmp_path / name
        subprocess.run(("cp", "-r", str(WORKLOAD / name / "environment/files"), str(root)), check=True)
        applier, patch = (WORKLOAD / name / "solution" / part for part in ("apply_patch.py", "fix.patch"))
        subprocess.run(("python3", "-I", "-S", "-B", str(applier), str(patch), str(root)), check=True)
        trees.append({str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()})
    assert all(tree == trees[0] for tree in trees)


def test_the_tasks_share_their_judge() -> None:
    """What is meant to be the same in every task is the same, to the byte."""
    for shared in _SHARED:
        assert len({(WORKLOAD / name / shared).read_bytes() for name in TASKS}) == 1, shared
