"""Anthropic Messages on the wire: tolerant reading, normal form, and the way into our own chat records.

Source: facts/proxy.md sections 1.3 to 1.6; field names as in the ``anthropic`` SDK's ``types/message_create_params``.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from domain.errors import ConfigurationError, boundary
from domain.records.canonical import canonical_bytes, digest_of
from domain.records.chat import ChatMessage, ParsedTurn, ToolCall, ToolSpec
from domain.records.trial import Purpose

Block = dict[str, Any]
"""One content block as it came, without ``cache_control``."""
_BILLING = "x-anthropic-billing-header:"
_COMPACTION = "CRITICAL: Respond with TEXT ONLY"
"""How the last user block of a compaction request starts. Source: facts/proxy.md section 1.7."""
_IGNORED = frozenset({"cache_control", "citations"})
_UNREADABLE = frozenset({"image", "document", "container_upload"})
"""Blocks of a user that the model cannot see. In a tool's result they are named in words: there they are nobody's
wish, and refusing them would end the run."""
_UNRECORDED = frozenset({"metadata"})


class _Tolerant(BaseModel):
    model_config = ConfigDict(extra="allow")


class _Block(_Tolerant):
    type: str


class _Message(_Tolerant):
    role: Literal["user", "assistant", "system"]
    content: str | list[_Block]


class _Tool(_Tolerant):
    name: str
    description: str = ""
    input_schema: dict[str, Any] | None = None


class _Body(_Tolerant):
    model: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    """Each is read by itself, unless the conversation has read the very same one before."""
    system: str | list[_Block] | None = None
    tools: list[_Tool] = Field(default_factory=list[_Tool])
    max_tokens: int = Field(default=1, ge=1)
    stream: bool = False
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    tool_choice: dict[str, Any] | None = None
    stop_sequences: list[str] = Field(default_factory=list[str])


@dataclass(frozen=True, slots=True, kw_only=True)
class WireMessage:
    """A message in normal form: a string is one text block, and nothing that moves between requests is left."""

    role: str
    blocks: tuple[Block, ...]
    digest: str = field(init=False, compare=False)
    """Of role and blocks. Raises ValueError, at construction, for what has no canonical JSON."""
    n_characters: int = field(init=False, compare=False)
    """Of texts and tool results: every rendering holds them."""
    raw: Mapping[str, Any] | None = field(default=None, compare=False)
    """As it came, for the next request that repeats it; None: not from a request."""

    def __post_init__(self) -> None:
        """Work out once what every later request would ask again."""
        results = (content_text(block.get("content", "")) for block in self.blocks if block["type"] == "tool_result")
        object.__setattr__(self, "digest", digest_of(self.plain()))
        object.__setattr__(self, "n_characters", len(self.text) + sum(map(len, results)))

    @property
    def text(self) -> str:
        """The text blocks, one after the other."""
        return "\n".join(str(block.get("text", "")) for block in self.blocks if block["type"] == "text")

    @property
    def tool_ids(self) -> tuple[str, ...]:
        """Ids of the tool calls in this message."""
        return tuple(str(block.get("id", "")) for block in self.blocks if block["type"] == "tool_use")

    def plain(self) -> dict[str, Any]:
        """Return the wire form, for transcripts."""
        return {"role": self.role, "content": list(self.blocks)}


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRequest:
    """One request of a harness."""

    model: str
    messages: tuple[WireMessage, ...]
    system: str
    tools: tuple[ToolSpec, ...]
    max_tokens: int
    stream: bool
    wants_thinking: bool
    purpose: Purpose
    stop_sequences: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields that nothing here acts on, as they came; recorded."""
    preamble: str = field(init=False, compare=False)
    """Digest of what stands before the messages."""

    def __post_init__(self) -> None:
        """Raise ValueError for what has no canonical JSON."""
        canonical_bytes(dict(self.extra))
        object.__setattr__(self, "preamble", digest_of({"system": self.system, "tools": self.tools}))

    @property
    def n_characters(self) -> int:
        """Characters that every rendering of this conversation holds."""
        return len(self.system) + sum(message.n_characters for message in self.messages)


