"""DeepSeek V4 and V4.1: DSML tool calls, tool results inside user turns.

All of it is ours: the library has V4 without V4.1 and demands task tokens that V4.1 does not have; it glues system
messages in the middle of a conversation to the text before them.

Source: facts/proxy.md section 2, facts/learning.md section 6.1, ``native_formats.json``; PyPI ``renderers`` 0.1.12
(``deepseek_v4``) for the words of V4.
"""

import json
import re
from collections.abc import Sequence
from typing import ClassVar

from adapters.families.arguments import parameter_schema, read_json, typed_json, typed_text
from adapters.families.library_openings import tool_json
from adapters.families.native_family import NativeFamily, Reading
from adapters.families.turns import THINK, THINK_END
from domain.errors import ConfigurationError
from domain.records.canonical import Json
from domain.records.chat import ChatMessage, ToolCall, ToolSpec

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT, SYSTEM = "<｜User｜>", "<｜Assistant｜>", "<｜System｜>"
DSML = "｜DSML｜"
_INVOKE_NAME = re.compile(r'\s*name="([^"]*)"\s*>(.*)', re.DOTALL)
_EFFORT = "Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)"
DEFAULT_EFFORT = "75"

_TOOLS = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<{calls}>" \
block like the following:

<{calls}>
<{invoke} name="$TOOL_NAME">
<{parameter} name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{parameter}>
...
</{invoke}>
<{invoke} name="$TOOL_NAME2">
...
</{invoke}>
</{calls}>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, \
objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside \
<think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

{schemas}

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""


class DeepSeekV4Family(NativeFamily):
    """DeepSeek V4: reasoning is forgotten unless tools are declared."""

    family: ClassVar[str] = "deepseek-v4"
    controls: ClassVar[tuple[str, ...]] = (BOS, USER, ASSISTANT, THINK, THINK_END, DSML)
    stops: ClassVar[tuple[str, ...]] = (EOS,)
    forgets_at_once: ClassVar[bool] = True  # results are user turns for it
    calls_tag: ClassVar[str] = f"{DSML}tool_calls"
    invoke_tag: ClassVar[str] = f"{DSML}invoke"
    parameter_tag: ClassVar[str] = f"{DSML}parameter"
    call_openers: ClassVar[tuple[str, ...]] = (f"\n\n<{DSML}tool_calls>", f"<{DSML}")

    def _open(self, system: str | None, tools: Sequence[ToolSpec]) -> Sequence[int]:
        return self._tokens.encode(BOS + self._joined_parts([system or "", self._declared(tools)]))

    def _joined_parts(self, parts: Sequence[str]) -> str:
        return "\n\n".join(part for part in parts if part)

    def _declared(self, tools: Sequence[ToolSpec]) -> str:
        if not tools:
            return ""
        schemas = "\n".join(json.dumps(tool_json(tool, wrapped=False), ensure_ascii=False) for tool in tools)
        tags = {"calls": self.calls_tag, "invoke": self.invoke_tag, "parameter": self.parameter_tag}
        return _TOOLS.format(**tags, schemas=schemas)

    def _forgets(self, *, has_tools: bool) -> bool:
        return self.options.thinking and not has_tools

    def _run(self, messages: Sequence[ChatMessage], stop: str | None) -> str:
        del stop
        return USER + "\n\n".join(_block(message) for message in messages) if messages else ""

    def _prompt(self, run: Sequence[ChatMessage]) -> str:
        del run
        return ASSISTANT + (THINK if self.options.thinking else THINK_END)

    def _body(self, turn: ChatMessage, stop: str) -> str:
        thought = turn.reasoning + THINK_END if self.options.thinking else ""
        return thought + self._said(turn) + stop

    def _forgotten(self, turn: ChatMessage, stop: str, run: Sequence[ChatMessage]) -> str:
        del run
        return ASSISTANT + THINK_END + self._said(turn) + stop

    def _said(self, turn: ChatMessage) -> str:
        if not turn.tool_calls:
            return turn.content
        calls = "\n".join(self._call(call) for call in turn.tool_calls)
        return f"{turn.content}\n\n<{self.calls_tag}>\n{calls}\n</{self.calls_tag}>"

    def _call(self, call: ToolCall) -> str:
        lines = [self._parameter(key, value) for key, value in (call.arguments or {}).items()]
        lines += [call.raw] if call.arguments is None and call.raw else []
        inner = "\n".join(lines)
        return f'<{self.invoke_tag} name="{call.name}">\n{inner}\n</{self.invoke_tag}>'

    def _parameter(self, key: str, value: Json) -> str:
        is_string = isinstance(value, str)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        tag = self.parameter_tag
        return f'<{tag} name="{key}" string="{str(is_string).lower()}">{text}</{tag}>'

    def _read(self, text: str, tools: Sequence[ToolSpec], *, stopped: bool) -> Reading | None:
        if DSML not in text:
            return Reading(text=text)
        before, opened, section = text.partition(f"<{self.calls_tag}>")
        section, closed, after = section.partition(f"</{self.calls_tag}>")
        if not stopped or not opened or not closed or after.strip():
            return None
        invoke = re.compile(f"<{self.invoke_tag}(.*?)</{self.invoke_tag}>", re.DOTALL)
        found = list(invoke.finditer(section))
        if not found or invoke.sub("", section).strip():
            return None
        calls = [self._read_invoke(one.group(1), tools) for one in found]
        if any(call is None for call in calls):
            return None
        return Reading(text=before.removesuffix("\n\n"), calls=tuple(call for call in calls if call is not None))

    def _read_invoke(self, written: str, tools: Sequence[ToolSpec]) -> ToolCall | None:
        head = _INVOKE_NAME.fullmatch(written)
        if head is None:
            return None
        tag = self.parameter_tag
        parameter = re.compile(rf'\s*<{tag}\s+name="([^"]*)"\s+string="(true|false)"\s*>(.*?)</{tag}>', re.DOTALL)
        name, arguments = self._tokens.unguard(head.group(1)), dict[str, Json]()
        if parameter.sub("", head.group(2)).strip():
            return None
        for found in parameter.finditer(head.group(2)):
            key, value = self._tokens.unguard(found.group(1)), self._tokens.unguard(found.group(3))
            read = _typed(value, tools, name, key, is_string=found.group(2) == "true")
            if key in arguments or read is None:
                return None
            arguments[key] = read[0]
        return self._read_call(name, arguments, written)


