"""gpt-oss: Harmony. A turn is a chain of messages in channels; a call ends the turn.

All of it is ours: the library's renderer needs ``openai_harmony``, which downloads its vocabulary.

Decided once: a turn sampled with ``<|return|>`` keeps it in later prompts (``preserve``), where the template writes
``<|end|>``; nothing that was sampled is replaced. ``template`` writes ``<|end|>`` into rendered history. System
messages in the middle of a conversation, which the template ignores, are developer messages in place.

Source: facts/proxy.md section 2, facts/learning.md section 6.1; PyPI ``trl`` 1.16.0 (``gptoss.jinja``).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from adapters.families.arguments import read_json, typed_object, written_arguments
from adapters.families.native_family import NativeFamily, Reading
from adapters.families.typescript import namespace
from domain.errors import ConfigurationError
from domain.records.chat import ChatMessage, ParsedTurn, ToolCall, ToolSpec
from domain.records.family import History

START, END, MESSAGE, CHANNEL = "<|start|>", "<|end|>", "<|message|>", "<|channel|>"
CONSTRAIN, RETURN, CALL = "<|constrain|>", "<|return|>", "<|call|>"
EFFORTS = ("medium", "low", "high", "none")
"""``none`` leaves the system message out but for the line about tools."""

_IDENTITY = "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n"
_CHANNELS = "# Valid channels: analysis, commentary, final. Channel must be included for every message."
_TOOL_LINE = "Calls to these tools must go to the commentary channel: 'functions'."
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One message of a turn."""

    channel: str
    recipient: str | None
    text: str