def read_request(data: bytes, before: Sequence[WireMessage] = ()) -> WireRequest:
    """Read a body of ``/v1/messages`` or ``/v1/messages/count_tokens``; unknown fields are fine.

    Args:
        data: the body.
        before: messages of an earlier request of the conversation; one that is there again is not read again, so that
            a conversation's cost grows with what is new in it.

    Raises:
        ConfigurationError: naming the field that is wrong.
    """
    # What a harness may write and nothing behind this can read is its own fault, never the platform's: a trial whose
    # model fails is run again, so a request must not be able to make it fail.
    with boundary(ConfigurationError, "body"):
        try:
            body = _Body.model_validate_json(data)
        except ValidationError as error:
            raise _complaint(error) from None
        messages = tuple(
            known if (known := _same(before, index, raw)) is not None else _message(index, raw)
            for index, raw in enumerate(body.messages)
        )
        return _normal(body, messages)


def _complaint(error: ValidationError, *place: str | int) -> ConfigurationError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in (*place, *first["loc"])) or "body"
    return ConfigurationError(f"{where}: {first['msg']}")


def _same(before: Sequence[WireMessage], index: int, raw: Mapping[str, Any]) -> WireMessage | None:
    return before[index] if index < len(before) and before[index].raw == raw else None


def _normal(body: _Body, messages: tuple[WireMessage, ...]) -> WireRequest:
    if messages[-1].role == "assistant":
        raise ConfigurationError("messages: the last message may not be the assistant's: prefill is not supported")
    return WireRequest(
        model=body.model,
        messages=messages,
        system="\n\n".join(part for part in (_system(body.system), _format(body)) if part),
        tools=tuple(
            ToolSpec(name=tool.name, description=tool.description, schema=tool.input_schema)
            for tool in _chosen(body)
            if tool.input_schema is not None
        ),
        max_tokens=body.max_tokens,
        stop_sequences=tuple(each for each in body.stop_sequences if each),
        extra=_extra(body),
        stream=body.stream,
        wants_thinking=(body.thinking or {}).get("type") in ("enabled", "adaptive"),
        purpose=_purpose(body, messages),
    )


def _chosen(body: _Body) -> list[_Tool]:
    """Return the tools that may be used.

    Raises:
        ConfigurationError: a call is demanded, which sampling cannot promise.
    """
    choice = str((body.tool_choice or {}).get("type", "auto"))
    if choice not in {"auto", "none"}:
        raise ConfigurationError(f"tool_choice.type: {choice!r} is not supported: the model decides", hint="use auto")
    return [] if choice == "none" else body.tools


def _format(body: _Body) -> str:
    """Return what the model is told of a format that its answer must have; nothing here constrains its sampling."""
    wanted = (body.output_config or {}).get("format")
    schema = cast("Block", wanted).get("schema") if isinstance(wanted, dict) else None
    if schema is None:
        return ""
    written = json.dumps(schema, ensure_ascii=False, sort_keys=True)
    return f"Answer with one JSON object of this JSON schema, and with nothing else:\n{written}"


def _extra(body: _Body) -> dict[str, Any]:
    """Return the fields that nothing here acts on."""
    known = {"thinking": body.thinking, "output_config": body.output_config, "tool_choice": body.tool_choice}
    fields = {**(body.model_extra or {}), **{name: value for name, value in known.items() if value is not None}}
    return {name: value for name, value in fields.items() if name not in _UNRECORDED}


def chat_messages(request: WireRequest, turns: Mapping[int, ParsedTurn], *, start: int = 0) -> tuple[ChatMessage, ...]:
    """Return the conversation from message ``start`` on; 0 includes the system prompt.

    Args:
        request: the request.
        turns: index of an assistant message -> the turn as it was sampled, which stands for what was echoed.
        start: index of the first message.
    """
    calls = {
        str(block.get("id", "")): (number, str(block.get("name", "")))
        for number, block in enumerate(
            block for message in request.messages for block in message.blocks if block["type"] == "tool_use"
        )
    }
    found: list[ChatMessage] = []
    if start == 0 and request.system:
        found.append(ChatMessage(role="system", content=request.system))
    for index in range(start, len(request.messages)):
        message = request.messages[index]
        if message.role == "assistant":
            found.append(_assistant(message, turns.get(index)))
        elif message.role == "system":
            found.append(ChatMessage(role="system", content=message.text))
        else:
            found.extend(_user(message, calls))
    return tuple(found)


