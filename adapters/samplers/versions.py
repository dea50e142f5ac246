"""Policy versions as weights: a base model, and for each version the tensors its adapter changes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from peft import PeftConfig, get_peft_model, set_peft_model_state_dict
from peft.tuners.lora import LoraConfig
from safetensors.torch import load as load_tensors
from transformers import PreTrainedModel

from adapters.torch_weights import build_model
from domain.errors import ConfigurationError, boundary

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"


@dataclass(slots=True, kw_only=True, eq=False)
class LoadedBase:
    """One base model, ready to run with any of its versions' weights in place."""

    digest: str
    model: PreTrainedModel
    context_tokens: int
    original: dict[str, torch.Tensor]
    """The base's own tensors, by parameter name."""
    applied: "Merged | None" = None

    def apply(self, merged: "Merged") -> None:
        """Put a version's weights in place; a pointer per changed tensor, nothing is copied."""
        if self.applied is merged:
            return
        for name, parameter in self.model.named_parameters():
            parameter.data = merged.tensors.get(name, self.original[name])
        self.applied = merged


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Merged:
    """What a version changes of its base; empty for the base itself."""

    tensors: Mapping[str, torch.Tensor]


def load_base(digest: str, files: Mapping[str, bytes], context_tokens: int) -> LoadedBase:
    """Build a base model from its files.

    Raises:
        ConfigurationError: the files do not make a model.
    """
    model = build_model(files)
    original = {name: parameter.data for name, parameter in model.named_parameters()}
    return LoadedBase(digest=digest, model=model, context_tokens=context_tokens, original=original)


def merge(base_files: Mapping[str, bytes], adapter_files: Mapping[str, bytes]) -> Merged:
    """Return base weights + scaled adapter products for every changed tensor.

    Merging costs one copy of the changed tensors a version and makes decoding as fast as the base:
    unmerged LoRA layers doubled the time of a step of a small model.

    Raises:
        ConfigurationError: the files are no peft adapter that fits the base.
    """
    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        if name not in adapter_files:
            raise ConfigurationError(f"the adapter has no {name}")
    model = build_model(base_files)
    before = {name: parameter.data.clone() for name, parameter in model.named_parameters()}
    with boundary(ConfigurationError, "merge the adapter into its base"), torch.random.fork_rng(devices=[]):
        settings = cast("dict[str, Any]", json.loads(adapter_files[ADAPTER_CONFIG]))
        config: PeftConfig = LoraConfig.from_peft_type(**settings)
        wrapped = get_peft_model(model, config)
        result = set_peft_model_state_dict(wrapped, load_tensors(adapter_files[ADAPTER_WEIGHTS]))
        if result.unexpected_keys:
            raise ConfigurationError(f"the adapter does not fit its base: {', '.join(result.unexpected_keys[:3])}")
        merged = cast("PreTrainedModel", cast("Any", wrapped).merge_and_unload())
    changed = {
        name: parameter.data
        for name, parameter in merged.named_parameters()
        if not torch.equal(parameter.data, before[name])
    }
    return Merged(tensors=changed)
