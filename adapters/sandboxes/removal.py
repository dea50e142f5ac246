"""Removing what a box leaves, or giving it away: any modes, never through a link, no depth that stops us."""

import os
import stat
from contextlib import suppress
from itertools import count
from pathlib import Path

from domain.errors import SandboxError

_DEEPEST = 128
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_box(directory: Path) -> None:
    """Remove a directory whatever modes its files have and however deep it is; links are not followed.

    Sub-directories are moved up beside the first ones and emptied there, so that neither Python's stack, nor the number
    of open files, nor the length of a path bounds how deep a box may nest what we have to remove.
    """
    try:
        top = _open(str(directory), None)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        _empty(top)
    finally:
        os.close(top)
    with suppress(FileNotFoundError):
        directory.rmdir()


def _empty(top: int) -> None:
    prefix = f".removed-{os.urandom(8).hex()}-"
    numbers = count()
    pending = _directories(top)
    while pending:
        name = pending.pop()
        with suppress(FileNotFoundError):  # somebody else removes the same box
            parent = _open(name, top)
            try:
                for inner in _directories(parent):
                    moved = f"{prefix}{next(numbers)}"
                    _move(inner, parent, moved, top)
                    pending.append(moved)
            finally:
                os.close(parent)
            os.rmdir(name, dir_fd=top)


def _directories(parent: int) -> list[str]:
    """Remove everything in an open directory that is none itself; return the names of the others."""
    with os.scandir(parent) as listing:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in listing]
    for name, is_directory in entries:
        if not is_directory:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=parent)
    return [name for name, is_directory in entries if is_directory]


def _move(name: str, parent: int, moved: str, top: int) -> None:
    try:
        os.rename(name, moved, src_dir_fd=parent, dst_dir_fd=top)
    except PermissionError:  # a directory that moves changes its ``..``, so it must be writable itself
        os.chmod(name, 0o700, dir_fd=parent)
        os.rename(name, moved, src_dir_fd=parent, dst_dir_fd=top)


def _open(name: str, parent: int | None) -> int:
    """Open a directory, and give its owner back what a box took away."""
    try:
        descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=parent)
        descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
    if os.fstat(descriptor).st_mode & 0o700 != 0o700:  # noqa: PLR2004 - the owner may do everything
        os.fchmod(descriptor, 0o700)
    return descriptor


def give_tree(directory: Path, owner: int) -> None:
    """Give a directory and all below it to a user and the group of the same number.

    Raises:
        SandboxError: it is nested deeper than anything that is copied out of a box.
    """
    open_directories = [os.open(directory, _DIRECTORY)]
    waiting = [["."]]
    try:
        while waiting:
            if not waiting[-1]:
                waiting.pop()
                os.close(open_directories.pop())
                continue
            name = waiting[-1].pop()
            os.chown(name, owner, owner, dir_fd=open_directories[-1], follow_symlinks=False)
            if name != "." and stat.S_ISDIR(os.lstat(name, dir_fd=open_directories[-1]).st_mode):
                if len(open_directories) > _DEEPEST:
                    raise SandboxError(f"{directory}: nested more than {_DEEPEST} levels deep")
                open_directories.append(os.open(name, _DIRECTORY, dir_fd=open_directories[-1]))
                waiting.append([])
            elif name != ".":
                continue
            with os.scandir(open_directories[-1]) as listing:
                waiting[-1] += [entry.name for entry in listing]
    finally:
        for descriptor in open_directories:
            os.close(descriptor)
