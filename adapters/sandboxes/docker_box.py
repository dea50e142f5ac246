"""One box: a container, entered for each command; files go through its root directory as the host sees it."""

import asyncio
import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from adapters.sandboxes.cgroups import Group
from adapters.sandboxes.docker_engine import Engine, Image, apart
from adapters.sandboxes.docker_exec import Exec
from adapters.sandboxes.docker_init import Init
from adapters.sandboxes.egress import PORT as EGRESS_PORT
from adapters.sandboxes.egress import EgressProxy
from adapters.sandboxes.isolation import PROXY_PORT, inner_socket
from adapters.sandboxes.supervisor import measure_directory
from adapters.sandboxes.transfer import Packer, absolute, opened, parts_of, unpack
from domain.errors import NotFoundError, SandboxError, boundary
from domain.ports import BoxSpec, BoxStats, Command, CommandResult
from domain.records.task import NetworkMode

_RELAY = Path(__file__).parent / "box" / "relay.py"
_KERNEL = ("proc", "sys", "dev")
_LOGS = ("agent", "verifier", "artifacts")
_OPEN = 0o777
_WATCH_S = 0.1
_KILL_S = 5.0
_REMOVE_S = 10.0
_MB = 1 << 20
_DOWNLOAD_MB = 2048
"""Bound on one download when the box's disk is not limited."""
_FILES_PER_MB = 256


