"""``synth task-set check``: what a task set's own solutions and doing nothing score, before any agent tries."""

from pathlib import Path

import pytest

from tests.cli.synth import Synth
from tests.fakes.platform import write_task

SOLVED = "if [ -e /app/done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


@pytest.fixture
def tasks(synth: Synth, tmp_path: Path) -> Path:
    """Return a directory whose one task is right, published as team/good@v1."""
    directory = tmp_path / "good"
    write_task(directory, "good", test=SOLVED, solution="touch /app/done\n")
    told = synth.ok("task-set", "publish", str(directory), "team/good@v1")
    assert "task-set check team/good@v1" in told.err, "what to run next"
    return directory


@pytest.mark.usefixtures("tasks")
def test_a_good_set_passes(synth: Synth) -> None:
    """A warning is no failure; people see every check with what it says."""
    found = synth.json("task-set", "check", "team/good@v1")
    assert (found["passed"], found["n_tasks"], found["sandbox"]) == (True, 1, "local")
    assert [item["check"] for item in found["checks"] if not item["passed"]] == ["images_are_pinned"]
    answer = synth.ok("task-set", "check", "team/good@v1")
    assert "The tasks' own solutions score 1" in answer.out
    assert "1 of 1 task of team/good@v1 tried in local boxes" in answer.out
    assert "failed" not in answer.out


def test_a_bad_set_fails_and_says_which_task(synth: Synth, tasks: Path) -> None:
    """Exit code 1; a check of tasks that were never run has not passed."""
    write_task(tasks, "wrong", test=SOLVED, solution="touch /app/elsewhere\n")
    synth.ok("task-set", "publish", str(tasks), "team/bad@v1")
    answer = synth("task-set", "check", "team/bad@v1", "--tasks", "0")
    assert answer.code == 1
    assert "failed oracle_scores_one  t/wrong: 0" in answer.out
    assert synth("task-set", "check", "team/bad@v1", "--sandbox", "cloud").code == 2
    assert synth("task-set", "check", "team/none@v1").code == 2
    bare = write_task(tasks.parent / "bare", "bare", test=SOLVED)
    (bare / "solution" / "solve.sh").rename(bare / "solution" / "readme")
    synth.ok("task-set", "publish", str(bare), "team/bare@v1")
    answer = synth("task-set", "check", "team/bare@v1")
    assert (answer.code, answer.out.count("not run")) == (1, 3)
    assert "failed lint  t/bare: solution/solve.sh is missing" in answer.out
