"""One bubblewrap box: a directory on the host, and a fresh set of namespaces for each command."""

import asyncio
import os
import subprocess
import tarfile
from functools import partial
from io import BytesIO
from pathlib import Path

from adapters.sandboxes.cgroups import Group, Groups
from adapters.sandboxes.isolation import (
    HOST_ID_BASE,
    PROXY_PORT,
    TOPS,
    Inner,
    Mounts,
    Way,
    bubblewrap,
    environment_script,
    give,
    group_text,
    inner_socket,
    is_fixed,
    memory_file,
    open_user_namespace,
    passwd_text,
)
from adapters.sandboxes.process import Child, Descriptors, Ended
from adapters.sandboxes.removal import give_tree, remove_box
from adapters.sandboxes.supervisor import Supervisor
from adapters.sandboxes.transfer import Packer, absolute, parts_of, unpack
from domain.errors import SandboxError, boundary
from domain.ports import BoxSpec, BoxStats, Command, CommandResult

_RELAY_FILE = Path(__file__).parent / "box" / "relay.py"
_KNOWN_USERS = {"root": 0, "agent": 1000, "nobody": 65534}
_OTHER_USER_ID = 1000
_MB = 1 << 20
_DOWNLOAD_MB = 2048
"""Bound on one download when the box's disk is not limited."""


