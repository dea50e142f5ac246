"""Files into and out of a box's tree, by a process that the box must not be able to lead astray.

Everything is reached from a directory descriptor, one name at a time and never through a link, so a link that a box
planted can neither redirect a write nor a read (attacks A19 to A21).
"""

import errno
import io
import os
import stat
import tarfile
from collections.abc import Callable, Generator
from contextlib import contextmanager

from domain.errors import BoxContentError, NotFoundError, SandboxError
from domain.records.links import link_stays

Own = Callable[[int], None]
"""Gives an open file or directory to the box's user."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK = 1 << 20
_DEEPEST = 128
"""Each level is an open file while it is packed, and all boxes of a process share the number of those."""


def parts_of(path: str) -> tuple[str, ...]:
    """Return the components of a path inside a box. Raises SandboxError when it climbs."""
    parts = tuple(part for part in path.split("/") if part not in {"", "."})
    if ".." in parts or "\0" in path:
        raise SandboxError(f"path {path!r} leaves its directory", hint="use a path without '..'")
    return parts


def absolute(parts: tuple[str, ...]) -> str:
    """Return the absolute path of components."""
    return "/" + "/".join(parts)


@contextmanager
def opened(root: int, parts: tuple[str, ...], *, own: Own | None = None) -> Generator[int]:
    """Yield a descriptor of the directory ``parts`` below ``root``; with ``own``, missing ones are created.

    Raises:
        NotFoundError: it does not exist.
        BoxContentError: a component is a link or no directory.
    """
    current = os.dup(root)
    try:
        for part in parts:
            following = _step(current, part, own)
            os.close(current)
            current = following
        yield current
    finally:
        os.close(current)


def _step(parent: int, name: str, own: Own | None) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        if own is None:
            raise NotFoundError(f"no {name!r} in the box") from None
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=parent)  # ours, and O_NOFOLLOW below still refuses a link
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise BoxContentError(
                f"{name!r} is a link or no directory", hint="paths are not followed through links"
            ) from None
        raise
    os.mkdir(name, 0o755, dir_fd=parent)
    created = os.open(name, _DIRECTORY, dir_fd=parent)
    own(created)
    return created


# --- in ------------------------------------------------------------------------------------------


def unpack(tar: bytes, root: int, target: tuple[str, ...], own: Own) -> None:
    """Unpack regular files, directories and links below ``target``.

    Raises:
        SandboxError: a member leaves the target, is a device or FIFO, or a link points outside.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(tar)) as archive, opened(root, target, own=own) as base:
            for member in archive:
                _unpack_member(archive, member, base, target, own)
    except (tarfile.TarError, EOFError) as error:
        raise SandboxError(f"not a tar archive: {error}", hint="upload takes an uncompressed or gzip tar") from error


def _unpack_member(
    archive: tarfile.TarFile, member: tarfile.TarInfo, base: int, target: tuple[str, ...], own: Own
) -> None:
    check_member(member, target)
    parts = parts_of(member.name)
    if not parts:
        return
    with opened(base, parts[:-1], own=own) as parent:
        if member.isdir():
            _make_directory(parent, parts[-1], member.mode, own)
            return
        _remove(parent, parts[-1])
        if member.issym():
            os.symlink(member.linkname, parts[-1], dir_fd=parent)
        elif member.islnk():
            _copy_link(base, parts_of(member.linkname), parent, parts[-1], own)
        else:
            _write_file(archive, member, parent, parts[-1], own)


def check_member(member: tarfile.TarInfo, target: tuple[str, ...] = ()) -> None:
    """Refuse a member that leaves ``target`` by its name, its link, or by being no ordinary thing.

    Raises:
        SandboxError: naming the member.
    """
    if member.name.startswith("/"):
        raise SandboxError(f"archive member {member.name!r} is absolute", hint="use relative names")
    parts = parts_of(member.name)
    if member.issym() and not link_stays(member.linkname, absolute(target + parts[:-1]), absolute(target)):
        raise SandboxError(f"link {member.name!r} -> {member.linkname!r} leaves its directory", hint="copy the file")
    if member.islnk():
        parts_of(member.linkname)
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        raise SandboxError(f"archive member {member.name!r} is a device or FIFO", hint="only files, directories, links")


def _make_directory(parent: int, name: str, mode: int, own: Own) -> None:
    with opened(parent, (name,), own=own) as directory:
        os.fchmod(directory, (mode & 0o777) | 0o700)
        own(directory)


