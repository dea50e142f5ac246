"""A home of its own for each test of the command line."""

from pathlib import Path

import pytest

from tests.cli.synth import Synth, write_json, write_tasks


@pytest.fixture
def synth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Synth:
    """Return the command in an empty home and an empty working directory."""
    home = tmp_path / "home"
    monkeypatch.setenv("SYNTH_HOME", str(home))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("SYNTH_LEDGER_URL", raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return Synth(home=home, capture=capsys)


@pytest.fixture
def published(synth: Synth, tmp_path: Path) -> Synth:
    """Return the command with two task sets, a profile and plans beside it."""
    directory = write_tasks(tmp_path / "tasks", {"a-one": "1", "a-two": "0", "b-one": "0.5"})
    synth.ok("task-set", "publish", str(directory), "team/evaluation@v1")
    synth.ok("task-set", "publish", str(directory), "team/practice@v1")
    write_json(Path("agent.json"), {"name": "nop", "engine": "nop"})
    write_json(Path("eval-plan.json"), {"attempts": 2, "sandbox": "memory"})
    return synth
