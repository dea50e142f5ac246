"""LoRA adapters in peft's file format, and the weights they make: one formula for trainer and sampler.

Source: peft 0.21 (``LoraConfig``, ``adapter_config.json``, ``adapter_model.safetensors``); facts/learning.md section 4.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from domain.errors import ConfigurationError, boundary

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Every attention and MLP projection."""

_PREFIX = "base_model.model."
_A, _B = ".lora_A.weight", ".lora_B.weight"
_PLAIN: Mapping[str, tuple[object, ...]] = {
    "bias": ("none", None),
    "fan_in_fan_out": (False, None),
    "use_dora": (False, None),
    "lora_bias": (False, None),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "modules_to_save": (None, []),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Factors:
    """The two factors of one projection: A of shape (rank, in), B of shape (out, rank)."""

    a: torch.Tensor
    b: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Adapter:
    """Factors by module name (``model.layers.0.self_attn.q_proj``), and their scale alpha / rank."""

    scale: float
    factors: Mapping[str, Factors]


def adapted(weight: torch.Tensor, factors: Factors, scale: float) -> torch.Tensor:
    """Return W + scale * B A, shape (out, in)."""
    return weight + scale * (factors.b @ factors.a)


def write_adapter(adapter: Adapter, *, rank: int, alpha: int, base: str) -> dict[str, bytes]:
    """Return the adapter's files; the same adapter gives the same bytes.

    peft itself would write sets in the order of string hashes, which differs between processes.
    """
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted({name.rpartition(".")[2] for name in adapter.factors}),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    tensors: dict[str, torch.Tensor] = {}
    for name, factors in adapter.factors.items():
        tensors[f"{_PREFIX}{name}{_A}"] = factors.a.detach().contiguous()
        tensors[f"{_PREFIX}{name}{_B}"] = factors.b.detach().contiguous()
    return {
        ADAPTER_CONFIG: json.dumps(config, indent=2, sort_keys=True).encode(),
        ADAPTER_WEIGHTS: save_tensors(tensors, metadata={"format": "pt"}),
    }


def read_adapter(files: Mapping[str, bytes]) -> Adapter:
    """Read an adapter's files.

    Raises:
        ConfigurationError: a file is missing or damaged, or the adapter is more than plain LoRA.
    """
    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        if name not in files:
            raise ConfigurationError(f"the adapter has no {name}")
    with boundary(ConfigurationError, "read the adapter"):
        config = cast("dict[str, object]", json.loads(files[ADAPTER_CONFIG]))
        _check(config)
        rank, alpha = int(cast("int", config["r"])), float(cast("float", config["lora_alpha"]))
        scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
        tensors = load_tensors(files[ADAPTER_WEIGHTS])
    names = {key.removeprefix(_PREFIX).removesuffix(_A).removesuffix(_B) for key in tensors}
    if len(tensors) != 2 * len(names):
        raise ConfigurationError(f"{ADAPTER_WEIGHTS} holds more than pairs of LoRA factors")
    factors = {
        name: Factors(a=tensors[f"{_PREFIX}{name}{_A}"], b=tensors[f"{_PREFIX}{name}{_B}"]) for name in sorted(names)
    }
    return Adapter(scale=scale, factors=factors)


def _check(config: Mapping[str, object]) -> None:
    if config.get("peft_type") != "LORA":
        raise ConfigurationError(f"{ADAPTER_CONFIG}, field peft_type: {config.get('peft_type')!r}, not LORA")
    for name, allowed in _PLAIN.items():
        if config.get(name) not in allowed:
            raise ConfigurationError(
                f"{ADAPTER_CONFIG}, field {name}: {config[name]!r} is not supported", hint="plain LoRA adapters are"
            )
