"""One child process on the event loop: output drained and bounded, time limited, resources read when it ends."""

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_CHUNK = 65536
_SLOW_DRAIN_S = 0.004
_BIG_PIPE_BYTES = 1 << 20
_UNWATCHED_S = 0.05
"""Shorter commands are not watched by a supervisor."""
_LAST_WORD_S = 5.0
"""After the sandboxed process 1 is killed, bubblewrap must end within this, else it is killed too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a child ended."""

    exit_code: int
    ran: bool
    """Whether the command inside was started; otherwise bubblewrap itself failed."""
    stdout: bytes
    stderr: bytes
    n_dropped_bytes: int
    timed_out: bool
    limit_exceeded: str | None
    duration_s: float
    cpu_s: float
    peak_memory_bytes: int


class Drain:
    """Reads one pipe to its end, keeps the first ``limit`` bytes and counts the rest."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self._descriptor = descriptor
        self._limit = limit
        self._kept = bytearray()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.n_dropped = 0
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._on_ready)

    def _on_ready(self) -> None:
        try:
            data = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._descriptor)
            return
        self._keep(data)
        if self.n_dropped:
            self._slow_down()

    def _keep(self, data: bytes) -> None:
        room = self._limit - len(self._kept)
        self._kept += data[:room]
        self.n_dropped += max(0, len(data) - room)

    def _slow_down(self) -> None:
        """Drain in steps once bytes are only counted, so that a flood does not take the event loop."""
        self._loop.remove_reader(self._descriptor)
        with suppress(OSError):
            fcntl.fcntl(self._descriptor, fcntl.F_SETPIPE_SZ, _BIG_PIPE_BYTES)
        self._timer = self._loop.call_later(_SLOW_DRAIN_S, self._step)

    def _step(self) -> None:
        if self._skip() is not None:
            self._timer = self._loop.call_later(_SLOW_DRAIN_S, self._step)

    def _skip(self) -> int | None:
        """Count and drop what is there; None at the end."""
        try:
            data = os.read(self._descriptor, _BIG_PIPE_BYTES)
        except BlockingIOError:
            return 0
        self.n_dropped += len(data)
        return len(data) or None

    def finish(self) -> bytes:
        """Read what is left (every writer is dead), close, and return what was kept."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._descriptor)
        with suppress(BlockingIOError):
            while data := os.read(self._descriptor, _CHUNK):
                self._keep(data)
        os.close(self._descriptor)
        return bytes(self._kept)


class Child:
    """A bubblewrap process and the box's process 1 below it."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        status: int,
        output_bytes: int,
        *,
        on_pid: Callable[[int], None] | None = None,
    ) -> None:
        """Follow a bubblewrap that was started.

        Args:
            process: bubblewrap.
            status: what it writes its status to; closed in the end.
            output_bytes: kept of each output.
            on_pid: called once with the box's process 1, while that waits to run the command.
        """
        self._process = process
        self._status = status
        self._said = b""
        self._on_pid = on_pid
        self._started_s = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._pidfd = os.pidfd_open(process.pid)
        self._loop.add_reader(self._pidfd, self._ended.set)
        os.set_blocking(status, False)
        if on_pid is not None:
            self._loop.add_reader(status, self._hear)
        stdout, stderr = process.stdout, process.stderr
        if stdout is None or stderr is None:
            raise ValueError("output pipes are required")
        self._stdout = Drain(os.dup(stdout.fileno()), output_bytes)
        self._stderr = Drain(os.dup(stderr.fileno()), output_bytes)
        stdout.close()
        stderr.close()
        self.limit_exceeded: str | None = None
        self._timed_out = False

    @property
    def pid(self) -> int:
        """Process id of bubblewrap."""
        return self._process.pid

    def _hear(self) -> None:
        """Read bubblewrap's status up to the box's process 1."""
        with suppress(BlockingIOError):
            self._said += os.read(self._status, _CHUNK)
        pid = _status_of(self._said).get("child-pid")
        if self._on_pid is not None and (pid is not None or self._ended.is_set()):
            self._loop.remove_reader(self._status)
            on_pid, self._on_pid = self._on_pid, None
            if pid is not None:
                on_pid(pid)

    async def wait(self, timeout_s: float, watch: Callable[["Child"], Coroutine[Any, Any, None]]) -> Ended:
        """Wait for the end, with ``watch`` beside it; kill on time-out and on cancellation."""
        watching: asyncio.Task[None] | None = None
        alarm = self._loop.call_later(timeout_s, self._on_timeout)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), _UNWATCHED_S)
            if not self._ended.is_set():
                watching = asyncio.ensure_future(watch(self))
                await self._ended.wait()
        finally:
            alarm.cancel()
            if watching is not None:
                watching.cancel()
            self.kill()
            try:
                await _finish(self._reaped())
            finally:
                ended = self._collect()
        return ended

    def _on_timeout(self) -> None:
        self._timed_out = True
        self.kill()

    def kill(self, limit: str | None = None) -> None:
        """Kill every process of the command; ``limit`` names the limit that it broke."""
        if self._ended.is_set():
            return
        self.limit_exceeded = self.limit_exceeded or limit
        children = children_of(self.pid)
        for child in children or [self.pid]:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    async def _reaped(self) -> None:
        """Wait until bubblewrap has ended: it ends after process 1, and process 1 after all others."""
        try:
            await asyncio.wait_for(self._ended.wait(), _LAST_WORD_S)
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            await self._ended.wait()

    def _collect(self) -> Ended:
        for descriptor in (self._pidfd, self._status):
            self._loop.remove_reader(descriptor)
        os.close(self._pidfd)
        with os.fdopen(self._status, "rb") as stream:
            self._said += stream.read() or b""
        _, status, usage = os.wait4(self.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        stdout, stderr = self._stdout.finish(), self._stderr.finish()
        return Ended(
            exit_code=self._process.returncode,
            ran="exit-code" in _status_of(self._said),
            stdout=stdout,
            stderr=stderr,
            n_dropped_bytes=self._stdout.n_dropped + self._stderr.n_dropped,
            timed_out=self._timed_out,
            limit_exceeded=self.limit_exceeded,
            duration_s=time.monotonic() - self._started_s,
            cpu_s=usage.ru_utime + usage.ru_stime,
            peak_memory_bytes=usage.ru_maxrss * 1024,
        )


async def _finish(work: Coroutine[Any, Any, None]) -> None:
    """Await ``work`` to its end even when we are cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


def _status_of(said: bytes) -> dict[str, int]:
    """Return what bubblewrap has said; ``exit-code`` is there only when the command was started."""
    found: dict[str, int] = {}
    for line in said.splitlines():
        with suppress(ValueError):
            found.update(json.loads(line))
    return found


def children_of(pid: int) -> list[int]:
    """Return the children of a process, over all of its threads."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found.extend(int(child) for child in (task / "children").read_text().split())
    return found


@dataclass(slots=True, kw_only=True)
class Descriptors:
    """Descriptors that are closed together."""

    held: list[int] = field(default_factory=list[int])

    def keep(self, descriptor: int) -> int:
        """Remember a descriptor and return it."""
        self.held.append(descriptor)
        return descriptor

    def close(self) -> None:
        """Close all of them."""
        while self.held:
            with suppress(OSError):
                os.close(self.held.pop())
