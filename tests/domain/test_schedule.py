"""Which tasks a unit holds: shards in order, passes that are permutations, the same in every process."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.lifecycle.schedule import n_units, unit_positions
from domain.maths.permutation import permuted
from domain.records.experiment import ExperimentKind, ExperimentSpec
from domain.records.names import Reference
from domain.records.profile import Order, Plan


def spec(kind: ExperimentKind = ExperimentKind.EVALUATION, **plan: object) -> ExperimentSpec:
    """Return a spec with a plan."""
    return ExperimentSpec(
        kind=kind,
        task_set=Reference(team="t", name="s", version=1),
        task_set_digest="d" * 64,
        actor_digest="a" * 64,
        assessor="verifier",
        plan=Plan(**plan),  # pyright: ignore[reportArgumentType] - a test names the fields it varies
    )


@given(st.integers(1, 300), st.text(max_size=4))
def test_a_permutation_meets_each_position_once(n: int, key: str) -> None:
    """Of any size, under any key."""
    assert sorted(permuted(position, n, key=key) for position in range(n)) == list(range(n))


def test_a_permutation_is_fixed_for_ever_and_another_under_another_key() -> None:
    """A resumed training must find the same tasks: these values never change."""
    assert [permuted(position, 10, key="0:0") for position in range(10)] == [5, 3, 9, 0, 4, 2, 7, 8, 1, 6]
    keys = {tuple(permuted(position, 10, key=f"0:{number}") for position in range(10)) for number in range(50)}
    assert len(keys) == 50
    with pytest.raises(ValueError, match="position 10"):
        permuted(10, 10, key="0:0")


def test_places_of_a_permutation_are_even() -> None:
    """Over many keys each position goes everywhere about as often: 2,000 draws over 8 places, 250 each."""
    places = Counter(permuted(3, 8, key=f"{number}") for number in range(2000))
    assert set(places) == set(range(8))
    assert max(abs(count - 250) for count in places.values()) < 80


def test_shards_of_an_evaluation_follow_one_another() -> None:
    """Listed or shuffled, the shards hold each task once; ``tasks`` takes the first of the order."""
    for order in Order:
        pinned = spec(order=order, shard_tasks=4)
        shards = [unit_positions(pinned, 10, index) for index in range(n_units(pinned.kind, pinned.plan, 10))]
        assert [len(shard) for shard in shards] == [4, 4, 2]
        assert sorted(position for shard in shards for position in shard) == list(range(10))
    assert unit_positions(spec(shard_tasks=4), 10, 1) == (4, 5, 6, 7)
    few = spec(order=Order.SHUFFLED, tasks=3)
    assert unit_positions(few, 10, 0) == unit_positions(spec(order=Order.SHUFFLED), 10, 0)[:3]


def test_a_training_walks_the_set_again_and_again() -> None:
    """Five batches of four groups over ten tasks are two whole passes, each in its own order."""
    pinned = spec(ExperimentKind.TRAINING, order=Order.SHUFFLED, batches=5, groups_per_batch=4)
    walk = [position for index in range(5) for position in unit_positions(pinned, 10, index)]
    first, second = walk[:10], walk[10:]
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert unit_positions(pinned, 10, 2) == tuple(walk[8:12])
