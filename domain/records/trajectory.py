"""Token trajectories: the agent calls of one agent as flat arrays, so that growing prompts are stored once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenTrajectory:
    """The ordered agent calls of one agent of one trial: T turns, P tokens, S of them sampled.

    A turn adds its *new* prompt ids and then its sampled ids. Whoever decodes evidence can build this straight from
    bytes; :func:`domain.maths.packing.trajectories_of` builds it from interactions.
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
