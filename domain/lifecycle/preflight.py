"""What can be said of a task from its files alone: what leaks to the agent, and which images are not pinned.

Source: rules A1, A2 of facts/worlds section 6.3.
"""

import re
from collections.abc import Iterator

from domain.records.archive import paths, read_file
from domain.records.task import Task

_SECRET = ("solution/", "tests/")
_VISIBLE = "environment/"
_NEEDLE_LENGTH = 24
"""Characters: shorter lines of scripts are common to many files (``set -euo pipefail``, ``import sys``)."""
_SCRIPT = (".sh", ".py", ".bash", ".js", ".ts", ".rb", ".pl")
_FROM = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE | re.MULTILINE)
_IGNORED = ("#", "//", "import ", "from ")
_PATCH = (".patch", ".diff")
_BOM = b"\xef\xbb\xbf"
_TEXTS = ("task.toml", "instruction.md", "Dockerfile", ".harborignore")


def leaks(task: Task, archive: bytes) -> Iterator[str]:
    """Yield each place where the agent could read the solution or the tests.

    Whole lines of the scripts of ``solution/`` and ``tests/``, and the lines that patches there add, are looked for in
    what becomes the agent's box. Expected data is not: that a task's answer equals one of its inputs may be the very
    task. Lines that a patch removes or shows around are the agent's to read; so are added lines that the patched file
    has elsewhere, unless it has all of them.

    Args:
        task: whose instruction may name a command; what it says is no leak.
        archive: the tar of the task directory.
    """
    names = paths(archive)
    needles = dict(_needles(archive, names, task.instruction))
    secret_patches = (name for name in names if name.endswith(_PATCH) and _is_secret(name))
    patched = [change for name in secret_patches for change in _patched(archive, name)]
    for name in names:
        if not name.startswith(_VISIBLE):
            continue
        inner = name.removeprefix(_VISIBLE)
        if inner.startswith(_SECRET) or inner in {"solve.sh", "test.sh"}:
            yield f"{name}: the agent's image would hold it"
            continue
        text = _text(archive, name)
        lines = {line.strip() for line in text.splitlines()} | set(_added(name, text))
        for target, added in patched:
            if name.endswith(f"/{target}") and not added <= lines:
                lines -= added
        for line in sorted(lines & needles.keys()):
            yield f"{name}: holds a line of {needles[line]}: {line[:60]!r}"


def _needles(archive: bytes, names: tuple[str, ...], instruction: str) -> Iterator[tuple[str, str]]:
    """Yield (line, file) of every line that only the verifier and the solution should know."""
    for name in names:
        if not _is_secret(name):
            continue
        if name.endswith((*_SCRIPT, *_PATCH)):
            text = _text(archive, name)
            for line in _added(name, text) if name.endswith(_PATCH) else map(str.strip, text.splitlines()):
                if len(line) >= _NEEDLE_LENGTH and not line.startswith(_IGNORED) and line not in instruction:
                    yield line, name


def _is_secret(name: str) -> bool:
    return any(part in f"/{name}" for part in ("/solution/", "/tests/")) and not name.startswith(_VISIBLE)


def _patched(archive: bytes, name: str) -> Iterator[tuple[str, set[str]]]:
    """Yield (path in the repository, long lines that are added) of each file that a patch changes."""
    for section in re.split(r"^\+\+\+ ", _text(archive, name), flags=re.MULTILINE)[1:]:
        target, _, hunks = section.partition("\n")
        added = {line for line in _added(name, hunks) if len(line) >= _NEEDLE_LENGTH}
        if added:
            yield target.split("\t")[0].strip().removeprefix("b/"), added


def _added(name: str, text: str) -> Iterator[str]:
    """Yield what a patch adds; other files add nothing."""
    if name.endswith(_PATCH):
        added = (line for line in text.splitlines() if line.startswith("+") and not line.startswith("+++ "))
        yield from (line[1:].strip() for line in added)


def foreign_line_ends(archive: bytes) -> Iterator[str]:
    """Yield each text that another system wrote: CRLF fails a shell script, a byte order mark hides its first line."""
    for name in paths(archive):
        if not (name.rpartition("/")[2] in _TEXTS or name.endswith(".sh")):
            continue
        content = read_file(archive, name) or b""
        if content.startswith(_BOM):
            yield f"{name}: starts with a byte order mark"
        if b"\r\n" in content:
            yield f"{name}: has CRLF line ends"


def unpinned_images(task: Task, archive: bytes) -> Iterator[str]:
    """Yield each base image that a name alone identifies: tomorrow it may be another one."""
    image = task.environment.docker_image
    if image is not None and "@sha256:" not in image:
        yield f"environment.docker_image = {image!r} has no digest"
    for name in paths(archive):
        if name.rpartition("/")[2] != "Dockerfile":
            continue
        stages: set[str] = {"scratch"}
        for match in _FROM.finditer(_text(archive, name)):
            base, stage = match[1], match[2]
            if base not in stages and "@sha256:" not in base:
                yield f"{name}: FROM {base} has no digest"
            if stage:
                stages.add(stage)


def _text(archive: bytes, name: str) -> str:
    return (read_file(archive, name) or b"").decode(errors="replace")
