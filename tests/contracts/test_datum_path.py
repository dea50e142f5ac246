"""From captured calls over evidence bytes and arrays to the rows that reach the trainer: no bit changes."""

import json
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.evidence_arrays import decode_calls
from adapters.evidence_codec import decode_trial, encode_trial, reference
from adapters.stores.arrow import ArrowDatumTables
from domain.errors import DatumError, EvidenceError
from domain.lifecycle.group import write_datums
from domain.maths.stitching import stitch, trajectories_of
from domain.records.assessment import Datum, Member, QualifiedGroup
from domain.records.task import ObjectRef
from domain.records.trajectory import TokenCall
from domain.records.trial import EvidenceRef, Interaction, Purpose
from tests.domain.making import conversations, make_interaction
from tests.fakes.store import MemoryStore

ARRAYS = ("input_ids", "target_ids", "logprobs", "advantages", "mask")


def stitched_by_hand(calls: Sequence[Interaction], advantage: float) -> list[Datum]:
    """Return the rows of one trial, token after token: what packing must equal."""
    own = sorted((call for call in calls if call.purpose is Purpose.AGENT), key=lambda call: call.sequence)
    agents = list(dict.fromkeys(call.agent for call in own))
    rows: list[Datum] = []
    for agent in agents:
        open_row: list[tuple[int, float, float]] = []
        names: list[str] = []
        segment = None
        for call in (call for call in own if call.agent == agent):
            seen = tuple(token for token, _, _ in open_row)
            if not seen or call.segment != segment or call.prompt_ids[: len(seen)] != seen:
                rows += _closed(open_row, names, advantage, call.trial_id)
                open_row, names, seen = [], [], ()
            open_row += [(token, 0.0, 0.0) for token in call.prompt_ids[len(seen) :]]
            open_row += [(token, 1.0, value) for token, value in zip(call.sampled_ids, call.logprobs, strict=True)]
            names += [call.interaction_id] if call.sampled_ids else []
            segment = call.segment
        rows += _closed(open_row, names, advantage, own[0].trial_id)
    return rows


def _closed(row: list[tuple[int, float, float]], names: list[str], advantage: float, trial_id: str) -> list[Datum]:
    if not names:
        return []
    ids, mask, logprobs = (list(column) for column in zip(*row, strict=True))
    weights = np.array(mask[1:], dtype=np.float32)
    return [
        Datum(
            input_ids=np.array(ids[:-1], dtype=np.int32),
            target_ids=np.array(ids[1:], dtype=np.int32),
            logprobs=np.array(logprobs[1:], dtype=np.float32),
            advantages=weights * np.float32(advantage),
            mask=weights,
            trial_id=trial_id,
            group=3,
            interactions=tuple(names),
        )
    ]


def published(calls: Sequence[Interaction], trial_id: str = "t0") -> tuple[bytes, EvidenceRef]:
    """Return the object that publication writes, and its reference."""
    data = encode_trial(trial_id, calls)
    return data, reference(ObjectRef(digest="a" * 64, size_bytes=len(data)), calls)


def a_group(members: dict[str, tuple[float, int]]) -> QualifiedGroup:
    """Return a group of trials with advantage and number of sampled ids."""
    return QualifiedGroup(
        group_id="u/g003",
        unit="u",
        group=3,
        task_name="t",
        task_digest="d" * 64,
        policy="p",
        members=tuple(
            Member(trial_id=name, attempt=index, reward=advantage, advantage=advantage, n_sampled_tokens=n_sampled)
            for index, (name, (advantage, n_sampled)) in enumerate(members.items())
        ),
        excluded=(),
        has_signal=True,
    )


@given(st.lists(conversations(), min_size=1, max_size=3), st.floats(0.0625, 3, width=32))
@settings(max_examples=200, deadline=None)
def test_the_rows_that_reach_the_trainer_are_the_captured_numbers(
    trials: list[list[Interaction]], advantage: float
) -> None:
    """Over breaks, branches, counts and delegation: evidence bytes, arrays, packing and Arrow change no bit."""
    advantages = [*([advantage] * (len(trials) - 1)), -advantage * (len(trials) - 1)]
    members: dict[str, tuple[float, int]] = {}
    calls: dict[str, tuple[TokenCall, ...]] = {}
    expected: list[Datum] = []
    for index, (trial, weight) in enumerate(zip(trials, advantages, strict=True)):
        own = [replace(call, trial_id=f"t{index}", interaction_id=f"{index}-{call.sequence}") for call in trial]
        n_sampled = sum(len(call.sampled_ids) for call in own if call.purpose is Purpose.AGENT)
        members[f"t{index}"] = (float(np.float32(weight)), n_sampled)
        calls[f"t{index}"] = decode_calls(*published(own, f"t{index}"))
        expected += stitched_by_hand(own, float(np.float32(weight)))
    tables = ArrowDatumTables(MemoryStore())
    written = write_datums(tables, a_group(members), calls)
    rows = tables.read(written.table)
    assert written.n_datums == len(rows) == len(expected)
    assert written.n_trained_tokens == sum(n_sampled for _, n_sampled in members.values())
    for row, one in zip(rows, expected, strict=True):
        assert (row.trial_id, row.group, row.interactions) == (one.trial_id, one.group, one.interactions)
        for name in ARRAYS:
            assert getattr(row, name).dtype == getattr(one, name).dtype
            assert getattr(row, name).tobytes() == getattr(one, name).tobytes(), name


