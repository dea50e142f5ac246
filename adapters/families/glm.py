"""GLM-4.5 to GLM-5.3: turns without an end token; what stops a turn is the role token of the next one.

The sampled stop is kept once: results follow a sampled ``<|observation|>`` directly. When the turn stopped on
another token than the next message begins with (it ended on ``<|user|>`` or ``<|endoftext|>`` although it called a
tool, or a system message comes first), nothing can follow exactly, and the bridge declares a break.

Source: facts/proxy.md section 2, facts/learning.md section 6.4; openings by PyPI ``renderers`` 0.1.12.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar, cast

from renderers.configs import GLM5RendererConfig, GLM45RendererConfig, GLM53RendererConfig
from renderers.glm5 import GLM5Renderer, GLM53Renderer
from renderers.glm45 import GLM45Renderer
from tokenizers import Tokenizer

from adapters.families.arguments import parameter_schema, typed_text
from adapters.families.library_openings import LibraryOpening
from adapters.families.native_family import NativeFamily, Reading
from adapters.families.turns import THINK, THINK_END
from domain.errors import ConfigurationError
from domain.records.canonical import Json
from domain.records.chat import ChatMessage, ToolCall, ToolSpec
from domain.records.family import FamilyOptions

USER, OBSERVATION, ASSISTANT, SYSTEM = "<|user|>", "<|observation|>", "<|assistant|>", "<|system|>"
EFFORTS = ("max", "high", "low")
_ROLE_TOKENS = {"user": USER, "tool": OBSERVATION, "system": SYSTEM}
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_ARGUMENT = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_NAME = re.compile(r"[^\s<]+")


class _GlmFamily(NativeFamily):
    controls: ClassVar[tuple[str, ...]] = (
        *("[gMASK]", "<sop>", SYSTEM, ASSISTANT, THINK, THINK_END, "<tool_call>", "</tool_call>"),
        *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    )
    stops: ClassVar[tuple[str, ...]] = (USER, OBSERVATION, "<|endoftext|>")
    call_openers: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    line: ClassVar[str] = ""
    """What stands after role tokens and between the parts of a call: a newline up to 4.6, nothing later."""
    wrapped_tools: ClassVar[bool] = True

    def __init__(self, tokenizer: Tokenizer, options: FamilyOptions | None = None) -> None:
        """Take a tokenizer that knows the format's control tokens. Raises ConfigurationError."""
        super().__init__(tokenizer, options)
        self._opening = LibraryOpening(self._tokens, self._renderer, wrapped=self.wrapped_tools)

    def _renderer(self, tokens: Any) -> object:
        return GLM5Renderer(tokens, GLM5RendererConfig(enable_thinking=self.options.thinking))

    def _open(self, system: str | None, tools: Sequence[ToolSpec]) -> Sequence[int]:
        return self._opening(system, tools)

    def _run(self, messages: Sequence[ChatMessage], stop: str | None) -> str:
        parts: list[str] = []
        for index, message in enumerate(messages):
            token = _ROLE_TOKENS[message.role]
            repeated = message.role == "tool" and index > 0 and messages[index - 1].role == "tool"
            sampled = index == 0 and stop == token
            parts.append(("" if repeated or sampled else token) + self._text(message))
        return "".join(parts)

    def _text(self, message: ChatMessage) -> str:
        if message.role == "tool":
            return f"{self.line}<tool_response>{self.line}{message.content}{self.line}</tool_response>"
        return self.line + message.content

    def _prompt(self, run: Sequence[ChatMessage]) -> str:
        del run
        return ASSISTANT + (THINK if self.options.thinking else THINK_END)

    def _body(self, turn: ChatMessage, stop: str) -> str:
        thought = f"{turn.reasoning.strip()}{THINK_END}" if self.options.thinking else ""
        return thought + self._said(turn) + stop

    def _forgotten(self, turn: ChatMessage, stop: str, run: Sequence[ChatMessage]) -> str:
        del run
        return ASSISTANT + THINK_END + self._said(turn) + stop

    def _said(self, turn: ChatMessage) -> str:
        content = turn.content.strip()
        return "".join([self.line + content if content else "", *(self._call(call) for call in turn.tool_calls)])

    def _call(self, call: ToolCall) -> str:
        line = self.line
        items = (call.arguments or {}).items()
        arguments = "".join(
            f"<arg_key>{key}</arg_key>{line}<arg_value>{_value(value)}</arg_value>{line}" for key, value in items
        )
        unread = call.raw if call.arguments is None else ""
        return f"{line}<tool_call>{call.name}{line}{arguments}{unread}</tool_call>"

    def _stop(self, turn: ChatMessage, follower: str | None) -> str:
        if follower == "system":
            return ""  # its token stops no turn; it comes with the message
        if follower is None:
            return OBSERVATION if turn.tool_calls else USER
        return OBSERVATION if follower == "tool" else USER

    def _suffix(self, messages: Sequence[ChatMessage], stop: str | None) -> str | None:
        if stop is not None and stop != _ROLE_TOKENS[messages[0].role]:
            return None
        return self._run(messages, stop) + self._prompt(messages)

    def _trim(self, reasoning: str, rest: str) -> tuple[str, str]:
        return reasoning.strip("\n"), rest.lstrip("\n")

    def _read(self, text: str, tools: Sequence[ToolSpec], *, stopped: bool) -> Reading | None:
        if "<tool_call>" not in text:
            return Reading(text=text)
        rest = _CALL.sub("", text)
        if not stopped or "<tool_call>" in rest or "</tool_call>" in rest:
            return None
        calls = [self._read_arguments(found.group(1), tools) for found in _CALL.finditer(text)]
        if any(call is None for call in calls):
            return None
        return Reading(text=rest.strip("\n"), calls=tuple(call for call in calls if call is not None))

    def _read_arguments(self, written: str, tools: Sequence[ToolSpec]) -> ToolCall | None:
        head, opener, _ = written.partition("<arg_key>")
        if not _NAME.fullmatch(head.strip()):
            return None
        name, arguments = self._tokens.unguard(head.strip()), dict[str, Json]()
        body = written[len(head) :] if opener else ""
        if _ARGUMENT.sub("", body).strip():
            return None
        for found in _ARGUMENT.finditer(body):
            key = self._tokens.unguard(found.group(1)).strip()
            value = self._tokens.unguard(found.group(2))
            arguments[key] = typed_text(value, parameter_schema(tools, name, key))
        return self._read_call(name, arguments, written.strip("\n"))


