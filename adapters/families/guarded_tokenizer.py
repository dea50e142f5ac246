"""A tokenizer that never turns the *text* of a control token into the control token, and back.

Foreign text (of people, tools, model arguments) is marked before it enters a format; :meth:`GuardedTokenizer.encode`
sees the marks, encodes marked control tokens as plain text and removes the marks. :meth:`GuardedTokenizer.read` is
the way back: control ids become their text, look-alikes in ordinary text are marked, so a parser that searches for
``<tool_call>`` finds the token and never its spelling.

Source: facts/learning.md section 6.1 (special-token injection), facts/proxy.md section 2 ("parse by token id").
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from tokenizers import AddedToken, Tokenizer

from domain.records.canonical import Json

_CONTROL = re.compile(
    r"<[|\uff5c][^<>\s]*[|\uff5c]>|</?(?:think|tool_call|tool_response|arg_key|arg_value|sop|eop)>"
    r"|\uff5cDSML\uff5c|</?dsml:|\[gMASK\]|\[(?:BOS|EOS)\]|/nothink"
)
"""Atomic in a format although tokenizers do not call them special. Source: the families' ``tokenizer.json``."""

_MARK = "\ufdd0"  # a Unicode noncharacter; doubled up when foreign text contains it
_KEPT = _MARK + "0"
_SPLIT = _MARK + "1"


class GuardedTokenizer:
    """The tokenizer surface that formats need, over a ``tokenizers.Tokenizer``.

    Added tokens that are neither special nor part of a format are ordinary text compression and stay usable, but in
    text that spells a control token.
    """

    name_or_path = "local"
    unk_token_id: int | None = None
    eos_token_id: int | None = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Read the control tokens of ``tokenizer``."""
        self._full = tokenizer
        added = tokenizer.get_added_tokens_decoder().items()
        self._control_ids = {token.content: number for number, token in added if _is_control(token)}
        self._control_texts = {number: token for token, number in self._control_ids.items()}
        longest_first = sorted(self._control_ids, key=len, reverse=True)
        self._controls = re.compile("(" + "|".join(re.escape(token) for token in longest_first or ("(?!)",)) + ")")

    def guard(self, text: str) -> str:
        """Return ``text`` marked so that none of it becomes a control token."""
        return self._controls.sub(lambda found: _marked(found.group()), text.replace(_MARK, _KEPT))

    def unguard(self, text: str) -> str:
        """Return guarded text as it was."""
        return text.replace(_SPLIT, "").replace(_KEPT, _MARK)

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
            return self._encode_full(text, add_special_tokens=add_special_tokens)
        return [number for piece in self._controls.split(text) if piece for number in self._encode_piece(piece)]

    def encode_plain(self, text: str) -> list[int]:
        """Return ids of ``text`` by the vocabulary alone, without any added token."""
        normalizer, splitter = self._full.normalizer, self._full.pre_tokenizer
        normal = normalizer.normalize_str(text) if normalizer else text
        pieces = [piece for piece, _ in splitter.pre_tokenize_str(normal)] if splitter else [normal]
        return [token.id for piece in pieces for token in self._full.model.tokenize(piece)]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return text; special tokens are shown unless skipped."""
        return self._full.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def read(self, token_ids: Sequence[int]) -> str:
        """Return guarded text in which exactly the control ids read as control tokens."""
        return "".join(self._read(token_ids))

    def convert_tokens_to_ids(self, tokens: str) -> int | None:
        """Return the id of one token."""
        return self._full.token_to_id(tokens)

    @property
    def control_ids(self) -> Mapping[str, int]:
        """Ids of the control tokens by their text."""
        return self._control_ids

    def _encode_full(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        # The batch form lets other threads run meanwhile and keeps no offsets. Source: facts/proxy.md section 5.
        return self._full.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def _encode_piece(self, piece: str) -> list[int]:
        control = self._control_ids.get(piece)
        if control is not None:
            return [control]
        return self.encode_plain(self.unguard(piece)) if _MARK in piece else self._encode_full(piece)

    def _read(self, token_ids: Sequence[int]) -> Iterator[str]:
        run: list[int] = []
        for token in token_ids:
            control = self._control_texts.get(token)
            if control is None:
                run.append(token)
                continue
            yield self.guard(self.decode(run))
            yield control
            run = []
        yield self.guard(self.decode(run))


def _marked(token: str) -> str:
    return token[0] + _SPLIT + token[1:]


def _is_control(token: AddedToken) -> bool:
    return token.special or _CONTROL.fullmatch(token.content) is not None