class GptOssFamily(NativeFamily):
    """gpt-oss (Harmony)."""

    family: ClassVar[str] = "gpt-oss"
    controls: ClassVar[tuple[str, ...]] = (START, END, MESSAGE, CHANNEL, CONSTRAIN)
    stops: ClassVar[tuple[str, ...]] = (RETURN, CALL)
    call_openers: ClassVar[tuple[str, ...]] = ()
    always_thinks: ClassVar[bool] = True

    def _open(self, system: str | None, tools: Sequence[ToolSpec]) -> Sequence[int]:
        text = self._system(has_tools=bool(tools))
        opening = f"{START}system{MESSAGE}{text}{END}" if text else ""
        instructions = "" if system is None else f"# Instructions\n\n{system}\n\n"
        declared = f"# Tools\n\n{namespace('functions', tools)}" if tools else ""
        developer = instructions + declared
        return self._tokens.encode(opening + (f"{START}developer{MESSAGE}{developer}{END}" if developer else ""))

    def _system(self, *, has_tools: bool) -> str:
        effort = self.options.effort or EFFORTS[0]
        if effort not in EFFORTS:
            raise ConfigurationError(f"family {self.family}: no effort {effort!r}", hint=f"use {', '.join(EFFORTS)}")
        if effort == "none":
            return _TOOL_LINE if has_tools else ""
        date = f"Current date: {self.options.date}\n" if self.options.date else ""
        line = f"\n{_TOOL_LINE}" if has_tools else ""
        return f"{_IDENTITY}{date}\nReasoning: {effort}\n\n{_CHANNELS}{line}"

    def _run(self, messages: Sequence[ChatMessage], stop: str | None) -> str:
        del stop
        return "".join(_shown(message) for message in messages)

    def _prompt(self, run: Sequence[ChatMessage]) -> str:
        del run
        return f"{START}assistant"

    def _body(self, turn: ChatMessage, stop: str) -> str:
        thought = [f"{CHANNEL}analysis{MESSAGE}{turn.reasoning}"] if turn.reasoning else []
        return self._chain([*thought, *_said(turn)], turn, stop)

    def _forgotten(self, turn: ChatMessage, stop: str, run: Sequence[ChatMessage]) -> str:
        return self._prompt(run) + self._chain(_said(turn), turn, stop)

    def _chain(self, parts: Sequence[str], turn: ChatMessage, stop: str) -> str:
        """Return the messages of a turn: each call ends with its own token, the last with the stop."""
        ends = [CALL if " to=functions." in part.partition(MESSAGE)[0] else END for part in parts]
        ends[-1] = CALL if turn.tool_calls else stop
        return f"{START}assistant".join(part + end for part, end in zip(parts, ends, strict=True))

    def _stop(self, turn: ChatMessage, follower: str | None) -> str:
        if turn.tool_calls:
            return CALL
        return END if follower is not None and self.options.history is History.TEMPLATE else RETURN

    def _kept(self, messages: Sequence[ChatMessage], index: int) -> bool:
        """Whether no final message follows or is this one. Source: ``gptoss.jinja``."""
        return all(message.role != "assistant" or message.tool_calls for message in messages[index:])

    def _check_target(self, turn: ChatMessage) -> None:
        if len(turn.tool_calls) > 1:
            raise ConfigurationError(
                f"family {self.family}: {len(turn.tool_calls)} calls in one turn", hint="it writes one call a turn"
            )

    def _opens_reasoning(self) -> bool:
        return False

    def _messages(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        return _named(super()._messages(messages))

    def _identified(self, messages: Sequence[ChatMessage], sampled_ids: Sequence[int]) -> list[ChatMessage]:
        if all(message.tool_name for message in messages if message.role == "tool"):
            return list(messages)
        calls = [self._guarded_call(call) for call in self.parse(sampled_ids).tool_calls]
        return _named([ChatMessage(role="assistant", content="", tool_calls=tuple(calls)), *messages])[1:]

    def _cut(self, previous_ids: Sequence[int], sampled_ids: Sequence[int]) -> str:
        del previous_ids, sampled_ids
        return ""

    def parse(
        self, sampled_ids: Sequence[int], tools: Sequence[ToolSpec] = (), prompt_ids: Sequence[int] = ()
    ) -> ParsedTurn:
        """Read a sampled turn: analysis is reasoning, calls go to ``functions.NAME``, all else is text."""
        del prompt_ids
        ids = [int(token) for token in sampled_ids]
        end = next((index for index, token in enumerate(ids) if token in self._stop_texts), len(ids))
        written = self._tokens.read(ids[:end])
        parts = _parts(written)
        if parts is None:
            return ParsedTurn(text=self._tokens.unguard(written), malformed=CALL in self._ended(ids, end))
        reasoning = self._tokens.unguard("\n".join(part.text for part in parts if part.channel == "analysis"))
        said = [part for part in parts if part.channel != "analysis" or part.recipient]
        calls = [self._read_part(part, tools) for part in said if part.recipient]
        if calls and (end == len(ids) or any(call is None for call in calls)):
            raw = written if not reasoning else written[_after_analysis(written) :]
            return ParsedTurn(text=self._tokens.unguard(raw), reasoning=reasoning, malformed=True)
        text = self._tokens.unguard("\n".join(part.text for part in said if not part.recipient))
        called = tuple(call for call in calls if call is not None)
        return ParsedTurn(text=text if text.strip() else "", reasoning=reasoning, tool_calls=called)

    def _ended(self, ids: Sequence[int], end: int) -> str:
        return self._stop_texts[ids[end]] if end < len(ids) else ""

    def _read(self, text: str, tools: Sequence[ToolSpec], *, stopped: bool) -> Reading | None:
        del tools, stopped  # parse() above reads a turn whole
        return Reading(text=text)

    def _read_part(self, part: _Part, tools: Sequence[ToolSpec]) -> ToolCall | None:
        recipient = self._tokens.unguard(part.recipient or "")
        name = recipient.removeprefix("functions.")
        value = read_json(self._tokens.unguard(part.text))
        if name == recipient or not isinstance(value, Mapping):
            return None
        return self._read_call(name, typed_object(value, tools, name), part.text)


def _shown(message: ChatMessage) -> str:
    if message.role == "tool":
        name = message.tool_name or "tool"
        return f"{START}functions.{name} to=assistant{CHANNEL}commentary{MESSAGE}{message.content}{END}"
    if message.role == "system":
        return f"{START}developer{MESSAGE}# Instructions\n\n{message.content}\n\n{END}"
    return f"{START}user{MESSAGE}{message.content}{END}"


def _said(turn: ChatMessage) -> list[str]:
    channel = "commentary" if turn.tool_calls else "final"
    text = [f"{CHANNEL}{channel}{MESSAGE}{turn.content}"] if turn.content or not turn.tool_calls else []
    calls = [
        f" to=functions.{call.name}{CHANNEL}commentary {CONSTRAIN}json{MESSAGE}{written_arguments(call)}"
        for call in turn.tool_calls
    ]
    return text + calls


def _parts(written: str) -> list[_Part] | None:
    """Return the messages of a turn; None when one has no ``<|message|>``."""
    parts: list[_Part] = []
    for piece in written.removesuffix(END).split(START):
        head, marked, body = piece.partition(MESSAGE)
        if not marked:
            return None
        channel, recipient = _CHANNEL.search(head), _RECIPIENT.search(head)
        parts.append(
            _Part(
                channel=channel.group(1) if channel else "final",
                recipient=recipient.group(1) if recipient else None,
                text=body.partition(END)[0].partition(CALL)[0],
            )
        )
    return parts


def _after_analysis(written: str) -> int:
    """Return where the first message after the analysis begins."""
    return max(written.find(START), 0)


def _named(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return results with the names of the calls that they answer, by place where they have none."""
    named: list[ChatMessage] = []
    calls: Sequence[ToolCall] = ()
    place = 0
    for message in messages:
        if message.role == "assistant":
            calls, place = message.tool_calls, 0
        if message.role != "tool":
            named.append(message)
            continue
        name = message.tool_name or (calls[place].name if place < len(calls) else None)
        named.append(replace(message, tool_name=name))
        place += 1
    return named
