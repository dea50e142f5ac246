"""The example tasks grade what they say they grade, for every command their families declare."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.demonstrations import run
from examples.families import FAMILIES
from examples.generate import N_DEMONSTRATIONS, N_HELD_OUT, N_PRACTICE, generate, splits
from examples.spec import WORDS, Family, Instance
from examples.task_files import TaskFile, task_files

HELLO = Path("examples/tasks/hello")


def _write(files: dict[str, TaskFile] | dict[str, str], directory: Path) -> None:
    for path, file in files.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(file if isinstance(file, str) else file.text, encoding="utf-8")


class Bench:
    """One task in a directory: scripts with ``/app``, ``/tests`` and ``/logs`` moved below it."""

    def __init__(self, root: Path, task: Path) -> None:
        self.root, self.task = root, task
        shutil.copytree(task / "tests", root / "tests")
        (root / "logs" / "verifier").mkdir(parents=True)

    def _moved(self, script: Path) -> str:
        return re.sub(r"/(?=(app|tests|logs)\b)", f"{self.root}/", script.read_text(encoding="utf-8"))

    def reward(self, command: str) -> str:
        """Run ``command`` on fresh initial files and grade what it leaves."""
        app, files = self.root / "app", self.task / "environment" / "files"
        shutil.rmtree(app, ignore_errors=True)
        if files.is_dir():
            shutil.copytree(files, app)
        else:
            app.mkdir()
        self._bash(command)
        self._bash(self._moved(self.task / "tests" / "test.sh"))
        return (self.root / "logs" / "verifier" / "reward.txt").read_text(encoding="utf-8").strip()

    def solution(self) -> str:
        """Return the reference solution's script."""
        return self._moved(self.task / "solution" / "solve.sh")

    def _bash(self, script: str) -> None:
        subprocess.run(("bash", "-c", script), cwd=self.root / "app", check=False, capture_output=True, timeout=30)


def _numbered(family: Family) -> Iterator[tuple[str, Instance, dict[str, TaskFile]]]:
    for split, number, instance in splits(family, seed=0):
        yield split, instance, dict(task_files(family, instance, number=number, split=split))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_command_of_every_instance_is_graded_right(family: Family, tmp_path: Path) -> None:
    """The solution and right commands get 1; doing nothing and every wrong command get 0."""
    for index, (_, instance, files) in enumerate(_numbered(family)):
        task, root = tmp_path / f"task-{index}", tmp_path / f"bench-{index}"
        _write(files, task)
        bench = Bench(root, task)
        rewards = {command: bench.reward(command) for command in (*instance.right, *instance.wrong, "true")}
        expected = dict.fromkeys(instance.right, "1") | dict.fromkeys((*instance.wrong, "true"), "0")
        assert rewards == expected
        if index == 0:
            assert bench.reward(bench.solution()) == "1"
