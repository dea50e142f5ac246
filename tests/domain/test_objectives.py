"""Losses: gradients by differences, the mask, the clamp, drift."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.errors import ConfigurationError
from domain.maths.objectives import LossSettings, LossTerms, drift_metrics, evaluate_loss

_LOSSES = ["importance_sampling", "cross_entropy", "ppo", "cispo", "dro", "gspo"]
_GRADIENT_IS_OF_THE_VALUE = ["importance_sampling", "cross_entropy", "ppo", "dro"]


def _terms(seed: int = 0, n_tokens: int = 12) -> LossTerms:
    generator = np.random.default_rng(seed)
    mask = (np.arange(n_tokens) >= n_tokens // 3).astype(np.float64)
    sampler = -generator.random(n_tokens) * 3 * mask
    return LossTerms(
        target_logprobs=np.where(mask > 0, sampler + generator.normal(0, 0.4, n_tokens), -5.0),
        sampler_logprobs=sampler,
        advantages=generator.normal(size=n_tokens) * mask,
        mask=mask,
    )


def _with_target(terms: LossTerms, target: np.ndarray) -> LossTerms:
    return LossTerms(
        target_logprobs=target,
        sampler_logprobs=terms.sampler_logprobs,
        advantages=terms.advantages,
        mask=terms.mask,
    )


@pytest.mark.parametrize("name", _GRADIENT_IS_OF_THE_VALUE)
@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_is_that_of_the_sum(name: str, seed: int) -> None:
    """Central differences of the total agree, token by token (losses with a stop-gradient apart)."""
    terms = _terms(seed)
    numeric = np.zeros_like(terms.target_logprobs)
    for i in range(len(numeric)):
        step = np.zeros_like(numeric)
        step[i] = 1e-6
        up = evaluate_loss(name, _with_target(terms, terms.target_logprobs + step)).total
        down = evaluate_loss(name, _with_target(terms, terms.target_logprobs - step)).total
        numeric[i] = (up - down) / 2e-6
    np.testing.assert_allclose(evaluate_loss(name, terms).gradient, numeric, atol=1e-6)


@pytest.mark.parametrize("name", _LOSSES)
def test_masked_positions_neither_count_nor_pull(name: str) -> None:
    """Whatever stands at a masked position, even an advantage, value and gradient there are 0."""
    terms = _terms()
    outside = terms.mask == 0
    loud = LossTerms(
        target_logprobs=np.where(outside, -50.0, terms.target_logprobs),
        sampler_logprobs=terms.sampler_logprobs,
        advantages=np.where(outside, 9.0, terms.advantages),
        mask=terms.mask,
    )
    quiet, loss = evaluate_loss(name, terms), evaluate_loss(name, loud)
    assert loss.total == pytest.approx(quiet.total)
    assert not loss.gradient[outside].any()
    np.testing.assert_allclose(loss.gradient, quiet.gradient)
    assert loss.n_tokens == int(terms.mask.sum())
    assert loss.n_clamped == 0


@pytest.mark.parametrize("name", ["importance_sampling", "ppo", "cispo"])
def test_on_policy_the_gradient_is_reinforce(name: str) -> None:
    """At p = q every ratio loss has the gradient -A."""
    terms = _terms()
    on_policy = _with_target(terms, terms.sampler_logprobs)
    np.testing.assert_allclose(evaluate_loss(name, on_policy).gradient, -terms.advantages)


@pytest.mark.parametrize("name", ["importance_sampling", "ppo", "cispo", "gspo"])
@pytest.mark.parametrize("gap", [500.0, -500.0])
def test_extreme_ratios_are_clamped_and_counted(name: str, gap: float) -> None:
    """exp(500) is not computed: everything stays finite and the clamped positions have no gradient."""
    n_tokens = 4
    terms = LossTerms(
        target_logprobs=np.full(n_tokens, gap),
        sampler_logprobs=np.zeros(n_tokens),
        advantages=np.full(n_tokens, -1.0),
        mask=np.ones(n_tokens),
    )
    loss = evaluate_loss(name, terms)
    assert np.isfinite(loss.elementwise).all()
    assert loss.n_clamped == n_tokens
    assert not loss.gradient.any()


def test_dro_pulls_only_inside_the_mask() -> None:
    """The quadratic term is active at A = 0, which pulls prompts in the reference. Source: facts/learning.md 0a."""
    loss = evaluate_loss("dro", _terms(), LossSettings(beta=1.0))
    assert not loss.gradient[_terms().mask == 0].any()


def test_fractional_weights_scale_a_cross_entropy() -> None:
    """A mask may weigh; the sum follows."""
    terms = _terms()
    half = LossTerms(
        target_logprobs=terms.target_logprobs,
        sampler_logprobs=terms.sampler_logprobs,
        advantages=terms.advantages,
        mask=terms.mask / 2,
    )
    assert evaluate_loss("cross_entropy", half).total == pytest.approx(evaluate_loss("cross_entropy", terms).total / 2)


def test_bad_terms_are_refused() -> None:
    """Unknown losses, unequal lengths and NaN do not become numbers."""
    terms = _terms()
    with pytest.raises(ConfigurationError, match="unknown loss 'stable_reinforce'"):
        evaluate_loss("stable_reinforce", terms)
    with pytest.raises(ValueError, match="differ in shape"):
        evaluate_loss("ppo", _with_target(terms, np.zeros(3)))
    with pytest.raises(ValueError, match="not finite"):
        evaluate_loss("ppo", _with_target(terms, np.full(12, np.nan)))


def test_on_policy_there_is_no_drift() -> None:
    """P = q: no divergence, a full effective sample."""
    terms = _terms()
    drift = drift_metrics(_with_target(terms, terms.sampler_logprobs))
    assert (drift["kl_v1"], drift["kl_v2"], drift["logprob_gap_max"]) == (0.0, 0.0, 0.0)
    assert drift["ess"] == pytest.approx(1.0)


def test_no_trained_token_has_no_drift() -> None:
    """The metrics are absent rather than NaN."""
    zeros = np.zeros(3)
    terms = LossTerms(target_logprobs=zeros, sampler_logprobs=zeros, advantages=zeros, mask=zeros)
    assert drift_metrics(terms) == {}
    assert evaluate_loss("gspo", terms).total == 0.0


@settings(deadline=None)
@given(st.lists(st.floats(-60, 60), min_size=1, max_size=20))
def test_the_effective_share_stays_inside_zero_and_one(gaps: list[float]) -> None:
    """However far trainer and sampler are apart."""
    zeros = np.zeros(len(gaps))
    terms = LossTerms(target_logprobs=np.array(gaps), sampler_logprobs=zeros, advantages=zeros, mask=np.ones(len(gaps)))
    drift = drift_metrics(terms)
    assert 0 < drift["ess"] <= 1 + 1e-12
    assert all(np.isfinite(value) for value in drift.values())
