"""Packing: token exactness, row breaks, refusals, and the two invariant checks."""

import re
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.errors import DatumError
from domain.maths.packing import pack, pack_group, pack_trajectory
from domain.maths.row_checks import check_datums, check_rows
from domain.maths.stitching import trajectories_of
from domain.records.assessment import Datum
from domain.records.trial import Interaction, Purpose
from tests.domain.making import conversations, make_interaction


def _rows(calls: list[Interaction], advantage: float = 0.5) -> list[list[int]]:
    datums = pack(calls, advantage=advantage, trial_id="t0", group=3)
    check_datums(datums, calls)
    return [[*datum.input_ids[:1].tolist(), *datum.target_ids.tolist()] for datum in datums]


def _check_rows(datums: list[Datum], calls: list[Interaction], advantage: float = 0.5) -> None:
    trajectories = trajectories_of(calls, trial_id="t0")
    check_rows(datums, trajectories, [advantage] * len(trajectories))


@given(conversations(), st.floats(-3, 3, width=32))
@settings(max_examples=150, deadline=None)
def test_each_sampled_token_is_in_exactly_one_row(calls: list[Interaction], advantage: float) -> None:
    """Over branching, compacting, delegating conversations, both checks hold and the counts are equal."""
    datums = pack(calls, advantage=advantage, trial_id="t0", group=0)
    check_datums(datums, calls)
    _check_rows(datums, calls, advantage)
    n_sampled = sum(len(call.sampled_ids) for call in calls if call.purpose is Purpose.AGENT)
    assert sum(int(datum.mask.sum()) for datum in datums) == n_sampled
    for datum in datums:
        np.testing.assert_array_equal(datum.input_ids[1:], datum.target_ids[:-1])
        np.testing.assert_array_equal(datum.advantages, np.float32(advantage) * datum.mask)


@given(conversations(), st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_the_order_of_delivery_does_not_matter(calls: list[Interaction], random: Random) -> None:
    """Rows depend on the sequence numbers, not on the order in which the calls are handed over."""
    shuffled = list(calls)
    random.shuffle(shuffled)
    first = pack(calls, advantage=1.0, trial_id="t0", group=0)
    second = pack(shuffled, advantage=1.0, trial_id="t0", group=0)
    assert [datum.interactions for datum in first] == [datum.interactions for datum in second]
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.target_ids, other.target_ids)
        np.testing.assert_array_equal(one.logprobs, other.logprobs)


def test_the_worked_example() -> None:
    """Three extending turns are one row, shifted by one. Source: facts/learning.md section 8."""
    calls = [
        make_interaction(0, [1, 2, 3], [4, 5], [-0.1, -0.2]),
        make_interaction(1, [1, 2, 3, 4, 5, 6, 7], [8], [-0.3]),
        make_interaction(2, list(range(1, 12)), [12, 13], [-0.4, -0.5]),
    ]
    (datum,) = pack(calls, advantage=0.5, trial_id="t0", group=3)
    assert datum.input_ids.tolist() == list(range(1, 13))
    assert datum.target_ids.tolist() == list(range(2, 14))
    assert datum.mask.tolist() == [0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 1, 1]
    np.testing.assert_allclose(datum.logprobs, [0, 0, -0.1, -0.2, 0, 0, -0.3, 0, 0, 0, -0.4, -0.5], rtol=1e-6)
    assert datum.advantages.tolist() == (0.5 * datum.mask).tolist()
    assert datum.trial_id == "t0"
    assert datum.group == 3
    assert datum.interactions == ("t0-main-0", "t0-main-1", "t0-main-2")
    kinds = [array.dtype for array in (datum.input_ids, datum.target_ids, datum.logprobs, datum.mask)]
    assert kinds == [np.int32, np.int32, np.float32, np.float32]


def test_a_rewritten_history_starts_a_new_row() -> None:
    """A prompt that differs in one earlier token repeats its context under mask 0."""
    calls = [make_interaction(0, [1, 2], [3]), make_interaction(1, [1, 9, 3, 4], [5])]
    assert _rows(calls) == [[1, 2, 3], [1, 9, 3, 4, 5]]


