"""Policy versions as weights: a base model, and for each version the tensors its adapter changes."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from adapters.lora_format import adapted, read_adapter
from adapters.torch_weights import build_model
from domain.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Merged:
    """What a version changes of its base, by parameter name; empty for the base itself."""

    tensors: Mapping[str, torch.Tensor]


@dataclass(slots=True, kw_only=True, eq=False)
class LoadedBase:
    """One base model, ready to run with any of its versions' weights in place."""

    model: PreTrainedModel
    context_tokens: int
    original: Mapping[str, torch.Tensor]
    """The base's own tensors, by parameter name."""
    applied: Merged | None = None

    def apply(self, merged: Merged) -> None:
        """Put a version's weights in place: a pointer per tensor, nothing is copied."""
        if self.applied is not merged:
            for name, parameter in self.model.named_parameters():
                parameter.data = merged.tensors.get(name, self.original[name])
            self.applied = merged


def load_base(files: Mapping[str, bytes], context_tokens: int) -> LoadedBase:
    """Build a base model from its files.

    Raises:
        ConfigurationError: the files do not make a model.
    """
    model = build_model(files)
    original = {name: parameter.data for name, parameter in model.named_parameters()}
    return LoadedBase(model=model, context_tokens=context_tokens, original=original)


def merge(base: LoadedBase, adapter_files: Mapping[str, bytes]) -> Merged:
    """Return base weights plus the adapter's product for every adapted projection.

    A version costs one copy of those tensors, and decodes as fast as the base: computing the product in every
    step doubled the time of a step of a small model.

    Raises:
        ConfigurationError: the files are no plain LoRA adapter, or it does not fit the base.
    """
    adapter = read_adapter(adapter_files)
    tensors: dict[str, torch.Tensor] = {}
    for name, factors in adapter.factors.items():
        weight = base.original.get(f"{name}.weight")
        if weight is None or weight.shape != (factors.b.shape[0], factors.a.shape[1]):
            raise ConfigurationError(f"the adapter does not fit its base at {name}", hint="it belongs to another base")
        tensors[f"{name}.weight"] = adapted(weight, factors, adapter.scale)
    return Merged(tensors=tensors)
