"""Supervised training of a small model on masked targets."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from itertools import repeat
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from adapters.trainers.demonstration_examples import Example, batches_of
from domain.errors import TrainerError

BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.01
CLIP_NORM = 1.0
WARMUP_SHARE = 0.05
LAST_RATE_SHARE = 0.05
_PARTS = 2


def train(
    model: nn.Module,
    examples: Sequence[Example],
    *,
    batch: int,
    steps: int,
    learning_rate: float,
    seed: int,
    pool: Executor,
    on_step: Callable[[int], None],
) -> list[float]:
    """Train with AdamW, linear warm-up and cosine decay; returns the mean loss per sampled token of each step.

    Raises:
        TrainerError: a loss is not finite.
    """
    parameters = list(model.parameters())
    optimizer: Any = torch.optim.AdamW(parameters, lr=learning_rate, betas=BETAS, weight_decay=WEIGHT_DECAY)
    losses: list[float] = []
    for step, rows in enumerate(batches_of([len(each.input_ids) for each in examples], batch, steps, seed)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * rate(step, steps)
        chosen = [examples[row] for row in rows]
        n_targets = max(1, sum(int(each.mask.sum()) for each in chosen))
        # Always the same parts, added in the same order: the number of threads does not show in the result.
        parts = [part for start in range(_PARTS) if (part := chosen[start::_PARTS])]
        found = list(pool.map(_gradients, repeat(model), repeat(parameters), parts, repeat(n_targets)))
        losses.append(sum(loss for loss, _ in found))
        if not math.isfinite(losses[-1]):
            raise TrainerError(f"supervised step {step}: the loss is {losses[-1]}", hint="lower the learning rate")
        for parameter, *gradients in zip(parameters, *(each for _, each in found), strict=True):
            parameter.grad = sum(gradients[1:], gradients[0])
        nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
        on_step(step + 1)
    return losses


def rate(step: int, steps: int) -> float:
    """Return the factor of the learning rate at a step: warm-up, then half a cosine."""
    warmup = max(1, round(steps * WARMUP_SHARE))
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return LAST_RATE_SHARE + (1 - LAST_RATE_SHARE) * 0.5 * (1 + math.cos(math.pi * done))


def _gradients(
    model: nn.Module, parameters: Sequence[nn.Parameter], examples: Sequence[Example], n_targets: int
) -> tuple[float, tuple[torch.Tensor, ...]]:
    """Return the summed cross-entropy of masked targets over ``n_targets``, and its gradients.

    Rows are padded on the right: under a causal mask no real position sees padding, so no mask is needed.
    """
    inputs = torch.as_tensor(_padded([each.input_ids for each in examples]))
    targets = torch.as_tensor(_padded([each.target_ids for each in examples]))
    mask = torch.as_tensor(_padded([each.mask for each in examples]))
    with torch.enable_grad():
        hidden = model.get_submodule("model")(input_ids=inputs, use_cache=False).last_hidden_state
        logits = model.get_submodule("lm_head")(hidden[mask])
        loss = nn.functional.cross_entropy(logits, targets[mask], reduction="sum") / n_targets
        return loss.item(), torch.autograd.grad(loss, list(parameters))


def _padded(rows: Sequence[NDArray[np.generic]]) -> NDArray[np.generic]:
    padded = np.zeros((len(rows), max(map(len, rows))), dtype=rows[0].dtype)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return padded
