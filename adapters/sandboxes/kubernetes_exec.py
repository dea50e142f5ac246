"""One program in a pod over a WebSocket: input with back-pressure, output that is bounded and counted, how it ended.

Source: Kubernetes, ``v4.channel.k8s.io`` (client-go ``tools/remotecommand``): the first byte of a message is its
channel, 0 stdin, 1 stdout, 2 stderr, 3 a Status object at the end. The protocol cannot end standard input, so a
script is told how many bytes come (``v5`` can, which not every server speaks).
"""

import asyncio
import json
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from adapters.sandboxes.kubernetes_api import Api
from adapters.sandboxes.kubernetes_faults import ApiUnreachableError, answer_fault
from adapters.sandboxes.kubernetes_objects import items
from adapters.sandboxes.kubernetes_shell import LOADER

_CHUNK = 1 << 16
_STDIN, _STDOUT, _STDERR, _STATUS = range(4)
_TAIL = 1024
"""Bytes of standard error kept for our own last line, however much is dropped before it."""

Keep = Callable[[int, bytes], None]


class Output:
    """Both outputs of a program, each kept up to a limit, the rest counted."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = {_STDOUT: bytearray(), _STDERR: bytearray()}
        self._sizes = {_STDOUT: 0, _STDERR: 0}
        self._tail = b""

    def keep(self, stream: int, data: bytes) -> None:
        """Take bytes of one of the two streams."""
        kept = self._kept[stream]
        kept += data[: max(0, self._limit - len(kept))]
        self._sizes[stream] += len(data)
        if stream == _STDERR:
            self._tail = (self._tail + data)[-_TAIL:]

    def last_line(self, mark: str) -> str:
        """Return what follows ``mark`` on the last line of standard error, and take that line out of what was kept."""
        before, found, after = self._tail.rpartition(f"\n{mark} ".encode())
        if not found:
            return ""
        del before
        self._sizes[_STDERR] -= len(found) + len(after)
        del self._kept[_STDERR][self._sizes[_STDERR] :]
        return after.decode(errors="replace").strip()

    @property
    def n_dropped(self) -> int:
        """Bytes of both streams that were not kept."""
        return sum(max(0, size - len(self._kept[stream])) for stream, size in self._sizes.items())

    @property
    def stdout(self) -> bytes:
        """What was kept of it."""
        return bytes(self._kept[_STDOUT])

    @property
    def stderr(self) -> bytes:
        """What was kept of it."""
        return bytes(self._kept[_STDERR])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended, and the last line of ours that it wrote."""

    exit_code: int | None
    """None: the connection ended before the program, or the server could not say."""
    message: str = ""


def new_mark() -> str:
    """Return a word that ends a script and begins our own last line."""
    return f"synth-{secrets.token_hex(12)}"


async def run(api: Api, pod: str, script: str, mark: str, keep: Keep, *, stdin: bytes = b"") -> Ended:
    """Run a script in a pod to its end.

    Args:
        api: where.
        pod: name of a running pod.
        script: for its /bin/sh.
        mark: ``$0`` of the script.
        keep: called with stream and bytes; what it raises ends the connection.
        stdin: what the script reads after it was read itself.

    Raises:
        PodError: the program could not be started, or the connection was lost.
    """
    async with api.exec(pod, ["/bin/sh", "-c", LOADER, mark]) as socket:
        writing = asyncio.ensure_future(_write(socket, f"{script}\n{mark}\n".encode(), stdin))
        try:
            status = await _read(socket, keep)
        finally:
            writing.cancel()
            await asyncio.wait({writing})
            if not writing.cancelled():
                writing.exception()
    if status is None:
        raise ApiUnreachableError(f"exec in pod {pod}: the connection ended before the command", hint="")
    return _ended(status, pod)


async def _write(socket: Any, script: bytes, stdin: bytes) -> None:
    import aiohttp

    with suppress(aiohttp.ClientError, OSError):
        for content in (script, stdin):
            view = memoryview(content)
            for start in range(0, len(content), _CHUNK):
                await socket.send_bytes(bytes([_STDIN]) + view[start : start + _CHUNK])


async def _read(socket: Any, keep: Keep) -> dict[str, Any] | None:
    """Hand on both outputs; returns the final status, None when the connection ended without one."""
    import aiohttp

    status: dict[str, Any] | None = None
    async for message in socket:
        data: Any = message.data
        if message.type is aiohttp.WSMsgType.TEXT:
            data = data.encode()
        elif message.type is not aiohttp.WSMsgType.BINARY:
            break
        if len(data) > 1 and data[0] in {_STDOUT, _STDERR}:
            keep(data[0], data[1:])
        elif len(data) > 1 and data[0] == _STATUS:
            status = json.loads(data[1:])
    return status


def _ended(status: dict[str, Any], pod: str) -> Ended:
    """Read a Status object. Source: client-go ``tools/remotecommand/v4.go``."""
    if status.get("status") == "Success":
        return Ended(exit_code=0)
    message = str(status.get("message") or "")
    if status.get("reason") == "NonZeroExitCode":
        for cause in items(status, "details", "causes"):
            if cause.get("reason") == "ExitCode":
                return Ended(exit_code=int(cause["message"]), message=message)
    if int(status.get("code") or 0) in {403, 404}:
        raise answer_fault(int(status["code"]), message, f"exec in pod {pod}")
    return Ended(exit_code=None, message=message)
