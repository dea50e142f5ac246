"""A task directory as bytes: which files count, their digest, and a tar that is the same for the same files."""

import hashlib
import io
import os
import re
import stat
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from adapters.benchmarks.ignore_rules import IGNORE_FILE, Rule, in_scope, is_ignored, parse_rules
from domain.errors import TaskError

_FILE_LIMIT_BYTES = 1 << 30
"""A task is held in memory while it is published; a sparse file can claim any size."""
_LONGEST_SHOWN = 300
_SURROGATE = re.compile("[\ud800-\udfff]")
"""What Python makes of a file name's bytes that are not UTF-8."""
_IGNORED_NAMES = frozenset({".git", "__pycache__", ".DS_Store"})
_IGNORED_ENDINGS = (".pyc", ".swp", ".swo", "~")
"""Files an editor or interpreter leaves. Source: Harbor 0.26 ``publisher/packager.py``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFile:
    """One file or symbolic link of a task; ``link`` is None for files."""

    path: str
    executable: bool
    content: bytes
    link: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFiles:
    """The files that make a task, and those that its ``.harborignore`` leaves out."""

    files: tuple[TaskFile, ...]
    ignored: tuple[str, ...]


def read_files(directory: Path) -> TaskFiles:
    """Return every file below ``directory`` in order of path.

    Raises:
        TaskError: a link leaves the task or leads nowhere, or something is neither file nor directory.
    """
    paths = {path.relative_to(directory).as_posix(): path for path in _walk(directory)}
    rules = _rules(directory, paths)
    # A link into an ignored place would bring what was left out.
    resolved = {name: path.resolve() for name, path in paths.items() if path.is_symlink()}
    top = directory.resolve()
    ignored = {
        name
        for name in paths
        if is_ignored(name, rules)
        or (
            name in resolved
            and resolved[name].is_relative_to(top)
            and is_ignored(resolved[name].relative_to(top).as_posix(), rules)
        )
    }
    found = [_read(directory, path) for name, path in paths.items() if name not in ignored]
    return TaskFiles(files=tuple(sorted(found, key=lambda file: file.path)), ignored=tuple(sorted(ignored)))


def _rules(directory: Path, paths: Mapping[str, Path]) -> tuple[Rule, ...]:
    """Return the rules of every ``.harborignore``, outermost first."""
    rules: list[Rule] = []
    for name in sorted((name for name in paths if name.rpartition("/")[2] == IGNORE_FILE), key=lambda n: n.count("/")):
        file = _read(directory, paths[name])
        where = name.rpartition("/")[0]
        if file.link is not None:
            raise TaskError(f"{directory}: {name} is a link", hint="write the rules into a file")
        if _no_scope(where):
            raise TaskError(f"{directory}: {name} has no effect", hint="rules hold in tests/ and solution/")
        try:
            rules += parse_rules(file.content.decode(), where)
        except (UnicodeDecodeError, re.error) as error:
            raise TaskError(f"{directory}: {name}: {error}") from None
    return tuple(rules)


def _no_scope(where: str) -> bool:
    return where != "" and not in_scope(where)


def _walk(directory: Path) -> list[Path]:
    paths: list[Path] = []
    pending = [directory]
    while pending:
        where = pending.pop()
        try:
            entries = list(os.scandir(where))
        except OSError as error:
            raise TaskError(f"{_shown(where)}: cannot be read: {error.strerror}") from None
        for entry in entries:
            if entry.name in _IGNORED_NAMES or entry.name.endswith(_IGNORED_ENDINGS):
                continue
            if _SURROGATE.search(entry.name):
                raise TaskError(f"{_shown(Path(entry.path))}: its name is not UTF-8", hint="rename the file")
            (pending if entry.is_dir(follow_symlinks=False) else paths).append(Path(entry.path))
    return paths


def _shown(path: Path) -> str:
    """Return a path of any bytes and any length as a message can hold it."""
    text = os.fsencode(path).decode(errors="backslashreplace")
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _read(directory: Path, path: Path) -> TaskFile:
    name = path.relative_to(directory).as_posix()
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        link = str(path.readlink())
        _check_link(directory, path, name, link)
        return TaskFile(path=name, executable=False, content=b"", link=link)
    if not stat.S_ISREG(mode):
        raise TaskError(f"{path}: neither a file nor a directory", hint="a task holds files, directories and links")
    try:
        with path.open("rb") as stream:
            content = stream.read(_FILE_LIMIT_BYTES + 1)
    except OSError as error:
        raise TaskError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > _FILE_LIMIT_BYTES:
        raise TaskError(f"{path}: larger than {_FILE_LIMIT_BYTES} bytes", hint="let the task fetch or make it")
    return TaskFile(path=name, executable=bool(mode & stat.S_IXUSR), content=content)


def _check_link(directory: Path, path: Path, name: str, link: str) -> None:
    target = Path(os.path.normpath(path.parent / link))
    if Path(link).is_absolute() or not target.is_relative_to(directory):
        raise TaskError(f"{directory}: link {name} -> {link} leaves the task", hint="link to a file of the task")
    if not path.exists() or not path.resolve().is_relative_to(directory.resolve()):
        raise TaskError(f"{directory}: link {name} -> {link} leads nowhere", hint="link to a file of the task")


def digest_files(files: tuple[TaskFile, ...]) -> str:
    """Return SHA-256 over path, kind (``-``, ``x`` or ``l``) and SHA-256 of the content of each file, in order."""
    whole = hashlib.sha256()
    for file in files:
        kind = "l" if file.link is not None else "x" if file.executable else "-"
        content = file.link.encode() if file.link is not None else file.content
        whole.update(f"{file.path}\0{kind}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return whole.hexdigest()


def pack(files: tuple[TaskFile, ...]) -> bytes:
    """Return an uncompressed tar: sorted, modification time 0, owner 0, mode 644 or 755."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for file in files:
            member = tarfile.TarInfo(file.path)
            member.mode = 0o755 if file.executable else 0o644
            if file.link is not None:
                member.type = tarfile.SYMTYPE
                member.linkname = file.link
                member.mode = 0o777
                archive.addfile(member)
                continue
            member.size = len(file.content)
            archive.addfile(member, io.BytesIO(file.content))
    return out.getvalue()
