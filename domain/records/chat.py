"""Conversations in no vendor's dialect: messages, tools, parsed turns, demonstrations."""

from collections.abc import Mapping
from dataclasses import dataclass

from domain.records.canonical import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call as the model wrote it; ``arguments`` is None when it could not be parsed."""

    name: str
    arguments: Mapping[str, Json] | None
    raw: str
    call_id: str | None = None
    """The id under which the harness knows the call; results are put into call order by it."""
    native_id: str | None = None
    """The id that the model itself wrote (``functions.bash:0``); part of later prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTurn:
    """A sampled turn, read back for the harness; the ids stay what was sampled."""

    text: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    malformed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """A message in no vendor's dialect. Roles: system, user, assistant, tool."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_name: str | None = None
    tool_call_id: str | None = None
    reasoning: str = ""
    """Of an assistant turn; a leading ``<think>`` block of ``content`` is read the same way."""
    native_call_id: str | None = None
    """Of a tool result: the id that the model wrote; known from the call when it is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool the model may call."""

    name: str
    description: str
    schema: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """One conversation to imitate: opening messages, then assistant and tool turns in order."""

    task_name: str
    messages: tuple[ChatMessage, ...]
    n_opening: int
    """How many messages come before the first assistant turn."""
