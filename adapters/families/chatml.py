"""ChatML turns, shared by the Qwen families.

Source: facts/proxy.md section 2; chat templates of Qwen2.5 to Qwen3.8 (PyPI ``trl`` 1.16.0, ``chat_templates``).
"""

from abc import abstractmethod
from collections.abc import Sequence
from itertools import groupby
from typing import ClassVar

from adapters.families.native_family import NativeFamily
from adapters.families.turns import THINK, THINK_END
from domain.records.chat import ChatMessage

START, END = "<|im_start|>", "<|im_end|>"
NO_THINKING = f"{THINK}\n\n{THINK_END}\n\n"


class ChatMLFamily(NativeFamily):
    """``<|im_start|>role``, newline, text, ``<|im_end|>``, newline; neighbouring tool results share a user turn."""

    controls: ClassVar[tuple[str, ...]] = (START, "<tool_call>", "</tool_call>")
    stops: ClassVar[tuple[str, ...]] = (END, "<|endoftext|>")
    call_openers: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    between: ClassVar[str] = "\n"
    trims: ClassVar[bool] = False
    """Whether the template trims every text."""

    def _run(self, messages: Sequence[ChatMessage], stop: str | None) -> str:
        del stop
        parts: list[str] = []
        for is_result, group in groupby(messages, key=lambda message: message.role == "tool"):
            texts = [(message.role, self._text(message.content)) for message in group]
            if is_result:
                parts.append(f"{START}user{self._results([text for _, text in texts])}{END}\n")
            else:
                parts += [f"{START}{role}\n{text}{END}\n" for role, text in texts]
        return "".join(parts)

    def _results(self, texts: Sequence[str]) -> str:
        return "".join(f"\n<tool_response>\n{text}\n</tool_response>" for text in texts)

    def _prompt(self, run: Sequence[ChatMessage]) -> str:
        del run
        return f"{START}assistant\n"

    def _forgotten(self, turn: ChatMessage, stop: str, run: Sequence[ChatMessage]) -> str:
        del run
        return f"{START}assistant\n{self._said(turn)}{stop}"

    def _body(self, turn: ChatMessage, stop: str) -> str:
        return self._thought(turn) + self._said(turn) + stop

    def _thought(self, turn: ChatMessage) -> str:
        """Return the reasoning as the model writes it after the prompt."""
        prompt = self._prompt(())
        if prompt.endswith(f"{THINK}\n"):
            return f"{turn.reasoning}\n{THINK_END}\n\n"
        if not turn.reasoning or not self._reasons():
            return ""  # a turn that does not reason has no block; nor has one after a closed one
        return f"{THINK}\n{turn.reasoning}\n{THINK_END}\n\n"

    @abstractmethod
    def _said(self, turn: ChatMessage) -> str:
        """Return text and calls."""

    def _text(self, text: str) -> str:
        return text.strip() if self.trims else text

    def _trim(self, reasoning: str, rest: str) -> tuple[str, str]:
        return reasoning.strip("\n"), rest.lstrip("\n")
