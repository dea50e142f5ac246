"""Qwen2.5, Qwen3 and Qwen3-2507: ChatML with tool calls as JSON.

Source: facts/proxy.md section 2, facts/learning.md section 6.1; openings by PyPI ``renderers`` 0.1.12.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from renderers.configs import Qwen3RendererConfig
from renderers.qwen3 import Qwen3Renderer
from tokenizers import Tokenizer

from adapters.families.arguments import read_json, typed_object, written_arguments
from adapters.families.chatml import END, NO_THINKING, START, ChatMLFamily
from adapters.families.library_openings import LibraryOpening, tool_json
from adapters.families.native_family import TOKENIZER_FILE, Reading
from domain.records.chat import ChatMessage, ToolCall, ToolSpec
from domain.records.family import FamilyOptions

__all__ = ["TOKENIZER_FILE", "Qwen3Family", "Qwen3InstructFamily", "Qwen3ThinkingFamily", "Qwen25Family"]

# A close that is missing before the next call is accepted. Source: facts/proxy.md section 2 ("Parsing rules").
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>))", re.DOTALL)
_QWEN25_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
_TOOLS_BEFORE = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_TOOLS_AFTER = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    'within <tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, '
    '"arguments": <args-json-object>}\n</tool_call>'
)


class _JsonCalls(ChatMLFamily):
    """``<tool_call>``, newline, ``{"name": ..., "arguments": {...}}``, newline, ``</tool_call>``."""

    def _said(self, turn: ChatMessage) -> str:
        calls = "\n".join(f"<tool_call>\n{_call_json(call)}\n</tool_call>" for call in turn.tool_calls)
        return turn.content + ("\n" if turn.content and calls else "") + calls

    def _read(self, text: str, tools: Sequence[ToolSpec], *, stopped: bool) -> Reading | None:
        if "<tool_call>" not in text:
            return Reading(text=text)
        rest = _CALL.sub("", text)
        if not stopped or "<tool_call>" in rest or "</tool_call>" in rest:
            return None
        calls = [self._call(found.group(1), tools) for found in _CALL.finditer(text)]
        if any(call is None for call in calls):
            return None
        before = text[: text.index("<tool_call>")].removesuffix("\n")
        after = rest[text.index("<tool_call>") :].strip("\n")
        return Reading(text=before + after, calls=tuple(call for call in calls if call is not None))

    def _call(self, written: str, tools: Sequence[ToolSpec]) -> ToolCall | None:
        value = read_json(self._tokens.unguard(written))
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
            return None
        name, arguments = str(value["name"]), value.get("arguments")
        if not isinstance(arguments, Mapping):
            return None
        return self._read_call(name, typed_object(arguments, tools, name), written.strip("\n"))


def _call_json(call: ToolCall) -> str:
    return f'{{"name": "{call.name}", "arguments": {written_arguments(call)}}}'


class _Qwen3Opening(_JsonCalls):
    """Prompts begin as the library has it."""

    controls: ClassVar[tuple[str, ...]] = (*ChatMLFamily.controls, "<tool_response>", "</tool_response>", "</think>")

    def __init__(self, tokenizer: Tokenizer, options: FamilyOptions | None = None) -> None:
        super().__init__(tokenizer, options)
        self._opening = LibraryOpening(
            self._tokens, lambda tokens: Qwen3Renderer(tokens, Qwen3RendererConfig()), wrapped=True
        )

    def _open(self, system: str | None, tools: Sequence[ToolSpec]) -> Sequence[int]:
        return self._opening(system, tools)


class Qwen25Family(_JsonCalls):
    """Qwen2.5: no reasoning; a default system message when there is none.

    The opening is ours: the library's renderer of this format asks for tokens that only Qwen3 has.
    """

    family: ClassVar[str] = "qwen2.5"
    drops_reasoning: ClassVar[bool] = False

    def _open(self, system: str | None, tools: Sequence[ToolSpec]) -> Sequence[int]:
        declared = "".join(f"\n{json.dumps(tool_json(tool, wrapped=True), ensure_ascii=False)}" for tool in tools)
        text = _QWEN25_SYSTEM if system is None else system
        text += f"\n\n{_TOOLS_BEFORE}{declared}{_TOOLS_AFTER}" if tools else ""
        return self._tokens.encode(f"{START}system\n{text}{END}\n")

    def _reasons(self) -> bool:
        return False


class Qwen3Family(_Qwen3Opening):
    """Qwen3 (hybrid): the model opens its reasoning itself; without thinking the prompt holds an empty block."""

    family: ClassVar[str] = "qwen3"

    def _prompt(self, run: Sequence[ChatMessage]) -> str:
        return super()._prompt(run) + ("" if self.options.thinking else NO_THINKING)


class Qwen3InstructFamily(_Qwen3Opening):
    """Qwen3-2507 Instruct: no reasoning."""

    family: ClassVar[str] = "qwen3-instruct-2507"
    drops_reasoning: ClassVar[bool] = False

    def _reasons(self) -> bool:
        return False


class Qwen3ThinkingFamily(_Qwen3Opening):
    """Qwen3-2507 Thinking: the prompt opens the reasoning."""

    family: ClassVar[str] = "qwen3-thinking-2507"
    always_thinks: ClassVar[bool] = True

    def _prompt(self, run: Sequence[ChatMessage]) -> str:
        return super()._prompt(run) + "<think>\n"
