"""OpenAI's two dialects of the proxy: chat completions and Responses, for mini-swe-agent, opencode and codex.

Like the Anthropic one, they generate fully, record, then deliver; a client that went away may ask again.
Source: facts/proxy.md sections 0 and 1.10; opencode 1.18 and codex 0.171 observed as clients.
"""

import asyncio
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from adapters.servers.call import Answer, Call
from adapters.servers.calls import CallDesk
from adapters.servers.edge import mark_delivered, read_body, result_of, secret_of, settled, unless_gone
from adapters.servers.openai_chat import read_chat
from adapters.servers.openai_delivery import ChatStream, completion_of, said_of
from adapters.servers.openai_errors import error_body, headers_of, status_of
from adapters.servers.openai_items import ResponsesStream, response_of
from adapters.servers.openai_reading import Asked
from adapters.servers.openai_responses import read_responses
from adapters.servers.wire import WireMessage, WireRequest
from domain.errors import ConfigurationError, ContextOverflowError, SynthError
from domain.records.experiment import TokenScope
from domain.records.trial import Purpose

_RECORDED = (
    *("user-agent", "session-id", "thread-id", "x-codex-parent-thread-id", "x-openai-subagent"),
    *("x-session-id", "x-parent-session-id"),
)
"""Headers of which the journal keeps a copy."""
_AGENT = re.compile(r"^[A-Za-z0-9_.:-]{1,64}$")
_Reader = Callable[[bytes, Purpose, Sequence[WireMessage]], Asked]
_Handler = Callable[[Request], Awaitable[Response]]
_Shown = Callable[[Answer], dict[str, Any]]


class Words(Protocol):
    """What a stream says, and when."""

    def opening(self) -> Iterator[bytes]:
        """Yield what is sent before the model works."""
        ...

    def alive(self) -> bytes:
        """Return what is sent while the model works."""
        ...

    def whole(self, answer: Answer) -> Iterator[bytes]:
        """Yield a whole message and the end."""
        ...

    def failed(self, error: SynthError) -> Iterator[bytes]:
        """Yield what ends a stream that cannot be completed."""
        ...


def openai_routes(desk: CallDesk, *, ping_s: float) -> list[Route]:
    """Return the routes of both dialects.

    Args:
        desk: takes calls to recorded answers.
        ping_s: seconds between signs of life of a stream.
    """
    dialects = _Dialects(desk, ping_s)
    return [
        Route(f"{prefix}/v1/{path}", _guarded(handler, ended), methods=["POST"])
        for prefix in ("", "/{prefix:path}")
        for path, handler, ended in (("chat/completions", dialects.chat, 404), ("responses", dialects.responses, 400))
    ]


class _Dialects:
    def __init__(self, desk: CallDesk, ping_s: float) -> None:
        self._desk = desk
        self._ping_s = ping_s

    async def chat(self, request: Request) -> Response:
        """Answer ``POST /v1/chat/completions``."""
        scope = await self._desk.scope(secret_of(request))
        asked = await self._read(scope, request, read_chat)
        call = await self._desk.begin(scope, _agent(request), asked.request)
        created_s = int(time.time())
        if asked.request.stream:
            await settled(call)
            return _streamed(self._events(call, ChatStream(asked, created_s)))
        return await _whole(request, call, lambda answer: completion_of(said_of(answer, asked), asked, created_s))

    async def responses(self, request: Request) -> Response:
        """Answer ``POST /v1/responses``.

        A stream says itself that its prompt is too long: codex compacts at that event and at no status.
        """
        scope = await self._desk.scope(secret_of(request))
        asked = await self._read(scope, request, read_responses)
        response_id, created_s = f"resp_{secrets.token_hex(16)}", int(time.time())
        words = ResponsesStream(asked, response_id, created_s)
        try:
            call = await self._desk.begin(scope, _agent(request), asked.request)
        except ContextOverflowError as error:
            if not asked.request.stream:
                raise
            return _streamed(_refused(words, error))
        if asked.request.stream:
            await settled(call)
            return _streamed(self._events(call, words))
        return await _whole(
            request, call, lambda answer: response_of(said_of(answer, asked), asked, response_id, created_s)
        )

    async def _read(self, scope: TokenScope, request: Request, reader: _Reader) -> Asked:
        data, purpose = await read_body(request), _purpose(request)
        headers = {name: request.headers[name] for name in _RECORDED if name in request.headers}
        found: list[Asked] = []

        def read(before: Sequence[WireMessage]) -> WireRequest:
            asked = reader(data, purpose, before)
            found.append(replace(asked, request=replace(asked.request, extra={**asked.request.extra, **noted})))
            return found[0].request

        noted = {"headers": headers} if headers else {}
        await self._desk.read(scope, _agent(request), read)
        return found[0]

    async def _events(self, call: Call, words: Words) -> AsyncIterator[bytes]:
        """Yield a sign of life at once and while the model works, then the whole message."""
        complete = False
        try:
            for event in words.opening():
                yield event
            while not call.task.done():
                done, _ = await asyncio.wait({call.task}, timeout=self._ping_s)
                if not done:
                    yield words.alive()
            try:
                answer = result_of(call)
            except SynthError as error:
                complete = True
                for event in words.failed(error):
                    yield event
                return
            for event in words.whole(answer):
                yield event
            # Not marked as delivered: the harness says that it has the answer by going on from it.
            complete = True
        finally:
            call.abandoned = not complete


async def _refused(words: Words, error: SynthError) -> AsyncIterator[bytes]:
    for event in (*words.opening(), *words.failed(error)):
        yield event


def _streamed(events: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-cache"})


async def _whole(request: Request, call: Call, shown: _Shown) -> Response:
    answer = await unless_gone(request, call)
    if answer is None:
        return Response(status_code=499)
    return JSONResponse(shown(answer), background=BackgroundTask(mark_delivered, answer))


def _agent(request: Request) -> str:
    """Return who calls: opencode names the session of a delegated agent and its parent's, codex thread and session."""
    headers = request.headers
    agent = "main"
    if "x-parent-session-id" in headers:
        agent = headers.get("x-session-id", "")
    elif headers.get("thread-id", "") != headers.get("session-id", ""):
        agent = headers.get("thread-id", "")
    if not _AGENT.fullmatch(agent):
        raise ConfigurationError("x-session-id: letters, digits and _.:- only, 64 at most")
    return agent


def _purpose(request: Request) -> Purpose:
    """Tell codex's requests that are no turn of an agent."""
    try:
        told: object = json.loads(request.headers.get("x-codex-turn-metadata", "{}"))
    except (ValueError, RecursionError):
        return Purpose.AGENT
    kind = cast("dict[str, object]", told).get("request_kind", "turn") if isinstance(told, dict) else "turn"
    return Purpose.AGENT if kind == "turn" else Purpose.COMPACTION if kind == "compaction" else Purpose.OTHER


def _guarded(handler: _Handler, ended: int) -> _Handler:
    """Turn our errors into OpenAI's; ``ended`` is the status at which the dialect's harnesses stop."""

    async def guarded(request: Request) -> Response:
        try:
            return await handler(request)
        except SynthError as error:
            return JSONResponse(error_body(error), status_of(error, ended), headers=headers_of(error))

    return guarded
