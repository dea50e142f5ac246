"""The model proxy: Anthropic Messages, and OpenAI's dialects beside them. Generates fully, records, then delivers.

Source: facts/proxy.md sections 0, 1.1, 1.2 and 1.5.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Match, Route
from starlette.types import Scope

from adapters.servers.call import Call
from adapters.servers.calls import BusyError, CallDesk
from adapters.servers.delivery import PING, error_body, error_event, error_of, events_of
from adapters.servers.edge import (
    TooLargeError,
    mark_delivered,
    read_body,
    result_of,
    secret_of,
    settled,
    unless_gone,
)
from adapters.servers.openai_routes import openai_routes
from adapters.servers.wire import WireRequest, read_request
from domain.errors import AuthorizationError, ConfigurationError, OverloadError, SynthError
from domain.records.experiment import TokenScope

PING_S = 5.0
"""Between pings while the model works; a harness gives up after its idle limit otherwise."""
_AGENT = re.compile(r"^[A-Za-z0-9_.:-]{1,64}$")
_RECORDED = ("anthropic-beta", "user-agent", "x-claude-code-session-id", "x-claude-code-parent-agent-id")
"""Headers that nothing acts on."""
_OVERLOADED_S = "2"
Handler = Callable[[Request], Awaitable[Response]]


def create_proxy(desk: CallDesk, *, ping_s: float = PING_S) -> Starlette:
    """Return the ASGI application.

    Args:
        desk: takes calls to recorded answers.
        ping_s: seconds between pings of a stream.
    """
    proxy = _Proxy(desk, ping_s)
    return Starlette(
        routes=[
            Route("/", _alive, methods=["GET"]),
            # A base URL may have a path, which says nothing here: the token names the trial.
            _HeadRoute("/{prefix:path}", _alive, methods=["HEAD"]),
            *(
                Route(f"{prefix}/v1/{path}", _guarded(handler), methods=[method])
                for prefix in ("", "/{prefix:path}")
                for path, method, handler in (
                    ("messages", "POST", proxy.messages),
                    ("messages/count_tokens", "POST", proxy.count_tokens),
                    ("models", "GET", proxy.models),
                    ("models/{name}", "GET", proxy.model),
                )
            ),
            *openai_routes(desk, ping_s=ping_s),
        ]
    )


class _HeadRoute(Route):
    """Answers HEAD alone, and leaves every other method of its paths to other routes."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match HEAD or nothing; a partial match would make 405 of what is not there."""
        return super().matches(scope) if scope.get("method") == "HEAD" else (Match.NONE, {})


class _NoTokenError(AuthorizationError):
    """Nobody in particular asks."""


class _Proxy:
    def __init__(self, desk: CallDesk, ping_s: float) -> None:
        self._desk = desk
        self._ping_s = ping_s

    async def messages(self, request: Request) -> Response:
        """Answer ``POST /v1/messages``."""
        scope = await self._scope(request)
        body = await self._read(scope, request)
        call = await self._desk.begin(scope, _agent(request), body)
        if body.stream:
            await settled(call)
            call.abandoned = True  # until somebody reads: a harness may be gone already
            events = self._events(call)
            return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-cache"})
        answer = await unless_gone(request, call)
        if answer is None:
            return Response(status_code=499)
        return JSONResponse(answer.message, background=BackgroundTask(mark_delivered, answer))

    async def count_tokens(self, request: Request) -> Response:
        """Answer ``POST /v1/messages/count_tokens``."""
        scope = await self._scope(request)
        body = await self._read(scope, request)
        return JSONResponse({"input_tokens": await self._desk.count(scope, _agent(request), body)})

    async def models(self, request: Request) -> Response:
        """Answer ``GET /v1/models`` with the one model of the token."""
        name = (await self._scope(request)).model
        ends = {"has_more": False, "first_id": name, "last_id": name}
        return JSONResponse({"object": "list", "data": [_listed(name)], **ends})

    async def model(self, request: Request) -> Response:
        """Answer ``GET /v1/models/NAME``."""
        scope = await self._scope(request)
        if request.path_params["name"] != scope.model:
            return JSONResponse(error_body("not_found_error", f"there is {scope.model!r} alone"), 404)
        return JSONResponse(_listed(scope.model))

    async def _read(self, scope: TokenScope, request: Request) -> WireRequest:
        data = await read_body(request)
        found = await self._desk.read(scope, _agent(request), lambda before: read_request(data, before))
        headers = {name: request.headers[name] for name in _RECORDED if name in request.headers}
        return replace(found, extra={**found.extra, "headers": headers}) if headers else found

    async def _scope(self, request: Request) -> TokenScope:
        secret = secret_of(request)
        if not secret:
            raise _NoTokenError("no token", hint="send it as authorization: Bearer, or as x-api-key")
        return await self._desk.scope(secret)

    async def _events(self, call: Call) -> AsyncIterator[bytes]:
        """Yield a ping at once and while the model works, then the whole message."""
        call.abandoned = complete = False
        try:
            yield PING
            while not call.task.done():
                done, _ = await asyncio.wait({call.task}, timeout=self._ping_s)
                if not done:
                    yield PING
            try:
                answer = result_of(call)
            except SynthError as error:
                complete = True
                yield error_event(error)
                return
            for event in events_of(answer.message):
                yield event
            # Not marked as delivered: a stream can be cut after its last byte has left here. A harness says that it
            # has the answer by going on from it; until then the same request gets the same answer, also when it is
            # asked without a stream, as harnesses do after a broken one.
            complete = True
        finally:
            call.abandoned = not complete


def _agent(request: Request) -> str:
    """Return who calls: a delegated agent names itself. Source: facts/proxy.md section 1.2."""
    agent = request.headers.get("x-claude-code-agent-id", "main")
    if not _AGENT.fullmatch(agent):
        raise ConfigurationError("x-claude-code-agent-id: letters, digits and _.:- only, 64 at most")
    return agent


def _listed(name: str) -> dict[str, Any]:
    """Return a model in a form that both vendors' clients read."""
    anthropic = {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
    return {**anthropic, "object": "model", "created": 0, "owned_by": "synth"}


async def _alive(_: Request) -> Response:
    return Response()


def _guarded(handler: Handler) -> Handler:
    """Turn our errors into Anthropic's."""

    async def guarded(request: Request) -> Response:
        try:
            return await handler(request)
        except BusyError as error:
            return JSONResponse(error_body("rate_limit_error", str(error)), 429, headers={"retry-after": "1"})
        except _NoTokenError as error:
            return JSONResponse(error_body("permission_error", str(error)), 403)
        except TooLargeError as error:
            return JSONResponse(error_body("request_too_large", str(error)), 413)
        except OverloadError as error:
            return JSONResponse(error_of(error)[1], error_of(error)[0], headers={"retry-after": _OVERLOADED_S})
        except SynthError as error:
            status, body = error_of(error)
            return JSONResponse(body, status)

    return guarded
