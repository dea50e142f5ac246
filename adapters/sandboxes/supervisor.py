"""Watches a box's process tree and directory, and ends what breaks a limit.

Where the box has a control group, the kernel holds memory and processes, and this only ends what went on regardless.
Without one, this is the limit: between two samples a command can exceed memory by what it allocates in that time;
processes are bounded by the kernel as well (RLIMIT_NPROC in the box's own user namespace), and single files by
RLIMIT_FSIZE.
"""

import asyncio
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from adapters.sandboxes.cgroups import Group
from adapters.sandboxes.process import Child, children_of
from domain.ports import Limits

_FIRST_INTERVAL_S = 0.05
_LAST_INTERVAL_S = 0.2
_DISK_INTERVAL_S = 0.1
_DISK_SHARE = 20
"""At most one twentieth of the time goes into measuring a directory."""
_FILES_PER_MB = 256
"""A limit of 1 MB stands for so many files as well: inodes run out too."""
_MB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeUse:
    """What a process tree holds now."""

    memory_bytes: int
    n_threads: int


def measure_tree(root: int) -> TreeUse:
    """Return anonymous and shared memory and the thread count of all processes below ``root``."""
    memory = 0
    threads = 0
    pending = children_of(root)
    while pending:
        pid = pending.pop()
        fields = _status(pid)
        memory += fields.get("RssAnon", 0) + fields.get("RssShmem", 0)
        threads += fields.get("Threads", 0)
        pending.extend(children_of(pid))
    return TreeUse(memory_bytes=memory * 1024, n_threads=threads)


def _status(pid: int) -> dict[str, int]:
    """Return the numeric fields of ``/proc/<pid>/status`` that count; memory is in KiB. Source: proc(5)."""
    fields: dict[str, int] = {}
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in {"RssAnon", "RssShmem", "Threads"}:
                fields[name] = int(value.split()[0])
    return fields


def measure_directory(directory: str) -> tuple[int, int]:
    """Return (bytes on disk, entries) below ``directory``; links are not followed."""
    used = 0
    entries = 0
    pending = [directory]
    while pending:
        with suppress(OSError), os.scandir(pending.pop()) as listing:
            for entry in listing:
                entries += 1
                with suppress(OSError):
                    used += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
    return used, entries


class Supervisor:
    """Watches the commands of one box."""

    def __init__(self, limits: Limits, root: Path, group: Group | None) -> None:
        self._limits = limits
        self._root = root
        self._group = group
        self.peak_memory_bytes = 0

    async def watch(self, child: Child) -> None:
        """Sample until cancelled; kill the command when it breaks a limit."""
        started_s = time.monotonic()
        next_disk_s = started_s
        while True:
            self._check_tree(child)
            now_s = time.monotonic()
            if now_s >= next_disk_s:
                if await self.disk_is_full():
                    child.kill("disk")
                next_disk_s = time.monotonic() + max(_DISK_INTERVAL_S, _DISK_SHARE * (time.monotonic() - now_s))
            await asyncio.sleep(min(_LAST_INTERVAL_S, max(_FIRST_INTERVAL_S, (now_s - started_s) / 10)))

    def _check_tree(self, child: Child) -> None:
        use = measure_tree(child.pid)
        self.peak_memory_bytes = max(self.peak_memory_bytes, use.memory_bytes)
        broken = None if self._group is None else self._group.broken()
        if broken is not None:
            child.kill(broken)
        if self._limits.memory_mb is not None and use.memory_bytes > self._limits.memory_mb * _MB:
            child.kill("memory")
        if self._limits.processes is not None and use.n_threads >= self._limits.processes:
            child.kill("processes")

    async def disk_is_full(self) -> bool:
        """Say whether the box's directory is over its limit, by bytes or by number of files."""
        if self._limits.disk_mb is None:
            return False
        used, entries = await asyncio.to_thread(measure_directory, str(self._root))
        return used > self._limits.disk_mb * _MB or entries > self._limits.disk_mb * _FILES_PER_MB
