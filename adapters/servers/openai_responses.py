"""OpenAI Responses, read into the normal form.

Source: the ``openai`` SDK's ``types/responses/response_create_params`` and ``response_input_param``; codex 0.171
observed as a client (namespaces, developer messages, no item ids).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
    flat_name,
    is_results,
    read_body,
    result_block,
    wire_messages,
)
from adapters.servers.wire import Block, WireMessage, WireRequest
from domain.errors import ConfigurationError, boundary
from domain.records.trial import Purpose

_PARTS = ("input_text", "output_text", "text", "refusal")
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_REASONING, _TEXT, _CALL = range(3)
"""The order of one turn's items: an item that goes back in it begins another turn."""


class ResponsesBody(Tolerant):
    """A body; what is not named here is refused by name or recorded."""

    model: str
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    text: dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)


def read_responses(data: bytes, purpose: Purpose = Purpose.AGENT, before: Sequence[WireMessage] = ()) -> Asked:
    """Read a body of ``/v1/responses``.

    Args:
        data: the body.
        purpose: what the harness's headers say that it is for.
        before: messages of an earlier request of the conversation.

    Raises:
        ConfigurationError: naming the field that is wrong or not supported.
    """
    with boundary(ConfigurationError, "body"):
        return _asked(read_body(ResponsesBody, data), purpose, before)


def _asked(body: ResponsesBody, purpose: Purpose, before: Sequence[WireMessage]) -> Asked:
    if (body.text or {}).get("format", {"type": "text"}) not in (None, {"type": "text"}):
        raise ConfigurationError("text.format: only text is supported", hint="ask for the format in words")
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    if body.instructions:
        items = [{"role": "system", "content": body.instructions}, *items]
    reader = _Items(n_before=1 if body.instructions else 0)
    for item in items:
        reader.take(item)
    system, messages = wire_messages(reader.pairs, before)
    tools, known = declare(body.tools or [], body.tool_choice)
    request = WireRequest(
        model=body.model,
        messages=messages,
        system=system,
        tools=tools,
        max_tokens=body.max_output_tokens or NO_LIMIT,
        stream=bool(body.stream),
        wants_thinking=True,
        purpose=purpose,
        extra={**extra_of(body), **({"text": body.text} if body.text else {})},
    )
    repeated = {"max_output_tokens": body.max_output_tokens, "metadata": _metadata(body)}
    return Asked(request=request, tools=known, repeated=repeated)


def _metadata(body: ResponsesBody) -> object:
    return (body.model_extra or {}).get("metadata") or {}


class _Items:
    """Puts input items together to messages: those of one assistant turn, and results beside each other."""

    def __init__(self, *, n_before: int) -> None:
        self.pairs: list[tuple[str, list[Block]]] = []
        self._index = -1 - n_before
        self._rank = _REASONING
        self._kinds: Mapping[str, Callable[[Mapping[str, Any], str], None]] = {
            "message": self._message,
            "reasoning": self._reasoning,
            "function_call": self._call,
            "custom_tool_call": self._call,
            "function_call_output": self._output,
            "custom_tool_call_output": self._output,
        }

    def take(self, item: Mapping[str, Any]) -> None:
        """Read the next item.

        Raises:
            ConfigurationError: it cannot be read, or is of a kind that this model's harnesses cannot have got from it.
        """
        self._index += 1
        where = f"input.{self._index}"
        kind = item.get("type") or ("message" if "role" in item else "item_reference")
        reader = self._kinds.get(kind) if isinstance(kind, str) else None
        if reader is None:
            raise ConfigurationError(f"{where}.type: {kind!r} is not supported", hint="send the whole input as items")
        reader(item, where)

    def _message(self, item: Mapping[str, Any], where: str) -> None:
        asked = item.get("role")
        role = _ROLES.get(asked) if isinstance(asked, str) else None
        if role is None:
            raise ConfigurationError(f"{where}.role: {asked!r} is not user, assistant, system or developer")
        blocks = blocks_of(item.get("content"), f"{where}.content", _PARTS)
        if role == "assistant":
            self._said(_TEXT, blocks)
        else:
            self.pairs.append((role, blocks))

    def _reasoning(self, item: Mapping[str, Any], where: str) -> None:
        blocks = blocks_of(item.get("content"), f"{where}.content", ("reasoning_text", "text"))
        self._said(_REASONING, [{"type": "thinking", "thinking": block["text"]} for block in blocks])

    def _call(self, item: Mapping[str, Any], where: str) -> None:
        call_id, name = _text(item, "call_id", where), _text(item, "name", where)
        if call_id.startswith(UNREAD):
            self._said(_CALL, [])
            return
        custom = item.get("type") == "custom_tool_call"
        arguments = json.dumps({"input": item.get("input")}) if custom else item.get("arguments", "")
        self._said(_CALL, [call_block(call_id, flat_name(name, item.get("namespace")), arguments)])

    def _output(self, item: Mapping[str, Any], where: str) -> None:
        result = result_block(_text(item, "call_id", where), blocks_of(item.get("output"), f"{where}.output", _PARTS))
        if self.pairs and is_results(self.pairs[-1]):
            self.pairs[-1][1].append(result)
        else:
            self.pairs.append(("user", [result]))

    def _said(self, rank: int, blocks: list[Block]) -> None:
        """Add to the assistant turn under way, or begin the next."""
        open_turn = bool(self.pairs) and self.pairs[-1][0] == "assistant"
        if open_turn and (rank > self._rank or (rank == self._rank and rank != _TEXT)):
            self.pairs[-1][1].extend(blocks)
        else:
            self.pairs.append(("assistant", blocks))
        self._rank = rank


def _text(item: Mapping[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise ConfigurationError(f"{where}.{name}: a text is required")
    return value
