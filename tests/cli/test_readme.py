"""The README's "Everyday use", as somebody pastes it after a clone and the set-up."""

import re
import shlex
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import typer

from cli.connection import platform
from cli.main import app
from domain.records.model import BasePolicy, FileEntry
from domain.records.task import ObjectRef
from resources.settings import environment_of, read_settings
from tests.cli.synth import Synth

_ROOT = Path(__file__).parents[2]
_KEPT = 20
"""Generated tasks that are published of each split."""
_SLOW = ("synth policy make", "synth up", "synth task-set check")
"""Tried by their own tests: training a policy takes minutes, and processes are started in ``tests/services``."""


def _blocks() -> list[list[str]]:
    """Return the commands of each code block of the section, without comments."""
    text = (_ROOT / "README.md").read_text(encoding="utf-8")
    section = text.split("## Everyday use\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```\n(.*?)^```$", section, flags=re.DOTALL | re.MULTILINE)
    return [[line.partition(" #")[0].strip() for line in block.splitlines()] for block in blocks]


def _parse(words: list[str]) -> None:
    """Parse a command line as the command would, without running it."""
    command: Any = typer.main.get_command(app)
    rest = words
    while hasattr(command, "commands"):
        command, rest = command.commands[rest[0]], rest[1:]
    command.make_context(rest[0] if rest else "", list(rest))


@pytest.fixture
def clone(synth: Synth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with the clone's examples, and the base policy that ``policy make`` would leave."""
    root = tmp_path / "clone"
    ignored = shutil.ignore_patterns("generated", "__pycache__")
    shutil.copytree(_ROOT / "examples", root / "examples", ignore=ignored)
    monkeypatch.chdir(root)
    monkeypatch.setenv("PYTHONPATH", str(_ROOT))
    assert not synth.home.exists()
    file = FileEntry(path="config.json", content=ObjectRef(digest="0" * 64, size_bytes=2))
    policy = BasePolicy(
        name="demo",
        digest="ab" * 32,
        family="qwen3",
        files=(file,),
        recipe_digest="cd" * 32,
        context_tokens=512,
        n_parameters=1,
    )
    with platform().ledger.begin() as tx:
        tx.catalog.add_base_policy(policy)
    return root


@pytest.mark.usefixtures("clone")
def test_the_first_block_can_be_pasted(synth: Synth) -> None:
    """From the shell's set-up to both experiments: each path exists, each reference was published before it is used."""
    lines = _blocks()[0]
    assert lines[:2] == ["source .venv/bin/activate", "export SYNTH_HOME=$PWD/.synth"]
    assert {slow for slow in _SLOW if any(line.startswith(slow) for line in lines)} == set(_SLOW)
    for line in lines[2:]:
        words = shlex.split(line)
        if words[0] == "python":
            subprocess.run([sys.executable, *words[1:]], check=True, capture_output=True)
            for split in (Path("examples/generated", name) for name in ("practice", "held-out")):
                for task in sorted(split.iterdir())[_KEPT:]:  # publishing hundreds shows no more, and takes longer
                    shutil.rmtree(task)
        elif line.startswith(_SLOW):
            _parse(words[1:])
            assert all(Path(word[1:]).is_file() for word in words if word.startswith("@")), line
        else:
            synth.ok(*words[1:])
    kinds = [item["spec"]["kind"] for item in synth.json("run", "list")["experiments"]]
    assert sorted(kinds) == ["evaluation", "training"]


def test_what_takes_ids_is_written_as_it_is_parsed() -> None:
    """Each line names a command and its arguments."""
    for line in _blocks()[1]:
        _parse(shlex.split(re.sub(r"<[a-z-]+>", "x", line))[1:])


def test_every_setting_has_a_row() -> None:
    """The table of settings knows what the example environment does, and what a child process is handed."""
    rows = re.findall(r"`(SYNTH_[A-Z_*]+)`", (_ROOT / "resources" / "README.md").read_text(encoding="utf-8"))
    example = (_ROOT / ".env.example").read_text(encoding="utf-8")
    listed = set(re.findall(r"^#?(SYNTH_[A-Z_]+)=", example, flags=re.MULTILINE))
    assert listed == set(environment_of(read_settings({"SYNTH_HOME": "x"})))
    assert [name for name in sorted(listed) if not any(fnmatch(name, row) for row in rows)] == []
