"""DeepSeek V3, R1 and V3.1: no turn end but ``<｜end▁of▁sentence｜>``, tool calls between tokens of their own.

All of it is ours: the library's renderers of these formats leave tools out of the prompt, prefill R1 differently from
the given vectors, and have no V3.1 at all. System messages in the middle of a conversation have no token here and
become user turns in place (the template moves them to the front, which would change every prompt).

Source: facts/proxy.md section 2, facts/learning.md sections 6.1 and 6.4; vllm-project/vllm,
``examples/tool_chat_template_deepseekv3.jinja`` and ``...v31.jinja``; PyPI ``trl`` 1.16.0, ``deepseekv3.jinja``.
"""

import json
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from adapters.families.arguments import read_json, typed_object, written_arguments
from adapters.families.library_openings import tool_json
from adapters.families.native_family import NativeFamily, Reading
from adapters.families.turns import THINK, THINK_END
from domain.records.chat import ChatMessage, ToolCall, ToolSpec

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEPARATOR, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
OUTPUT, OUTPUT_END = "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"
OUTPUTS, OUTPUTS_END = "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"

_CALL = re.compile(f"{CALL}(.*?){SEPARATOR}(.*?){CALL_END}", re.DOTALL)
_FENCED = re.compile(r"\s*([^\n]+)\n```(?:json)?\n(.*?)\n?```\s*", re.DOTALL)


class _DeepSeekFamily(NativeFamily):
    controls: ClassVar[tuple[str, ...]] = (BOS, USER, ASSISTANT, CALLS, CALLS_END, CALL, SEPARATOR, CALL_END)
    stops: ClassVar[tuple[str, ...]] = (EOS,)
    call_openers: ClassVar[tuple[str, ...]] = (CALLS,)
    continues_after_results: ClassVar[bool] = True

    def _open(self, system: str | None, tools: Sequence[ToolSpec]) -> Sequence[int]:
        return self._tokens.encode(BOS + (system or "") + (self._declared(tools) if tools else ""))

    @abstractmethod
    def _declared(self, tools: Sequence[ToolSpec]) -> str:
        """Return the text that declares tools."""

    @abstractmethod
    def _results(self, texts: Sequence[str]) -> str:
        """Return neighbouring tool results."""

    @abstractmethod
    def _call(self, call: ToolCall) -> str:
        """Return one call."""

    @abstractmethod
    def _read_body(self, head: str, body: str, tools: Sequence[ToolSpec]) -> ToolCall | None:
        """Read what stands on both sides of the separator."""

    def _run(self, messages: Sequence[ChatMessage], stop: str | None) -> str:
        del stop
        parts: list[str] = []
        results: list[str] = []
        for message in messages:
            if message.role == "tool":
                results.append(message.content)
                continue
            parts += [self._results(results), USER + message.content]
            results = []
        return "".join([*parts, self._results(results)])

    def _prompt(self, run: Sequence[ChatMessage]) -> str:
        # After results the model goes on by itself.
        return "" if run and run[-1].role == "tool" else ASSISTANT + self._prefill()

    def _prefill(self) -> str:
        return ""

    def _said(self, turn: ChatMessage) -> str:
        if not turn.tool_calls:
            return turn.content
        return turn.content + CALLS + self._joined([self._call(call) for call in turn.tool_calls]) + CALLS_END

    def _joined(self, calls: Sequence[str]) -> str:
        return "".join(calls)

    def _read(self, text: str, tools: Sequence[ToolSpec], *, stopped: bool) -> Reading | None:
        before, opened, section = text.partition(CALLS)
        if not opened:
            return Reading(text=text)
        # What a model writes after its calls is dropped. Source: facts/proxy.md section 2 ("Parsing rules").
        section, closed, _ = section.partition(CALLS_END)
        found = list(_CALL.finditer(section))
        if not stopped or not closed or not found or _CALL.sub("", section).strip():
            return None
        calls = [self._read_body(one.group(1), one.group(2), tools) for one in found]
        if any(call is None for call in calls):
            return None
        return Reading(text=before, calls=tuple(call for call in calls if call is not None))

    def _read_arguments(self, name: str, written: str, tools: Sequence[ToolSpec]) -> ToolCall | None:
        value = read_json(self._tokens.unguard(written))
        if not isinstance(value, Mapping):
            return None
        return self._read_call(name, typed_object(value, tools, self._tokens.unguard(name).strip()), written)