def _assistant(message: WireMessage, turn: ParsedTurn | None) -> ChatMessage:
    if turn is not None:
        return ChatMessage(role="assistant", content=turn.text, tool_calls=turn.tool_calls, reasoning=turn.reasoning)
    calls = tuple(
        ToolCall(
            name=str(block.get("name", "")),
            arguments=block["input"] if isinstance(block.get("input"), dict) else None,
            raw=block["input"]
            if isinstance(block.get("input"), str)
            else json.dumps(block.get("input"), ensure_ascii=False),
        )
        for block in message.blocks
        if block["type"] == "tool_use"
    )
    thought = "\n".join(str(block.get("thinking", "")) for block in message.blocks if block["type"] == "thinking")
    return ChatMessage(role="assistant", content=message.text, tool_calls=calls, reasoning=thought)


def _user(message: WireMessage, calls: Mapping[str, tuple[int, str]]) -> Iterator[ChatMessage]:
    """Yield tool results in the order of their calls, then the text.

    A harness sends results in the order of completion, which varies. Source: facts/proxy.md section 1.6.
    """
    results = [block for block in message.blocks if block["type"] == "tool_result"]
    unknown = (len(calls), None)
    for block in sorted(results, key=lambda item: calls.get(str(item.get("tool_use_id", "")), unknown)[0]):
        call_id = str(block.get("tool_use_id", ""))
        yield ChatMessage(
            role="tool",
            content=content_text(block.get("content", "")),
            tool_name=calls.get(call_id, unknown)[1],
            tool_call_id=call_id,
        )
    others = [block for block in message.blocks if block["type"] != "tool_result"]
    if others or not results:
        yield ChatMessage(role="user", content=content_text(others))


def content_text(content: object) -> str:
    """Return what a model is shown of a block's content."""
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        return ""
    blocks = cast("Sequence[Block | object]", content)
    return "\n".join(_block_text(cast("Block", block) if isinstance(block, dict) else {}) for block in blocks)


def _block_text(block: Block) -> str:
    return str(block.get("text", "")) if block.get("type") == "text" else f"[{block.get('type')} omitted]"


def _message(index: int, raw: Mapping[str, Any]) -> WireMessage:
    try:
        message = _Message.model_validate(raw)
    except ValidationError as error:
        raise _complaint(error, "messages", index) from None
    if isinstance(message.content, str):
        return WireMessage(role=message.role, blocks=({"type": "text", "text": message.content},), raw=raw)
    for number, block in enumerate(message.content):
        if block.type in _UNREADABLE:
            where = f"messages.{index}.content.{number}"
            raise ConfigurationError(f"{where}: {block.type} blocks are not supported: this model reads text alone")
    return WireMessage(role=message.role, blocks=tuple(_block(block) for block in message.content), raw=raw)


def _block(block: _Block) -> Block:
    body = {"type": block.type, **(block.model_extra or {})}
    return {key: _without_marks(value) for key, value in body.items() if key not in _IGNORED}


def _without_marks(value: object) -> Any:
    """Drop cache marks from blocks nested in a tool result; tool input is left as it is."""
    if not isinstance(value, list):
        return value
    return [
        {key: inner for key, inner in cast("Block", item).items() if key not in _IGNORED}
        if isinstance(item, dict)
        else item
        for item in cast("list[object]", value)
    ]


def _system(system: str | list[_Block] | None) -> str:
    if system is None or isinstance(system, str):
        return system or ""
    texts = [str((block.model_extra or {}).get("text", "")) for block in system if block.type == "text"]
    return "\n\n".join(text for text in texts if not text.startswith(_BILLING))


def _purpose(body: _Body, messages: tuple[WireMessage, ...]) -> Purpose:
    """Tell actions of an agent from a harness's own errands: titles, inner web searches, compaction."""
    if not body.tools and "format" in (body.output_config or {}):
        return Purpose.TITLE
    if body.tools and all(tool.input_schema is None for tool in body.tools):
        return Purpose.SEARCH
    last = messages[-1].blocks[-1:] if messages[-1].role == "user" else ()
    compacts = any(str(block.get("text", "")).startswith(_COMPACTION) for block in last)
    return Purpose.COMPACTION if compacts else Purpose.AGENT