class LocalBox:
    """A box. Commands run one after another; nothing of a command is alive when it has returned."""

    def __init__(
        self,
        *,
        spec: BoxSpec,
        directory: Path,
        skeleton: Path,
        way: Way,
        proxy_socket: Path | None,
        groups: Groups | None,
    ) -> None:
        self._groups = groups
        self._group = None if groups is None else groups.take(spec.limits)
        self._spec = spec
        self._directory = directory
        self._root = directory / "root"
        self._skeleton = skeleton
        self._way: Way = way
        self._proxy_socket = proxy_socket if spec.model_access else None
        self._lock = asyncio.Lock()
        self._supervisor = Supervisor(spec.limits, self._root, self._group)
        self._userns: int | None = None
        self._child: Child | None = None
        self._cpu_s = 0.0
        self._peak_memory_bytes = 0
        self._destroyed = False
        self._owned_by = 0

    @property
    def proxy_url(self) -> str | None:
        """Base URL of the model proxy as seen from inside; None without model access."""
        return f"http://127.0.0.1:{PROXY_PORT}" if self._proxy_socket is not None else None

    @property
    def proxy_socket(self) -> str | None:
        """Path of the proxy's Unix socket inside; None without model access."""
        return None if self._proxy_socket is None else inner_socket(self._proxy_socket)

    async def exec(self, command: Command) -> CommandResult:
        """Run to its end or its time-out; every process it started is dead when this returns.

        Raises:
            SandboxError: the box is destroyed, or the command could not be started at all.
        """
        async with self._lock:
            self._check_alive()
            with boundary(SandboxError, f"exec in box {self._spec.box_id}"):
                ended = await self._run(command)
            self._cpu_s += ended.cpu_s
            self._peak_memory_bytes = max(self._peak_memory_bytes, ended.peak_memory_bytes)
            killed = ended.timed_out or ended.limit_exceeded is not None
            if not ended.ran and not killed:
                words = ended.stderr.decode(errors="replace").strip()
                raise SandboxError(f"box {self._spec.box_id}: {command.argv[0]} was not started: {words[:500]}")
            return await self._result(ended)

    async def _result(self, ended: Ended) -> CommandResult:
        limit = ended.limit_exceeded
        if limit is None and self._group is not None:  # whatever the exit code: a script may shrug a kill off
            limit = self._group.broken()
        if limit is None and ended.duration_s > 1.0 and await self._supervisor.disk_is_full():
            limit = "disk"
        return CommandResult(
            exit_code=None if ended.timed_out else ended.exit_code,
            stdout=ended.stdout,
            stderr=ended.stderr,
            timed_out=ended.timed_out,
            limit_exceeded=limit,
            n_dropped_bytes=ended.n_dropped_bytes,
            duration_s=ended.duration_s,
        )

    async def _run(self, command: Command) -> Ended:
        if not command.argv:
            raise SandboxError("a command needs a program")
        descriptors = Descriptors()
        try:
            child = self._start(command, descriptors)
        finally:
            descriptors.close()
        self._child = child
        try:
            return await child.wait(command.timeout_s, self._supervisor.watch)
        finally:
            self._child = None

    def _start(self, command: Command, descriptors: Descriptors) -> Child:
        uid = self._user_id(command.user)
        cwd = command.cwd or self._spec.environment.workdir
        limits = self._spec.limits
        inner = Inner(
            argv=command.argv,
            cwd=cwd,
            env=dict(command.env),
            uid=uid,
            processes=limits.processes,
            file_bytes=None if limits.disk_mb is None else limits.disk_mb * _MB,
        )
        if self._way == "range" and self._userns is None:
            self._userns = open_user_namespace()
        status_read, status_write = os.pipe()
        descriptors.keep(status_write)
        environment = descriptors.keep(memory_file(environment_script(inner), "environment"))
        gate = self._gate(descriptors)
        stdin = descriptors.keep(memory_file(command.stdin, "stdin")) if command.stdin else subprocess.DEVNULL
        argv = bubblewrap(
            self._way,
            self._mounts(command, uid),
            inner,
            environment_fd=environment,
            status_fd=status_write,
            gate_fd=gate[0] if gate else None,
            userns_fd=self._userns,
        )
        passed = [status_write, environment, *gate[:1], *([] if self._userns is None else [self._userns])]
        try:
            process = subprocess.Popen(  # noqa: S603 - bubblewrap is the wall; no shell of the host reads argv
                argv,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=passed,
                env={},
                cwd="/",
            )
        except BaseException:
            for descriptor in (status_read, *gate[1:]):
                os.close(descriptor)
            raise
        admit = partial(self._admit, gate[1]) if gate else None
        return Child(process, status_read, limits.output_bytes, on_pid=admit)

    def _gate(self, descriptors: Descriptors) -> tuple[int, ...]:
        """Return both ends of what holds process 1 back until it is in its group; empty without one."""
        if self._group is None:
            return ()
        reader, writer = os.pipe()
        descriptors.keep(reader)
        return reader, writer

    def _admit(self, gate: int, pid: int) -> None:
        try:
            if self._group is not None:
                self._group.admit(pid)
            os.write(gate, b"1")
        finally:
            os.close(gate)

    def _mounts(self, command: Command, uid: int) -> Mounts:
        user = command.user
        own_names = user is not None and user not in _KNOWN_USERS and not user.isdigit()
        if own_names and not (self._directory / f"passwd-{user}").exists():
            (self._directory / f"passwd-{user}").write_text(passwd_text(user, uid))
            (self._directory / f"group-{user}").write_text(group_text(user, uid))
        return Mounts(
            skeleton=self._skeleton,
            root=self._root,
            tops=self._tops(),
            passwd=self._directory / f"passwd-{user}" if own_names else None,
            group=self._directory / f"group-{user}" if own_names else None,
            proxy_socket=self._proxy_socket,
            relay=_RELAY_FILE if self._proxy_socket is not None and command.dials_proxy else None,
            toolchains=self._spec.toolchains,
        )

    def _tops(self) -> tuple[str, ...]:
        """Return the box's own directories, with a mount point for each."""
        tops = tuple(sorted(path.name for path in self._root.iterdir()))
        for top in tops:
            if top not in TOPS:
                (self._skeleton / top).mkdir(mode=0o755, exist_ok=True)
        return tops

    def _user_id(self, user: str | None) -> int:
        """Return the id to run as. The first other user than root becomes the owner of the working directory."""
        if user is None:
            return 0
        uid = int(user) if user.isdigit() else _KNOWN_USERS.get(user, _OTHER_USER_ID)
        if uid != 0 and self._owned_by == 0 and self._way == "range":
            self._give_workdir(uid)
            self._owned_by = uid
        return uid

    def _give_workdir(self, uid: int) -> None:
        give_tree(self._root.joinpath(*parts_of(self._spec.environment.workdir)), HOST_ID_BASE + uid)

    async def upload(self, tar: bytes, target: str) -> None:
        """Unpack below ``target``; refuses links and paths that leave it. Files belong to the box's root."""
        async with self._lock:
            self._check_alive()
            with boundary(SandboxError, f"upload to {target} in box {self._spec.box_id}"):
                await asyncio.to_thread(self._unpack, tar, parts_of(target))

    def _unpack(self, tar: bytes, target: tuple[str, ...]) -> None:
        for top in {target[0]} if target else _tops_of(tar):
            if is_fixed(top) or top.startswith("."):
                raise SandboxError(f"/{top} belongs to the system of the box", hint="upload somewhere else")
        root = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            unpack(tar, root, target, self._own)
        finally:
            os.close(root)

    def _own(self, descriptor: int) -> None:
        if self._way == "range":
            os.fchown(descriptor, HOST_ID_BASE, HOST_ID_BASE)

    async def download(self, path: str, *, max_bytes: int | None = None) -> bytes:
        """Return a deterministic tar of a file or directory: regular files, directories, inner links.

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
        if not path or is_fixed(path[0]):
            raise SandboxError(
                f"{absolute(path)} belongs to the system of the box", hint="name a directory of the work"
            )
        bound = (self._spec.limits.disk_mb or _DOWNLOAD_MB) * 2 * _MB if max_bytes is None else max_bytes
        root = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return Packer(path, bound).pack(root)
        finally:
            os.close(root)

    async def stats(self) -> BoxStats:
        """Return consumption: CPU seconds of ended commands, and the largest memory seen."""
        peak = max(self._peak_memory_bytes, self._supervisor.peak_memory_bytes)
        return BoxStats(cpu_s=self._cpu_s, peak_memory_bytes=peak, limits_enforced_by=limits_enforced_by(self._group))

    async def destroy(self) -> None:
        """End every process and remove everything; twice is fine."""
        self._destroyed = True
        if self._child is not None:
            self._child.kill()
        async with self._lock:
            if self._userns is not None:
                os.close(self._userns)
                self._userns = None
            await asyncio.to_thread(remove_box, self._directory)
            if self._groups is not None and self._group is not None:
                self._groups.give_back(self._group)
                self._group = None

    def _check_alive(self) -> None:
        if self._destroyed or not self._root.is_dir():
            raise SandboxError(f"box {self._spec.box_id} is destroyed", hint="create a new box")


def limits_enforced_by(group: Group | None) -> dict[str, str]:
    """Return limit -> mechanism; ``none`` where nothing enforces it."""
    kernel = None if group is None else group.kind
    return {
        "time": "kill of the pid namespace",
        "output": "pipe reader",
        "memory": kernel or "supervisor",
        "processes": kernel or "rlimit and supervisor",
        "disk": "rlimit of a file and supervisor",
        "network": "own network namespace: loopback only",
        "cpus": "none",
    }


def furnish(root: Path, workdir: str, way: Way) -> None:
    """Create the working directory, the log directories and the home of the ordinary user below a box's root."""
    for path in (workdir, "/logs/agent", "/logs/verifier", "/logs/artifacts", "/home/agent"):
        uid = _OTHER_USER_ID if path == "/home/agent" else 0
        directory = root
        for part in parts_of(path):
            directory = directory / part
            if not directory.exists():
                give(directory, way, uid=uid)
        directory.chmod(0o777)


def _tops_of(tar: bytes) -> set[str]:
    with tarfile.open(fileobj=BytesIO(tar)) as archive:
        return {parts_of(name)[0] for name in archive.getnames() if parts_of(name)}
