"""Token trajectories: captured calls as arrays, so that growing prompts are stored once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.records.trial import Purpose


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenCall:
    """One captured call less its text. All calls of a trial take memory in proportion to their *new* ids.

    Its whole prompt is the prompt and the sampled ids of call ``base``, then ``new_prompt_ids``.
    """

    interaction_id: str
    trial_id: str
    sequence: int
    """0-based order of the call inside the trial."""
    agent: str
    segment: int
    purpose: Purpose
    sampler_version: str
    base: int | None
    """Sequence number of an earlier call of the trial; None: the new ids are the whole prompt."""
    n_prompt_ids: int
    """Length of the whole prompt."""
    new_prompt_ids: NDArray[np.int32]
    sampled_ids: NDArray[np.int32]
    logprobs: NDArray[np.float64]
    """Of each sampled id, as captured; a row holds them as float32."""

    @property
    def n_sampled_ids(self) -> int:
        """How many ids were sampled."""
        return len(self.sampled_ids)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenTrajectory:
    """The ordered agent calls of one agent of one trial: T turns, P tokens, S of them sampled.

    A turn adds its *new* prompt ids and then its sampled ids. :func:`domain.maths.stitching.stitch` builds it from
    the calls of a trial.
    """

    trial_id: str
    agent: str
    interactions: tuple[str, ...]
    """Interaction id of each turn, shape (T,)."""
    ids: NDArray[np.int32]
    """Shape (P,): for each turn its new prompt ids, then its sampled ids."""
    logprobs: NDArray[np.float32]
    """Shape (S,): sampler logprobs of the sampled ids, in order."""
    prompt_lengths: NDArray[np.int64]
    """Shape (T,): number of prompt ids that the turn adds."""
    sampled_lengths: NDArray[np.int64]
    """Shape (T,)."""
    starts: NDArray[np.bool_]
    """Shape (T,): the turn does not extend the one before, so its new prompt ids are its whole prompt."""
