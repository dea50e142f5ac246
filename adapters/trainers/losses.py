"""The objectives in torch, and the drift between trainer and sampler. The numpy reference is domain.maths.objectives.

Notation: p = trainer logprob, q = sampler logprob, A = advantage (the weight of a cross-entropy), m = mask.
Source: facts/learning.md sections 2.2 (formulas, sum over tokens, no mean) and 2.8 (drift).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from domain.maths.objectives import LOG_RATIO_LIMIT
from domain.records.profile import Objective


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Targets:
    """The mask > 0 targets of some rows, flattened; shapes (M,)."""

    logprobs: torch.Tensor
    """p, differentiable."""
    sampler_logprobs: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor


def loss_sum(objective: Objective, targets: Targets) -> torch.Tensor:
    """Return the scalar loss: a sum over targets in which the mask multiplies every term."""
    if objective is Objective.CROSS_ENTROPY:
        terms = -targets.advantages * targets.logprobs
    else:
        ratio = log_ratio(targets).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
        terms = -ratio * targets.advantages
    return (terms * targets.mask).sum()


def log_ratio(targets: Targets) -> torch.Tensor:
    """Return p - q, shape (M,)."""
    return targets.logprobs - targets.sampler_logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftSums:
    """Sums over mask > 0 targets from which the drift metrics follow; they add up over micro-batches."""

    n: float = 0.0
    gap: float = 0.0
    gap_squared: float = 0.0
    gap_max: float = 0.0
    sampler: float = 0.0
    ratio: float = 0.0
    ratio_squared: float = 0.0
    clamped: float = 0.0

    def __add__(self, other: "DriftSums") -> "DriftSums":
        """Return the sums over both."""
        return DriftSums(
            n=self.n + other.n,
            gap=self.gap + other.gap,
            gap_squared=self.gap_squared + other.gap_squared,
            gap_max=max(self.gap_max, other.gap_max),
            sampler=self.sampler + other.sampler,
            ratio=self.ratio + other.ratio,
            ratio_squared=self.ratio_squared + other.ratio_squared,
            clamped=self.clamped + other.clamped,
        )

    def metrics(self) -> Mapping[str, float]:
        """Return ``kl_v1`` = mean(q - p), ``kl_v2`` = mean((q - p)^2) / 2, ``entropy`` = -mean(q), ``ess`` in (0, 1].

        ``n_clamped`` counts log-ratios beyond the limit. Without targets only that count is there.
        """
        if not self.n:
            return {"n_clamped": 0.0}
        return {
            "kl_v1": self.gap / self.n,
            "kl_v2": 0.5 * self.gap_squared / self.n,
            "logprob_gap_max": self.gap_max,
            "entropy": -self.sampler / self.n,
            "ess": self.ratio**2 / (self.n * self.ratio_squared),
            "n_clamped": self.clamped,
        }


def drift_sums(targets: Targets) -> DriftSums:
    """Return the sums of some targets, in float64."""
    logs = log_ratio(targets).detach().double()
    if not logs.numel():
        return DriftSums()
    ratio = logs.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return DriftSums(
        n=float(logs.numel()),
        gap=float((-logs).sum()),
        gap_squared=float((logs * logs).sum()),
        gap_max=float(logs.abs().max()),
        sampler=float(targets.sampler_logprobs.double().sum()),
        ratio=float(ratio.sum()),
        ratio_squared=float((ratio * ratio).sum()),
        clamped=float((logs.abs() > LOG_RATIO_LIMIT).sum()),
    )
