"""Published evidence as arrays: from a trial's bytes to its calls, each id read once and no prompt repeated."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapters.evidence_codec import published_body
from domain.errors import EvidenceError, boundary
from domain.records.trajectory import TokenCall
from domain.records.trial import EvidenceRef, Purpose

_INT32_MAX = 2**31 - 1
_NUMBERS = {int, float}


def decode_calls(data: bytes, ref: EvidenceRef) -> tuple[TokenCall, ...]:
    """Read a published object, in order of sequence; memory is linear in its size.

    Args:
        data: the bytes.
        ref: their reference, whose counts must hold.

    Raises:
        EvidenceError: it is something else, a token id is no integer of 31 bits, a base is missing, or counts differ.
    """
    with boundary(EvidenceError, "reading published evidence"):
        calls = _calls(published_body(data)["interactions"])
    found = (len(calls), sum(call.n_prompt_ids for call in calls), sum(call.n_sampled_ids for call in calls))
    if found != (ref.n_interactions, ref.n_prompt_tokens, ref.n_sampled_tokens):
        message = f"evidence {ref.object.digest} holds {found[0]} calls of {found[1]} prompt and {found[2]} sampled ids"
        expected = f"{ref.n_interactions} of {ref.n_prompt_tokens} and {ref.n_sampled_tokens}"
        raise EvidenceError(f"{message}, its trial's record says {expected}", hint="exclude or repeat the trial")
    return calls


def _calls(items: list[dict[str, Any]]) -> tuple[TokenCall, ...]:
    ids = _ids(items)
    logprobs = _logprobs(items)
    calls: dict[int, TokenCall] = {}
    id_at = logprob_at = 0
    for item in items:
        prompt_end = id_at + len(item["prompt_ids"])
        sampled_end = prompt_end + len(item["sampled_ids"])
        logprob_end = logprob_at + len(item["logprobs"])
        sequence = item["sequence"]
        if sequence in calls:
            raise EvidenceError(f"interaction {item['interaction_id']}: call {sequence} is there twice")
        calls[sequence] = TokenCall(
            interaction_id=item["interaction_id"],
            trial_id=item["trial_id"],
            sequence=sequence,
            agent=item["agent"],
            segment=item["segment"],
            purpose=Purpose(item["purpose"]),
            sampler_version=item["sampler_version"],
            base=item["base"],
            n_prompt_ids=_n_known(item, calls) + prompt_end - id_at,
            new_prompt_ids=ids[id_at:prompt_end],
            sampled_ids=ids[prompt_end:sampled_end],
            logprobs=logprobs[logprob_at:logprob_end],
        )
        id_at, logprob_at = sampled_end, logprob_end
    return tuple(calls[sequence] for sequence in sorted(calls))


def _n_known(item: Mapping[str, Any], calls: Mapping[int, TokenCall]) -> int:
    """Return how many ids of a prompt its base holds."""
    if item["base"] is None:
        return 0
    base = calls.get(item["base"])
    if base is None:
        raise EvidenceError(f"interaction {item['interaction_id']}: call {item['base']} is missing")
    return base.n_prompt_ids + base.n_sampled_ids


def _ids(items: list[dict[str, Any]]) -> NDArray[np.int32]:
    """Return all ids end to end: for each call its new prompt ids, then its sampled ids."""
    flat: list[Any] = []
    for item in items:
        flat += item["prompt_ids"]
        flat += item["sampled_ids"]
    if set(map(type, flat)) - {int}:
        raise _blamed(items, lambda value: type(value) is int, "a token id is no integer")
    try:
        ids = np.array(flat, dtype=np.int32)
    except OverflowError:
        ids = np.array([-1], dtype=np.int32)
    if len(ids) and int(ids.min()) < 0:
        raise _blamed(items, lambda value: 0 <= value <= _INT32_MAX, "a token id is outside 0..2^31-1")
    return ids


def _logprobs(items: list[dict[str, Any]]) -> NDArray[np.float64]:
    flat: list[Any] = []
    for item in items:
        flat += item["logprobs"]
    if not _NUMBERS.issuperset(map(type, flat)):
        raise EvidenceError("a logprob is no number")
    return np.array(flat, dtype=np.float64)


def _blamed(items: list[dict[str, Any]], is_sound: Callable[[Any], bool], what: str) -> EvidenceError:
    """Return the error that names the first call with an id that is not sound."""
    names = (
        item["interaction_id"] for item in items if not all(map(is_sound, item["prompt_ids"] + item["sampled_ids"]))
    )
    return EvidenceError(f"interaction {next(names)}: {what}")
