"""Qwen3-Coder and Qwen3.5 to 3.8: ChatML with tool calls as tagged parameters.

Mid-conversation system messages stay where they are, although the templates of 3.5 and later refuse them.
Source: facts/proxy.md section 2; chat templates in PyPI ``trl`` 1.16.0; openings of 3.5 and later by PyPI
``renderers`` 0.1.12.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from renderers.configs import Qwen35RendererConfig, Qwen38RendererConfig
from renderers.qwen35 import Qwen35Renderer
from renderers.qwen38 import Qwen38Renderer
from tokenizers import Tokenizer

from adapters.families.arguments import parameter_schema, read_json, typed_object, typed_text
from adapters.families.chatml import END, NO_THINKING, START, ChatMLFamily
from adapters.families.coder_tools import coder_tools
from adapters.families.library_openings import LibraryOpening
from adapters.families.native_family import Reading
from adapters.families.turns import THINK
from domain.errors import ConfigurationError
from domain.records.canonical import Json
from domain.records.chat import ChatMessage, ToolCall, ToolSpec
from domain.records.family import FamilyOptions

EFFORTS = ("xhigh", "medium", "low")

# Accepted as vLLM does: no close before the next call, a function without the wrapper.
_BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>))", re.DOTALL)
_BARE = re.compile(r"^(<function=[^>\n]+>\n.*?</function>)", re.DOTALL | re.MULTILINE)
_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>(.*?)</parameter>", re.DOTALL)


class _XmlCalls(ChatMLFamily):
    """``<function=NAME>`` with ``<parameter=KEY>`` blocks inside ``<tool_call>``."""

    python_scalars: ClassVar[bool] = True
    """Numbers and booleans are written as Python does (``True``), not as JSON."""

    def _said(self, turn: ChatMessage) -> str:
        content = turn.content.strip() if turn.tool_calls or self.trims else turn.content
        calls = "\n".join(self._call(call) for call in turn.tool_calls)
        return content + ("\n\n" if content and calls else "") + calls

    def _call(self, call: ToolCall) -> str:
        items = (call.arguments or {}).items()
        parameters = "".join(f"<parameter={key}>\n{self._value(value)}\n</parameter>\n" for key, value in items)
        unread = call.raw + "\n" if call.arguments is None and call.raw else ""
        return f"<tool_call>\n<function={call.name}>\n{parameters}{unread}</function>\n</tool_call>"

    def _value(self, value: Json) -> str:
        if isinstance(value, str):
            return value
        if self.python_scalars and not isinstance(value, Mapping | Sequence):
            return str(value)
        return json.dumps(value, ensure_ascii=False)

    def _read(self, text: str, tools: Sequence[ToolSpec], *, stopped: bool) -> Reading | None:
        pattern = _BLOCK if "<tool_call>" in text else _BARE
        found = list(pattern.finditer(text))
        if pattern is _BARE and not found:
            return Reading(text=text)
        rest = pattern.sub("", text)
        if not stopped or "<tool_call>" in rest or "</tool_call>" in rest:
            return None
        calls = [self._read_function(one.group(1), tools) for one in found]
        if any(call is None for call in calls):
            # Prose about a function is no call: without the wrapper token, only what can be read counts.
            return None if pattern is _BLOCK else Reading(text=text)
        start = found[0].start()
        return Reading(
            text=text[:start].rstrip("\n") + rest[start:].strip("\n"),
            calls=tuple(call for call in calls if call is not None),
        )

    def _read_function(self, written: str, tools: Sequence[ToolSpec]) -> ToolCall | None:
        function = _FUNCTION.fullmatch(written)
        if function is None:
            return self._read_json_call(written, tools)
        name = self._tokens.unguard(function.group(1)).strip()
        body, arguments = function.group(2), dict[str, Json]()
        if _PARAMETER.sub("", body).strip():
            return None
        for found in _PARAMETER.finditer(body):
            if "<parameter=" in found.group(2) or "</function>" in found.group(2):
                return None
            key = self._tokens.unguard(found.group(1)).strip()
            # One newline on each side belongs to the format.
            value = self._tokens.unguard(found.group(2)).removeprefix("\n").removesuffix("\n")
            arguments[key] = typed_text(value, parameter_schema(tools, name, key))
        return self._read_call(name, arguments, written.strip("\n"))

    def _read_json_call(self, written: str, tools: Sequence[ToolSpec]) -> ToolCall | None:
        """Read a call in the JSON form of the older models, which these write now and then."""
        value = read_json(self._tokens.unguard(written))
        arguments = value.get("arguments") if isinstance(value, Mapping) else None
        if not isinstance(value, Mapping) or not isinstance(arguments, Mapping):
            return None
        name = str(value.get("name") or "")
        return self._read_call(name, typed_object(arguments, tools, name), written.strip("\n"))


class Qwen3CoderFamily(_XmlCalls):
    """Qwen3-Coder: no reasoning, tools as a list of tags, newlines around results of its own.

    The opening is ours: the library has no renderer of this family.
    """

    family: ClassVar[str] = "qwen3-coder"
    drops_reasoning: ClassVar[bool] = False

    def _open(self, system: str | None, tools: Sequence[ToolSpec]) -> Sequence[int]:
        text = coder_tools(system, tools)
        return self._tokens.encode(f"{START}system\n{text}{END}\n") if text is not None else ()

    def _results(self, texts: Sequence[str]) -> str:
        return "\n" + "".join(f"<tool_response>\n{text}\n</tool_response>\n" for text in texts)

    def _reasons(self) -> bool:
        return False


class Qwen35Family(_XmlCalls):
    """Qwen3.5: tools before the system text; the prompt opens the reasoning or closes it; texts are trimmed."""

    family: ClassVar[str] = "qwen3.5"
    controls: ClassVar[tuple[str, ...]] = (*ChatMLFamily.controls, "<tool_response>", "</tool_response>", "</think>")
    trims: ClassVar[bool] = True

    def __init__(self, tokenizer: Tokenizer, options: FamilyOptions | None = None) -> None:
        """Take a tokenizer that knows the format's control tokens. Raises ConfigurationError."""
        super().__init__(tokenizer, options)
        self._opening = LibraryOpening(self._tokens, self._renderer)

    def _renderer(self, tokens: Any) -> object:
        return Qwen35Renderer(tokens, Qwen35RendererConfig(enable_thinking=self.options.thinking))

    def _open(self, system: str | None, tools: Sequence[ToolSpec]) -> Sequence[int]:
        return self._opening(system, tools)

    def _prompt(self, run: Sequence[ChatMessage]) -> str:
        return super()._prompt(run) + (f"{THINK}\n" if self.options.thinking else NO_THINKING)


class Qwen36Family(Qwen35Family):
    """Qwen3.6: as 3.5, scalars as JSON; its template can keep all reasoning by itself (``preserve_thinking``)."""

    family: ClassVar[str] = "qwen3.6"
    python_scalars: ClassVar[bool] = False


class Qwen38Family(Qwen35Family):
    """Qwen3.8: as 3.5 with an effort sentence in the system text; reasoning is always kept, scalars are JSON."""

    family: ClassVar[str] = "qwen3.8"
    python_scalars: ClassVar[bool] = False
    drops_reasoning: ClassVar[bool] = False

    def _renderer(self, tokens: Any) -> object:
        effort = self.options.effort or EFFORTS[0]
        if effort not in EFFORTS:
            raise ConfigurationError(f"family {self.family}: no effort {effort!r}", hint=f"use {', '.join(EFFORTS)}")
        config = Qwen38RendererConfig(enable_thinking=self.options.thinking, reasoning_effort=cast("Any", effort))
        return Qwen38Renderer(tokens, cast("Any", config))  # its constructor is annotated for 3.5
