"""Reference losses in numpy, with gradients with respect to the target logprobs: what the trainers must match.

Every loss is a SUM over positions, times an explicit mask. Here p is the trainer's logprob at a target, q the
sampler's, A the advantage, r = exp(p - q).

Source: facts/learning.md section 2.2 (tinker 0.38 losses page; skyrl 0.4.0 tinker/loss_fns.py agrees).
Left out: ``stable_reinforce``, whose formula is not published.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.errors import ConfigurationError
from domain.records.wording import one_of

LOG_RATIO_LIMIT = 20.0
"""p - q is clamped to +-20, as exp(88) overflows float32; the reference does not clamp."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossTerms:
    """One row's inputs, all of shape (N,), in float64."""

    target_logprobs: Floats
    """p."""
    sampler_logprobs: Floats
    """q; 0 where the mask is 0."""
    advantages: Floats
    """A; the weights of a cross entropy."""
    mask: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """Bounds of the clipped losses and the weight of DRO's penalty. Bounds are absolute ratios, not epsilons."""

    clip_low: float = 0.8
    clip_high: float = 1.2
    beta: float = 0.05


CISPO_SETTINGS = LossSettings(clip_low=0.0, clip_high=4.0)
"""The reference's current default: one-sided."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loss:
    """A loss and its gradient."""

    elementwise: Floats
    """Shape (N,); 0 where the mask is 0."""
    gradient: Floats
    """Shape (N,): d(sum)/dp; 0 where the mask is 0 or the log-ratio was clamped."""
    total: float
    """Sum of ``elementwise``."""
    n_tokens: int
    """Positions with mask above 0."""
    n_clamped: int
    """Of those, positions whose log-ratio was clamped."""


_Formula = Callable[[LossTerms, LossSettings, Floats], tuple[Floats, Floats]]


def evaluate_loss(name: str, terms: LossTerms, settings: LossSettings | None = None) -> Loss:
    """Return the loss ``name`` with its gradient.

    Args:
        name: ``importance_sampling``, ``cross_entropy``, ``ppo``, ``cispo``, ``dro`` or ``gspo``.
        terms: arrays of shape (N,).
        settings: bounds and weights; None: the reference's defaults for this loss.

    Raises:
        ConfigurationError: the loss is unknown.
        ValueError: the arrays differ in length or hold a value that is not finite.
    """
    formula = _FORMULAS.get(name)
    if formula is None:
        raise ConfigurationError(f"unknown loss {name!r}", hint=one_of(name, sorted(_FORMULAS)))
    _refuse_bad_terms(terms)
    used = settings or (CISPO_SETTINGS if name == "cispo" else LossSettings())
    inside = terms.mask > 0
    log_ratio = np.where(inside, terms.target_logprobs - terms.sampler_logprobs, 0.0)
    clamped = inside & (np.abs(log_ratio) > LOG_RATIO_LIMIT) & (name not in _WITHOUT_RATIO)
    value, gradient = formula(terms, used, np.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    elementwise = np.where(inside, value * terms.mask, 0.0)
    return Loss(
        elementwise=elementwise,
        gradient=np.where(inside & ~clamped, gradient * terms.mask, 0.0),
        total=float(elementwise.sum()),
        n_tokens=int(inside.sum()),
        n_clamped=int(clamped.sum()),
    )


def _refuse_bad_terms(terms: LossTerms) -> None:
    arrays = (terms.target_logprobs, terms.sampler_logprobs, terms.advantages, terms.mask)
    if len({array.shape for array in arrays}) != 1:
        msg = f"loss terms differ in shape: {[array.shape for array in arrays]}"
        raise ValueError(msg)
    if not all(np.isfinite(array).all() for array in arrays):
        msg = "a loss term is not finite"
        raise ValueError(msg)


def _importance_sampling(terms: LossTerms, settings: LossSettings, log_ratio: Floats) -> tuple[Floats, Floats]:
    del settings
    value = -np.exp(log_ratio) * terms.advantages
    return value, value


def _cross_entropy(terms: LossTerms, settings: LossSettings, log_ratio: Floats) -> tuple[Floats, Floats]:
    del settings, log_ratio
    return -terms.advantages * terms.target_logprobs, -terms.advantages


def _clipped(ratio: Floats, terms: LossTerms, settings: LossSettings) -> tuple[Floats, Floats]:
    plain = ratio * terms.advantages
    bounded = np.clip(ratio, settings.clip_low, settings.clip_high) * terms.advantages
    return -np.minimum(plain, bounded), np.where(plain <= bounded, -plain, 0.0)


def _ppo(terms: LossTerms, settings: LossSettings, log_ratio: Floats) -> tuple[Floats, Floats]:
    return _clipped(np.exp(log_ratio), terms, settings)


def _cispo(terms: LossTerms, settings: LossSettings, log_ratio: Floats) -> tuple[Floats, Floats]:
    weight = np.clip(np.exp(log_ratio), settings.clip_low, settings.clip_high) * terms.advantages
    return -weight * terms.target_logprobs, -weight


def _dro(terms: LossTerms, settings: LossSettings, log_ratio: Floats) -> tuple[Floats, Floats]:
    del log_ratio
    gap = terms.target_logprobs - terms.sampler_logprobs
    value = -(terms.advantages * terms.target_logprobs - 0.5 * settings.beta * gap**2)
    return value, -terms.advantages + settings.beta * gap


def _gspo(terms: LossTerms, settings: LossSettings, log_ratio: Floats) -> tuple[Floats, Floats]:
    inside = terms.mask > 0
    mean = float(log_ratio[inside].mean()) if inside.any() else 0.0
    return _clipped(np.full_like(log_ratio, np.exp(mean)), terms, settings)


_FORMULAS: dict[str, _Formula] = {
    "importance_sampling": _importance_sampling,
    "cross_entropy": _cross_entropy,
    "ppo": _ppo,
    "cispo": _cispo,
    "dro": _dro,
    "gspo": _gspo,
}
_WITHOUT_RATIO = frozenset({"cross_entropy", "dro"})


def drift_metrics(terms: LossTerms) -> dict[str, float]:
    """Return how far trainer and sampler are apart on tokens with mask above 0; empty without such tokens.

    ``kl_v1`` = mean(q - p), ``kl_v2`` = mean((q - p)^2) / 2, ``logprob_gap_max`` = max |q - p|, ``entropy`` = -mean(q)
    (from sampled tokens), ``ess`` = effective share of tokens under the importance weights, in (0, 1].

    Source: facts/learning.md section 2.8 (tinker_cookbook 0.6.1 rl/metrics.py: compute_kl_sample_train); Kish 1965
    for the effective sample size.
    """
    inside = terms.mask > 0
    if not inside.any():
        return {}
    sampler = terms.sampler_logprobs[inside]
    gap = sampler - terms.target_logprobs[inside]
    weights = np.exp(np.clip(-gap, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    return {
        "kl_v1": float(gap.mean()),
        "kl_v2": float((gap**2).mean() / 2),
        "logprob_gap_max": float(np.abs(gap).max()),
        "entropy": float(-sampler.mean()),
        "ess": float(weights.sum() ** 2 / (weights**2).sum() / len(weights)),
    }
