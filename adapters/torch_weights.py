"""Model weights between the store and torch, in memory: nothing on disk can go stale."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from safetensors.torch import load as load_tensors
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from domain.errors import ConfigurationError, boundary
from domain.ports import Store
from domain.records.canonical import digest_of
from domain.records.model import FileEntry

_auto_config: Any = AutoConfig
_auto_model: Any = AutoModelForCausalLM
"""The classes, whose own annotations are not complete enough to check against."""

CONFIG_FILE = "config.json"
WEIGHTS_SUFFIX = ".safetensors"


def keep_files(store: Store, files: Mapping[str, bytes]) -> tuple[FileEntry, ...]:
    """Keep each file in the store; entries in order of path."""
    return tuple(FileEntry(path=path, content=store.put(files[path])) for path in sorted(files))


def fetch_files(store: Store, entries: Iterable[FileEntry]) -> dict[str, bytes]:
    """Return verified bytes by path."""
    return {entry.path: store.get(entry.content) for entry in entries}


def files_digest(entries: Iterable[FileEntry]) -> str:
    """Return the SHA-256 over (path, content digest) of every file, in order of path."""
    return digest_of(sorted((entry.path, entry.content.digest) for entry in entries))


def build_model(files: Mapping[str, bytes]) -> PreTrainedModel:
    """Return a causal language model, float32, in evaluation mode.

    Args:
        files: ``config.json`` and every ``*.safetensors`` of a model directory.

    Raises:
        ConfigurationError: a file is missing, or the weights do not fit the configuration.
    """
    if CONFIG_FILE not in files:
        raise ConfigurationError(f"the base policy has no {CONFIG_FILE}")
    with boundary(ConfigurationError, "build the base policy's model"):
        settings = cast("dict[str, Any]", json.loads(files[CONFIG_FILE]))
        config = _auto_config.for_model(str(settings.pop("model_type")), **settings)
        model = cast("PreTrainedModel", _auto_model.from_config(config, dtype=torch.float32))
        tensors: dict[str, torch.Tensor] = {}
        for path in sorted(files):
            if path.endswith(WEIGHTS_SUFFIX):
                tensors |= load_tensors(files[path])
        _fill(model, tensors)
    return model.eval()


def _fill(model: PreTrainedModel, tensors: Mapping[str, torch.Tensor]) -> None:
    missing, unexpected = cast("tuple[list[str], list[str]]", model.load_state_dict(tensors, strict=False))
    model.tie_weights()
    tied = {"lm_head.weight"} if getattr(model.config, "tie_word_embeddings", False) else set[str]()
    wrong = (set(missing) - tied) | set(unexpected)
    if wrong:
        raise ConfigurationError(f"weights do not fit {CONFIG_FILE}: {', '.join(sorted(wrong)[:5])}")
