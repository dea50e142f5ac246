"""What every dialect of the proxy does alike: whose token, the body, the wait for an answer."""

import asyncio
import contextlib

from starlette.requests import Request

from adapters.servers.call import Answer, Call
from domain.errors import ConfigurationError, SamplerError

BODY_LIMIT_BYTES = 64_000_000
_SETTLED_S = 0.05


class TooLargeError(ConfigurationError):
    """A body is longer than anybody's conversation."""


def secret_of(request: Request) -> str:
    """Return the token that a request carries, as a bearer or as an API key; empty: none."""
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer":
        secret = request.headers.get("x-api-key", "")
    return secret.strip()


async def read_body(request: Request) -> bytes:
    """Return the body.

    Raises:
        TooLargeError: it is longer than :data:`BODY_LIMIT_BYTES`.
    """
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > BODY_LIMIT_BYTES:
            raise TooLargeError(f"body: more than {BODY_LIMIT_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


def result_of(call: Call) -> Answer:
    """Return the answer of a call that is done.

    Raises:
        SynthError: as the call ended.
    """
    if call.task.cancelled():
        raise SamplerError("the call was ended")
    return call.task.result()


async def settled(call: Call) -> None:
    """Wait a moment, so that what fails at once is told by its status: after the headers only a 200 is possible.

    Raises:
        SynthError: as the call ended.
    """
    done, _ = await asyncio.wait({call.task}, timeout=_SETTLED_S)
    if done:
        result_of(call)


async def unless_gone(request: Request, call: Call) -> Answer | None:
    """Wait for the answer; None when the harness went away first. The call itself goes on and is recorded."""
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({call.task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if call.task.done():
            return result_of(call)
        call.abandoned = True
        return None
    finally:
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def mark_delivered(answer: Answer) -> None:
    """Note that the last byte was handed over."""
    answer.turn.delivered = True
