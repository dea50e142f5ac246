"""Apply a unified patch exactly, or not at all: ``apply_patch.py PATCH DIRECTORY``. The standard library alone."""

import re
import sys
from pathlib import Path

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def apply(patch: str, root: Path) -> None:
    """Change the files below ``root``; raises ValueError when anything does not match to the letter."""
    parts = re.split(r"^(?=diff --git )", patch, flags=re.MULTILINE)[1:]
    results = [_file(part.split("\n"), root) for part in parts]
    if not results:
        raise ValueError("the patch changes no file")
    for old, new, lines, executable in results:
        if old and old != new:
            (root / old).unlink()
        if new and lines is not None:
            (root / new).parent.mkdir(parents=True, exist_ok=True)
            (root / new).write_bytes("".join(lines).encode())
            (root / new).chmod(0o755 if executable else 0o644)


def _file(text: "list[str]", root: Path) -> "tuple[str, str, list[str] | None, bool]":
    head: list[str] = []
    while text and not text[0].startswith("@@ "):
        head.append(text.pop(0))
    if any(line.startswith(("Binary files", "GIT binary patch")) for line in head):
        raise ValueError(f"{head[0]}: a binary patch")
    old, new = _name(head, "--- ", "rename from "), _name(head, "+++ ", "rename to ")
    if old is None or new is None:
        raise ValueError(f"{head[0]}: no file names")
    for name in (old, new):
        if name.startswith("/") or ".." in name.split("/") or (root / name).is_symlink():
            raise ValueError(f"{name}: leaves the directory")
    before = (root / old).read_bytes().decode().splitlines(keepends=True) if old else []
    executable = bool(old and (root / old).stat().st_mode & 0o100) or "new file mode 100755" in head
    return old, new, _hunks(text, before, new or old), executable


def _name(head: "list[str]", mark: str, rename: str) -> "str | None":
    for line in head:
        if line.startswith(rename):
            return line[len(rename) :]
        if line.startswith(mark):
            name = line[len(mark) :].split("\t")[0]
            return "" if name == "/dev/null" else name[2:]
    return None


def _hunks(text: "list[str]", before: "list[str]", name: str) -> "list[str]":
    after: list[str] = []
    at = 0
    while text and text[0].startswith("@@ "):
        found = _HUNK.match(text.pop(0))
        if found is None:
            raise ValueError(f"{name}: not a hunk")
        n_old, n_new = (int(found[group] or 1) for group in (2, 4))
        start = int(found[1]) - (1 if n_old else 0)
        after += before[at:start]
        at = start
        while n_old or n_new:
            kind, content = _line(text)
            if kind in " -":
                if at >= len(before) or before[at] != content:
                    raise ValueError(f"{name}:{at + 1}: not what the patch expects")
                at, n_old = at + 1, n_old - 1
            if kind in " +":
                after.append(content)
                n_new -= 1
            if n_old < 0 or n_new < 0:
                raise ValueError(f"{name}: a hunk is cut short")
    return after + before[at:]


def _line(text: "list[str]") -> "tuple[str, str]":
    """Take one line of a hunk: its kind (blank, ``-`` or ``+``) and its content, with the newline if it has one."""
    line = text.pop(0) if text else "?"
    kind = line[:1] or " "
    if kind not in " +-":
        raise ValueError(f"not a line of a hunk: {line!r}")
    if text and text[0].startswith("\\"):
        text.pop(0)
        return kind, line[1:]
    return kind, line[1:] + "\n"


if __name__ == "__main__":
    apply(Path(sys.argv[1]).read_bytes().decode(), Path(sys.argv[2]))
