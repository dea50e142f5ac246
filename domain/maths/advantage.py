"""Group advantages: reward less the mean of the qualified members."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from domain.errors import DatumError

SPREAD_TOLERANCE = 1e-9
"""Rewards that differ by less, relative to the largest of them or 1, are float noise: no signal."""


def has_spread(rewards: Sequence[float]) -> bool:
    """Say whether rewards differ by more than float noise.

    Source: facts/learning.md section 0c; exact equality calls [0.3, 0.1 + 0.2] a signal.
    """
    if len(rewards) < 2:  # noqa: PLR2004 - a spread needs two
        return False
    low, high = min(rewards), max(rewards)
    return high - low > SPREAD_TOLERANCE * max(1.0, abs(low), abs(high))


def group_advantages(rewards: Sequence[float], trial_ids: Sequence[str]) -> NDArray[np.float32]:
    """Return A_g = R_g - mean(R); zeros where the rewards have no spread.

    Left out on purpose: division by the standard deviation, clipping, length normalisation.

    Args:
        rewards: total rewards of the qualified members, shape (G,).
        trial_ids: their trials, for messages, shape (G,).

    Returns:
        Shape (G,), centred in float64 and then rounded to float32.

    Raises:
        DatumError: a reward is not finite, or too large to be centred, naming the trial.

    Source: facts/learning.md section 1.2 (tinker_cookbook 0.6.1 rl/data_processing.py: compute_advantages).
    """
    for reward, trial_id in zip(rewards, trial_ids, strict=True):
        if not math.isfinite(reward):
            raise DatumError(f"trial {trial_id}: reward {reward} is not finite", hint="exclude it before the mean")
    if not has_spread(rewards):
        return np.zeros(len(rewards), dtype=np.float32)
    rewards_G = np.asarray(rewards, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        advantages_G = (rewards_G - rewards_G.mean()).astype(np.float32)
    if not np.isfinite(advantages_G).all():
        worst = trial_ids[int(np.argmax(np.abs(rewards_G)))]
        raise DatumError(f"trial {worst}: reward {rewards_G[trial_ids.index(worst)]:g} overflows the group's mean")
    return advantages_G
