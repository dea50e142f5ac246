"""``.harborignore``: the rules of ``.gitignore``, inside ``tests/`` and ``solution/`` alone.

Source: Harbor 0.26 ``models/task/file_filter.py``; git-scm.com/docs/gitignore.
"""

import re
from dataclasses import dataclass

IGNORE_FILE = ".harborignore"
_SCOPES = re.compile(r"^(steps/[^/]+/)?(tests|solution)(/|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One line of a file of rules."""

    pattern: re.Pattern[str]
    directory: str
    """Where the file lies; the pattern is about paths below it."""
    excludes: bool
    only_directories: bool


def in_scope(path: str) -> bool:
    """Say whether rules may stand at, or hold for, this path."""
    return _SCOPES.match(path) is not None


def parse_rules(text: str, directory: str) -> tuple[Rule, ...]:
    """Return the rules of a file that lies in ``directory`` (relative to the task)."""
    return tuple(rule for line in text.splitlines() if (rule := _parse(line, directory)) is not None)


def _parse(line: str, directory: str) -> Rule | None:
    text = line if line.endswith("\\ ") else line.rstrip()
    if not text or text.startswith("#"):
        return None
    excludes = not text.startswith("!")
    text = text.removeprefix("!").removeprefix("\\")
    only_directories = text.endswith("/")
    text = text.rstrip("/")
    anchored = "/" in text
    body = _translate(text.lstrip("/"))
    pattern = re.compile(body if anchored else f"(?:.*/)?{body}", re.DOTALL)
    return Rule(pattern=pattern, directory=directory, excludes=excludes, only_directories=only_directories)


def _translate(text: str) -> str:
    """Return the regular expression of a pattern: ``*`` stays in a name, ``**`` crosses directories."""
    out: list[str] = []
    index = 0
    while index < len(text):
        rest = text[index:]
        character = text[index]
        bracket = re.match(r"\[(!|\^)?(\]?[^\]]*)\]", rest)
        if rest.startswith("**/"):
            out.append("(?:.*/)?")
            index += 3
        elif rest == "**" or rest.startswith("**"):
            out.append(".*")
            index += 2
        elif bracket is not None:
            out.append(f"[{'^' if bracket[1] else ''}{bracket[2]}]")
            index += len(bracket[0])
        else:
            out.append({"*": "[^/]*", "?": "[^/]"}.get(character, re.escape(character)))
            index += 1
    return "".join(out)


def is_ignored(path: str, rules: tuple[Rule, ...]) -> bool:
    """Say whether a file is left out of the task: the last rule that matches decides, from the outermost directory on.

    A file below an ignored directory stays ignored, whatever later rules say.
    """
    if path.rpartition("/")[2] == IGNORE_FILE:
        return True
    if _SCOPES.match(path) is None:
        return False
    parts = path.split("/")
    for length in range(1, len(parts) + 1):
        candidate = "/".join(parts[:length])
        if _SCOPES.match(candidate) and _decide(candidate, rules, is_directory=length < len(parts)):
            return True
    return False


def _decide(path: str, rules: tuple[Rule, ...], *, is_directory: bool) -> bool:
    excluded = False
    for rule in rules:
        prefix = f"{rule.directory}/" if rule.directory else ""
        if not path.startswith(prefix) or (rule.only_directories and not is_directory):
            continue
        if rule.pattern.fullmatch(path.removeprefix(prefix)):
            excluded = rule.excludes
    return excluded
