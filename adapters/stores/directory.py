"""A store in a local directory: ``aa/<sha256>``, create-only, durable before it is named."""

import contextlib
import errno
import os
import tempfile
import time
from pathlib import Path

from domain.errors import NotFoundError, StoreError
from domain.records.canonical import digest_bytes
from domain.records.task import ObjectRef

_INCOMING = "incoming"
_ABANDONED_S = 24 * 3600.0
"""A staged file this old belongs to a dead process: no write takes a day."""
_SETTLED_S = 60.0
"""A name this old has been made durable by whoever made it, or its maker died unacknowledged long ago."""

_HINTS = {
    errno.ENOSPC: "the disk is full: free space there or move the store; nothing was changed",
    errno.EDQUOT: "the disk quota is used up: raise it or free space; nothing was changed",
    errno.EROFS: "the file system is read-only: remount it for writing; nothing was changed",
    errno.EACCES: "let this user write there; nothing was changed",
    errno.EPERM: "let this user write there; nothing was changed",
    errno.ENOTDIR: "a part of the path is a file: choose another directory",
}


class DirectoryStore:
    """Content-addressed bytes below one directory; safe for threads and processes on one machine.

    An object is staged on the same file system, synced, and renamed into place, so nobody ever sees a part of one.
    """

    def __init__(self, root: Path) -> None:
        """Open or create the store at ``root``.

        Raises:
            StoreError: the directory cannot be made or written.
        """
        self._root = root.absolute()
        self._incoming = self._root / _INCOMING
        self._durable_directories: set[Path] = set()
        try:
            self._incoming.mkdir(parents=True, exist_ok=True)
            self._drop_abandoned()
        except OSError as cause:
            raise _refused("open the store", self._root, cause) from cause

    def put(self, data: bytes) -> ObjectRef:
        """Keep ``data`` durably and return its name; a present object is not written again.

        Raises:
            StoreError: the object could not be written; nothing partial is visible.
        """
        ref = ObjectRef(digest=digest_bytes(data), size_bytes=len(data))
        path = self._path(ref.digest)
        try:
            if self._is_present(path, len(data)):
                return ref
            self._make_directory(path.parent)
            self._publish(path, data)
        except OSError as cause:
            raise _refused(f"write object {ref.digest}", path, cause) from cause
        return ref

    def get(self, ref: ObjectRef) -> bytes:
        """Return verified bytes.

        Raises:
            NotFoundError: no such object.
            StoreError: the file cannot be read, or its bytes are not those that were put.
        """
        path = self._path(ref.digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            message = f"object {ref.digest} is not in the store {self._root}"
            raise NotFoundError(message, hint="check that this is the store the record was written with") from None
        except OSError as cause:
            raise _refused(f"read object {ref.digest}", path, cause) from cause
        if len(data) != ref.size_bytes or digest_bytes(data) != ref.digest:
            message = f"object {ref.digest} is damaged: {path} holds {len(data)} other bytes"
            raise StoreError(message, hint="restore this file from a copy, or remove it and make the object again")
        return data

    def has(self, digest: str) -> bool:
        """Say whether the object is here."""
        return self._path(digest).is_file()

    def location(self, ref: ObjectRef) -> str:
        """Return the file's URI."""
        return self._path(ref.digest).as_uri()

    def _path(self, digest: str) -> Path:
        return self._root / digest[:2] / digest

    def _is_present(self, path: Path, size_bytes: int) -> bool:
        try:
            stat = path.stat()
        except FileNotFoundError:
            return False
        if stat.st_size != size_bytes:
            return False
        if time.time() - stat.st_ctime < _SETTLED_S:
            # Another process may have renamed it a moment ago and not synced the name yet; our caller will rely on it.
            self._make_directory(path.parent)
            _sync_directory(path.parent)
        return True

    def _make_directory(self, directory: Path) -> None:
        """Make ``aa`` so that it survives a power cut, also when another process has just made it."""
        if directory in self._durable_directories:
            return
        directory.mkdir(parents=True, exist_ok=True)
        _sync_directory(self._root)
        self._durable_directories.add(directory)

    def _publish(self, path: Path, data: bytes) -> None:
        handle, staged = tempfile.mkstemp(dir=self._incoming)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(file.fileno(), 0o444)
                os.fsync(file.fileno())
            Path(staged).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(staged).unlink()
            raise
        _sync_directory(path.parent)

    def _drop_abandoned(self) -> None:
        """Remove what killed processes left staged; such files were never part of the store."""
        oldest = time.time() - _ABANDONED_S
        for staged in self._incoming.iterdir():
            with contextlib.suppress(OSError):
                if staged.stat().st_mtime < oldest:
                    staged.unlink()


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _refused(doing: str, path: Path, cause: OSError) -> StoreError:
    reason = cause.strerror or str(cause)
    hint = _HINTS.get(cause.errno or 0, "check the disk and its permissions")
    return StoreError(f"cannot {doing} at {path}: {reason}", hint=hint)