def _remove(parent: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        raise SandboxError(f"{name!r} is a directory in the box", hint="upload into it instead") from None


def _write_file(archive: tarfile.TarFile, member: tarfile.TarInfo, parent: int, name: str, own: Own) -> None:
    content = archive.extractfile(member)
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=parent)
    with os.fdopen(descriptor, "wb", buffering=0) as stream:
        while content is not None and (chunk := content.read(_CHUNK)):
            stream.write(chunk)
        os.fchmod(descriptor, member.mode & 0o777)
        own(descriptor)


def _copy_link(base: int, source: tuple[str, ...], parent: int, name: str, own: Own) -> None:
    """Write a hard link of an archive as a copy of the file that was unpacked before it."""
    with opened(base, source[:-1]) as directory:
        content, mode = _read_regular(directory, source[-1], None)
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=parent)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        os.fchmod(descriptor, mode & 0o777)
        own(descriptor)


# --- out -----------------------------------------------------------------------------------------


class Packer:
    """Packs one file or directory of a box as a deterministic tar."""

    def __init__(self, top: tuple[str, ...], max_bytes: int) -> None:
        self._top = top
        self._left = max_bytes
        self._out = io.BytesIO()
        self._archive = tarfile.open(fileobj=self._out, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - closed in pack

    def pack(self, root: int) -> bytes:
        """Return the tar. Raises NotFoundError, BoxContentError."""
        with self._archive, opened(root, self._top[:-1]) as parent:
            name = self._top[-1]
            try:
                mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
            except FileNotFoundError:
                raise NotFoundError(f"no {absolute(self._top)} in the box") from None
            if stat.S_ISDIR(mode):
                member = self._member((".",), mode)
                member.type = tarfile.DIRTYPE
                self._archive.addfile(member)
                with opened(parent, (name,)) as directory:
                    self._directory(directory, ())
            else:
                self._entry(parent, name, (), mode)
        return self._out.getvalue()

    def _directory(self, directory: int, inner: tuple[str, ...]) -> None:
        if len(inner) > _DEEPEST:
            raise BoxContentError(f"{absolute(self._top)} nests more than {_DEEPEST} directories", hint="nest fewer")
        for name in sorted(os.listdir(directory)):
            mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
            if not stat.S_ISDIR(mode):
                self._entry(directory, name, inner, mode)
                continue
            member = self._member((*inner, name), mode)
            member.type = tarfile.DIRTYPE
            self._archive.addfile(member)
            with opened(directory, (name,)) as child:
                self._directory(child, (*inner, name))

    def _entry(self, directory: int, name: str, inner: tuple[str, ...], mode: int) -> None:
        member = self._member((*inner, name), mode)
        if stat.S_ISLNK(mode):
            member.type = tarfile.SYMTYPE
            member.linkname = os.readlink(name, dir_fd=directory)
            if not link_stays(member.linkname, absolute(self._top + inner), absolute(self._top)):
                raise BoxContentError(f"link {member.name!r} -> {member.linkname!r} leaves {absolute(self._top)}")
            self._archive.addfile(member)
            return
        if not stat.S_ISREG(mode):
            raise BoxContentError(f"{member.name!r} in {absolute(self._top)} is a device, socket or FIFO")
        content, _ = _read_regular(directory, name, self._left)
        self._left -= len(content)
        member.size = len(content)
        self._archive.addfile(member, io.BytesIO(content))

    def _member(self, parts: tuple[str, ...], mode: int) -> tarfile.TarInfo:
        self._left -= tarfile.BLOCKSIZE
        if self._left < 0:
            raise BoxContentError(f"{absolute(self._top)} holds too many files", hint="leave less in the box")
        member = tarfile.TarInfo("/".join(parts))
        member.mode = stat.S_IMODE(mode) & 0o777
        return member


def _read_regular(directory: int, name: str, max_bytes: int | None) -> tuple[bytes, int]:
    """Return content and mode of a regular file. Raises BoxContentError for anything else and for too much."""
    try:
        descriptor = os.open(name, _FILE, dir_fd=directory)
    except PermissionError:
        os.chmod(name, 0o600, dir_fd=directory)  # ours, no link, and no process of the box is alive
        descriptor = os.open(name, _FILE, dir_fd=directory)
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise BoxContentError(f"{name!r} is no regular file")
        if max_bytes is not None and status.st_size > max_bytes:
            raise BoxContentError(f"{name!r} makes more than the allowed bytes", hint="leave less in the box")
        return stream.read(), status.st_mode
