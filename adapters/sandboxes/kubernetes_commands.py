"""One command of a box: supervised in its pod, ended from a second program when time or patience runs out."""

import asyncio
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from adapters.sandboxes.kubernetes_api import Api
from adapters.sandboxes.kubernetes_exec import Ended, Output, new_mark, run
from adapters.sandboxes.kubernetes_faults import OutOfDiskError, OutOfMemoryError, PodError, PodGoneError, end_fault
from adapters.sandboxes.kubernetes_objects import Json, is_ending
from adapters.sandboxes.kubernetes_pods import remove
from adapters.sandboxes.kubernetes_shell import KILL, supervised
from adapters.sandboxes.kubernetes_watch import Watch
from domain.errors import SandboxError
from domain.ports import Command, CommandResult

_KILL_S = 15.0
_LAST_WORD_S = 5.0
_END_S = 6.0
"""How long a pod that answers no more may take to show why."""
_REMOVE_S = 10.0
_OURS = 6
"""Processes of a pod that are not the command's: the first, supervisor, watcher, a ``sleep`` of two of them, feeder."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_KILLED = 137
_FIELD = re.compile(r"(\w+)=(\S*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a command may use, in the units of the pod's shell."""

    output_bytes: int
    processes: int | None
    disk_kib: int | None
    used_kib: int
    """Below ``written`` when the box was new."""
    written: str
    """Directories where files are counted, separated by blanks."""


@dataclass(slots=True, kw_only=True)
class Counters:
    """What the pod's control group has counted so far."""

    cpu_s: float | None = None
    peak_bytes: int | None = None

    def take(self, fields: dict[str, str]) -> None:
        """Take the counters of a command's last line."""
        if fields.get("cpu", "").isdigit():
            self.cpu_s = int(fields["cpu"]) / 1e6
        if fields.get("peak", "").isdigit():
            self.peak_bytes = max(self.peak_bytes or 0, int(fields["peak"]))


class PodCommands:
    """Runs commands in one pod, one after another.

    Args:
        api: where.
        watch: knows what becomes of the pod.
        name: the pod's.
        memory_bytes: its limit, for a pod that was ended there before it could say how much it had.
    """

    def __init__(self, api: Api, watch: Watch, name: str, memory_bytes: int | None) -> None:
        self._api = api
        self._watch = watch
        self._name = name
        self._memory_bytes = memory_bytes
        self.counters = Counters()
        self.is_removed = False
        """Set when the box is destroyed: what runs then has been ended by us."""

    async def run(self, command: Command, cwd: str, bounds: Bounds) -> CommandResult:
        """Run a command to its end or its time-out; every process it started is dead when this returns.

        Raises:
            SandboxError: it could not be started, or the pod or the connection failed under it.
        """
        self.check()
        wrong = [name for name in command.env if not _NAME.match(name)]
        if wrong:
            raise SandboxError(f"{wrong[0]!r} is no name of a variable")
        mark, output = new_mark(), Output(bounds.output_bytes)
        started_s = time.monotonic()
        script = _script(command, cwd, bounds)
        running = asyncio.ensure_future(run(self._api, self._name, script, mark, output.keep, stdin=command.stdin))
        try:
            await asyncio.wait({running}, timeout=command.timeout_s)
        except asyncio.CancelledError:
            await to_the_end(self._end(running))
            raise
        timed_out = not running.done()
        if timed_out:
            await to_the_end(self._end(running))
        return await self._result(running, output, mark, started_s, timed_out=timed_out)

    async def _result(
        self, running: "asyncio.Future[Ended]", output: Output, mark: str, started_s: float, *, timed_out: bool
    ) -> CommandResult:
        line = output.last_line(mark)
        if line.startswith("no-"):
            why = "the image has no such user" if line == "no-user" else "nothing in the image can change to that user"
            raise SandboxError(f"the command was not started: {why}", hint="see sandboxes/PODS.md")
        fields = dict(_FIELD.findall(line))
        exit_code: int | None = None
        limit: str | None = None
        if fields.get("rc", "").isdigit() and fields.get("left") == "0":
            exit_code, limit = int(fields["rc"]), fields.get("broke") or None
            self.counters.take(fields)
            if limit is None and exit_code != 0 and fields.get("oom", "0") not in {"", "0"}:
                limit = "memory"
        elif not timed_out:
            exit_code, limit = await self._after(running)
        return CommandResult(
            exit_code=None if timed_out else exit_code,
            stdout=output.stdout,
            stderr=output.stderr,
            timed_out=timed_out,
            limit_exceeded=limit,
            n_dropped_bytes=output.n_dropped,
            duration_s=time.monotonic() - started_s,
        )

    async def _after(self, running: "asyncio.Future[Ended]") -> tuple[int | None, str | None]:
        """Return exit code and limit of a command whose supervisor said nothing: it, or the whole pod, was killed."""
        error = running.exception() if running.done() and not running.cancelled() else None
        if self.is_removed:
            return _KILLED, None
        if await self.kill():
            if error is not None:
                raise error
            return (running.result().exit_code if running.done() else None) or _KILLED, None
        fault = await self._fault()
        if isinstance(fault, OutOfMemoryError):
            self.counters.peak_bytes = max(self.counters.peak_bytes or 0, self._memory_bytes or 0)
            return _KILLED, "memory"
        if isinstance(fault, OutOfDiskError):
            return _KILLED, "disk"
        if self.is_removed:
            return _KILLED, None
        raise fault or error or SandboxError(f"pod {self._name} answers no more")

    async def _fault(self) -> PodError | None:
        """Return how the pod ended, waiting for that to become known."""

        def met(seen: Json | None) -> PodError | None:
            return PodGoneError(f"pod {self._name} was deleted") if seen is None else end_fault(seen)

        try:
            found: Any = await self._watch.until(self._name, met, _END_S)
        except TimeoutError:
            return None
        return found

    async def _end(self, running: "asyncio.Future[Ended]") -> None:
        """Kill what runs; a pod in which that does not succeed is removed."""
        if not self.is_removed and not await self.kill():
            with suppress(SandboxError, TimeoutError):  # the janitor knows it by its label
                await remove(self._api, self._watch, self._name, _REMOVE_S)
        await asyncio.wait({running}, timeout=_LAST_WORD_S)
        if not running.done():
            running.cancel()
            await asyncio.wait({running})
        if not running.cancelled():
            running.exception()

    async def kill(self) -> bool:
        """Kill every process but the pod's first; says whether all of them have ended."""
        try:
            async with asyncio.timeout(_KILL_S):
                ended = await run(self._api, self._name, f"{KILL}settle; exit $?", new_mark(), Output(1000).keep)
        except (SandboxError, TimeoutError):
            return False
        return ended.exit_code == 0

    def check(self) -> None:
        """Raise SandboxError when the pod is over."""
        seen = self._watch.pod(self._name)
        if self.is_removed or seen is None or is_ending(seen):
            raise SandboxError(f"the pod {self._name} is removed", hint="create a new box")
        if (fault := end_fault(seen)) is not None:
            raise fault


def _script(command: Command, cwd: str, bounds: Bounds) -> str:
    return supervised(
        command.argv,
        cwd=cwd,
        env=command.env,
        user=command.user,
        size=len(command.stdin),
        most_processes=None if bounds.processes is None else bounds.processes + _OURS,
        most_kib=None if bounds.disk_kib is None else bounds.disk_kib + bounds.used_kib,
        largest_kib=bounds.disk_kib,
        written=bounds.written,
    )


async def to_the_end(work: Any) -> None:
    """Await ``work`` to its end even when we are cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    await task
