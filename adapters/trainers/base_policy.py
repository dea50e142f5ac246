"""Makes a base policy from demonstrations: a byte-level BPE and a small Qwen3, supervised on assistant tokens."""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor

import numpy as np
import torch
from safetensors.torch import save as save_tensors
from tokenizers import Tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

from adapters.torch_weights import CONFIG_FILE, files_digest, keep_files
from adapters.trainers.demonstration_examples import Example, example_of, pieces_of
from adapters.trainers.determinism import workers
from adapters.trainers.supervised import train
from adapters.trainers.tokenizer_training import byte_tokenizer, train_tokenizer
from domain.errors import ConfigurationError
from domain.ports import Family, Progress, Store
from domain.records.canonical import digest_of
from domain.records.chat import Demonstration, ToolSpec
from domain.records.model import BasePolicy, PolicyRecipe

_MLP_RATIO = 3
_INITIALIZER_RANGE = 0.1
"""About 1/sqrt(hidden). transformers' 0.02 is for wide models: here copying is learned twice as late with it."""
_REPORTED_STEPS = 20


class DemonstrationPolicyMaker:
    """Trains tokenizer and model; the same inputs on the same machine give the same digest."""

    def __init__(self, store: Store, family_of: Callable[[bytes], Family], *, threads: int = 2) -> None:
        """Take where files go and how a ``tokenizer.json`` becomes a family.

        Args:
            store: keeps the files.
            family_of: makes the recipe's family from the bytes of a ``tokenizer.json``.
            threads: parts of a batch that run at once; the result does not depend on it.
        """
        self._store = store
        self._family_of = family_of
        self._threads = threads

    def make(
        self,
        recipe: PolicyRecipe,
        demonstrations: Sequence[Demonstration],
        tools: Sequence[ToolSpec],
        progress: Progress,
    ) -> BasePolicy:
        """Train and keep a base policy. Blocking.

        Raises:
            ConfigurationError: the recipe or a demonstration is wrong.
            TrainerError: the loss is no longer finite.
        """
        _check(recipe, demonstrations)
        progress("tokenizer", 0, 1)
        tokenizer = self._tokenizer(recipe, demonstrations, tools)
        progress("tokenizer", 1, 1)
        family = self._family(tokenizer)
        examples = [example_of(pieces_of(family, each, tools), recipe.context_tokens) for each in demonstrations]
        with workers(1, "policy-maker") as maker, workers(self._threads, "policy-maker-batch") as pool:
            model, losses = maker.submit(
                self._train, recipe, _config(recipe, tokenizer.get_vocab_size(), family), examples, pool, progress
            ).result()
        files = keep_files(self._store, _files(model, tokenizer, recipe))
        inputs = {"recipe": recipe, "demonstrations": list(demonstrations), "tools": list(tools)}
        return BasePolicy(
            name=recipe.name,
            digest=files_digest(files),
            family=recipe.family,
            files=files,
            recipe_digest=digest_of(inputs),
            context_tokens=recipe.context_tokens,
            n_parameters=sum(parameter.numel() for parameter in model.parameters()),
            metrics={
                "first_loss": losses[0],
                "final_loss": float(np.mean(losses[-_REPORTED_STEPS:])),
                "n_demonstrations": len(demonstrations),
                "n_tokens_mean": float(np.mean([len(each.input_ids) for each in examples])),
                "n_sampled_tokens_mean": float(np.mean([each.mask.sum() for each in examples])),
                "vocabulary": tokenizer.get_vocab_size(),
            },
        )

    @staticmethod
    def _train(
        recipe: PolicyRecipe, config: Qwen3Config, examples: Sequence[Example], pool: Executor, progress: Progress
    ) -> tuple[Qwen3ForCausalLM, list[float]]:
        model = _fresh_model(config, recipe.seed)
        losses = train(
            model,
            examples,
            batch=recipe.batch,
            steps=recipe.steps,
            learning_rate=recipe.learning_rate,
            seed=recipe.seed,
            pool=pool,
            on_step=lambda step: progress("supervised steps", step, recipe.steps),
        )
        return model, losses

    def _tokenizer(
        self, recipe: PolicyRecipe, demonstrations: Sequence[Demonstration], tools: Sequence[ToolSpec]
    ) -> Tokenizer:
        """Train on the text of conversations as the family renders them."""
        family = self._family(byte_tokenizer())
        texts = [tuple(family.decode(piece.ids) for piece in pieces_of(family, each, tools)) for each in demonstrations]
        return train_tokenizer(texts, recipe.vocabulary)

    def _family(self, tokenizer: Tokenizer) -> Family:
        return self._family_of(tokenizer.to_str().encode())


def _check(recipe: PolicyRecipe, demonstrations: Sequence[Demonstration]) -> None:
    if not demonstrations:
        raise ConfigurationError(f"{recipe.demonstrations}: no demonstrations")
    if recipe.family != "qwen3":
        raise ConfigurationError(f"recipe {recipe.name}, field family: {recipe.family!r}", hint="qwen3 can be made")
    for name in ("vocabulary", "hidden", "layers", "heads", "context_tokens", "steps", "batch"):
        if getattr(recipe, name) < 1:
            raise ConfigurationError(f"recipe {recipe.name}, field {name}: must be positive")
    if recipe.hidden % (2 * recipe.heads):
        raise ConfigurationError(
            f"recipe {recipe.name}, field hidden: {recipe.hidden} is not a multiple of 2 x heads ({recipe.heads})"
        )


def _config(recipe: PolicyRecipe, vocabulary: int, family: Family) -> Qwen3Config:
    """Return the model's shape. Half as many key-value heads as heads: the cache is what decoding reads."""
    return Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.hidden * _MLP_RATIO,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=max(1, recipe.heads // 2),
        head_dim=recipe.hidden // recipe.heads,
        max_position_embeddings=recipe.context_tokens,
        tie_word_embeddings=True,
        initializer_range=_INITIALIZER_RANGE,
        eos_token_id=list(family.stop_ids),
        dtype="float32",
    )


def _fresh_model(config: Qwen3Config, seed: int) -> Qwen3ForCausalLM:
    """Return a model whose first values follow from the seed alone, whatever other threads draw meanwhile."""
    random = torch.Generator().manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, config.initializer_range, generator=random)
            else:
                parameter.fill_(1.0)  # the gains of RMS norms; Qwen3 has no biases
    return model.eval()


def _files(model: Qwen3ForCausalLM, tokenizer: Tokenizer, recipe: PolicyRecipe) -> dict[str, bytes]:
    """Return a model directory that transformers and vLLM load."""
    config = model.config.to_dict()
    config["architectures"] = ["Qwen3ForCausalLM"]
    tensors = {name: value.contiguous() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": recipe.context_tokens,
        "clean_up_tokenization_spaces": False,
    }
    generation = {"eos_token_id": config["eos_token_id"], "do_sample": True, "temperature": 1.0}
    return {
        CONFIG_FILE: _json(config),
        "generation_config.json": _json(generation),
        "model.safetensors": save_tensors(tensors, metadata={"format": "pt"}),
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": _json(tokenizer_config),
    }


def _json(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True).encode()