class DeepSeekV41Family(DeepSeekV4Family):
    """DeepSeek V4.1: a system token and an effort line; ``effort`` is ``"1"`` to ``"100"``."""

    family: ClassVar[str] = "deepseek-v4.1"
    controls: ClassVar[tuple[str, ...]] = (*DeepSeekV4Family.controls, SYSTEM)
    calls_tag: ClassVar[str] = f"{DSML} calls"
    invoke_tag: ClassVar[str] = f"{DSML} invoke"
    parameter_tag: ClassVar[str] = f"{DSML} parameter"
    call_openers: ClassVar[tuple[str, ...]] = (f"\n\n<{DSML} calls>", f"<{DSML}")

    def _open(self, system: str | None, tools: Sequence[ToolSpec]) -> Sequence[int]:
        text = self._joined_parts([self._effort(), system or "", self._declared(tools)])
        return self._tokens.encode(BOS + (SYSTEM + text if text else ""))

    def _effort(self) -> str:
        if not self.options.thinking:
            return ""
        effort = self.options.effort or DEFAULT_EFFORT
        if not effort.isascii() or not effort.isdigit() or not 1 <= int(effort) <= 100:  # noqa: PLR2004 - its own range
            raise ConfigurationError(f"family {self.family}: no effort {effort!r}", hint="use 1 to 100")
        return _EFFORT.format(effort)

    def _run(self, messages: Sequence[ChatMessage], stop: str | None) -> str:
        parts: list[str] = []
        spoken: list[ChatMessage] = []
        for message in messages:
            if message.role != "system":
                spoken.append(message)
                continue
            parts += [super()._run(spoken, stop), SYSTEM + message.content]
            spoken = []
        return "".join([*parts, super()._run(spoken, stop)])


def _block(message: ChatMessage) -> str:
    return f"<tool_result>{message.content}</tool_result>" if message.role == "tool" else message.content


def _typed(text: str, tools: Sequence[ToolSpec], name: str, key: str, *, is_string: bool) -> tuple[Json] | None:
    """Return the value of a parameter; None when it says that it is JSON and is not."""
    schema = parameter_schema(tools, name, key)
    if is_string:
        return (typed_json(text, schema),)
    value = read_json(text)
    if value is None and text.strip() != "null":
        return None
    return (typed_text(text, schema) if schema and not isinstance(value, str) else value,)
