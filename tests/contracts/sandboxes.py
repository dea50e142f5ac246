"""Sandboxes for contract suites: every adapter and the fake, and what each can do."""

import io
import itertools
import os
import tarfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from adapters.sandboxes.docker import DockerSandbox
from adapters.sandboxes.isolation import Way
from adapters.sandboxes.kubernetes import KubernetesSandbox
from adapters.sandboxes.local import LocalSandbox
from adapters.sandboxes.memory import MemorySandbox
from adapters.stores.directory import DirectoryStore
from domain.errors import SandboxError
from domain.ports import Box, BoxSpec, Command, CommandResult, Limits, Sandbox
from domain.records.archive import pack_files
from domain.records.task import NetworkMode, TaskEnvironment
from tests.contracts.pods import named_cluster, processes_in_pod
from tests.docker_engine import docker_url
from tests.fakes.sandbox import ScriptedSandbox

_numbers = itertools.count()
FAR_MS = 10**15


_GROW = "import time\nkeep=[]\nwhile True:\n keep.append(bytearray(10_000_000)); time.sleep(0.01)"


async def _on_host(box: Box, word: str) -> list[int]:
    del box
    return processes_with(word)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A sandbox and its capabilities."""

    sandbox: Sandbox
    runs_programs: bool = False
    keeps_links: bool = False
    own_system: bool = True
    """The system of a box is the machine's or ours: users are made as they are named, an image is refused.

    Otherwise it is the image's.
    """
    has_root: bool = True
    """Boxes have a root user; the other kind runs all as one ordinary user."""
    grows: tuple[str, ...] = ("python3", "-c", _GROW)
    """A command that takes memory without end."""
    living: Callable[[Box, str], Awaitable[list[int]]] = _on_host
    """Returns the processes of a box whose command line holds a word."""


async def local_sandbox(
    scratch: Path, proxy_socket: Path | None = None, way: Way | None = None, *, use_groups: bool = True
) -> LocalSandbox:
    """Return a local sandbox; without bubblewrap the test is skipped on a laptop and fails in CI."""
    sandbox = LocalSandbox(scratch, proxy_socket, way=way, use_groups=use_groups)
    try:
        probe = await sandbox.create(spec())
    except SandboxError as error:
        if os.environ.get("CI"):  # noqa: TID251 - says whether a missing part may be skipped
            raise
        pytest.skip(str(error))
    await probe.destroy()
    return sandbox


async def make_case(kind: str, scratch: Path) -> Case:
    """Return the named case."""
    if kind == "memory":
        return Case(sandbox=MemorySandbox())
    if kind == "scripted":
        return Case(sandbox=ScriptedSandbox())
    if kind == "docker":
        sandbox = DockerSandbox(docker_url(), DirectoryStore(scratch / "store"), None)
        return Case(sandbox=sandbox, runs_programs=True, keeps_links=True, own_system=False)
    if kind == "kubernetes":
        return Case(
            sandbox=KubernetesSandbox(named_cluster()),
            runs_programs=True,
            keeps_links=True,
            own_system=False,
            has_root=named_cluster().user is None,
            grows=("tail", "/dev/zero"),
            living=processes_in_pod,
        )
    way: Way | None = "single" if kind == "local-single" else None
    sandbox = await local_sandbox(scratch, way=way, use_groups=kind != "local-supervised")
    return Case(sandbox=sandbox, runs_programs=True, keeps_links=True)


def spec(
    *,
    limits: Limits | None = None,
    environment: TaskEnvironment | None = None,
    deadline_ms: int = FAR_MS,
    model_access: bool = False,
) -> BoxSpec:
    """Return a spec with a fresh id."""
    return BoxSpec(
        box_id=f"box-{os.getpid()}-{next(_numbers)}",
        experiment_id="evl-1",
        trial_id="trial-1",
        fence=1,
        deadline_ms=deadline_ms,
        environment=environment or TaskEnvironment(network_mode=NetworkMode.NO_NETWORK),
        limits=limits or Limits(),
        model_access=model_access,
    )


async def shell(box: Box, script: str, *, timeout_s: float = 20.0, user: str | None = None) -> CommandResult:
    """Run a bash script."""
    return await box.exec(Command(argv=("bash", "-c", script), timeout_s=timeout_s, user=user))


def contents(tar: bytes) -> dict[str, bytes]:
    """Return regular files by name."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        return {
            member.name: stream.read()
            for member in archive
            if member.isreg()
            for stream in [archive.extractfile(member)]
            if stream is not None
        }


def files(content: Mapping[str, bytes]) -> bytes:
    """Return a tar of regular files."""
    return pack_files(content)


def one_member(member: tarfile.TarInfo, content: bytes = b"") -> bytes:
    """Return a tar of one member, whatever it is."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def special(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    """Return a member that is no regular file."""
    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = link
    return member


def processes_with(needle: str) -> list[int]:
    """Return the host's processes whose command line holds ``needle``."""
    found: list[int] = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) != os.getpid():
            try:
                line = (path / "cmdline").read_bytes()
            except OSError:
                continue
            if needle.encode() in line:
                found.append(int(path.name))
    return found
