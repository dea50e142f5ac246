"""One training run in memory: base model, LoRA factors, AdamW. Blocking; used by one thread at a time.

The model runs with W + scale * B A in place, so a pass costs what the base costs; the gradient of each projection
is summed over micro-batches and carried on to A and B once. For small models this is twice as fast as LoRA layers
in the forward pass, and logprobs are computed with exactly the weights the sampler serves.

Source: facts/learning.md sections 2.5 (optimizer) and 4 (LoRA: every attention and MLP projection, B = 0).
"""

import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import nn

from adapters.lora_format import PROJECTIONS, Adapter, Factors, adapted, read_adapter, write_adapter
from adapters.torch_weights import build_model
from adapters.trainers.losses import DriftSums, Targets, drift_sums, loss_sum
from adapters.trainers.microbatches import MicroBatch
from domain.errors import ConfigurationError, TrainerError, boundary
from domain.records.profile import Objective, Optimisation

OPTIMIZER = "optimizer.safetensors"
PROGRESS = "trainer_state.json"
_RANDOM = "random"

Gradients = tuple[torch.Tensor, ...]
"""One tensor for each factor, in the run's order: A and B of the first projection, A and B of the next ..."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Backward:
    """What forward and backward passes found."""

    loss: float
    gradients: Gradients
    drift: DriftSums


class LoraRun:
    """A policy being trained."""

    def __init__(self, base_files: Mapping[str, bytes], base: str, optimisation: Optimisation, seed: int) -> None:
        """Put a fresh adapter on the base: A uniform from the seed, B zero, so step 0 is exactly the base.

        Args:
            base_files: files of the base policy.
            base: its digest, written into the adapter.
            optimisation: rank, alpha and the optimizer's numbers.
            seed: of the adapter's first values.

        Raises:
            ConfigurationError: the rank is not positive, or the base has none of the projections.
        """
        if optimisation.lora_rank < 1:
            raise ConfigurationError(f"optimisation, field lora_rank: {optimisation.lora_rank} is not positive")
        self._optimisation = optimisation
        self._base = base
        self._scale = optimisation.lora_alpha / optimisation.lora_rank
        self._model = build_model(base_files)
        self.vocabulary = int(self._model.config.vocab_size)
        for parameter in self._model.parameters():
            parameter.requires_grad = False
        modules = [name.removesuffix(".weight") for name, _ in self._model.named_parameters()]
        self._names = sorted(name for name in modules if name.rpartition(".")[2] in PROJECTIONS)
        if not self._names:
            raise ConfigurationError("the base has no projections to adapt", hint=f"LoRA goes on {PROJECTIONS}")
        self._weights = [self._model.get_parameter(f"{name}.weight").requires_grad_() for name in self._names]
        self._originals = [weight.detach().clone() for weight in self._weights]
        self._random = torch.Generator().manual_seed(seed)
        self._factors = [self._fresh(weight) for weight in self._originals]
        self._optimizer: Any = self._fresh_optimizer()
        self.n_steps = 0

    def _fresh(self, weight: torch.Tensor) -> Factors:
        n_out, n_in = weight.shape
        rank = self._optimisation.lora_rank
        a = nn.init.kaiming_uniform_(torch.empty(rank, n_in), a=math.sqrt(5), generator=self._random)
        return Factors(a=nn.Parameter(a), b=nn.Parameter(torch.zeros(n_out, rank)))

    def _parameters(self) -> list[torch.Tensor]:
        return [tensor for factors in self._factors for tensor in (factors.a, factors.b)]

    def _fresh_optimizer(self) -> torch.optim.AdamW:
        numbers = self._optimisation
        return torch.optim.AdamW(
            self._parameters(),
            lr=numbers.learning_rate,
            betas=(numbers.beta1, numbers.beta2),
            eps=numbers.eps,
            weight_decay=numbers.weight_decay,
            foreach=False,
        )

    def _put_in_place(self) -> None:
        """Make the model run with the factors as they are now."""
        with torch.no_grad():
            for weight, original, factors in zip(self._weights, self._originals, self._factors, strict=True):
                weight.data = adapted(original, factors, self._scale)

    # --- gradients -------------------------------------------------------------------------------

    def backward(self, batches: Sequence[MicroBatch], objective: Objective, pool: Executor) -> Backward:
        """Return loss, gradients and drift, summed over micro-batches in their order."""
        total = [torch.zeros_like(original) for original in self._originals]
        loss, drift = 0.0, DriftSums()
        for part in pool.map(self._backward, batches, repeat(objective)):
            loss += part.loss
            drift += part.drift
            for dense, gradient in zip(total, part.gradients, strict=True):
                dense.add_(gradient)
        gradients: list[torch.Tensor] = []
        with torch.no_grad():
            for factors, dense in zip(self._factors, total, strict=True):
                gradients += (self._scale * (factors.b.T @ dense), self._scale * (dense @ factors.a.T))
        return Backward(loss=loss, gradients=tuple(gradients), drift=drift)

    def _backward(self, batch: MicroBatch, objective: Objective) -> Backward:
        """Return the gradients of the adapted projections themselves."""
        with torch.enable_grad():
            targets = self.targets(batch)
            loss = loss_sum(objective, targets)
            gradients = torch.autograd.grad(loss, self._weights)
        return Backward(loss=loss.item(), gradients=gradients, drift=drift_sums(targets))

    def targets(self, batch: MicroBatch) -> Targets:
        """Return the trainer's logprobs at the mask > 0 targets of a micro-batch, with what belongs to them."""
        chosen = batch.mask > 0
        hidden = self._model.get_submodule("model")(input_ids=batch.input_ids, use_cache=False).last_hidden_state
        logits = self._model.get_submodule("lm_head")(hidden[chosen]).float()
        return Targets(
            logprobs=-nn.functional.cross_entropy(logits, batch.target_ids[chosen], reduction="none"),
            sampler_logprobs=batch.sampler_logprobs[chosen],
            advantages=batch.advantages[chosen],
            mask=batch.mask[chosen],
        )

    def step(self, gradients: Sequence[Gradients]) -> float:
        """Add gradients in the given order and step once; returns the norm before clipping.

        Raises:
            TrainerError: the norm is not finite; nothing has changed.
        """
        parameters = self._parameters()
        totals = [torch.zeros_like(parameter, requires_grad=False) for parameter in parameters]
        for contribution in gradients:
            for total, gradient in zip(totals, contribution, strict=True):
                total.add_(gradient)
        norm = math.sqrt(math.fsum(float(total.double().square().sum()) for total in totals))
        if not math.isfinite(norm):
            raise TrainerError(f"the gradient's norm is {norm}", hint="nothing was applied; abandon the update")
        for parameter, total in zip(parameters, totals, strict=True):
            parameter.grad = total
        if self._optimisation.grad_clip_norm:
            nn.utils.clip_grad_norm_(parameters, self._optimisation.grad_clip_norm, foreach=False)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._put_in_place()
        self.n_steps += 1
        return norm

    # --- state -----------------------------------------------------------------------------------

    def state(self) -> dict[str, bytes]:
        """Return adapter, optimizer, random state and step count; the same state gives the same bytes."""
        adapter = Adapter(scale=self._scale, factors=dict(zip(self._names, self._factors, strict=True)))
        tensors = {_RANDOM: self._random.get_state()}
        for index, parameter in enumerate(self._parameters()):
            for key, value in self._optimizer.state.get(parameter, {}).items():
                tensors[f"{index:05d}/{key}"] = value.detach().contiguous()
        return {
            **write_adapter(
                adapter, rank=self._optimisation.lora_rank, alpha=self._optimisation.lora_alpha, base=self._base
            ),
            OPTIMIZER: save_tensors(tensors),
            PROGRESS: json.dumps({"n_optimizer_steps": self.n_steps}).encode(),
        }

    def restore(self, files: Mapping[str, bytes]) -> None:
        """Return to a state exactly.

        Raises:
            TrainerError: a file is missing, or the state does not fit this run.
        """
        for name in (OPTIMIZER, PROGRESS):
            if name not in files:
                raise TrainerError(f"the trainer state has no {name}", hint="it was not saved by this trainer")
        adapter = read_adapter(files)
        if list(adapter.factors) != self._names or adapter.scale != self._scale:
            raise TrainerError("the saved adapter is of another base or another alpha", hint="open with its own plan")
        with boundary(TrainerError, "restore the trainer state"), torch.no_grad():
            for mine, saved in zip(self._factors, adapter.factors.values(), strict=True):
                if mine.a.shape != saved.a.shape or mine.b.shape != saved.b.shape:
                    raise TrainerError("the saved adapter is of another rank", hint="open with its own plan")
                mine.a.copy_(saved.a)
                mine.b.copy_(saved.b)
            self._restore_optimizer(load_tensors(files[OPTIMIZER]))
            self.n_steps = int(json.loads(files[PROGRESS])["n_optimizer_steps"])
        self._put_in_place()

    def _restore_optimizer(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._random.set_state(tensors[_RANDOM])
        self._optimizer = self._fresh_optimizer()
        state: dict[int, dict[str, torch.Tensor]] = {}
        for name, value in tensors.items():
            if name != _RANDOM:
                index, _, key = name.partition("/")
                state.setdefault(int(index), {})[key] = value
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": state})
