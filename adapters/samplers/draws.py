"""Draws tokens so that a request's sample depends on its seed and the logits alone, not on its neighbours."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray


def uniforms(seed: int, n: int) -> NDArray[np.float64]:
    """Return the uniform number of each sampled position, shape (n,), from a counter-based generator.

    Source: Philox4x64-10, Salmon et al. 2011, as in ``numpy.random.Philox``.
    """
    return np.random.Generator(np.random.Philox(key=seed % 2**128)).random(n)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draws:
    """Tokens and their logprobs under the distribution they were drawn from, shapes (B,)."""

    ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]


def draw(logits: torch.Tensor, temperatures: NDArray[np.float64], uniform: NDArray[np.float64]) -> Draws:
    """Draw by inverse cumulative distribution; temperature 0 takes the most likely token with logprob 0.

    Args:
        logits: float32, shape (B, V).
        temperatures: shape (B,).
        uniform: shape (B,), in [0, 1).
    """
    greedy = torch.as_tensor(temperatures <= 0)
    scale = torch.as_tensor(np.where(temperatures > 0, temperatures, 1.0)).to(logits.dtype)
    logprobs = torch.log_softmax(logits / scale[:, None], dim=-1)
    cumulative = logprobs.double().exp().cumsum(dim=-1)
    points = torch.as_tensor(uniform)[:, None] * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, points, right=True).clamp(max=logits.shape[-1] - 1)
    ids = torch.where(greedy[:, None], logits.argmax(dim=-1, keepdim=True), drawn)
    chosen = logprobs.gather(1, ids)[:, 0]
    # A point mass: the sampling distribution at temperature 0 gives its token probability one.
    chosen = torch.where(greedy & chosen.isfinite(), torch.zeros_like(chosen), chosen)
    return Draws(ids=ids[:, 0].numpy(), logprobs=chosen.numpy())
