"""Fair shares: within the budget, by weight, whole trials at a time, debts paid back."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.maths.fair_share import fair_shares, newcomer_service, serviced, settle
from domain.records.capacity import RESOURCES, UNBOUNDED, Capacity, Grant

BUDGET = replace(UNBOUNDED, trials=8.0, cpus=8.0, memory_mb=4096.0)
SMALL = Capacity(trials=1, cpus=1, memory_mb=128)


def grant(unit: str, *, n: float = 8, each: Capacity = SMALL, **changes: object) -> Grant:
    """Return a unit that wants ``n`` trials and has none."""
    fields: dict[str, object] = {
        "unit": unit,
        "experiment_id": unit,
        "weight": 1.0,
        "wanted": each.times(n),
        "head": each,
        "used": Capacity(),
        "share": Capacity(),
        "held": Capacity(),
        "service": 0.0,
        "at_ms": 0,
    }
    return Grant(**(fields | changes))  # pyright: ignore[reportArgumentType] - a test names the fields it varies


def trials(grants: list[Grant]) -> list[float]:
    """Return the shares in trials."""
    return [share.trials for share in fair_shares(grants, BUDGET)]


def test_a_lone_unit_has_what_it_wants_within_the_budget() -> None:
    """Nobody else wants anything."""
    assert trials([grant("a", n=5)]) == [5]
    assert trials([grant("a", n=50)]) == [8]
    assert fair_shares([grant("a", n=50)], UNBOUNDED) == [SMALL.times(50)]


def test_weights_divide_what_all_want() -> None:
    """2 : 1 : 1 of eight, and what one does not want goes to the others."""
    assert trials([grant("a", weight=2.0), grant("b"), grant("c")]) == [4, 2, 2]
    assert trials([grant("a", weight=2.0, n=1), grant("b"), grant("c")])[0] == 1
    assert sum(trials([grant("a", weight=2.0, n=1), grant("b"), grant("c")])) == 8


def test_units_of_one_experiment_share_its_weight() -> None:
    """Many shards give no larger part."""
    shards = [grant(f"a{index}", experiment_id="a") for index in range(2)]
    assert trials([*shards, grant("b", n=8)])[-1] == 4


def test_the_scarcest_resource_counts() -> None:
    """One fills memory, the other CPUs: each has the same part of what it mostly takes."""
    heavy = grant("m", each=Capacity(trials=1, cpus=0.5, memory_mb=1024))
    busy = grant("c", each=Capacity(trials=1, cpus=2, memory_mb=64))
    memory, cpus = fair_shares([heavy, busy], BUDGET)
    assert (memory.memory_mb, cpus.cpus) == (3072, 6)


def test_a_task_that_fills_the_budget_gets_its_turn() -> None:
    """Who was served less comes first, whatever fits beside the others."""
    whole = Capacity(trials=1, cpus=8, memory_mb=128)
    large = grant("large", n=1, each=whole, service=1.0)
    small = grant("small", service=0.0)
    assert trials([large, small]) == [0, 8]
    assert trials([large, replace(small, service=2.0)]) == [1, 0]


def test_settling_never_takes_what_others_hold() -> None:
    """Another unit's running trials are waited for, and what runs above one's own share is kept."""
    flood = grant("flood", used=SMALL.times(8), held=SMALL.times(8))
    late = settle(grant("late"), [flood], BUDGET)
    assert (late.share.trials, late.share.cpus, late.held.trials) == (0, 0, 0)
    flood = settle(flood, [grant("late")], BUDGET)
    assert (flood.share.trials, flood.held.trials) == (4, 8)
    flood = settle(replace(flood, used=SMALL.times(5)), [grant("late")], BUDGET)
    assert (flood.share.trials, flood.held.trials) == (4, 5)
    assert settle(grant("late"), [flood], BUDGET).share.trials == 3


def test_service_grows_by_dominant_share_over_weight() -> None:
    """Half of the budget for ten seconds, with half of the weight of two shards."""
    held = grant("a", used=SMALL.times(4), weight=2.0)
    assert serviced(held, [held], BUDGET, 10_000) == pytest.approx(2.5)
    sibling = grant("a2", experiment_id="a")
    assert serviced(held, [held, sibling], BUDGET, 10_000) == pytest.approx(5.0)
    assert newcomer_service([replace(held, service=3.0), replace(held, service=7.0)]) == 3.0
    assert newcomer_service([]) == 0.0


_AMOUNTS = st.builds(
    Capacity,
    trials=st.just(1.0),
    cpus=st.sampled_from([0.1, 0.5, 1.0, 3.0]),
    memory_mb=st.sampled_from([64.0, 700.0, 4096.0]),
    gpus=st.sampled_from([0.0, 1.0]),
)
_ROWS = st.lists(
    st.tuples(_AMOUNTS, st.integers(0, 40), st.sampled_from([0.5, 1.0, 2.0]), st.floats(0, 100), st.sampled_from("ab")),
    min_size=1,
    max_size=6,
)


@given(_ROWS)
def test_shares_stay_within_budget_and_wish(rows: list[tuple[Capacity, int, float, float, str]]) -> None:
    """Whatever is asked: no overshoot, nothing unwanted, and somebody is served when anybody fits."""
    budget = replace(BUDGET, gpus=2.0)
    grants = [
        grant(f"u{index}", n=n, each=each, head=each if n else Capacity(), weight=weight, service=service,
              experiment_id=experiment)
        for index, (each, n, weight, service, experiment) in enumerate(rows)
    ]  # fmt: skip
    shares = fair_shares(grants, budget)
    total = Capacity()
    for share, asked in zip(shares, grants, strict=True):
        assert not share.lacking(asked.wanted)
        total = total.plus(share)
    assert not total.lacking(budget)
    assert total != Capacity() or all(asked.wanted == Capacity() for asked in grants)
    assert set(RESOURCES) >= {"trials", "cpus", "memory_mb", "disk_mb", "gpus", "exports"}
