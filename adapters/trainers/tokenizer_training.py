"""Trains the byte-level BPE of a local base policy on rendered conversations.

What every conversation repeats word for word (the tool declaration, the start of a tool call) becomes one token
each, so prompts and turns stay short: the cost of a small model's rollout is its number of tokens.
Source: Qwen2/3 ``tokenizer.json`` (pre-tokenizer pattern, control tokens appended after the vocabulary).
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from domain.errors import ConfigurationError

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
FORMAT_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTROL = re.compile("|".join(re.escape(token) for token in SPECIAL_TOKENS + FORMAT_TOKENS))
_PHRASE_SHARE = 0.5  # of the conversations; rarer repetitions are left to BPE
_PHRASE_CHARACTERS = 4
_SHORT_CHARACTERS = 16
_N_PHRASES = 32
_N_BYTES = 256


def byte_tokenizer() -> Tokenizer:
    """Return the tokenizer with which conversations are rendered before a vocabulary exists: bytes alone."""
    tokenizer = _empty()
    tokenizer.train_from_iterator([], _trainer(_N_BYTES))
    _add_control_tokens(tokenizer)
    return tokenizer


def train_tokenizer(conversations: Sequence[Sequence[str]], vocabulary: int) -> Tokenizer:
    """Train on rendered conversations (control tokens as text).

    Args:
        conversations: the texts of each that are encoded apart: opening, turn, bridge, turn ...
        vocabulary: the number of ids, control tokens included; fewer when the text has no more to merge.

    Raises:
        ConfigurationError: the vocabulary cannot hold all bytes and control tokens.
    """
    phrases = _phrases(conversations)
    n_merged = vocabulary - len(phrases) - len(SPECIAL_TOKENS) - len(FORMAT_TOKENS)
    if n_merged < _N_BYTES:
        smallest = vocabulary + _N_BYTES - n_merged
        raise ConfigurationError(f"vocabulary {vocabulary} is too small", hint=f"use at least {smallest}")
    tokenizer: Any = _empty()
    tokenizer.train_from_iterator(_plain_text(conversations, phrases), _trainer(n_merged))
    tokenizer.add_tokens([AddedToken(phrase, normalized=False, special=False) for phrase in phrases])
    _add_control_tokens(tokenizer)
    return tokenizer


def _empty() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _trainer(vocabulary: int) -> trainers.BpeTrainer:
    return trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )


def _add_control_tokens(tokenizer: Any) -> None:
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in FORMAT_TOKENS])


def _phrases(conversations: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return what most conversations repeat between control tokens: whole segments, and shared starts and ends."""
    segments = [[pair for text in texts for pair in _segments(text)] for texts in conversations]
    counts: Counter[str] = Counter(segment for each in segments for _, segment in set(each))
    found = {segment for segment, count in counts.items() if count >= _PHRASE_SHARE * len(conversations)}
    calls = sorted({segment for each in segments for opener, segment in each if opener == "<tool_call>"} - found)
    if len(calls) > 1:
        found.add(_shared_start(calls[0], calls[-1]))
        flipped = sorted(segment[::-1] for segment in calls)
        found.add(_shared_start(flipped[0], flipped[-1])[::-1])
    # The byte-level decoder shows only ASCII phrases as they are.
    usable = [phrase for phrase in found if len(phrase) >= _PHRASE_CHARACTERS and phrase.isascii()]
    return tuple(sorted(usable, key=lambda phrase: (-len(phrase), phrase))[:_N_PHRASES])


def _shared_start(first: str, last: str) -> str:
    """Return what the first and last of sorted strings, hence all of them, start with."""
    n = next((i for i, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    return first[:n]


def _segments(text: str) -> list[tuple[str, str]]:
    """Return (control token before, text) of each stretch between control tokens."""
    openers = ["", *_CONTROL.findall(text)]
    return [(opener, segment) for opener, segment in zip(openers, _CONTROL.split(text), strict=True) if segment]


def _plain_text(conversations: Sequence[Sequence[str]], phrases: Sequence[str]) -> Iterable[str]:
    """Yield what BPE learns from: everything between control tokens and long phrases.

    Short phrases stay in: a renderer may encode the role apart from its line end.
    """
    long = [re.escape(phrase) for phrase in phrases if len(phrase) > _SHORT_CHARACTERS]
    taken = re.compile("|".join([_CONTROL.pattern, *long]))
    for texts in conversations:
        yield from (piece for text in texts for piece in taken.split(text) if piece)
