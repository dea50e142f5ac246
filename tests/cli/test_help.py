"""``synth --help``: fast, and every command teaches."""

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
import typer

from cli.main import app
from tests.cli.synth import Synth

_ROOT = Path(__file__).parents[2]
_HEAVY = ("torch", "transformers", "dagster", "sqlalchemy", "pydantic", "numpy", "pyarrow", "matplotlib", "jinja2")


def _commands() -> dict[str, Any]:
    """Return every command by its words."""
    found: dict[str, Any] = {}

    def walk(command: Any, words: tuple[str, ...]) -> None:
        for name, child in getattr(command, "commands", {}).items():
            walk(child, (*words, name))
        if not hasattr(command, "commands"):
            found[" ".join(words)] = command

    walk(typer.main.get_command(app), ())
    return found


def test_help_imports_nothing_heavy() -> None:
    """Printing help loads no library that takes longer than the help itself."""
    code = (
        "import contextlib, io, json, sys\n"
        "from cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    code = main(['--help'])\n"
        f"print(json.dumps([code, [name for name in {_HEAVY!r} if name in sys.modules]]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=_ROOT, capture_output=True, check=True)
    assert json.loads(done.stdout) == [0, []]


@pytest.mark.parametrize("words", sorted(_commands()))
def test_every_command_teaches(words: str) -> None:
    """Each has a description, an example that starts with itself, and ``--json`` with a documented shape."""
    command = _commands()[words]
    assert command.help, words
    assert f"synth {words}" in (command.epilog or ""), "an example in the epilog"
    options = {name for parameter in command.params for name in parameter.opts}
    assert "--json" in options, words
    assert "JSON: " in command.help, "the shape of its JSON"


def test_the_commands_of_the_seed_and_of_issue_2_exist() -> None:
    """Nothing that a newcomer is told to type is missing."""
    wanted = {
        *("run start", "run show", "run events", "run checkpoints", "run list", "run trials", "run transcript"),
        *("run artifacts", "run cancel", "run regrade", "run resolve", "run resample", "run report"),
        *("train start", "agent run"),
        *("task-set publish", "task-set list", "profile publish", "profile list", "policy make", "policy list"),
        *("up", "down", "status", "demo"),
    }
    assert wanted <= set(_commands())


def test_without_a_command_it_helps(synth: Synth) -> None:
    """An empty command line shows what there is."""
    answer = synth()
    assert "Commands" in answer.out + answer.err
    assert answer.code == 2


def test_a_wrong_option_is_exit_code_2(synth: Synth) -> None:
    """As with every other wrong request."""
    answer = synth("run", "start", "--dataset")
    assert answer.code == 2
    assert "Traceback" not in answer.err


def test_the_version_is_the_distribution_s(synth: Synth) -> None:
    """Where it is installed as one."""
    try:
        installed = version("synth-platform")
    except PackageNotFoundError:
        pytest.skip("not installed as a distribution")
    assert synth.ok("--version").out.strip() == f"synth {installed}"
