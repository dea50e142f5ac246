"""Running ``synth`` inside the test's process, against a home of its own."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli.main import main

TASK = """schema_version = "1.4"

[task]
name = "tests/{name}"

[metadata]
family = "{family}"
host_runnable = true

[environment]
workdir = "/app"
network_mode = "no-network"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Synth:
    """A home and the commands run in it."""

    home: Path
    capture: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> Answer:
        """Run one command."""
        self.capture.readouterr()
        code = main(arguments)
        out, err = self.capture.readouterr()
        return Answer(code=code, out=out, err=err)

    def ok(self, *arguments: str) -> Answer:
        """Run one command that has to succeed."""
        answer = self(*arguments)
        assert answer.code == 0, answer.err
        return answer

    def json(self, *arguments: str) -> Any:
        """Run one command that has to succeed, and return its JSON."""
        return self.ok(*arguments, "--json").json


def write_tasks(directory: Path, rewards: dict[str, str]) -> Path:
    """Write tasks whose no-op verifier gives the named reward; the first letter of a name is its family."""
    for name, reward in rewards.items():
        task = directory / name
        (task / "tests").mkdir(parents=True)
        (task / "task.toml").write_text(TASK.format(name=name, family=name[0]))
        (task / "instruction.md").write_text(f"Do nothing about {name}.\n")
        (task / "tests" / "test.sh").write_text(f"# synth-memory: reward {reward}\n")
    return directory


def write_json(path: Path, value: object) -> Path:
    """Write a document."""
    path.write_text(json.dumps(value))
    return path
