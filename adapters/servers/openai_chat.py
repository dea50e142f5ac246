"""OpenAI chat completions, read into the normal form.

Source: the ``openai`` SDK's ``types/chat/completion_create_params`` and ``chat_completion_message_param``.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import Field

from adapters.servers.openai_reading import (
    NO_LIMIT,
    UNREAD,
    Asked,
    Tolerant,
    blocks_of,
    call_block,
    declare,
    extra_of,
    is_results,
    read_body,
    result_block,
    wire_messages,
)
from adapters.servers.wire import Block, WireMessage, WireRequest
from domain.errors import ConfigurationError, boundary
from domain.records.trial import Purpose

_ERRANDS = {
    "You are a title generator": Purpose.TITLE,
    "You are a context summarization agent": Purpose.COMPACTION,
}
"""How the system prompts of opencode's own requests begin; none has tools. Observed with opencode 1.18."""


class _Function(Tolerant):
    name: str
    arguments: str | dict[str, Any] = ""


class _Call(Tolerant):
    id: str
    function: _Function


class _Message(Tolerant):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Any] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None


class ChatBody(Tolerant):
    """A body; what is not named here is refused by name or recorded."""

    model: str
    messages: list[_Message] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)


def read_chat(data: bytes, purpose: Purpose = Purpose.AGENT, before: Sequence[WireMessage] = ()) -> Asked:
    """Read a body of ``/v1/chat/completions``.

    Args:
        data: the body.
        purpose: what the harness's headers say that it is for.
        before: messages of an earlier request of the conversation.

    Raises:
        ConfigurationError: naming the field that is wrong or not supported.
    """
    with boundary(ConfigurationError, "body"):
        return _asked(read_body(ChatBody, data), purpose, before)


def _asked(body: ChatBody, purpose: Purpose, before: Sequence[WireMessage]) -> Asked:
    system, messages = wire_messages(_pairs(body.messages), before)
    tools, known = declare((_flat(raw, index) for index, raw in enumerate(body.tools or [])), body.tool_choice)
    errands = (errand for words, errand in _ERRANDS.items() if not tools and system.startswith(words))
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    request = WireRequest(
        model=body.model,
        messages=messages,
        system=system,
        tools=tools,
        max_tokens=body.max_completion_tokens or body.max_tokens or NO_LIMIT,
        stream=bool(body.stream),
        wants_thinking=True,
        purpose=next(errands, purpose),
        stop_sequences=tuple(each for each in stops if each),
        extra=extra_of(body),
    )
    with_usage = bool((body.stream_options or {}).get("include_usage"))
    return Asked(request=request, tools=known, with_usage=with_usage)


def _pairs(messages: list[_Message]) -> Iterator[tuple[str, list[Block]]]:
    """Yield (role, blocks); the results of one turn's calls are one message."""
    held: tuple[str, list[Block]] | None = None
    for index, message in enumerate(messages):
        where = f"messages.{index}"
        if message.role == "tool":
            result = _result(message, where)
            if held is not None and is_results(held):
                held[1].append(result)
                continue
            blocks = [result]
        elif message.role == "assistant":
            blocks = _assistant(message, where)
        else:
            blocks = blocks_of(message.content, f"{where}.content")
        if held is not None:
            yield held
        held = (_ROLES.get(message.role, message.role), blocks)
    if held is not None:
        yield held


_ROLES = {"developer": "system", "tool": "user"}


def _result(message: _Message, where: str) -> Block:
    if message.tool_call_id is None:
        raise ConfigurationError(f"{where}.tool_call_id: Field required")
    return result_block(message.tool_call_id, blocks_of(message.content, f"{where}.content"))


def _assistant(message: _Message, where: str) -> list[Block]:
    """Return reasoning, text and calls; a call that could not be read is part of the text already."""
    reasoning = (message.model_extra or {}).get("reasoning_content")
    thinking: list[Block] = [{"type": "thinking", "thinking": reasoning}] if reasoning else []
    calls = [
        call_block(call.id, call.function.name, call.function.arguments)
        for call in message.tool_calls or []
        if not call.id.startswith(UNREAD)
    ]
    return [*thinking, *blocks_of(message.content, f"{where}.content", ("text", "refusal")), *calls]


def _flat(raw: dict[str, Any], index: int) -> dict[str, Any]:
    """Return a tool in the form of Responses, which has no inner object."""
    inner = raw.get("function")
    if raw.get("type") != "function":
        raise ConfigurationError(f"tools.{index}.type: {raw.get('type')!r} is not supported", hint="declare functions")
    if not isinstance(inner, dict):
        raise ConfigurationError(f"tools.{index}.function: Field required")
    return {**inner, "type": "function"}
