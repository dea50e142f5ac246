"""Advantages: centred, order-free, silent on float noise, loud on what is not finite."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.errors import DatumError
from domain.maths.advantage import group_advantages, has_spread

_REWARDS = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=16)


def _advantages(rewards: list[float]) -> np.ndarray:
    return group_advantages(rewards, [f"t{i}" for i in range(len(rewards))])


@settings(deadline=None)
@given(_REWARDS)
def test_advantages_sum_to_zero(rewards: list[float]) -> None:
    """Up to float32 rounding, whatever the rewards."""
    advantages = _advantages(rewards)
    assert advantages.dtype == np.float32
    assert abs(float(advantages.astype(np.float64).sum())) <= 1e-6 * len(rewards) * max(1.0, *map(abs, rewards))


@settings(deadline=None)
@given(_REWARDS, st.randoms(use_true_random=False))
def test_advantages_follow_their_trials(rewards: list[float], random: Random) -> None:
    """Permuting the group permutes the advantages."""
    order = list(range(len(rewards)))
    random.shuffle(order)
    np.testing.assert_allclose(
        _advantages([rewards[i] for i in order]), _advantages(rewards)[order], rtol=1e-6, atol=1e-9
    )


@settings(deadline=None)
@given(_REWARDS, st.floats(-100, 100))
def test_a_constant_added_to_every_reward_changes_nothing(rewards: list[float], shift: float) -> None:
    """The baseline takes it away."""
    shifted = _advantages([reward + shift for reward in rewards])
    np.testing.assert_allclose(shifted, _advantages(rewards), rtol=1e-4, atol=1e-4)


def test_float_noise_is_constant() -> None:
    """Exact equality would train on 1e-17. Source: facts/learning.md section 0c."""
    assert not has_spread([0.3, 0.1 + 0.2])
    assert _advantages([0.3, 0.1 + 0.2]).tolist() == [0.0, 0.0]
    assert has_spread([0.3, 0.3001])
    assert not has_spread([1e12, 1e12 + 1e-4])


@pytest.mark.parametrize("rewards", [[], [1.0], [0.0, 0.0, 0.0]])
def test_no_spread_no_advantage(rewards: list[float]) -> None:
    """A group of one, and one of equals, have zeros."""
    assert not has_spread(rewards)
    assert _advantages(rewards).tolist() == [0.0] * len(rewards)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 1.7e308])
def test_a_bad_reward_names_its_trial(bad: float) -> None:
    """Not finite, or not finite once centred in float32."""
    with pytest.raises(DatumError, match="trial t1"):
        _advantages([0.0, bad, 1.0])
