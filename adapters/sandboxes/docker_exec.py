"""One command in a container: an exec whose output is drained and bounded, held back until it is watched.

The engine's exec ends when nobody holds its output any more, which a background process may prolong; so the command's
own process is watched from outside, and what is left of it is killed before the rest of the output is read.
"""

import asyncio
import os
import socket
import struct
import time
from contextlib import suppress
from typing import Any

from adapters.sandboxes.docker_engine import apart
from domain.errors import SandboxError
from domain.ports import Command

_START_S = 30.0
_LAST_WORD_S = 5.0
_POLL_S = 0.005
_CHUNK = 1 << 18
_HEADER = struct.Struct(">BxxxL")
"""Of a frame: stream (1 stdout, 2 stderr) and size. Source: Docker Engine API 1.41, ContainerAttach."""
_SCRIPT = 'read -r _ && cd "$0" && exec "$@"'
"""The first line of input is ours: when it comes, the process is watched. ``exec`` gives 127 for no such program."""


class Output:
    """Both outputs of a command, each kept up to a limit, the rest counted."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = {1: bytearray(), 2: bytearray()}
        self._pending = bytearray()
        self.n_dropped = 0

    def feed(self, data: bytes) -> None:
        """Take bytes of the multiplexed stream."""
        self._pending += data
        start = 0
        while len(self._pending) - start >= _HEADER.size:
            stream, size = _HEADER.unpack_from(self._pending, start)
            if len(self._pending) - start - _HEADER.size < size:
                break
            start += _HEADER.size
            self._keep(stream, memoryview(self._pending)[start : start + size])
            start += size
        del self._pending[:start]

    def _keep(self, stream: int, data: memoryview) -> None:
        kept = self._kept.setdefault(stream, bytearray())
        room = max(0, self._limit - len(kept))
        kept += data[:room]
        self.n_dropped += max(0, len(data) - room)
        data.release()

    @property
    def stdout(self) -> bytes:
        """What was kept of it."""
        return bytes(self._kept[1])

    @property
    def stderr(self) -> bytes:
        """What was kept of it."""
        return bytes(self._kept[2])


class Exec:
    """A command that was started and waits at its gate."""

    def __init__(self, api: Any, exec_id: str, stream: Any, stdin: bytes, output_bytes: int) -> None:
        self._api = api
        self._exec_id = exec_id
        self._stream = stream
        self._socket: socket.socket = getattr(stream, "_sock", stream)
        self._socket.setblocking(False)  # noqa: FBT003 - the name of the method says it
        self._stdin = stdin
        self._ended = asyncio.Event()
        self._pidfd = -1
        self.pid = 0
        """As this machine sees it, once it is watched."""
        self._reading: asyncio.Task[None] | None = None
        self.output = Output(output_bytes)
        self.started_s = time.monotonic()

    @classmethod
    def start(cls, api: Any, container: str, command: Command, cwd: str, output_bytes: int) -> "Exec":
        """Start a command; it runs nothing before :meth:`run`. Blocks for the engine."""
        created = api.exec_create(
            container,
            ["/bin/sh", "-c", _SCRIPT, cwd, *command.argv],
            stdin=True,
            user=command.user or "",
            environment=dict(command.env),
            workdir="/",
        )
        stream = api.exec_start(created["Id"], socket=True)
        return cls(api, str(created["Id"]), stream, command.stdin, output_bytes)

    async def watched(self) -> None:
        """Wait until the command's process is there and watched. Raises SandboxError when it could not be started."""
        deadline_s = self.started_s + _START_S
        while time.monotonic() < deadline_s:
            state = await self._state()
            if state["Pid"]:
                self.pid = int(state["Pid"])
                with suppress(ProcessLookupError):
                    self._pidfd = os.pidfd_open(int(state["Pid"]))
                    asyncio.get_running_loop().add_reader(self._pidfd, self._ended.set)
                    return
                self._ended.set()  # killed before we saw it
                return
            if not state["Running"] and state["ExitCode"] is not None:
                break
            await asyncio.sleep(_POLL_S)
        await self.drain()
        raise SandboxError(f"the command was not started: {self.output.stdout.decode(errors='replace').strip()[:300]}")

    async def run(self) -> None:
        """Open the gate, hand over the input, read outputs, and return when the command's own process has ended."""
        self._reading = asyncio.ensure_future(self._read())
        writing = asyncio.ensure_future(self._write())
        try:
            await self._ended.wait()
        finally:
            writing.cancel()

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            await loop.sock_sendall(self._socket, b"\n" + self._stdin)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while data := await loop.sock_recv(self._socket, _CHUNK):
                self.output.feed(data)

    async def drain(self) -> None:
        """Read what is left once every process is dead.

        The reader is never cancelled between two reads: bytes that it holds by then would be lost.
        """
        reading = self._reading or asyncio.ensure_future(self._read())
        await asyncio.wait([reading], timeout=_LAST_WORD_S)
        reading.cancel()

    async def exit_code(self) -> int | None:
        """Return the exit code as the engine has it, None when it does not say."""
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(_LAST_WORD_S):
                state = await self._state()
                while state["Running"]:
                    await asyncio.sleep(_POLL_S)
                    state = await self._state()
                return None if state["ExitCode"] is None else int(state["ExitCode"])
        return None

    async def _state(self) -> dict[str, Any]:
        found: dict[str, Any] = await apart(lambda: self._api.exec_inspect(self._exec_id))
        return found

    def close(self) -> None:
        """Let go of everything."""
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        self.let_go()

    def let_go(self) -> None:
        """Hang up; a command that was never let through its gate ends by that."""
        with suppress(OSError):
            self._socket.close()
        with suppress(OSError, AttributeError):
            self._stream.close()
