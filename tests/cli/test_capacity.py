"""The budget: how a setting writes it, what a wrong one is told, and ``synth capacity``."""

from dataclasses import replace

import pytest

from cli.connection import platform
from domain.errors import ConfigurationError
from domain.records.capacity import UNBOUNDED, Capacity, Grant
from resources.budget import Budget, read_budget, write_budget
from tests.cli.synth import Synth
from tests.contracts.ledger_scene import EXPERIMENT, scene


def test_a_budget_names_what_it_bounds() -> None:
    """Trials are bounded unless the setting says otherwise; all else is bounded when named."""
    assert read_budget("") == Budget() == Budget(capacity=replace(UNBOUNDED, trials=64.0))
    read = read_budget("cpus=1.5, memory_mb=16000 model_calls=8")
    bounded = replace(UNBOUNDED, trials=64.0, cpus=1.5, memory_mb=16000.0)
    assert read == Budget(capacity=bounded, model_calls=8)
    assert read_budget("trials=inf").capacity == UNBOUNDED
    for text in ("", "trials=inf", "trials=3 cpus=0.5 gpus=0 exports=2 model_calls=1"):
        assert read_budget(write_budget(read_budget(text))) == read_budget(text)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("cores=4", "cores"),
        ("cpus", "cpus"),
        ("cpus=four", "four"),
        ("cpus=0", "cpus"),
        ("trials=0", "trials"),
        ("trials=1.5", r"trials.*whole"),
        ("memory_mb=-1", "memory_mb"),
        ("memory_mb=nan", "memory_mb"),
        ("model_calls=inf", "model_calls"),
    ],
)
def test_a_wrong_budget_is_refused_by_name(text: str, named: str) -> None:
    """The variable and the part of it that is wrong."""
    with pytest.raises(ConfigurationError, match=f"SYNTH_BUDGET.*{named}"):
        read_budget(text)


def test_capacity_shows_the_budget_and_that_nothing_runs(published: Synth, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds as numbers, no bound as null."""
    monkeypatch.setenv("SYNTH_BUDGET", "trials=8 memory_mb=4096")
    view = published.json("capacity")
    budgets = {item["name"]: item["budget"] for item in view["resources"]}
    assert (budgets["trials"], budgets["memory_mb"], budgets["cpus"], view["grants"]) == (8, 4096, None, [])
    shown = published.ok("capacity")
    assert "memory_mb" in shown.out
    assert "cpus" not in shown.out
    assert "No unit is under way" in shown.out
    assert "a task that declares none counts 1 CPU, 2048 MB of memory and 1024 MB of disk" in " ".join(
        shown.err.split()
    )
    every = published.ok("capacity", "--all").out
    assert all(name in every for name in ("cpus", "gpus", "no bound"))


def test_what_is_used_without_a_bound_is_shown(synth: Synth) -> None:
    """With what the columns of units count, and thousands in words that nobody takes for a mistake."""
    synth.home.mkdir()
    opened = platform()
    held = scene(opened.ledger)
    used = Capacity(trials=64, cpus=64, memory_mb=131_072)
    with opened.ledger.begin() as tx:
        tx.grants.put(
            tx.units.acquire(held.unit, "now", opened.clock.now_ms(), 60.0),
            Grant(
                unit=held.unit, experiment_id=EXPERIMENT, weight=1.0, wanted=used, head=Capacity(), used=used,
                share=used, held=used, service=1.5, at_ms=0,
            ),
        )  # fmt: skip
    shown = synth.ok("capacity")
    assert "131,072" in shown.out
    assert "no bound" in shown.out
    assert "gpus" not in shown.out
    assert held.unit in shown.out
    assert "the limits of boxes, not their use" in shown.err
    assert "share: up to where the unit may start more" in shown.err