class Glm45Family(_GlmFamily):
    """GLM-4.5: the model opens its reasoning itself; ``/nothink`` after user text keeps it from reasoning."""

    family: ClassVar[str] = "glm-4.5"
    line: ClassVar[str] = "\n"

    def _renderer(self, tokens: Any) -> object:
        return GLM45Renderer(tokens, GLM45RendererConfig(enable_thinking=self.options.thinking))

    def _text(self, message: ChatMessage) -> str:
        quiet = message.role == "user" and not self.options.thinking and not message.content.endswith("/nothink")
        return super()._text(message) + ("/nothink" if quiet else "")

    def _prompt(self, run: Sequence[ChatMessage]) -> str:
        del run
        return ASSISTANT + ("" if self.options.thinking else f"\n{THINK}{THINK_END}")

    def _body(self, turn: ChatMessage, stop: str) -> str:
        thought = f"\n{THINK}{turn.reasoning.strip()}{THINK_END}" if self.options.thinking else ""
        return thought + self._said(turn) + stop

    def _forgotten(self, turn: ChatMessage, stop: str, run: Sequence[ChatMessage]) -> str:
        del run
        return f"{ASSISTANT}\n{THINK}{THINK_END}{self._said(turn)}{stop}"


class Glm46Family(Glm45Family):
    """GLM-4.6: as 4.5."""

    family: ClassVar[str] = "glm-4.6"


class Glm47Family(_GlmFamily):
    """GLM-4.7: no newlines; the prompt opens the reasoning or closes it."""

    family: ClassVar[str] = "glm-4.7"


class Glm5Family(_GlmFamily):
    """GLM-5: as 4.7."""

    family: ClassVar[str] = "glm-5"


class Glm53Family(_GlmFamily):
    """GLM-5.3: an effort segment, reasoning always opened and always kept."""

    family: ClassVar[str] = "glm-5.3"
    wrapped_tools: ClassVar[bool] = False
    always_thinks: ClassVar[bool] = True
    drops_reasoning: ClassVar[bool] = False

    def _renderer(self, tokens: Any) -> object:
        effort = self.options.effort or EFFORTS[0]
        if effort not in EFFORTS:
            raise ConfigurationError(f"family {self.family}: no effort {effort!r}", hint=f"use {', '.join(EFFORTS)}")
        return GLM53Renderer(tokens, GLM53RendererConfig(reasoning_effort=cast("Any", effort)))


def _value(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
