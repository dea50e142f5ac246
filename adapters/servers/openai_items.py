"""A recorded turn in the words of Responses: a response object, or its events in order.

Each event that opens something has the one that closes it; codex acts on the closing ones alone.
Source: the ``openai`` SDK's ``types/responses``; facts/proxy.md section 1.10.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from adapters.servers.call import Answer
from adapters.servers.openai_delivery import Said, SaidCall, said_of
from adapters.servers.openai_errors import error_detail
from adapters.servers.openai_reading import Asked
from domain.errors import SynthError

Event = tuple[str, dict[str, Any]]


def response_of(said: Said, asked: Asked, response_id: str, created_s: int) -> dict[str, Any]:
    """Return a completed ``response``; an incomplete one where the turn was cut by length."""
    status = "incomplete" if said.is_cut else "completed"
    return {
        **_response(asked, response_id, created_s, status),
        "completed_at": None if said.is_cut else created_s,
        "incomplete_details": {"reason": "max_output_tokens"} if said.is_cut else None,
        "output": _items(said),
        "usage": {
            "input_tokens": said.n_prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": said.n_sampled,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": said.n_prompt + said.n_sampled,
        },
    }


class ResponsesStream:
    """The words of a streamed response."""

    def __init__(self, asked: Asked, response_id: str, created_s: int) -> None:
        self._asked = asked
        self._id = response_id
        self._created_s = created_s
        self._numbers = itertools.count()

    def opening(self) -> Iterator[bytes]:
        """Yield what is sent before the model works."""
        working = _response(self._asked, self._id, self._created_s, "in_progress")
        yield self._event("response.created", {"response": working})
        yield self.alive()

    def alive(self) -> bytes:
        """Return what is sent while the model works: an event, since codex counts no comments against its limit."""
        working = _response(self._asked, self._id, self._created_s, "in_progress")
        return self._event("response.in_progress", {"response": working})

    def whole(self, answer: Answer) -> Iterator[bytes]:
        """Yield the events of each item, and the whole response at the end."""
        said = said_of(answer, self._asked)
        response = response_of(said, self._asked, self._id, self._created_s)
        for index, item in enumerate(response["output"]):
            for kind, fields in _item_events(item):
                yield self._event(kind, {"output_index": index, **fields})
        yield self._event(f"response.{response['status']}", {"response": response})

    def failed(self, error: SynthError) -> Iterator[bytes]:
        """Yield what ends a stream that cannot be completed."""
        detail = error_detail(error)
        failure = {
            **_response(self._asked, self._id, self._created_s, "failed"),
            "error": {"code": detail["code"], "message": detail["message"]},
        }
        yield self._event("response.failed", {"response": failure})

    def _event(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        body = {"type": kind, "sequence_number": next(self._numbers), **fields}
        return f"event: {kind}\ndata: {json.dumps(body, ensure_ascii=False)}\n\n".encode()


def _response(asked: Asked, response_id: str, created_s: int, status: str) -> dict[str, Any]:
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_s,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        **asked.repeated,
        "model": asked.request.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "truncation": "disabled",
        "usage": None,
    }


def _items(said: Said) -> list[dict[str, Any]]:
    """Return output items: reasoning, text, calls; a turn that said nothing is an empty text."""
    items: list[dict[str, Any]] = []
    if said.reasoning:
        content = [{"type": "reasoning_text", "text": said.reasoning}]
        items.append({"type": "reasoning", "id": f"rs_{said.key}", "summary": [], "content": content})
    if said.text or not said.calls:
        part: dict[str, Any] = {"type": "output_text", "text": said.text, "annotations": [], "logprobs": []}
        status = "incomplete" if said.is_cut else "completed"
        message = {"type": "message", "id": f"msg_{said.key}", "status": status, "role": "assistant", "content": [part]}
        items.append(message)
    items.extend(_call_item(call, f"{said.key}_{index}") for index, call in enumerate(said.calls))
    return items


def _call_item(call: SaidCall, key: str) -> dict[str, Any]:
    custom = call.tool.is_custom
    item = {
        "type": "custom_tool_call" if custom else "function_call",
        "id": f"{'ctc' if custom else 'fc'}_{key}",
        "call_id": call.call_id,
        "name": call.tool.name,
        "input" if custom else "arguments": call.arguments,
        "status": "completed",
    }
    return item if call.tool.namespace is None else {**item, "namespace": call.tool.namespace}


def _item_events(item: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the events of one item; the output index is added by the stream."""
    opened = {**item, **{name: type(item[name])() for name in ("content", "input", "arguments") if name in item}}
    if "status" in item:
        opened["status"] = "in_progress"
    yield "response.output_item.added", {"item": opened}
    yield from _parts(item) if "content" in item else _written(item)
    yield "response.output_item.done", {"item": item}


def _parts(item: Mapping[str, Any]) -> Iterator[Event]:
    for index, part in enumerate(item["content"]):
        place = {"item_id": item["id"], "content_index": index}
        said = part["type"] == "output_text"
        name = f"response.{part['type']}"
        extra: dict[str, Any] = {"logprobs": []} if said else {}
        yield "response.content_part.added", {**place, "part": {**part, "text": ""}}
        if part["text"]:
            yield f"{name}.delta", {**place, "delta": part["text"], **extra}
        yield f"{name}.done", {**place, "text": part["text"], **extra}
        yield "response.content_part.done", {**place, "part": part}


def _written(item: Mapping[str, Any]) -> Iterator[Event]:
    place = {"item_id": item["id"]}
    if item["type"] == "custom_tool_call":
        yield "response.custom_tool_call_input.delta", {**place, "delta": item["input"]}
        yield "response.custom_tool_call_input.done", {**place, "input": item["input"]}
    else:
        yield "response.function_call_arguments.delta", {**place, "delta": item["arguments"]}
        yield (
            "response.function_call_arguments.done",
            {**place, "name": item["name"], "arguments": item["arguments"]},
        )
