"""What makes captured interactions unfit for learning; shared by qualification and packing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from domain.records.assessment import ExclusionReason
from domain.records.trial import Interaction, Purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """Why a trial's evidence cannot train."""

    reason: ExclusionReason
    detail: str


def agent_interactions(interactions: Sequence[Interaction]) -> list[Interaction]:
    """Return the calls whose actions may train, in order of sequence; counts and other calls never do."""
    return sorted((call for call in interactions if call.purpose is Purpose.AGENT), key=lambda call: call.sequence)


def find_defect(trial_id: str, interactions: Sequence[Interaction]) -> Defect | None:
    """Return the first reason why these agent interactions cannot become rows, or None.

    Args:
        trial_id: the trial that they must belong to.
        interactions: agent calls of one trial, in order.
    """
    seen: set[str] = set()
    for position, call in enumerate(interactions):
        detail = _misalignment(trial_id, call)
        if detail is None and call.interaction_id in seen:
            detail = "delivered twice"
        if detail is None and position and call.sequence == interactions[position - 1].sequence:
            detail = f"has the sequence number {call.sequence} of another call"
        if detail is not None:
            return Defect(reason=ExclusionReason.MISALIGNED, detail=f"interaction {call.interaction_id}: {detail}")
        if not all(map(math.isfinite, call.logprobs)):
            detail = f"interaction {call.interaction_id}: a logprob is not finite"
            return Defect(reason=ExclusionReason.NON_FINITE, detail=detail)
        seen.add(call.interaction_id)
    return None


def _misalignment(trial_id: str, call: Interaction) -> str | None:
    if call.trial_id != trial_id:
        return f"belongs to trial {call.trial_id}, not {trial_id}"
    if len(call.logprobs) != len(call.sampled_ids):
        missing = "no logprobs" if not call.logprobs else f"{len(call.logprobs)} logprobs"
        return f"{missing} for {len(call.sampled_ids)} sampled ids"
    if call.sampled_ids and not call.prompt_ids:
        return "no prompt, so nothing predicts its first sampled id"
    return None