class DeepSeekV3Family(_DeepSeekFamily):
    """DeepSeek V3: no reasoning; calls as ``function``, a name and a fenced JSON block."""

    family: ClassVar[str] = "deepseek-v3"
    controls: ClassVar[tuple[str, ...]] = (*_DeepSeekFamily.controls, OUTPUTS, OUTPUTS_END, OUTPUT, OUTPUT_END)
    drops_reasoning: ClassVar[bool] = False

    def _declared(self, tools: Sequence[ToolSpec]) -> str:
        listed = "".join(f"\n{json.dumps(tool_json(tool, wrapped=True), ensure_ascii=False)}" for tool in tools)
        return (
            "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
            f"You are provided with function signatures within <tools></tools> XML tags:\n<tools>{listed}\n</tools>\n\n"
            f"For function call returns, you should first print {CALLS}"
            "For each function call, you should return object like:\n"
            f"{CALL}function{SEPARATOR}<function_name>\n```json\n<function_arguments_in_json_format>\n```{CALL_END}"
            f"At the end of function call returns, you should print {CALLS_END}{EOS}"
        )

    def _results(self, texts: Sequence[str]) -> str:
        if not texts:
            return ""
        return OUTPUTS + "".join(f"{OUTPUT}{text}{OUTPUT_END}" for text in texts) + OUTPUTS_END

    def _body(self, turn: ChatMessage, stop: str) -> str:
        return self._said(turn) + stop

    def _forgotten(self, turn: ChatMessage, stop: str, run: Sequence[ChatMessage]) -> str:
        header = "" if run and run[-1].role == "tool" else ASSISTANT
        return header + self._said(turn) + stop

    def _reasons(self) -> bool:
        return False

    def _call(self, call: ToolCall) -> str:
        return f"{CALL}function{SEPARATOR}{call.name}\n```json\n{written_arguments(call)}\n```{CALL_END}"

    def _joined(self, calls: Sequence[str]) -> str:
        return "\n".join(calls)

    def _read_body(self, head: str, body: str, tools: Sequence[ToolSpec]) -> ToolCall | None:
        found = _FENCED.fullmatch(body)
        return (
            None if found is None or not head.strip() else self._read_arguments(found.group(1), found.group(2), tools)
        )


class DeepSeekR1Family(DeepSeekV3Family):
    """DeepSeek R1: as V3, and the prompt opens the reasoning, after tool results too."""

    family: ClassVar[str] = "deepseek-r1"
    always_thinks: ClassVar[bool] = True
    drops_reasoning: ClassVar[bool] = True
    forgets_at_once: ClassVar[bool] = True
    continues_after_results: ClassVar[bool] = False

    def _prompt(self, run: Sequence[ChatMessage]) -> str:
        return super()._prompt(run) + f"{THINK}\n"

    def _reasons(self) -> bool:
        return True

    def _body(self, turn: ChatMessage, stop: str) -> str:
        return f"{turn.reasoning}\n{THINK_END}\n\n{self._said(turn)}{stop}"

    def _trim(self, reasoning: str, rest: str) -> tuple[str, str]:
        return reasoning.strip("\n"), rest.lstrip("\n")


class DeepSeekV31Family(_DeepSeekFamily):
    """DeepSeek V3.1: the prompt opens the reasoning or closes it; after tool results there is no prompt at all."""

    family: ClassVar[str] = "deepseek-v3.1"
    controls: ClassVar[tuple[str, ...]] = (*_DeepSeekFamily.controls, OUTPUT, OUTPUT_END, THINK, THINK_END)

    def _declared(self, tools: Sequence[ToolSpec]) -> str:
        listed = "".join(
            f"\n### {tool.name}\nDescription: {tool.description}\n\n"
            f"Parameters: {json.dumps(tool.schema, ensure_ascii=False)}\n"
            for tool in tools
        )
        return (
            f"\n\n## Tools\nYou have access to the following tools:\n{listed}\n"
            "IMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
            f"{CALLS}{CALL}tool_call_name{SEPARATOR}tool_call_arguments{CALL_END}{CALLS_END}\n\n"
            "Where:\n- `tool_call_name` must be an exact match to one of the available tools\n"
            "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n"
            "- For multiple tool calls, chain them directly without separators or spaces"
        )

    def _results(self, texts: Sequence[str]) -> str:
        return "".join(f"{OUTPUT}{text}{OUTPUT_END}" for text in texts)

    def _prefill(self) -> str:
        return THINK if self.options.thinking else THINK_END

    def _conversation_body(self, turn: ChatMessage, stop: str, *, opened: bool) -> str:
        if opened:
            return f"{turn.reasoning}{THINK_END}{self._said(turn)}{stop}"
        thought = f"{THINK}{turn.reasoning}{THINK_END}" if turn.reasoning and self.options.thinking else ""
        return thought + self._said(turn) + stop

    def _body(self, turn: ChatMessage, stop: str) -> str:
        return self._conversation_body(turn, stop, opened=self.options.thinking)

    def _body_after(self, turn: ChatMessage, stop: str, run: Sequence[ChatMessage]) -> str:
        opened = self.options.thinking and not (run and run[-1].role == "tool")
        return self._conversation_body(turn, stop, opened=opened)

    def _forgotten(self, turn: ChatMessage, stop: str, run: Sequence[ChatMessage]) -> str:
        header = "" if run and run[-1].role == "tool" else ASSISTANT + THINK_END
        return header + self._said(turn) + stop

    def _call(self, call: ToolCall) -> str:
        return f"{CALL}{call.name}{SEPARATOR}{written_arguments(call)}{CALL_END}"

    def _read_body(self, head: str, body: str, tools: Sequence[ToolSpec]) -> ToolCall | None:
        return self._read_arguments(head, body, tools)
