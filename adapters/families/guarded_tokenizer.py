"""A tokenizer for renderers that never turns the *text* of a control token into the control token.

Renderers join their own scaffolding with what people and tools wrote and encode the result in one pass, so a tool
result that contains ``<|im_end|>`` would end the turn. Here foreign text is marked before it enters the renderer;
:meth:`GuardedTokenizer.encode` sees the marks, encodes marked control tokens as plain text and removes the marks.

Source: facts/learning.md section 6.1 (special-token injection).
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import cast

from tokenizers import Tokenizer

from domain.records.canonical import Json

FORMAT_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""Atomic in the format although tokenizers do not call them special. Source: Qwen3 ``tokenizer_config.json``."""

_MARK = "\ufdd0"  # a Unicode noncharacter; doubled up when foreign text contains it
_KEPT = _MARK + "0"
_SPLIT = _MARK + "1"


class GuardedTokenizer:
    """The tokenizer surface renderers need, over a ``tokenizers.Tokenizer``.

    Added tokens that are neither special nor part of the format are ordinary text compression and stay usable
    everywhere.
    """

    name_or_path = "local"
    unk_token_id: int | None = None
    eos_token_id: int | None = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Read the control tokens of ``tokenizer``."""
        self._full = tokenizer
        document = cast("dict[str, list[dict[str, object]]]", json.loads(tokenizer.to_str()))
        added = document["added_tokens"]
        controls = [str(token["content"]) for token in added if _is_control(token)]
        document["added_tokens"] = [token for token in added if not _is_control(token)]
        self._plain = Tokenizer.from_str(json.dumps(document))
        self._control_ids = {token: int(cast("int", tokenizer.token_to_id(token))) for token in controls}
        longest_first = sorted(controls, key=len, reverse=True)
        self._controls = re.compile("(" + "|".join(re.escape(token) for token in longest_first) + ")")

    def guard(self, text: str, *, keep_format: bool = False) -> str:
        """Return ``text`` marked so that none of it becomes a control token.

        ``keep_format`` leaves tokens of :data:`FORMAT_TOKENS` alone: an assistant's own markup.
        """

        def mark(found: re.Match[str]) -> str:
            token = found.group()
            return token if keep_format and token in FORMAT_TOKENS else token[0] + _SPLIT + token[1:]

        return self._controls.sub(mark, text.replace(_MARK, _KEPT))

    def guard_json(self, value: Json) -> Json:
        """Return a JSON value with every string in it guarded."""
        if isinstance(value, str):
            return self.guard(value)
        if isinstance(value, Mapping):
            return {self.guard(key): self.guard_json(item) for key, item in value.items()}
        if isinstance(value, Sequence):
            return [self.guard_json(item) for item in value]
        return value

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return ids; only unmarked control tokens become control ids."""
        if _MARK not in text:
            return self._full.encode(text, add_special_tokens=add_special_tokens).ids
        ids: list[int] = []
        for piece in self._controls.split(text):
            control = self._control_ids.get(piece)
            ids.extend(self.encode_plain(_unmark(piece)) if control is None else (control,))
        return ids

    def encode_plain(self, text: str) -> list[int]:
        """Return ids of ``text`` without any control id."""
        # Ids of added tokens shift when others are missing, so the token strings are looked up again.
        return [cast("int", self._full.token_to_id(token)) for token in self._plain.encode(text).tokens]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return text; special tokens are shown unless skipped."""
        return self._full.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def convert_tokens_to_ids(self, tokens: str) -> int | None:
        """Return the id of one token."""
        return self._full.token_to_id(tokens)


def _is_control(token: Mapping[str, object]) -> bool:
    return bool(token["special"]) or token["content"] in FORMAT_TOKENS


def _unmark(text: str) -> str:
    return text.replace(_SPLIT, "").replace(_KEPT, _MARK)