class DockerBox:
    """A box. Commands run one after another; nothing of a command is alive when it has returned."""

    def __init__(
        self,
        *,
        engine: Engine,
        spec: BoxSpec,
        image: Image,
        container: str,
        proxy_socket: Path | None,
        egress: EgressProxy | None = None,
    ) -> None:
        self._engine = engine
        self._spec = spec
        self._image = image
        self._container = container
        self._proxy_socket = proxy_socket
        self._egress = egress
        self._lock = asyncio.Lock()
        self._init: Init | None = None
        self._kept: frozenset[int] = frozenset()
        """Processes that are not the box's: Docker's init, and the one that it waits for."""
        self._written: tuple[str, ...] = ()
        """Directories of the host with what the box wrote: its layer, and the volumes that its image declares."""
        self._relays: dict[int, subprocess.Popen[bytes]] = {}
        """By the port on the container's loopback."""
        self._executing: Exec | None = None
        self._broken: str | None = None
        self._destroyed = False

    @property
    def proxy_url(self) -> str | None:
        """Base URL of the model proxy for commands that dial it; None without model access."""
        return f"http://127.0.0.1:{PROXY_PORT}" if self._proxy_socket is not None else None

    @property
    def proxy_socket(self) -> str | None:
        """Path of the proxy's Unix socket inside; None without model access."""
        return None if self._proxy_socket is None else inner_socket(self._proxy_socket)

    def start(self) -> None:
        """Start the container, or start it again after its first process was killed. Blocks for the engine."""
        self._end_relays()
        self._start_container()
        state = self._engine.api.inspect_container(self._container)
        if self._init is not None:
            self._init.close()
        self._init = Init(int(state["State"]["Pid"]))
        layers: dict[str, str] = state["GraphDriver"]["Data"] or {}
        volumes = [str(mount["Source"]) for mount in state["Mounts"] if mount["Type"] == "volume"]
        self._written = tuple(path for path in (layers.get("UpperDir", ""), *volumes) if path)
        self._kept = self._settled()
        self._furnish()

    def _start_container(self) -> None:
        self._engine.api.start(self._container)

    def _settled(self) -> frozenset[int]:
        """Return the container's own two processes, once both are there."""
        deadline_s = time.monotonic() + _KILL_S
        found: list[int] = []
        while time.monotonic() < deadline_s:
            found = self._processes()
            if len(found) > 1:
                break
            time.sleep(0.002)
        return frozenset(found)

    def _furnish(self) -> None:
        """Make the log directories as every box has them, and the working directory where the image has none."""
        root = self._root()
        try:
            for path in (*(("logs", name) for name in _LOGS), parts_of(self._spec.environment.workdir)):
                if path[0] == "logs" or not _has(root, path):
                    with opened(root, path, own=_to_root) as directory:
                        os.fchmod(directory, _OPEN)
        finally:
            os.close(root)

    @property
    def written(self) -> tuple[str, ...]:
        """Directories of this machine with what the container wrote."""
        return self._written

    @property
    def _running(self) -> Init:
        if self._init is None:
            raise SandboxError(f"box {self._spec.box_id} was never started")
        return self._init

    @property
    def _group(self) -> Group | None:
        return None if self._init is None else self._init.group

    def _root(self) -> int:
        return self._running.open_root()

    def _processes(self) -> list[int]:
        return [] if self._group is None else self._group.processes()

    async def exec(self, command: Command) -> CommandResult:
        """Run to its end or its time-out; every process it started is dead when this returns.

        Raises:
            SandboxError: the box is destroyed, or the command could not be started at all.
        """
        async with self._lock:
            self._check_alive()
            if not command.argv:
                raise SandboxError("a command needs a program")
            with boundary(SandboxError, f"exec in box {self._spec.box_id}"):
                await apart(self._revive)
                self._check_alive()
                if command.dials_proxy and self._proxy_socket is not None:
                    self._start_relay(PROXY_PORT, self._proxy_socket)
                if self._egress is not None:
                    self._start_relay(EGRESS_PORT, self._egress.path)
                    command = replace(command, env={**self._egress.environment, **command.env})
                return await self._run(command)

    def _revive(self) -> None:
        if not self._running.is_alive:
            self._engine.api.wait(self._container, timeout=_REMOVE_S)  # the engine may not have noticed yet
            self.start()

    async def _run(self, command: Command) -> CommandResult:
        cwd = command.cwd or self._spec.environment.workdir
        self._broken = None
        if self._group is not None:
            self._group.mark()
        bound = self._spec.limits.output_bytes
        started = await apart(
            lambda: Exec.start(self._engine.api, self._container, command, cwd, bound), forsaken=Exec.let_go
        )
        self._executing = started
        watching = asyncio.ensure_future(self._watch())
        timed_out = False
        try:
            await started.watched()
            await asyncio.wait_for(started.run(), command.timeout_s)
        except TimeoutError:
            timed_out = True
        finally:
            watching.cancel()
            await _to_the_end(apart(self._end_processes))
            await _to_the_end(started.drain())
            started.close()
        return await self._result(started, timed_out=timed_out)

    async def _result(self, ended: Exec, *, timed_out: bool) -> CommandResult:
        exit_code = await ended.exit_code()
        duration_s = time.monotonic() - ended.started_s
        limit = self._broken
        if limit is None and self._group is not None:  # whatever the exit code: a script may shrug a kill off
            limit = self._group.broken()
        if limit is None and await self._disk_is_full():  # a fast disk fills between two looks
            limit = "disk"
        return CommandResult(
            exit_code=None if timed_out else exit_code,
            stdout=ended.output.stdout,
            stderr=ended.output.stderr,
            timed_out=timed_out,
            limit_exceeded=limit,
            n_dropped_bytes=ended.output.n_dropped,
            duration_s=duration_s,
        )

    async def _watch(self) -> None:
        """End the command when it breaks a limit that the kernel only names."""
        while True:
            await asyncio.sleep(_WATCH_S)
            broken = None if self._group is None else self._group.broken()
            if broken is None and await self._disk_is_full():
                broken = "disk"
            if broken is not None:
                self._broken = self._broken or broken
                await apart(self._end_processes)

    async def _disk_is_full(self) -> bool:
        limit = self._spec.limits.disk_mb
        if limit is None:
            return False
        measured = [await asyncio.to_thread(measure_directory, path) for path in self._written]
        used, entries = (sum(column) for column in zip(*measured, strict=True)) if measured else (0, 0)
        return used > limit * _MB or entries > limit * _FILES_PER_MB

    def _end_processes(self) -> None:
        """Kill all that is not the container's own; where that does not help, the container is started afresh."""
        deadline_s = time.monotonic() + _KILL_S
        while left := [pid for pid in self._processes() if pid not in self._kept]:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline_s:
                self._engine.api.kill(self._container)
                return
            time.sleep(0.002)

    def _start_relay(self, port: int, path: Path) -> None:
        """Let a relay to a socket of ours answer on the container's loopback; it dies with us."""
        known = self._relays.get(port)
        if known is not None and known.poll() is None:
            return
        network = self._running.open_network()
        entered = ["nsenter", f"--net=/proc/self/fd/{network}", "--", "setpriv", "--pdeathsig", "KILL"]
        python = ["python3", "-I", "-S", "-E", str(_RELAY), str(port), str(path), "stay"]
        try:
            relay = subprocess.Popen(  # noqa: S603 - argv is built here, without a shell
                [*entered, *python], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, pass_fds=[network]
            )
        finally:
            os.close(network)
        self._relays[port] = relay
        if relay.stdout is None or not relay.stdout.readline():
            raise SandboxError(f"box {self._spec.box_id}: the relay to {path.name} did not start")

    def _end_relays(self) -> None:
        while self._relays:
            _, relay = self._relays.popitem()
            relay.kill()
            relay.communicate()

    async def upload(self, tar: bytes, target: str) -> None:
        """Unpack below ``target``; refuses links and paths that leave it. Files belong to the box's root."""
        async with self._lock:
            self._check_alive()
            with boundary(SandboxError, f"upload to {target} in box {self._spec.box_id}"):
                await asyncio.to_thread(self._unpack, tar, parts_of(target))

    def _unpack(self, tar: bytes, target: tuple[str, ...]) -> None:
        self._revive()
        root = self._root()
        try:
            unpack(tar, root, target, _to_root)
        finally:
            os.close(root)

    async def download(self, path: str, *, max_bytes: int | None = None) -> bytes:
        """Return a deterministic tar of a file or directory, as every box does.

        Raises:
            NotFoundError: the path does not exist.
            BoxContentError: a device, FIFO, socket or link that leaves ``path``, or more than ``max_bytes``.
            SandboxError: the box failed.
        """
        async with self._lock:
            self._check_alive()
            with boundary(SandboxError, f"download of {path} from box {self._spec.box_id}"):
                return await asyncio.to_thread(self._pack, parts_of(path), max_bytes)

    def _pack(self, path: tuple[str, ...], max_bytes: int | None) -> bytes:
        if not path or path[0] in _KERNEL:
            raise SandboxError(f"{absolute(path)} belongs to the kernel", hint="name a directory of the work")
        self._revive()
        bound = (self._spec.limits.disk_mb or _DOWNLOAD_MB) * 2 * _MB if max_bytes is None else max_bytes
        root = self._root()
        try:
            return Packer(path, bound).pack(root)
        finally:
            os.close(root)

    async def stats(self) -> BoxStats:
        """Return consumption: CPU seconds and the largest memory, as the container's control group counts them."""
        group = self._group
        kernel = "none" if group is None else group.kind
        return BoxStats(
            cpu_s=None if group is None else group.cpu_s(),
            peak_memory_bytes=None if group is None else group.peak_memory_bytes(),
            limits_enforced_by={
                "time": "kill of every process from outside",
                "output": "socket reader",
                "memory": kernel,
                "processes": kernel,
                "disk": "supervisor" if self._written else "none",
                "network": self._network(),
                "cpus": "none" if self._spec.environment.cpus is None else kernel,
            },
            made_from=self._image.described(),
        )

    def _network(self) -> str:
        """Say what bounds the network, and what was asked for in vain."""
        mode = self._spec.environment.network_mode
        if self._egress is None:
            return self._engine.shield if mode is NetworkMode.PUBLIC else mode.value
        refused = ", ".join(f"{host} ({n})" for host, n in sorted(self._egress.refused.items()))
        return f"allowlist by proxy; refused: {refused or 'none'}"

    async def destroy(self) -> None:
        """End every process and remove the container; twice is fine.

        An engine that hangs or fails holds up nobody: the processes are killed without it, and the container is left to
        the janitor.
        """
        first, self._destroyed = not self._destroyed, True
        if first:
            try:
                await asyncio.wait_for(apart(self.remove), _REMOVE_S)
            except (TimeoutError, SandboxError, OSError):
                if self._init is not None:
                    await apart(self._init.kill)
            if self._egress is not None:
                await self._egress.__aexit__()
            self.close()

    def close(self) -> None:
        """Let go of what we hold of the container, which goes on."""
        self._end_relays()
        if self._init is not None:
            self._init.close()

    def remove(self) -> None:
        """End and remove the container. Blocks for the engine. Raises SandboxError when it fails."""
        self._engine.remove(self._container)

    def _check_alive(self) -> None:
        if self._destroyed or not self._is_there():
            raise SandboxError(f"box {self._spec.box_id} is destroyed", hint="create a new box")

    def _is_there(self) -> bool:
        from docker.errors import NotFound

        if self._running.is_alive:
            return True
        try:
            self._engine.api.inspect_container(self._container)
        except NotFound:
            return False
        return True


def _has(root: int, path: tuple[str, ...]) -> bool:
    try:
        with opened(root, path):
            return True
    except NotFoundError:
        return False


def _to_root(descriptor: int) -> None:
    os.fchown(descriptor, 0, 0)


async def _to_the_end(work: Any) -> None:
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
