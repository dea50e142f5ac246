"""A sampled turn as an Anthropic message, whole or as server-sent events; and errors in Anthropic's words.

Source: facts/proxy.md sections 1.5 (events, stop reasons, errors) and 2 (malformed calls).
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from domain.errors import (
    AuthorizationError,
    ConfigurationError,
    ContextOverflowError,
    NotFoundError,
    OverloadError,
    SynthError,
)
from domain.records.chat import ParsedTurn
from domain.records.trial import StopReason

PING = b'event: ping\ndata: {"type": "ping"}\n\n'


def message_of(
    parsed: ParsedTurn,
    *,
    model: str,
    stop_reason: StopReason,
    stopped_at: str | None = None,
    n_prompt: int,
    n_sampled: int,
    with_thinking: bool,
    new_id: Callable[[], str],
) -> dict[str, Any]:
    """Return the message to deliver.

    A call that could not be read is given as text with stop reason ``tool_use``, at which a harness asks for
    another try; its sampled ids stay what they are.

    Args:
        parsed: the turn.
        model: the name the harness asked for, echoed: another name makes it drop thinking blocks.
        stop_reason: of the sampler.
        stopped_at: the stop sequence that ended the sample; the text ends before it.
        n_prompt: tokens of the prompt.
        n_sampled: tokens sampled.
        with_thinking: whether the harness asked for reasoning.
        new_id: makes ids; each message and each tool call gets its own.
    """
    content: list[dict[str, Any]] = []
    if with_thinking and parsed.reasoning.strip():
        content.append({"type": "thinking", "thinking": parsed.reasoning, "signature": ""})
    unread = [call.raw for call in parsed.tool_calls if call.arguments is None and call.raw not in parsed.text]
    text = "\n".join(part for part in (parsed.text, *unread) if part.strip())
    if stopped_at is not None:
        text = text.partition(stopped_at)[0]
    if text:
        content.append({"type": "text", "text": text})
    content.extend(
        {"type": "tool_use", "id": f"toolu_{new_id()}", "name": call.name, "input": dict(call.arguments)}
        for call in parsed.tool_calls
        if call.arguments is not None
    )
    return {
        "id": f"msg_{new_id()}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": _stop_reason(parsed, stop_reason) if stopped_at is None else "stop_sequence",
        "stop_sequence": stopped_at,
        "usage": {
            "input_tokens": n_prompt,
            "output_tokens": n_sampled,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        },
    }


def _stop_reason(parsed: ParsedTurn, stop_reason: StopReason) -> str:
    if stop_reason is StopReason.LENGTH:
        return "max_tokens"
    return "tool_use" if parsed.tool_calls or parsed.malformed else "end_turn"


def events_of(message: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the server-sent events of a whole message, in order."""
    usage = message["usage"]
    unknown: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
    opening: dict[str, Any] = {**message, **unknown, "usage": {**usage, "output_tokens": 1}}
    yield _event("message_start", {"message": opening})
    for index, block in enumerate(message["content"]):
        opened, deltas = _block_events(block)
        yield _event("content_block_start", {"index": index, "content_block": opened})
        for delta in deltas:
            yield _event("content_block_delta", {"index": index, "delta": delta})
        yield _event("content_block_stop", {"index": index})
    ending = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
    yield _event("message_delta", {"delta": ending, "usage": {"output_tokens": usage["output_tokens"]}})
    yield _event("message_stop", {})


def _block_events(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    if block["type"] == "tool_use":
        written = json.dumps(block["input"], ensure_ascii=False)
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": written}]
    if block["type"] == "thinking":
        return {"type": "thinking", "thinking": "", "signature": ""}, [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": ""},
        ]
    return {"type": "text", "text": ""}, [{"type": "text_delta", "text": block["text"]}]


def error_of(error: SynthError) -> tuple[int, dict[str, Any]]:
    """Return HTTP status and body.

    Never 401 or 409: harnesses retry those. A token that no longer holds is 410: its trial has ended, and so does the
    harness. Source: facts/proxy.md section 1.5.
    """
    if isinstance(error, ContextOverflowError):
        return 400, error_body("invalid_request_error", error.message)
    if isinstance(error, AuthorizationError):
        return 410, error_body("permission_error", str(error))
    if isinstance(error, OverloadError):
        return 529, error_body("overloaded_error", str(error))
    if isinstance(error, ConfigurationError):
        return 400, error_body("invalid_request_error", str(error))
    if isinstance(error, NotFoundError):
        return 503, error_body("api_error", str(error))
    return 500, error_body("api_error", f"{type(error).__name__}: {error}")


def error_body(kind: str, message: str) -> dict[str, Any]:
    """Return an Anthropic error body."""
    return {"type": "error", "error": {"type": kind, "message": message}}


def error_event(error: SynthError) -> bytes:
    """Return the event that ends a stream which cannot be completed."""
    return _event("error", error_of(error)[1])


def _event(kind: str, body: Mapping[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **body}, ensure_ascii=False)}\n\n".encode()
