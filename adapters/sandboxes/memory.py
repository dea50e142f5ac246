"""Boxes without processes: files in a dictionary. They show what the platform itself costs, nothing more.

What a command may be here:

* ``("true",)`` and ``("false",)``
* ``("write", PATH, TEXT)`` writes a file
* ``("cat", PATH)`` prints one; without a path it prints its input
* ``("bash", "/tests/test.sh")`` is the no-op verifier: the script's line ``# synth-memory: reward NUMBER`` becomes
  ``/logs/verifier/reward.txt``, and without such a line no reward is written

Everything else ends with exit code 127, as an unknown program does.
"""

import io
import re
import tarfile
from collections.abc import Callable

from domain.errors import BoxContentError, NotFoundError, SandboxError
from domain.ports import Box, BoxSpec, BoxStats, Command, CommandResult
from domain.records.task import NetworkMode, TaskEnvironment

_REWARD = re.compile(rb"^# synth-memory: reward (\S+)\s*$", re.MULTILINE)
_NO_SUCH_PROGRAM = 127


class MemoryBox:
    """One box: regular files by absolute path, with their permission bits."""

    def __init__(self, spec: BoxSpec, forget: Callable[[str], object]) -> None:
        self._spec = spec
        self._forget = forget
        self._files: dict[str, tuple[bytes, int]] = {}
        self._directories: set[str] = set()
        self._destroyed = False

    @property
    def proxy_url(self) -> str | None:
        """None: nothing here could call a model."""
        return None

    @property
    def proxy_socket(self) -> str | None:
        """None, too."""
        return None

    async def exec(self, command: Command) -> CommandResult:
        """Run one of the few commands of this module. Raises SandboxError when the box is destroyed."""
        self._check_alive()
        code, output = self._run(command)
        limit = self._spec.limits.output_bytes
        return CommandResult(
            exit_code=code, stdout=output[:limit], stderr=b"", n_dropped_bytes=max(0, len(output) - limit)
        )

    def _run(self, command: Command) -> tuple[int, bytes]:
        match command.argv:
            case ("true",):
                return 0, b""
            case ("false",):
                return 1, b""
            case ("write", path, text):
                self._files[_absolute(path)] = (text.encode(), 0o644)
                return 0, b""
            case ("cat",):
                return 0, command.stdin
            case ("cat", path):
                found = self._files.get(_absolute(path))
                return (1, b"") if found is None else (0, found[0])
            case ("bash", "/tests/test.sh"):
                return self._verify()
            case _:
                return _NO_SUCH_PROGRAM, b""

    def _verify(self) -> tuple[int, bytes]:
        script = self._files.get("/tests/test.sh")
        if script is None:
            return _NO_SUCH_PROGRAM, b""
        match = _REWARD.search(script[0])
        if match is not None:
            self._files["/logs/verifier/reward.txt"] = (match[1], 0o644)
        return 0, b""

    async def upload(self, tar: bytes, target: str) -> None:
        """Unpack regular files below ``target``. Raises SandboxError for anything that is no file or directory."""
        self._check_alive()
        if not tar.strip(b"\0"):
            return
        try:
            with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
                for member in archive:
                    self._unpack(archive, member, target)
        except tarfile.TarError as error:
            raise SandboxError(f"not a tar archive: {error}") from error

    def _unpack(self, archive: tarfile.TarFile, member: tarfile.TarInfo, target: str) -> None:
        if member.name.startswith("/") or not (member.isreg() or member.isdir()):
            raise SandboxError(f"archive member {member.name!r} is absolute, a link, a device or a FIFO")
        path = _absolute(f"{target}/{member.name}")
        if member.isdir():
            self._directories.add(path)
            return
        content = archive.extractfile(member)
        self._files[path] = (content.read() if content is not None else b"", member.mode & 0o777)

    async def download(self, path: str, *, max_bytes: int | None = None) -> bytes:
        """Return a deterministic tar of a file or directory. Raises NotFoundError, BoxContentError (too much)."""
        self._check_alive()
        top = _absolute(path)
        found = {name: file for name, file in self._files.items() if name == top or name.startswith(top + "/")}
        if not found:
            if top in self._directories or top == self._spec.environment.workdir:
                return _directory_only()
            raise NotFoundError(f"no {path} in the box")
        if max_bytes is not None and sum(len(content) + tarfile.BLOCKSIZE for content, _ in found.values()) > max_bytes:
            raise BoxContentError(f"{path} makes more than {max_bytes} bytes")
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
            if top not in found:
                archive.addfile(_directory("."))
            for name in sorted(found):
                content, mode = found[name]
                member = tarfile.TarInfo(name.removeprefix(top + "/") if name != top else name.rpartition("/")[2])
                member.size = len(content)
                member.mode = mode
                archive.addfile(member, io.BytesIO(content))
        return out.getvalue()

    async def stats(self) -> BoxStats:
        """Return nothing consumed: there are no processes."""
        return BoxStats(cpu_s=0.0, limits_enforced_by={"output": "memory"})

    async def destroy(self) -> None:
        """Forget everything; twice is fine."""
        self._destroyed = True
        self._files.clear()
        self._forget(self._spec.box_id)

    def _check_alive(self) -> None:
        if self._destroyed:
            raise SandboxError(f"box {self._spec.box_id} is destroyed", hint="create a new box")


class MemorySandbox:
    """Makes boxes without processes."""

    def __init__(self) -> None:
        self._boxes: dict[str, tuple[BoxSpec, MemoryBox]] = {}

    @property
    def name(self) -> str:
        """``memory``."""
        return "memory"

    def refusals(self, environment: TaskEnvironment) -> tuple[str, ...]:
        """Name everything of ``environment`` that cannot be realised here; empty: admitted."""
        image = not environment.host_runnable
        asked = {
            "environment.docker_image": image and environment.docker_image is not None,
            "environment/Dockerfile": image and environment.dockerfile,
            "environment/docker-compose.yaml": image and environment.compose,
            "environment.gpus": bool(environment.gpus),
            "environment.gpu_types": bool(environment.gpu_types),
            "environment.network_mode = 'allowlist'": environment.network_mode is NetworkMode.ALLOWLIST,
        }
        return tuple(f"{what}: not in a memory box" for what, present in asked.items() if present)

    async def create(self, spec: BoxSpec) -> Box:
        """Create a box. Raises SandboxError when the id is taken or a model is asked for."""
        if spec.model_access:
            raise SandboxError(f"box {spec.box_id}: a memory box has no model", hint="use the local sandbox")
        if spec.box_id in self._boxes:
            raise SandboxError(f"box {spec.box_id} exists already", hint="a box id is used once")
        box = MemoryBox(spec, lambda box_id: self._boxes.pop(box_id, None))
        self._boxes[spec.box_id] = (spec, box)
        return box

    async def sweep(self, now_ms: int) -> tuple[str, ...]:
        """End boxes past their deadline; an owner's death takes its boxes with it."""
        over = sorted(box_id for box_id, (spec, _) in self._boxes.items() if now_ms > spec.deadline_ms)
        for box_id in over:
            await self._boxes[box_id][1].destroy()
        return tuple(over)


def _directory(name: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = tarfile.DIRTYPE
    member.mode = 0o777
    return member


def _directory_only() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(_directory("."))
    return out.getvalue()


def _absolute(path: str) -> str:
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise SandboxError(f"path {path!r} leaves its directory", hint="use a path without '..'")
    return "/" + "/".join(parts)