@given(conversations())
@settings(max_examples=150, deadline=None)
def test_arrays_from_bytes_are_those_from_interactions(calls: list[Interaction]) -> None:
    """Trajectories stitched from evidence bytes equal those stitched from interactions with whole prompts."""
    data, ref = published(calls)
    decoded = decode_calls(data, ref)
    whole = decode_trial(data)
    assert [call.n_prompt_ids for call in decoded] == [len(call.prompt_ids) for call in whole]
    assert [tuple(call.sampled_ids.tolist()) for call in decoded] == [call.sampled_ids for call in whole]
    assert [tuple(call.logprobs.tolist()) for call in decoded] == [call.logprobs for call in whole]
    first, second = stitch(decoded, trial_id="t0"), trajectories_of(whole, trial_id="t0")
    for one, other in zip(first, second, strict=True):
        assert (one.trial_id, one.agent, one.interactions) == (other.trial_id, other.agent, other.interactions)
        for name in ("ids", "logprobs", "prompt_lengths", "sampled_lengths", "starts"):
            assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name


def _conversation(n_turns: int) -> list[Interaction]:
    ids: list[int] = []
    calls: list[Interaction] = []
    for turn in range(n_turns):
        ids += range(1000 * turn, 1000 * turn + 60)
        calls.append(make_interaction(turn, ids, [7] * 40))
        ids += [7] * 40
    return calls


def test_memory_is_linear_in_the_new_ids() -> None:
    """A conversation of four times as many turns takes about four times the memory, not sixteen."""
    peaks: list[int] = []
    for n_turns in (50, 200):
        data, ref = published(_conversation(n_turns))
        tracemalloc.start()
        calls = decode_calls(data, ref)
        stitch(calls, trial_id="t0")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert sum(call.new_prompt_ids.nbytes + call.sampled_ids.nbytes for call in calls) == n_turns * 100 * 4
    assert peaks[1] < 5 * peaks[0]


def test_what_the_record_counts_is_what_the_object_holds() -> None:
    """Evidence with other counts than its reference is refused, as is evidence of another version."""
    data, ref = published(_conversation(2))
    for change in ({"n_interactions": 3}, {"n_prompt_tokens": 1}, {"n_sampled_tokens": 81}):
        with pytest.raises(EvidenceError, match="its trial's record says"):
            decode_calls(data, replace(ref, **change))
    with pytest.raises(EvidenceError, match="schema version 9"):
        decode_calls(data.replace(b'"schema_version":1,"trial_id":"t0"}', b'"schema_version":9,"trial_id":"t0"}'), ref)
    with pytest.raises(EvidenceError, match="reading published evidence"):
        decode_calls(b"{", ref)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_ids": [1, True]}, "t0-main-1: a token id is no integer"),
        ({"sampled_ids": [1.0]}, "t0-main-1: a token id is no integer"),
        ({"sampled_ids": [2**31]}, "t0-main-1: a token id is outside"),
        ({"prompt_ids": [-1]}, "t0-main-1: a token id is outside"),
        ({"logprobs": [None]}, "a logprob is no number"),
        ({"base": 5}, "t0-main-1: call 5 is missing"),
        ({"sequence": 0}, "t0-main-1: call 0 is there twice"),
    ],
)
def test_damaged_evidence_is_refused(changes: dict[str, Any], message: str) -> None:
    """What an encoder never writes is refused with the call's name, not turned into numbers."""
    data, ref = published(_conversation(2))
    body = json.loads(data)
    body["interactions"][1] |= changes
    with pytest.raises(EvidenceError, match=message):
        decode_calls(json.dumps(body).encode(), ref)


def test_deep_requests_are_read() -> None:
    """A message that nests deeper than the fast parser goes is read all the same."""
    nested: Any = "x"
    for _ in range(300):
        nested = [nested]
    calls = [replace(call, request={"messages": nested}) for call in _conversation(2)]
    data, ref = published(calls)
    assert decode_trial(data) == tuple(calls)
    assert len(decode_calls(data, ref)) == 2


def test_a_group_that_is_not_balanced_is_refused() -> None:
    """Advantages that do not sum to zero over the members, and counts that differ, never become a table."""
    tables = ArrowDatumTables(MemoryStore())
    calls: dict[str, tuple[TokenCall, ...]] = {}
    for name in ("t0", "t1"):
        own = [make_interaction(0, [1, 2], [3, 4], trial_id=name)]
        calls[name] = decode_calls(*published(own, name))
    assert write_datums(tables, a_group({"t0": (0.5, 2), "t1": (-0.5, 2)}), calls).n_trained_tokens == 4
    for bad, message in (
        ({"t0": (0.5, 2), "t1": (-0.4, 2)}, "advantages sum to"),
        ({"t0": (0.5, 2), "t1": (float("nan"), 2)}, "advantages sum to"),
        ({"t0": (0.5, 2), "t1": (-0.5, 3)}, "trial t1: 2 sampled ids, 3 were qualified"),
    ):
        with pytest.raises(DatumError, match=message):
            write_datums(tables, a_group(bad), calls)


def test_a_call_that_builds_on_none_is_refused() -> None:
    """Bases that are missing or not earlier never loop or invent a prompt."""
    decoded = decode_calls(*published(_conversation(3)))
    for bad in (
        (decoded[0], decoded[2]),
        (replace(decoded[0], base=2), *decoded[1:]),
        (*decoded[:2], replace(decoded[2], base=2, segment=1)),
    ):
        with pytest.raises(DatumError, match="not before it"):
            stitch(bad, trial_id="t0")
    with pytest.raises(DatumError, match="share a sequence number"):
        stitch((replace(decoded[0], purpose=Purpose.COUNT), replace(decoded[1], sequence=0)), trial_id="t0")