def test_a_new_segment_starts_a_new_row_even_when_the_prompt_extends() -> None:
    """The proxy's word that history was rewritten is final."""
    calls = [make_interaction(0, [1, 2], [3]), make_interaction(1, [1, 2, 3, 4], [5], segment=1)]
    assert _rows(calls) == [[1, 2, 3], [1, 2, 3, 4, 5]]


def test_a_branch_from_an_earlier_turn_starts_a_new_row() -> None:
    """A retry of the same prompt is another row, and both answers train once."""
    calls = [make_interaction(0, [1, 2], [3]), make_interaction(1, [1, 2], [4])]
    assert _rows(calls) == [[1, 2, 3], [1, 2, 4]]


def test_interleaved_agents_have_their_own_rows() -> None:
    """Two agents that take turns are stitched apart, in order of their first call."""
    calls = [
        make_interaction(0, [1], [2]),
        make_interaction(1, [7], [8], agent="sub-1"),
        make_interaction(2, [1, 2, 3], [4]),
        make_interaction(3, [7, 8, 9], [6], agent="sub-1"),
    ]
    assert _rows(calls) == [[1, 2, 3, 4], [7, 8, 9, 6]]


def test_only_agents_train() -> None:
    """Token counts and side calls leave no row, whatever they sampled."""
    calls = [
        make_interaction(0, [1], [2], purpose=Purpose.COUNT),
        make_interaction(1, [1], [2], purpose=Purpose.OTHER),
    ]
    assert _rows(calls) == []


_BAD = {
    "belongs to trial t9": make_interaction(0, [1], [2], trial_id="t9"),
    "no logprobs for 1 sampled ids": make_interaction(0, [1], [2], []),
    "2 logprobs for 1 sampled ids": make_interaction(0, [1], [2], [-1.0, -2.0]),
    "a logprob is not finite": make_interaction(0, [1], [2], [float("nan")]),
    "no prompt": make_interaction(0, [], [2]),
    "token ids hold float": make_interaction(0, [1.0], [2]),  # pyright: ignore[reportArgumentType] - what is refused
    "token ids hold bool": make_interaction(0, [1], [True]),
    "outside 0..2^31-1": make_interaction(0, [1], [-1]),
}


@pytest.mark.parametrize("message", _BAD)
def test_bad_interactions_are_refused_by_name(message: str) -> None:
    """What the reference mis-handles raises and names the interaction."""
    call = _BAD[message]
    with pytest.raises(DatumError, match=rf"interaction {call.interaction_id}: .*{re.escape(message)}"):
        pack([call], advantage=0.5, trial_id="t0", group=0)


def test_a_call_delivered_twice_is_refused() -> None:
    """The same interaction twice, or two with one sequence number, would train a token twice."""
    call = make_interaction(0, [1], [2])
    with pytest.raises(DatumError, match="delivered twice"):
        pack([call, call], advantage=0.5, trial_id="t0", group=0)
    with pytest.raises(DatumError, match="sequence number 0"):
        pack([call, replace(call, interaction_id="other")], advantage=0.5, trial_id="t0", group=0)


@pytest.mark.parametrize("advantage", [float("nan"), float("inf"), 1e39])
def test_a_bad_advantage_is_refused(advantage: float) -> None:
    """Nothing that float32 cannot hold reaches a row."""
    with pytest.raises(DatumError, match="not a finite float32"):
        pack([make_interaction(0, [1], [2])], advantage=advantage, trial_id="t0", group=0)


@pytest.mark.parametrize(
    "change",
    [
        {"logprobs": np.zeros(3, dtype=np.float32)},
        {"logprobs": np.array([np.nan, 0.0], dtype=np.float32)},
        {"ids": np.zeros(4, dtype=np.int32)},
        {"ids": np.zeros(5, dtype=np.int64)},
        {"starts": np.array([False, False])},
        {"starts": np.array([True])},
        {"logprobs": np.zeros(2, dtype=np.float64)},
        {"prompt_lengths": np.array([4, -1])},
    ],
)
def test_an_inconsistent_trajectory_is_refused(change: dict[str, np.ndarray]) -> None:
    """Arrays that a decoder got wrong are refused before anything is packed."""
    calls = [make_interaction(0, [1, 2], [3]), make_interaction(1, [1, 2, 3, 4], [5])]
    (trajectory,) = trajectories_of(calls, trial_id="t0")
    with pytest.raises(DatumError, match="trial t0, agent main"):
        pack_trajectory(replace(trajectory, **change), advantage=0.5, group=0)


