"""The files of a trial's directory: what the agent left goes back to where it lay in its box.

A job's files come from boxes: no link is followed, and what is neither file nor directory is refused.
"""

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from adapters.benchmarks.harbor_job_schema import Manifest, ManifestEntry, read_document
from adapters.benchmarks.task_archive import TaskFile, pack
from domain.errors import ConfigurationError
from domain.ports.foreign import ForeignFiles

_CHUNK_BYTES = 1 << 20
_LARGEST_BYTES = 1 << 30
_MANIFEST = "manifest.json"
CONVENTION = "/logs/artifacts"
"""Harbor collects it from every box; nobody declared it."""


def walk(directory: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the relative path and the state of every file and link below a directory, in order of path.

    Raises:
        ConfigurationError: something is neither, or cannot be read.
    """
    if directory.is_symlink() or not directory.is_dir():
        return
    pending, found = [directory], list[tuple[str, os.stat_result]]()
    while pending:
        where = pending.pop()
        try:
            entries = list(os.scandir(where))
            for entry in entries:
                state = entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(Path(entry.path))
                elif stat.S_ISREG(state.st_mode) or stat.S_ISLNK(state.st_mode):
                    found.append((Path(entry.path).relative_to(directory).as_posix(), state))
                else:
                    raise ConfigurationError(f"{entry.path}: neither a file nor a directory")
        except OSError as error:
            raise ConfigurationError(f"{where}: cannot be read: {error.strerror}") from None
    yield from sorted(found, key=lambda pair: pair[0])


def digest_tree(directory: Path) -> str:
    """Return SHA-256 over path, kind and content of every file below a directory.

    Raises:
        ConfigurationError: a name is not UTF-8, or a file is no file or too large to be kept.
    """
    whole = hashlib.sha256()
    for name, state in walk(directory):
        path = directory / name
        try:
            shown = name.encode()
        except UnicodeEncodeError:
            raise ConfigurationError(f"{os.fsencode(path)!r}: its name is not UTF-8") from None
        if state.st_size > _LARGEST_BYTES:
            raise ConfigurationError(f"{path}: larger than {_LARGEST_BYTES} bytes")
        is_link = stat.S_ISLNK(state.st_mode)
        content = hashlib.sha256(os.fsencode(path.readlink())).hexdigest() if is_link else _digest(path)
        whole.update(shown + f"\0{'l' if is_link else '-'}\0{content}\n".encode())
    return whole.hexdigest()


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                found.update(chunk)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
    return found.hexdigest()


def read_manifest(place: Path, shown: str) -> tuple[ManifestEntry, ...]:
    """Return what was collected of a phase; empty without a manifest.

    Args:
        place: directory of the trial or of the step.
        shown: its path inside the job, for messages.

    Raises:
        ConfigurationError: naming the file and the field.
    """
    path = place / "artifacts" / _MANIFEST
    if not os.path.lexists(path):
        return ()
    where = f"{shown}/artifacts/{_MANIFEST}"
    entries = read_document(Manifest, path, shown=where).root
    for number, entry in enumerate(entries):
        if not entry.source.startswith("/") or ".." in entry.source.split("/"):
            raise ConfigurationError(f"{where}: {number}.source: {entry.source!r} is no absolute path of a box")
        if not _is_inside(entry.destination):
            raise ConfigurationError(f"{where}: {number}.destination: {entry.destination!r} leaves artifacts/")
        if entry.status == "ok" and not os.path.lexists(place / entry.destination):
            raise ConfigurationError(f"{where}: {number}.destination: {entry.destination!r} is not there")
    _refuse_links_out(place / "artifacts")
    return entries


def _refuse_links_out(directory: Path) -> None:
    """Harbor unpacks no absolute link, so whoever finds one finds something else than a job of it."""
    for name, state in walk(directory):
        if stat.S_ISLNK(state.st_mode) and (directory / name).readlink().is_absolute():
            raise ConfigurationError(f"{directory / name}: a link that leaves its directory")


def _is_inside(destination: str) -> bool:
    parts = PurePosixPath(destination).parts
    return parts[:1] == ("artifacts",) and ".." not in parts


def phase_files(place: Path, entries: Sequence[ManifestEntry]) -> ForeignFiles:
    """Read what a phase left.

    Raises:
        ConfigurationError: a file cannot be read.
    """
    outputs: dict[str, TaskFile] = {}
    for entry in entries:
        if entry.status in {"ok", "empty"}:
            for file in _collected(place / entry.destination, entry.source.strip("/")):
                outputs.setdefault(file.path, file)
    return ForeignFiles(
        outputs=pack(tuple(outputs[name] for name in sorted(outputs))) if entries else None,
        logs=_logs(place / "agent"),
        verifier_logs=_logs(place / "verifier"),
    )


def _collected(path: Path, source: str) -> Iterator[TaskFile]:
    if path.is_dir() and not path.is_symlink():
        for name, _ in walk(path):
            yield _file(path / name, f"{source}/{name}")
    elif os.path.lexists(path):
        yield _file(path, source)


def _logs(directory: Path) -> bytes | None:
    """Return regular files alone: what a link in a log means, nobody can say any more."""
    found = [_file(directory / name, name) for name, state in walk(directory) if stat.S_ISREG(state.st_mode)]
    return pack(tuple(found)) if found else None


def _file(path: Path, name: str) -> TaskFile:
    state = path.lstat()
    if stat.S_ISLNK(state.st_mode):
        return TaskFile(path=name, executable=False, content=b"", link=str(path.readlink()))
    try:
        return TaskFile(path=name, executable=bool(state.st_mode & stat.S_IXUSR), content=path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
