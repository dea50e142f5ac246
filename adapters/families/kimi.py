"""Kimi K2 and K2.5: role tokens with a middle, call ids that are part of later prompts.

The model's own id (``functions.NAME:IDX``) is read into ``ToolCall.native_id``. A result is shown under the id of its
call: given as ``native_call_id`` or ``tool_call_id``, else that of the call in the same place.

Source: facts/proxy.md section 2, facts/learning.md section 6.1; openings by PyPI ``renderers`` 0.1.12.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from renderers.configs import KimiK2RendererConfig, KimiK25RendererConfig
from renderers.kimi_k2 import KimiK2Renderer
from renderers.kimi_k25 import KimiK25Renderer
from tokenizers import Tokenizer

from adapters.families.arguments import read_json, typed_object, written_arguments
from adapters.families.library_openings import LibraryOpening
from adapters.families.native_family import NativeFamily, Reading
from adapters.families.turns import THINK, THINK_END
from domain.records.chat import ChatMessage, ToolCall, ToolSpec
from domain.records.family import FamilyOptions

MIDDLE, END = "<|im_middle|>", "<|im_end|>"
SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_OPENER = f"<|im_assistant|>assistant{MIDDLE}"
_NATIVE_ID = re.compile(r"\s*(functions\.([^\s<]+):(\d{1,9}))\s*")
_CALL = re.compile(f"{re.escape(CALL)}(.*?){re.escape(ARGUMENTS)}(.*?){re.escape(CALL_END)}", re.DOTALL)


class KimiK2Family(NativeFamily):
    """Kimi K2: tools as JSON before the system message. K2-Thinking, whose vocabulary has ``<think>``, reasons."""

    family: ClassVar[str] = "kimi-k2"
    controls: ClassVar[tuple[str, ...]] = (
        *("<|im_system|>", "<|im_user|>", "<|im_assistant|>", MIDDLE),
        *(SECTION, SECTION_END, CALL, ARGUMENTS, CALL_END),
    )
    stops: ClassVar[tuple[str, ...]] = (END,)
    call_openers: ClassVar[tuple[str, ...]] = (SECTION,)

    def __init__(self, tokenizer: Tokenizer, options: FamilyOptions | None = None) -> None:
        """Take a tokenizer that knows the format's control tokens. Raises ConfigurationError."""
        super().__init__(tokenizer, options)
        self._opening = LibraryOpening(self._tokens, self._renderer, wrapped=True)

    def _renderer(self, tokens: Any) -> object:
        return KimiK2Renderer(tokens, KimiK2RendererConfig())

    def _open(self, system: str | None, tools: Sequence[ToolSpec]) -> Sequence[int]:
        return self._opening(system, tools)

    def _run(self, messages: Sequence[ChatMessage], stop: str | None) -> str:
        del stop
        return "".join(self._turn(message) for message in messages)

    def _turn(self, message: ChatMessage) -> str:
        if message.role != "tool":
            return f"<|im_{message.role}|>{message.role}{MIDDLE}{message.content}{END}"
        name = message.tool_name or "tool"
        shown = f"## Return of {message.native_call_id or f'functions.{name}:0'}\n{message.content}"
        return f"<|im_system|>{name}{MIDDLE}{shown}{END}"

    def _prompt(self, run: Sequence[ChatMessage]) -> str:
        del run
        return _OPENER

    def _body(self, turn: ChatMessage, stop: str) -> str:
        return self._thought(turn.reasoning) + self._said(turn) + stop

    def _forgotten(self, turn: ChatMessage, stop: str, run: Sequence[ChatMessage]) -> str:
        del run
        return _OPENER + self._thought("") + self._said(turn) + stop

    def _thought(self, reasoning: str) -> str:
        return f"{THINK}{reasoning}{THINK_END}" if self._reasons() else ""

    def _reasons(self) -> bool:
        return self.options.thinking and THINK in self._tokens.control_ids

    def _said(self, turn: ChatMessage) -> str:
        if not turn.tool_calls:
            return turn.content
        calls = "".join(
            f"{CALL}{call.native_id or ''}{ARGUMENTS}{written_arguments(call)}{CALL_END}" for call in turn.tool_calls
        )
        return f"{turn.content}{SECTION}{calls}{SECTION_END}"

    def _kept(self, messages: Sequence[ChatMessage], index: int) -> bool:
        """Whether no turn without calls follows or is this one. Source: template of Kimi-K2-Thinking."""
        return all(message.role != "assistant" or message.tool_calls for message in messages[index:])

    def _messages(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        return with_native_ids(super()._messages(messages))

    def _identified(self, messages: Sequence[ChatMessage], sampled_ids: Sequence[int]) -> list[ChatMessage]:
        results = [message for message in messages if message.role == "tool"]
        if all(result.native_call_id for result in results):
            return list(messages)
        calls = [self._guarded_call(call) for call in self.parse(sampled_ids).tool_calls]
        return _answered(messages, calls)

    def _read(self, text: str, tools: Sequence[ToolSpec], *, stopped: bool) -> Reading | None:
        before, opened, section = text.partition(SECTION)
        if not opened:
            return Reading(text=text)
        # What a model writes after its calls is dropped, as its own parser does.
        section, closed, _ = section.partition(SECTION_END)
        found = list(_CALL.finditer(section))
        if not stopped or not closed or not found or _CALL.sub("", section).strip():
            return None
        calls = [self._read_json(one.group(1), one.group(2), tools) for one in found]
        if any(call is None for call in calls):
            return None
        return Reading(text=before, calls=tuple(call for call in calls if call is not None))

    def _read_json(self, written_id: str, written: str, tools: Sequence[ToolSpec]) -> ToolCall | None:
        found = _NATIVE_ID.fullmatch(self._tokens.unguard(written_id))
        value = read_json(self._tokens.unguard(written))
        if found is None or not isinstance(value, Mapping):
            return None
        call = self._read_call(found.group(2), typed_object(value, tools, found.group(2)), written)
        return None if call is None else replace(call, native_id=found.group(1))


class KimiK25Family(KimiK2Family):
    """Kimi K2.5 and K2.6: tools as TypeScript; the prompt opens the reasoning or holds an empty one."""

    family: ClassVar[str] = "kimi-k2.5"
    controls: ClassVar[tuple[str, ...]] = (*KimiK2Family.controls, THINK, THINK_END)

    def _renderer(self, tokens: Any) -> object:
        return KimiK25Renderer(tokens, KimiK25RendererConfig())

    def _prompt(self, run: Sequence[ChatMessage]) -> str:
        return super()._prompt(run) + (THINK if self.options.thinking else THINK + THINK_END)

    def _body(self, turn: ChatMessage, stop: str) -> str:
        thought = turn.reasoning + THINK_END if self.options.thinking else ""
        return thought + self._said(turn) + stop

    def _thought(self, reasoning: str) -> str:
        return f"{THINK}{reasoning}{THINK_END}"


def with_native_ids(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return messages in which every call and result has a native id; missing ones are counted on."""
    named: list[ChatMessage] = []
    calls: Sequence[ToolCall] = ()
    count = 0
    run: list[ChatMessage] = []
    for message in messages:
        if message.role != "assistant":
            run.append(message)
            continue
        named += [*_answered(run, calls), message]
        calls = [
            call if call.native_id else replace(call, native_id=f"functions.{call.name}:{count + place}")
            for place, call in enumerate(message.tool_calls)
        ]
        count += len(calls)
        named[-1] = replace(message, tool_calls=tuple(calls))
        run = []
    return [*named, *_answered(run, calls)]


def _answered(messages: Sequence[ChatMessage], calls: Sequence[ToolCall]) -> list[ChatMessage]:
    """Return results under the native ids of the calls that they answer: by id, else the next of the same tool."""
    waiting = list(calls)
    answered: list[ChatMessage] = []
    for message in messages:
        if message.role != "tool":
            answered.append(message)
            continue
        call = _answering(message, waiting)
        waiting = [one for one in waiting if one is not call]
        answered.append(_named(message, call))
    return answered


def _answering(message: ChatMessage, waiting: Sequence[ToolCall]) -> ToolCall | None:
    ids = {message.tool_call_id, message.native_call_id} - {None}
    by_id = [call for call in waiting if {call.call_id, call.native_id} & ids]
    by_name = [call for call in waiting if message.tool_name in {None, call.name}]
    return next(iter(by_id or by_name or waiting), None)


def _named(message: ChatMessage, call: ToolCall | None) -> ChatMessage:
    name = message.tool_name or (call.name if call else None)
    given = message.tool_call_id or ""
    native = message.native_call_id or (given if _NATIVE_ID.fullmatch(given) else None)
    return replace(message, tool_name=name, native_call_id=native or (call.native_id if call else None))