@pytest.mark.parametrize("name", ["input_ids", "target_ids", "logprobs", "mask", "advantages"])
def test_both_checks_see_a_changed_value(name: str) -> None:
    """One value changed in one array of one row is found by either check."""
    calls = [make_interaction(0, [1, 2], [3, 4]), make_interaction(1, [1, 2, 3, 4, 5], [6])]
    (datum,) = pack(calls, advantage=0.5, trial_id="t0", group=0)
    changed = getattr(datum, name).copy()
    changed[0] += 1
    bad = replace(datum, **{name: changed})
    with pytest.raises(DatumError):
        check_datums([bad], calls)
    with pytest.raises(DatumError):
        _check_rows([bad], calls)


def test_both_checks_see_missing_and_doubled_rows() -> None:
    """Every sampled token exactly once: neither never nor twice."""
    calls = [make_interaction(0, [1, 2], [3, 4]), make_interaction(1, [9], [6])]
    rows = pack(calls, advantage=0.5, trial_id="t0", group=0)
    for bad in (rows[:1], [*rows, rows[1]]):
        with pytest.raises(DatumError):
            check_datums(bad, calls)
        with pytest.raises(DatumError):
            _check_rows(bad, calls)


def test_the_fast_check_sees_a_wrong_name_trial_and_advantage() -> None:
    """Rows that hold the right ids under another interaction, trial or advantage are refused."""
    calls = [make_interaction(0, [1, 2], [3, 4]), make_interaction(1, [9], [6])]
    rows = pack(calls, advantage=0.5, trial_id="t0", group=0)
    _check_rows(rows, calls)
    for change in ({"interactions": rows[1].interactions}, {"trial_id": "t1"}):
        with pytest.raises(DatumError):
            _check_rows([replace(rows[0], **change), rows[1]], calls)
    for advantage in (0.25, float("nan"), float("inf")):
        with pytest.raises(DatumError):
            _check_rows(rows, calls, advantage)


def test_a_group_is_packed_as_its_agents_are() -> None:
    """Packing all agents of a group at once gives the rows that packing one at a time gives."""
    calls = [
        make_interaction(0, [1, 2], [3], agent="a"),
        make_interaction(1, [5], []),
        make_interaction(2, [7], [8, 9]),
    ]
    trajectories = trajectories_of(calls, trial_id="t0")
    advantages = [0.5, -0.25]
    together = pack_group(trajectories, advantages=advantages, group=4)
    apart = [
        row
        for one, advantage in zip(trajectories, advantages, strict=True)
        for row in pack_trajectory(one, advantage=advantage, group=4)
    ]
    assert len(together) == len(apart) == 2
    for one, other in zip(together, apart, strict=True):
        assert (one.interactions, one.trial_id, one.group) == (other.interactions, other.trial_id, other.group)
        for name in ("input_ids", "target_ids", "logprobs", "advantages", "mask"):
            assert getattr(one, name).tobytes() == getattr(other, name).tobytes()
    with pytest.raises(DatumError, match="1 advantages for 2"):
        pack_group(trajectories, advantages=[0.5], group=4)
    assert pack_group([], advantages=[], group=4) == []


def test_a_row_that_starts_with_a_sampled_id_is_refused() -> None:
    """Arrays in which nothing predicts a sampled id do not lose it silently."""
    (trajectory,) = trajectories_of([make_interaction(0, [1], [2])], trial_id="t0")
    bare = replace(trajectory, prompt_lengths=np.array([0]), ids=trajectory.ids[1:])
    with pytest.raises(DatumError, match="t0-main-0: no prompt"):
        pack_trajectory(bare, advantage=0.5, group=0)
    with pytest.raises(DatumError, match="nothing predicts"):
        check_rows([], [bare], [0.5])
