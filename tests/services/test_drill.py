"""Processes die while a training runs; the next ones go on and the books balance."""

from pathlib import Path

import pytest

from cli.readiness import free_port
from domain.records.experiment import ExperimentState
from domain.records.model import UpdateState
from resources.wiring import settings_from_environment
from tests.services.drilling import DrillPlan, drill, submit_coins


@pytest.mark.drill
@pytest.mark.timeout(900)
def test_nothing_is_lost_or_doubled_when_processes_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six SIGKILLs of run, model process and daemon: each attempt has one trial and each step happened once."""
    monkeypatch.setenv("SYNTH_UI_PORT", str(free_port("127.0.0.1", 24100)))
    settings = settings_from_environment(tmp_path / "home")
    plan = DrillPlan(n_kills=6, batches=3)
    books = drill(settings, lambda platform: submit_coins(platform, tmp_path / "tasks", plan), plan)
    assert books.experiment.state is ExperimentState.SUCCEEDED, books
    assert sum(books.kills.values()) == 6
    assert books.n_trials == books.n_attempts == books.n_planned
    assert len(books.updates) == 3
    assert set(books.updates) <= {UpdateState.APPLIED, UpdateState.SKIPPED}
    applied = sum(state is UpdateState.APPLIED for state in books.updates)
    assert books.n_optimizer_steps == tuple(range(1, applied + 1))
    assert books.replayed_equal == applied
