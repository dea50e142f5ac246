"""Append-only segment files of length + CRC framed records, and a committer that shares one fsync among appends."""

import asyncio
import contextlib
import fcntl
import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from domain.errors import EvidenceError

MAGIC = b"SYNTHJ1\n"
"""First bytes of every segment."""
_FRAME = struct.Struct("<II")
"""Length of the payload in bytes and its CRC-32 (zlib), little endian."""
_NAME = re.compile(r"^(\d{10})\.journal$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where a record lies."""

    segment: int
    offset: int
    """Of the frame, in bytes from the start of the file."""
    length: int
    """Of the payload in bytes."""


class SegmentLog:
    """Files ``0000000001.journal`` ... in one directory, one writer.

    Blocking; :class:`GroupCommit` calls it from a thread. A process appends only to segments that it created, so
    the only file that can be torn is the last one of a process that died, and its torn tail is cut at the next start.
    """

    def __init__(self, directory: Path, *, limit_bytes: int = 64_000_000) -> None:
        """Take the directory for this process.

        Args:
            directory: is created when missing.
            limit_bytes: a segment that has reached this size is followed by a new one.

        Raises:
            EvidenceError: another process holds the directory, or it cannot be written.
        """
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._file: int | None = None
        self._size = 0
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise EvidenceError(f"journal {directory}: {error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise EvidenceError(f"journal {directory} is in use", hint="stop the other model process") from error
        self._active = max(self.segments(), default=0)

    def segments(self) -> tuple[int, ...]:
        """Return the numbers of the files that exist, in order."""
        names = (_NAME.match(entry.name) for entry in self._directory.iterdir())
        return tuple(sorted(int(match[1]) for match in names if match is not None))

    @property
    def active(self) -> int:
        """Number of the newest segment; it may still grow."""
        return self._active

    def replay(self) -> Iterator[tuple[Location, bytes]]:
        """Yield every intact record, oldest first, and cut torn tails.

        The bytes that are cut are kept beside the segment as ``<number>.torn``.
        """
        for segment in self.segments():
            data = self._path(segment).read_bytes()
            offset = len(MAGIC)
            if data[:offset] != MAGIC:
                self._cut(segment, data, 0)
                continue
            while offset < len(data):
                payload = _payload_at(data, offset)
                if payload is None:
                    self._cut(segment, data, offset)
                    break
                yield Location(segment=segment, offset=offset, length=len(payload)), payload
                offset += _FRAME.size + len(payload)

    def write(self, payloads: Sequence[bytes]) -> list[Location]:
        """Append all records with one fsync; all of them are durable, or none counts.

        Raises:
            EvidenceError: the disk is full or broken.
        """
        try:
            file = self._writable()
            frames = [_FRAME.pack(len(payload), zlib.crc32(payload)) + payload for payload in payloads]
            self._write_all(file, b"".join(frames))
        except OSError as error:
            with contextlib.suppress(OSError):
                self._abandon_segment()
            raise EvidenceError(f"journal {self._directory}: {error}", hint="free disk space") from error
        locations: list[Location] = []
        for payload in payloads:
            locations.append(Location(segment=self._active, offset=self._size, length=len(payload)))
            self._size += _FRAME.size + len(payload)
        return locations

    def read(self, location: Location) -> bytes:
        """Return one record.

        Raises:
            EvidenceError: the file is gone or its bytes are not what was written.
        """
        size = _FRAME.size + location.length
        try:
            with self._path(location.segment).open("rb") as file:
                file.seek(location.offset)
                payload = _payload_at(file.read(size), 0)
        except OSError as error:
            raise EvidenceError(f"journal {self._directory}: {error}") from error
        if payload is None:
            raise EvidenceError(f"journal {self._path(location.segment)}: damaged record at byte {location.offset}")
        return payload

    def remove(self, segment: int) -> None:
        """Remove a segment that nobody needs; the newest one stays."""
        if segment != self._active or self._file is None:
            self._path(segment).unlink(missing_ok=True)

    def close(self) -> None:
        """Let the directory go."""
        self._abandon_segment(keep=True)
        os.close(self._lock)

    def _writable(self) -> int:
        if self._file is not None and self._size < self._limit_bytes:
            return self._file
        self._abandon_segment(keep=True)
        path = self._path(self._active + 1)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            self._write_all(file, MAGIC)
            self._sync_directory()
        except OSError:
            os.close(file)
            path.unlink()
            raise
        self._file, self._active, self._size = file, self._active + 1, len(MAGIC)
        return file

    def _sync_directory(self) -> None:
        directory = os.open(self._directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    @staticmethod
    def _write_all(file: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
        os.fdatasync(file)

    def _abandon_segment(self, *, keep: bool = False) -> None:
        """Stop writing to the current segment; after a failed write, cut what was not acknowledged."""
        if self._file is None:
            return
        try:
            if not keep:
                os.ftruncate(self._file, self._size)
        finally:
            os.close(self._file)
            self._file = None

    def _cut(self, segment: int, data: bytes, offset: int) -> None:
        path = self._path(segment)
        # Nobody was told that these bytes are durable; they are kept for people, where there is room.
        with contextlib.suppress(OSError):
            path.with_suffix(".torn").write_bytes(data[offset:])
        if offset == 0:
            path.unlink()
        else:
            os.truncate(path, offset)

    def _path(self, segment: int) -> Path:
        return self._directory / f"{segment:010d}.journal"


def _payload_at(data: bytes, offset: int) -> bytes | None:
    start = offset + _FRAME.size
    if start > len(data):
        return None
    length, crc = _FRAME.unpack_from(data, offset)
    payload = data[start : start + length]
    return payload if len(payload) == length and zlib.crc32(payload) == crc else None


class GroupCommit:
    """Appends from many tasks of one event loop; those that wait together share one write and one fsync."""

    def __init__(self, log: SegmentLog) -> None:
        self._log = log
        self._pending: list[tuple[bytes, asyncio.Future[Location]]] = []
        self._committer: asyncio.Task[None] | None = None
        self.n_records = 0
        self.n_syncs = 0

    async def append(self, payload: bytes) -> Location:
        """Return once the record is durable.

        Raises:
            EvidenceError: it is not.
        """
        future = asyncio.get_running_loop().create_future()
        self._pending.append((payload, future))
        if self._committer is None or self._committer.done():
            self._committer = asyncio.create_task(self._commit())
        return await future

    async def drain(self) -> None:
        """Wait until nothing is pending."""
        if self._committer is not None:
            await self._committer

    async def _commit(self) -> None:
        while self._pending:
            batch, self._pending = self._pending, []
            try:
                locations = await asyncio.to_thread(self._log.write, [payload for payload, _ in batch])
            except EvidenceError as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(EvidenceError(error.message, hint=error.hint))
                continue
            self.n_syncs += 1
            self.n_records += len(batch)
            for (_, future), location in zip(batch, locations, strict=True):
                if not future.done():
                    future.set_result(location)
