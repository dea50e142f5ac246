"""Limits by control groups, where this process may make them: the kernel holds memory and processes exactly.

Groups are made below our own (or beside it, where ours may have no children), so that whatever bounds us bounds all
boxes together. A group holds one box at a time and then the next one: to make and remove one for each box costs more
than a short trial, and the kernel keeps removed memory groups until the last page that they paid for is gone.

Source: Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/{memory,pids}.rst.
"""

import atexit
import itertools
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from adapters.sandboxes.labels import started, this_process
from domain.ports import Limits

_PREFIX = "synth-"
_CONTROLLERS = ("memory", "pids")
_MB = 1 << 20
_numbers = itertools.count()
"""Of the groups of this process, whoever makes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """The file names of one version of control groups."""

    name: str
    memory: tuple[str, ...]
    """Files that take the limit on memory, in the order of writing."""
    unlimited: str
    kills: str
    """File whose line ``oom_kill N`` counts processes killed for memory."""


_V1 = _Version(
    name="cgroup v1",
    memory=("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    unlimited="-1",
    kills="memory.oom_control",
)
_V2 = _Version(name="cgroup v2", memory=("memory.max",), unlimited="max", kills="memory.events")


class Group:
    """Room for one box: one directory, or in version 1 one for each controller."""

    def __init__(self, version: _Version, directories: Mapping[str, Path]) -> None:
        self._version = version
        self._directories = dict(directories)
        self._before = (0, 0)

    @property
    def kind(self) -> str:
        """``cgroup v1`` or ``cgroup v2``."""
        return self._version.name

    def limit(self, limits: Limits) -> None:
        """Set the limits of the next box and count from here. Raises OSError when the kernel refuses them."""
        memory = self._directories["memory"]
        wanted = self._version.unlimited if limits.memory_mb is None else str(limits.memory_mb * _MB)
        files = [name for name in self._version.memory if (memory / name).exists()]
        for name in reversed(files):
            _write(memory / name, self._version.unlimited)
        for name in files:
            _write(memory / name, wanted)
        with suppress(FileNotFoundError):
            _write(memory / "memory.swap.max", "0")
        processes = "max" if limits.processes is None else str(limits.processes)
        _write(self._directories["pids"] / "pids.max", processes)
        self.mark()

    def mark(self) -> None:
        """Count broken limits from here."""
        self._before = self._counts()

    def processes(self) -> list[int]:
        """Return the process ids in the group, as seen from here."""
        with suppress(OSError):
            return [int(pid) for pid in (self._directories["pids"] / "cgroup.procs").read_text().split()]
        return []

    def peak_memory_bytes(self) -> int | None:
        """Return the largest use of memory since the group was made; None where the kernel does not say."""
        for name in ("memory.peak", "memory.max_usage_in_bytes"):
            with suppress(OSError, ValueError):
                return int((self._directories["memory"] / name).read_text())
        return None

    def cpu_s(self) -> float | None:
        """Return CPU seconds since the group was made; None where the kernel does not say."""
        with suppress(OSError, KeyError):
            return int((self._directories["cpuacct"] / "cpuacct.usage").read_text()) / 1e9
        return _counter(self._directories["memory"] / "cpu.stat", "usage_usec") / 1e6 or None

    def admit(self, pid: int) -> None:
        """Move a process in; what it starts follows. One that has ended meanwhile is no matter."""
        for directory in set(self._directories.values()):
            with suppress(ProcessLookupError):
                _write(directory / "cgroup.procs", str(pid))

    def broken(self) -> str | None:
        """Name the limit that was broken since :meth:`limit` or :meth:`mark`: ``memory``, ``processes`` or None."""
        kills, refusals = self._counts()
        if kills > self._before[0]:
            return "memory"
        return "processes" if refusals > self._before[1] else None

    def _counts(self) -> tuple[int, int]:
        kills = _counter(self._directories["memory"] / self._version.kills, "oom_kill")
        return kills, _counter(self._directories["pids"] / "pids.events", "max")

    def remove(self) -> None:
        """Remove it; one that still holds a process stays for a later sweep."""
        for directory in set(self._directories.values()):
            with suppress(OSError):
                directory.rmdir()


class Groups:
    """The groups of this process, made as they are needed and used again."""

    def __init__(self, version: _Version, bases: Mapping[str, Path]) -> None:
        self._version = version
        self._bases = dict(bases)
        self._free: list[Group] = []
        self._lock = threading.Lock()
        self._closes = False

    @property
    def kind(self) -> str:
        """``cgroup v1`` or ``cgroup v2``."""
        return self._version.name

    def take(self, limits: Limits) -> Group | None:
        """Return an empty group with these limits; None when the kernel gives none."""
        with self._lock:
            group = self._free.pop() if self._free else None
        try:
            group = group or self._make()
            group.limit(limits)
        except OSError:
            if group is not None:
                group.remove()
            return None
        return group

    def give_back(self, group: Group) -> None:
        """Keep a group whose box is gone for the next one."""
        with self._lock:
            self._free.append(group)

    def _make(self) -> Group:
        pid, started_ticks = this_process()
        if not self._closes:
            self._closes = True
            atexit.register(self.close)
        name = f"{_PREFIX}{pid}-{started_ticks}-{next(_numbers)}"
        for base in set(self._bases.values()):
            (base / name).mkdir()
        return Group(self._version, {controller: base / name for controller, base in self._bases.items()})

    def sweep(self) -> None:
        """Remove the groups of processes that have ended."""
        for base in set(self._bases.values()):
            for directory in base.glob(f"{_PREFIX}*-*-*"):
                pid, ticks, _ = directory.name.removeprefix(_PREFIX).split("-", 2)
                if pid.isdigit() and ticks.isdigit() and started(int(pid)) != int(ticks):
                    with suppress(OSError):
                        directory.rmdir()

    def close(self) -> None:
        """Remove the groups that hold no box."""
        with self._lock:
            while self._free:
                self._free.pop().remove()


def group_of(process: Path) -> Group | None:
    """Return the group that a process is in, for reading; None where it is not visible."""
    own = dict(_own_groups(process / "cgroup"))
    bases: dict[str, Path] = {}
    for point, root, options in _mounts(Path("/proc/self/mountinfo")):
        for controller in ("",) if options is None else options:
            base = _below(point, root, own.get(controller))
            if base is not None and base.is_dir():
                bases[controller] = base
    if all(controller in bases for controller in _CONTROLLERS):
        return Group(_V1, {name: bases[name] for name in (*_CONTROLLERS, "cpuacct") if name in bases})
    return Group(_V2, dict.fromkeys(_CONTROLLERS, bases[""])) if "" in bases else None


def find_groups(process: Path = Path("/proc/self")) -> Groups | None:
    """Return where this process may make groups for boxes; None where nothing is delegated to it."""
    mounts = list(_mounts(process / "mountinfo"))
    own = dict(_own_groups(process / "cgroup"))
    for point, root, options in mounts:
        if options is None and (base := _below(point, root, own.get(""))) is not None:
            # A group with processes may have no children with controllers, except at the root: then beside our own.
            for candidate in (base,) if base == point else (base, base.parent):
                if _serves(_V2, dict.fromkeys(_CONTROLLERS, candidate)):
                    return Groups(_V2, dict.fromkeys(_CONTROLLERS, candidate))
    bases: dict[str, Path] = {}
    for point, root, options in mounts:
        for controller in options or ():
            base = _below(point, root, own.get(controller))
            if controller in _CONTROLLERS and base is not None:
                bases[controller] = base
    return Groups(_V1, bases) if len(bases) == len(_CONTROLLERS) and _serves(_V1, bases) else None


def _serves(version: _Version, bases: Mapping[str, Path]) -> bool:
    """Try it: say whether a group can be made there, limited and entered."""
    groups = Groups(version, bases)
    needed = [(bases["memory"], "cgroup.procs"), (bases["pids"], "cgroup.procs")]
    if not all(os.access(base / name, os.W_OK) for base, name in needed):
        return False
    group = groups.take(Limits())
    if group is None:
        return False
    group.remove()
    return True


def _mounts(mountinfo: Path) -> Iterator[tuple[Path, str, tuple[str, ...] | None]]:
    """Yield mount point, root and controllers of each hierarchy; None: version 2. Source: proc(5), mountinfo."""
    for line in mountinfo.read_text().splitlines():
        left, _, right = line.partition(" - ")
        fields, (kind, _, options) = left.split(), right.split()[:3]
        if kind == "cgroup2":
            yield Path(fields[4]), fields[3], None
        elif kind == "cgroup":
            yield Path(fields[4]), fields[3], tuple(options.split(","))


def _own_groups(cgroup: Path) -> Iterator[tuple[str, str]]:
    """Yield (controller, path) of our own groups; the controller of version 2 is the empty text."""
    for line in cgroup.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, path


def _below(point: Path, root: str, path: str | None) -> Path | None:
    """Return the directory of a group in a hierarchy whose ``root`` is mounted at ``point``; None: not visible."""
    if path is None or ".." in path or not path.startswith(root):
        return None
    return point / path[len(root) :].strip("/")


def _write(file: Path, text: str) -> None:
    """Write to a file of the kernel's, and make none where it has none."""
    descriptor = os.open(file, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _counter(file: Path, name: str) -> int:
    with suppress(OSError):
        for line in file.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0
