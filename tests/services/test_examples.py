"""The example tasks grade what they say they grade, for every command their families declare."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.inputs.documents import read_demonstrations
from examples.demonstrations import SHARE_RIGHT
from examples.families import FAMILIES
from examples.generate import N_DEMONSTRATIONS, N_HELD_OUT, N_PRACTICE, main, splits, write_demonstrations, write_tasks
from examples.spec import WORDS, Family, Instance
from examples.task_files import ORGANISATION, TaskFile, task_files

HELLO = Path("examples/tasks/hello")


def _write(files: dict[str, TaskFile] | dict[str, str], directory: Path) -> None:
    for path, file in files.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(file if isinstance(file, str) else file.text, encoding="utf-8")


_DRIVER = """
mkdir -p "$ROOT/logs/verifier"
while IFS= read -r -d '' command; do
  rm -rf "$ROOT/app"
  cp -r "$FILES" "$ROOT/app"
  (cd "$ROOT/app" && eval "$command" > /dev/null 2>&1 < /dev/null)
  (. "$ROOT/test.sh" > /dev/null 2>&1)
  echo "$(< "$ROOT/logs/verifier/reward.txt")"
done
"""
"""Runs and grades each command of its input on fresh files: one shell for all, so that it is quick."""


class Bench:
    """One task on this host: its scripts see ``/app``, ``/tests`` and ``/logs`` elsewhere."""

    def __init__(self, root: Path, task: Path) -> None:
        self.root, self.task = root, task
        root.mkdir()
        self.files = task / "environment" / "files"
        if not self.files.is_dir():
            self.files = root / "files"
            self.files.mkdir()
        (root / "test.sh").write_text(self._moved(task / "tests" / "test.sh"), encoding="utf-8")

    @property
    def solution(self) -> str:
        """The reference solution's script."""
        return self._moved(self.task / "solution" / "solve.sh")

    def rewards(self, *commands: str) -> list[str]:
        """Run each command on fresh initial files and grade what it leaves."""
        done = subprocess.run(
            ("bash", "-c", _DRIVER),
            input="".join(f"{command}\0" for command in commands),
            env={"PATH": os.defpath, "ROOT": str(self.root), "FILES": str(self.files)},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        return done.stdout.split()

    def _moved(self, script: Path) -> str:
        places = {"app": self.root / "app", "tests": (self.task / "tests").absolute(), "logs": self.root / "logs"}
        return re.sub(r"/(app|tests|logs)\b", lambda found: str(places[found[1]]), script.read_text(encoding="utf-8"))


def _numbered(family: Family) -> Iterator[tuple[str, Instance, dict[str, TaskFile]]]:
    for split, number, instance in splits(family, seed=0):
        yield split, instance, dict(task_files(family, instance, number=number, split=split))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_command_is_graded_as_declared(family: Family, tmp_path: Path) -> None:
    """The solution and right commands get 1; doing nothing and every wrong command get 0.

    The solution and doing nothing are tried on every instance, the rest on held-out and every fourth practice ones.
    """
    for index, (split, instance, files) in enumerate(_numbered(family)):
        whole = split == "held-out" or index % 4 == 0
        task = tmp_path / f"task-{index}"
        _write(files, task)
        bench = Bench(tmp_path / f"bench-{index}", task)
        right = (bench.solution, *(instance.right if whole else ()))
        wrong = ("true", *(instance.wrong if whole else ()))
        rewards = dict(zip((*right, *wrong), bench.rewards(*right, *wrong), strict=True))
        assert rewards == dict.fromkeys(right, "1") | dict.fromkeys(wrong, "0")


def test_the_hand_written_task_is_graded_right(tmp_path: Path) -> None:
    """Its solution gets 1; doing nothing, half the work and a changed input get 0."""
    bench = Bench(tmp_path / "bench", HELLO)
    half = "head -1 names.txt > greetings.txt"
    changed = f"{bench.solution}\necho Eve >> names.txt"
    assert bench.rewards(bench.solution, "true", half, changed) == ["1", "0", "0", "0"]


def test_a_link_to_the_expected_content_is_not_the_file(tmp_path: Path) -> None:
    """A verifier that followed links would grade its own files."""
    bench = Bench(tmp_path / "bench", HELLO)
    assert bench.rewards(f"ln -s {HELLO.absolute()}/tests/expected/greetings.txt greetings.txt") == ["0"]


def test_python_is_parsed_and_never_run(tmp_path: Path) -> None:
    """A file that prints the right number by other means is refused, and its code does not run."""
    (family,) = (family for family in FAMILIES if family.needs_python)
    _, instance, files = next(iter(_numbered(family)))
    (check,) = instance.checks
    _write(files, tmp_path / "task")
    bench = Bench(tmp_path / "bench", tmp_path / "task")
    refused = (
        f"import os; os.system('touch {tmp_path}/ran'); print({check.expected})",
        f"print({check.expected}); print({check.expected})",
        f"print({check.expected}, end='')",
        f"print(open('{tmp_path}/ran', 'w') and {check.expected})",
        "print(",
        "(" * 900,
        f"print({check.expected})" + " " * 2000,
    )
    commands = [f"cat > {check.path} <<'END'\n{program}\nEND" for program in refused]
    assert set(bench.rewards(*commands, f"printf '\\xff' > {check.path}")) == {"0"}
    assert not (tmp_path / "ran").exists()
    assert bench.rewards(f"""echo 'print("{check.expected}")' > {check.path}""") == ["1"]


def test_held_out_is_disjoint_and_made_of_practised_words() -> None:
    """No instruction is in both splits, names are unique, and every word of the pool occurs in practice."""
    seen: dict[str, set[str]] = {"practice": set(), "held-out": set()}
    names: list[str] = []
    for family in FAMILIES:
        for split, number, instance in splits(family, seed=0):
            seen[split].add(instance.instruction)
            names.append(f"{family.name}-{number:02d}")
    assert not seen["practice"] & seen["held-out"]
    assert len(names) == len(set(names)) == len(FAMILIES) * (N_PRACTICE + N_HELD_OUT)
    practised = set(" ".join(seen["practice"]).replace(".", " ").split())
    assert set(WORDS) <= practised
    assert {word for text in seen["held-out"] for word in text.replace(".", " ").split()} <= practised


def test_instructions_and_commands_are_short() -> None:
    """What a very small model can read and write."""
    for family in FAMILIES:
        for _, _, instance in splits(family, seed=0):
            assert len(instance.instruction) <= 80
            assert all(len(command) <= 60 for command in (*instance.right, *instance.wrong))


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything the generator writes with seed 0."""
    out = tmp_path_factory.mktemp("generated")
    write_tasks(out, seed=0)
    write_demonstrations(out, seed=0)
    return out


def test_demonstrations_are_of_practice_tasks_and_of_mixed_quality(generated: Path) -> None:
    """About half of them are right, each names an existing practice task, and each tells the true output."""
    demonstrations = read_demonstrations(generated / "demonstrations.jsonl")
    assert len(demonstrations) == len(FAMILIES) * N_PRACTICE * N_DEMONSTRATIONS
    tasks = {f"{ORGANISATION}/{path.name}" for path in (generated / "practice").iterdir()}
    assert {item.task_name for item in demonstrations} == tasks
    right = {
        f"{ORGANISATION}/{family.name}-{number:02d}": instance.right
        for family in FAMILIES
        for _, number, instance in splits(family, seed=0)
    }
    calls = [(item.task_name, item.messages[item.n_opening].tool_calls[0].arguments or {}) for item in demonstrations]
    share = sum(arguments["command"] in right[task] for task, arguments in calls) / len(calls)
    assert share == pytest.approx(SHARE_RIGHT, abs=0.05)
    outputs = {item.messages[-2].content for item in demonstrations}
    assert "ok" in outputs
    assert any(output.endswith("exit 1") for output in outputs)


def test_the_same_seed_gives_the_same_bytes(generated: Path, tmp_path: Path) -> None:
    """Task digests and the base policy depend on it; another seed gives other tasks."""
    assert main(["--out", str(tmp_path / "again")]) == 0
    assert _bytes(tmp_path / "again") == _bytes(generated)
    write_tasks(tmp_path / "other", seed=1)
    assert _bytes(tmp_path / "other" / "held-out") != _bytes(generated / "held-out")


def _bytes(directory: Path) -> dict[str, tuple[bytes, int]]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mode) for path in files}
