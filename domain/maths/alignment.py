"""What makes captured interactions unfit for learning; shared by qualification and packing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from domain.records.assessment import ExclusionReason
from domain.records.trial import Purpose


class Captured(Protocol):
    """What qualification asks of a captured call: an ``Interaction`` or a ``TokenCall``."""

    @property
    def interaction_id(self) -> str:
        """Its name."""
        ...

    @property
    def trial_id(self) -> str:
        """The trial that it belongs to."""
        ...

    @property
    def sequence(self) -> int:
        """0-based order inside the trial."""
        ...

    @property
    def purpose(self) -> Purpose:
        """What it was for."""
        ...

    @property
    def sampler_version(self) -> str:
        """Which policy version sampled."""
        ...

    @property
    def n_prompt_ids(self) -> int:
        """Length of the whole prompt."""
        ...

    @property
    def n_sampled_ids(self) -> int:
        """How many ids were sampled."""
        ...

    @property
    def logprobs(self) -> Sequence[float] | NDArray[np.float64]:
        """Of each sampled id."""
        ...


C = TypeVar("C", bound=Captured)


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """Why a trial's evidence cannot train."""

    reason: ExclusionReason
    detail: str


def agent_interactions(interactions: Sequence[C]) -> list[C]:
    """Return the calls whose actions may train, in order of sequence; counts and other calls never do."""
    return sorted((call for call in interactions if call.purpose is Purpose.AGENT), key=lambda call: call.sequence)


def find_defect(trial_id: str, interactions: Sequence[Captured]) -> Defect | None:
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
        if not np.isfinite(call.logprobs).all():
            detail = f"interaction {call.interaction_id}: a logprob is not finite"
            return Defect(reason=ExclusionReason.NON_FINITE, detail=detail)
        seen.add(call.interaction_id)
    return None


def _misalignment(trial_id: str, call: Captured) -> str | None:
    if call.trial_id != trial_id:
        return f"belongs to trial {call.trial_id}, not {trial_id}"
    n_logprobs = len(call.logprobs)
    if n_logprobs != call.n_sampled_ids:
        missing = f"{n_logprobs} logprobs" if n_logprobs else "no logprobs"
        return f"{missing} for {call.n_sampled_ids} sampled ids"
    if call.n_sampled_ids and not call.n_prompt_ids:
        return "no prompt, so nothing predicts its first sampled id"
    return None
