"""The model proxy: Anthropic Messages for native harnesses. Generates fully, records, then delivers.

Source: facts/proxy.md sections 0, 1.1, 1.2 and 1.5.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from adapters.servers.call import Call
from adapters.servers.calls import BusyError, CallDesk
from adapters.servers.delivery import PING, error_body, error_event, error_of, events_of
from adapters.servers.edge import mark_delivered, read_body, result_of, secret_of, unless_gone
from adapters.servers.wire import WireRequest, read_request
from domain.errors import ConfigurationError, SynthError
from domain.records.experiment import TokenScope

PING_S = 5.0
"""Between pings while the model works; a harness gives up after its idle limit otherwise."""
_AGENT = re.compile(r"^[A-Za-z0-9_.:-]{1,64}$")
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
            Route("/", _alive, methods=["GET", "HEAD"]),
            Route("/v1/messages", _guarded(proxy.messages), methods=["POST"]),
            Route("/v1/messages/count_tokens", _guarded(proxy.count_tokens), methods=["POST"]),
            Route("/v1/models", _guarded(proxy.models), methods=["GET"]),
        ]
    )


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
        scope = await self._scope(request)
        created = "1970-01-01T00:00:00Z"
        model = {"type": "model", "id": scope.model, "display_name": scope.model, "created_at": created}
        return JSONResponse({"data": [model], "has_more": False, "first_id": scope.model, "last_id": scope.model})

    async def _read(self, scope: TokenScope, request: Request) -> WireRequest:
        data = await read_body(request)
        return await self._desk.read(scope, _agent(request), lambda before: read_request(data, before))

    async def _scope(self, request: Request) -> TokenScope:
        return await self._desk.scope(secret_of(request))

    async def _events(self, call: Call) -> AsyncIterator[bytes]:
        """Yield a ping at once and while the model works, then the whole message."""
        complete = False
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


async def _alive(_: Request) -> Response:
    return Response()


def _guarded(handler: Handler) -> Handler:
    """Turn our errors into Anthropic's."""

    async def guarded(request: Request) -> Response:
        try:
            return await handler(request)
        except BusyError as error:
            return JSONResponse(error_body("rate_limit_error", str(error)), 429, headers={"retry-after": "1"})
        except SynthError as error:
            status, body = error_of(error)
            return JSONResponse(body, status)

    return guarded
