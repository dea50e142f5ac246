"""Processes of boxes that are over, found from outside: by what bubblewrap was told, and by what they have mounted.

An owner killed while bubblewrap starts may leave either half of it alive: the outer one, whose command line names the
box's tree, or the inner one, whose parent died before it could ask to die with it. The inner one is a shell by then;
only its mounts still say which box it belongs to.
"""

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from adapters.sandboxes.process import children_of

_ESCAPE = re.compile(rb"\\([0-7]{3})")


def end_orphans(boxes: Path, is_over: Callable[[str], bool]) -> None:
    """Kill every process of a box below ``boxes`` whose id ``is_over``; touches nothing else."""
    here = os.stat("/proc/self/ns/mnt").st_ino  # noqa: PTH116 - the link's target is what counts
    device, top = _place(boxes)
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with suppress(OSError):
            pid = int(process.name)
            if any(is_over(box) for box in _bound_by(process, boxes)):
                for target in children_of(pid) or [pid]:
                    os.kill(target, signal.SIGKILL)
            elif os.stat(process / "ns" / "mnt").st_ino != here:  # noqa: PTH116 - as above
                mounted = _mounted_by(process, device, top)
                if mounted and all(is_over(box) for box in mounted):
                    os.kill(pid, signal.SIGKILL)


def _bound_by(process: Path, boxes: Path) -> set[str]:
    """Return the ids of the boxes that a bubblewrap command line names."""
    prefix = f"{boxes}/".encode()
    arguments = (process / "cmdline").read_bytes().split(b"\0")
    if arguments[0] != b"bwrap":
        return set()
    return {_first(argument[len(prefix) :]) for argument in arguments if argument.startswith(prefix)}


def _mounted_by(process: Path, device: bytes, top: bytes) -> set[str]:
    """Return the ids of the boxes of which a process has something mounted."""
    return {
        _first(root[len(top) :])
        for found, root, _ in _mounts(process / "mountinfo")
        if found == device and root.startswith(top)
    }


def _place(path: Path) -> tuple[bytes, bytes]:
    """Return the device that holds ``path`` and the path's name on it, with a slash at its end."""
    wanted = os.fsencode(path.resolve()) + b"/"
    best = (b"", b"/", b"")
    for device, root, point in _mounts(Path("/proc/self/mountinfo")):
        if wanted.startswith(point.rstrip(b"/") + b"/") and len(point) >= len(best[2]):
            best = (device, root, point)
    device, root, point = best
    return device, root.rstrip(b"/") + b"/" + wanted[len(point.rstrip(b"/")) + 1 :]


def _mounts(mountinfo: Path) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield device, root and mount point. Source: Linux, Documentation/filesystems/proc.rst, section 3.5."""
    for line in mountinfo.read_bytes().splitlines():
        fields = line.split(b" ")
        yield fields[2], _plain(fields[3]), _plain(fields[4])


def _plain(field: bytes) -> bytes:
    return _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field)


def _first(path: bytes) -> str:
    return path.partition(b"/")[0].decode(errors="replace")
