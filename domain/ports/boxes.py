"""Ports of execution: boxes and what runs in them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from domain.records.task import ObjectRef, TaskEnvironment


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on a box; None: unbounded."""

    memory_mb: int | None = 2048
    processes: int | None = 256
    output_bytes: int = 1_000_000
    """Of stdout and stderr kept of one command, each; the rest is dropped and counted."""
    disk_mb: int | None = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """A harness's own programs, which no task's image holds: a directory of this machine, read-only in the box."""

    source: str
    """Absolute path on this machine."""
    name: str
    """It lies at ``/.synth/tools/<name>`` inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxSpec:
    """What to create."""

    box_id: str
    experiment_id: str
    trial_id: str
    fence: int
    deadline_ms: int
    """The janitor may end the box after this."""
    environment: TaskEnvironment
    limits: Limits
    archive: ObjectRef | None = None
    """The task's files, for sandboxes that build its image."""
    model_access: bool = False
    """Only then is the model proxy reachable, at the addresses in ``Box.proxy_url`` and ``Box.proxy_socket``."""
    toolchains: tuple[Toolchain, ...] = ()
    """Bound by sandboxes that can (``lifecycle.refusals.BindsToolchains``); the others are never asked to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One program run in a box."""

    argv: tuple[str, ...]
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """The whole environment beside PATH and HOME; nothing is inherited."""
    stdin: bytes = b""
    timeout_s: float = 60.0
    user: str | None = None
    dials_proxy: bool = False
    """Whether it needs ``Box.proxy_url`` to answer; where that takes a process in the box, only then is it started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How it ended. ``exit_code`` is None when it was killed on time-out."""

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    limit_exceeded: str | None = None
    """``memory``, ``processes`` or ``disk`` when a limit ended it."""
    n_dropped_bytes: int = 0
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxStats:
    """What a box consumed so far."""

    cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    limits_enforced_by: Mapping[str, str] = field(default_factory=dict[str, str])
    made_from: Mapping[str, str] = field(default_factory=dict[str, str])
    """``image`` (id) and ``created`` (when it was built), ``digests`` where a registry has it; empty: no image."""


class Box(Protocol):
    """One live box. Every path is absolute inside it."""

    @property
    def proxy_url(self) -> str | None:
        """Base URL of the model proxy as seen from inside, for commands that dial it; None without model access."""
        ...

    @property
    def proxy_socket(self) -> str | None:
        """Path inside of a Unix socket of the model proxy, for every command; None where there is none."""
        ...

    async def exec(self, command: Command) -> CommandResult:
        """Run to its end or its time-out; every process it started is dead when this returns."""
        ...

    async def upload(self, tar: bytes, target: str) -> None:
        """Unpack below ``target``; refuses links and paths that leave it."""
        ...

    async def download(self, path: str, *, max_bytes: int | None = None) -> bytes:
        """Return a deterministic tar of a file or directory: regular files, directories, inner links.

        A file's tar has one member, its base name; a directory's starts with the member ``.`` and has paths relative
        to the directory (``domain.records.archive.place`` puts both back where they were). Modes keep
        their permission bits, owner and time are 0. ``max_bytes`` bounds the content (None: the sandbox's own
        bound), so that a box cannot make its reader run out of memory.

        Raises NotFoundError when the path does not exist, BoxContentError on a device, FIFO, escape or too much, and
        SandboxError when the box failed.
        """
        ...

    async def stats(self) -> BoxStats:
        """Return consumption."""
        ...

    async def destroy(self) -> None:
        """End every process and remove everything; twice is fine."""
        ...


@runtime_checkable
class HasServices(Protocol):
    """A box in which more than the agent's own container runs."""

    async def service(self, name: str) -> Box:
        """Return another service's files and commands; what runs there by itself goes on, and ends with the box.

        Raises SandboxError when there is none of this name, or it has ended.
        """
        ...


class Sandbox(Protocol):
    """Makes boxes."""

    @property
    def name(self) -> str:
        """``local``, ``memory``."""
        ...

    def refusals(self, environment: TaskEnvironment) -> tuple[str, ...]:
        """Name everything of ``environment`` that cannot be realised here; empty: admitted.

        Which image a well-formed ``docker_image`` names makes no difference: tasks that differ in it alone are asked
        about once.
        """
        ...

    async def create(self, spec: BoxSpec) -> Box:
        """Create a box. Raises SandboxError."""
        ...

    async def sweep(self, now_ms: int) -> tuple[str, ...]:
        """End boxes of dead owners or past their deadline; returns their ids. Touches nothing else."""
        ...
