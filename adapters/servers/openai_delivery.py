"""A recorded turn in the words of chat completions, whole or as chunks.

Source: the ``openai`` SDK's ``types/chat/chat_completion`` and ``chat_completion_chunk``; ``reasoning_content`` as
vLLM, DeepSeek, litellm and opencode have it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adapters.servers.call import Answer
from adapters.servers.openai_errors import error_body
from adapters.servers.openai_reading import UNREAD, Asked, Declared
from domain.errors import SynthError

ALIVE = b": the model works\n\n"
"""A comment: clients skip it, and their limits on silence begin anew."""
DONE = b"data: [DONE]\n\n"
UNREADABLE_TOOL = "unreadable_call"
"""Of a call whose tool cannot be told; no harness has it, and each answers that to the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidCall:
    """A call to deliver."""

    call_id: str
    tool: Declared
    arguments: str
    """JSON, the text of a custom tool, or what the model wrote where that could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A recorded message, taken apart."""

    key: str
    """Of the message; ids are made from it."""
    reasoning: str
    text: str
    calls: tuple[SaidCall, ...]
    is_cut: bool
    n_prompt: int
    n_sampled: int


def said_of(answer: Answer, asked: Asked) -> Said:
    """Take a recorded message apart.

    A turn whose call could not be read is delivered with a call that no harness can run: each answers the model with
    an error and asks it again, where it would take a turn without a call for the last one. Its text holds what the
    model wrote, and finds the turn when it is echoed.
    """
    message = answer.message
    blocks: Sequence[Mapping[str, Any]] = message["content"]
    key = str(message["id"]).removeprefix("msg_")
    text = "\n".join(str(block["text"]) for block in blocks if block["type"] == "text")
    calls = tuple(_call(block, asked) for block in blocks if block["type"] == "tool_use")
    if message["stop_reason"] == "tool_use" and not calls and asked.tools:
        calls = (_unread(answer, asked, key, text),)
    usage = message["usage"]
    return Said(
        key=key,
        reasoning="\n".join(str(block["thinking"]) for block in blocks if block["type"] == "thinking"),
        text=text,
        calls=calls,
        is_cut=message["stop_reason"] == "max_tokens",
        n_prompt=sum(
            int(usage.get(name) or 0)
            for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        ),
        n_sampled=int(usage["output_tokens"]),
    )


def completion_of(said: Said, asked: Asked, created_s: int) -> dict[str, Any]:
    """Return a ``chat.completion``."""
    message: dict[str, Any] = {"role": "assistant", "content": said.text or (None if said.calls else "")}
    message["refusal"] = None
    if said.reasoning:
        message["reasoning_content"] = said.reasoning
    if said.calls:
        message["tool_calls"] = [_tool_call(call) for call in said.calls]
    choice = {"index": 0, "message": message, "finish_reason": _finish(said), "logprobs": None}
    head = _head(said.key, asked, created_s, "chat.completion")
    return {**head, "choices": [choice], "usage": _usage(said)}


class ChatStream:
    """The words of a streamed chat completion."""

    def __init__(self, asked: Asked, created_s: int) -> None:
        self._asked = asked
        self._created_s = created_s

    def opening(self) -> Iterator[bytes]:
        """Yield what is sent before the model works."""
        yield ALIVE

    def alive(self) -> bytes:
        """Return what is sent while the model works."""
        return ALIVE

    def whole(self, answer: Answer) -> Iterator[bytes]:
        """Yield the chunks of a message, the usage if it was asked for, and the end."""
        said = said_of(answer, self._asked)
        head = _head(said.key, self._asked, self._created_s, "chat.completion.chunk")
        if self._asked.with_usage:
            head["usage"] = None
        for delta in _deltas(said):
            yield _data({**head, "choices": [_choice(delta, None)]})
        yield _data({**head, "choices": [_choice({}, _finish(said))]})
        if self._asked.with_usage:
            yield _data({**head, "choices": [], "usage": _usage(said)})
        yield DONE

    def failed(self, error: SynthError) -> Iterator[bytes]:
        """Yield what ends a stream that cannot be completed: clients raise at it, and no end follows."""
        yield _data(error_body(error))


def arguments_of(value: Mapping[str, Any], tool: Declared) -> str:
    """Return a call's arguments as the harness takes them."""
    if tool.is_custom and isinstance(value.get("input"), str):
        return str(value["input"])
    return json.dumps(value, ensure_ascii=False)


def _deltas(said: Said) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    if said.reasoning:
        yield {"reasoning_content": said.reasoning}
    if said.text:
        yield {"content": said.text}
    for index, call in enumerate(said.calls):
        yield {"tool_calls": [{"index": index, **_tool_call(call)}]}


def _choice(delta: Mapping[str, Any], finish: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}


def _head(key: str, asked: Asked, created_s: int, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{key}", "object": kind, "created": created_s, "model": asked.request.model}


def _call(block: Mapping[str, Any], asked: Asked) -> SaidCall:
    name = str(block["name"])
    tool = asked.tools.get(name) or Declared(name=name)
    return SaidCall(call_id=str(block["id"]), tool=tool, arguments=arguments_of(block["input"], tool))


def _unread(answer: Answer, asked: Asked, key: str, text: str) -> SaidCall:
    names = (call.name for call in answer.turn.parsed.tool_calls if call.arguments is None)
    name = next((name for name in names if name in asked.tools and not asked.tools[name].is_custom), UNREADABLE_TOOL)
    tool = asked.tools.get(name) or Declared(name=name)
    return SaidCall(call_id=f"{UNREAD}{key}", tool=tool, arguments=f"unreadable: {text}")


def _tool_call(call: SaidCall) -> dict[str, Any]:
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.tool.name, "arguments": call.arguments},
    }


def _finish(said: Said) -> str:
    if said.is_cut:
        return "length"
    return "tool_calls" if said.calls else "stop"


def _usage(said: Said) -> dict[str, Any]:
    return {
        "prompt_tokens": said.n_prompt,
        "completion_tokens": said.n_sampled,
        "total_tokens": said.n_prompt + said.n_sampled,
    }


def _data(body: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n".encode()
