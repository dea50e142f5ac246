"""Tar archives as values: bytes in, bytes out, nothing on disk."""

import io
import posixpath
import tarfile
from collections.abc import Mapping

from domain.errors import TaskError


def subtree(archive: bytes, directory: str) -> bytes:
    """Return a tar of what lies below ``directory``, with names relative to it; empty when there is nothing."""
    prefix = directory.strip("/") + "/"
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as source, tarfile.open(fileobj=out, mode="w") as target:
        for member in source:
            name = member.name.removeprefix("./")
            if not name.startswith(prefix) or name == prefix:
                continue
            member.name = name.removeprefix(prefix)
            member.pax_headers = {}  # they would keep the old name of long and non-ASCII paths
            target.addfile(member, source.extractfile(member) if member.isreg() else None)
    return out.getvalue()


def pack_files(files: Mapping[str, bytes], *, executable: frozenset[str] = frozenset()) -> bytes:
    """Return a deterministic tar of ``files`` by relative path.

    Raises:
        TaskError: a path is absolute or leaves the archive.
    """
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as target:
        for name in sorted(files):
            if name.startswith("/") or ".." in name.split("/"):
                raise TaskError(f"archive path {name!r} leaves its directory", hint="use a relative path")
            member = tarfile.TarInfo(name)
            member.size = len(files[name])
            member.mode = 0o755 if name in executable else 0o644
            target.addfile(member, io.BytesIO(files[name]))
    return out.getvalue()


def merge_archives(parts: Mapping[str, bytes]) -> bytes:
    """Return one tar of several, each below its directory (relative, ``""`` for the top)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as target:
        for directory in sorted(parts):
            with tarfile.open(fileobj=io.BytesIO(parts[directory]), mode="r:") as source:
                for member in source:
                    if directory:
                        member.name = f"{directory.strip('/')}/{member.name.removeprefix('./')}"
                        member.pax_headers = {}
                    target.addfile(member, source.extractfile(member) if member.isreg() else None)
    return out.getvalue()


def place(downloads: Mapping[str, bytes]) -> bytes:
    """Return one tar with names relative to ``/`` of what was downloaded from each absolute path.

    A directory's download starts with the member ``.``; without it the path names the one file itself.
    """
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as target:
        for path in sorted(downloads):
            with tarfile.open(fileobj=io.BytesIO(downloads[path])) as source:
                first = source.next()
                is_directory = first is not None and first.name == "." and first.isdir()
                prefix = (path if is_directory else posixpath.dirname(path)).strip("/")
                for member in source:
                    member.name = posixpath.normpath(posixpath.join(prefix, member.name))
                    member.pax_headers = {}
                    target.addfile(member, source.extractfile(member) if member.isreg() else None)
    return out.getvalue()


def read_file(archive: bytes, path: str) -> bytes | None:
    """Return one regular file of a tar, or None."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as source:
        for member in source:
            if member.name.removeprefix("./") == path and member.isreg():
                content = source.extractfile(member)
                return content.read() if content is not None else None
    return None


def paths(archive: bytes) -> tuple[str, ...]:
    """Return the names of all regular files of a tar, in order."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as source:
        return tuple(member.name.removeprefix("./") for member in source if member.isreg())
