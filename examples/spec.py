"""What a family of example tasks declares: instances, the checks that grade them, right and wrong commands."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

WORDS = ("apple", "bread", "cloud", "eagle", "fish", "grape", "house", "lemon", "moon", "river")
"""Every word comes from here, and every file name: held-out instances recombine what practice has."""


class CheckKind(StrEnum):
    """What the verifier asserts about one path."""

    CONTENT = "content"
    """A regular file, not a link, with exactly this content."""
    ABSENT = "absent"
    DIRECTORY = "directory"
    LINK = "link"
    """A symbolic link with exactly this target."""
    PRINTS = "prints"
    """A Python file whose one statement prints this literal; parsed, never run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One assertion about a path of the working directory."""

    kind: CheckKind
    path: str
    expected: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One task of a family, before it becomes a directory."""

    instruction: str
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Initial files of the working directory."""
    checks: tuple[Check, ...]
    right: tuple[str, ...]
    """Commands that solve it; the first is the reference solution, and the one that demonstrations show."""
    wrong: tuple[str, ...]
    """Plausible commands that do not solve it: demonstrations contain them on purpose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Tasks that differ only in their parameters."""

    name: str
    draw: Callable[[Random], Instance]
    """Draw an instance; instances with the same instruction are the same instance."""
    needs_python: bool = False


def words(rng: Random, count: int) -> list[str]:
    """Draw ``count`` different words."""
    return rng.sample(WORDS, count)


def file_names(rng: Random, count: int, suffix: str = ".txt") -> list[str]:
    """Draw ``count`` different file names."""
    return [stem + suffix for stem in rng.sample(WORDS, count)]


def text(lines: list[str]) -> str:
    """Join lines into the content of a text file."""
    return "".join(f"{line}\n" for line in lines)


def content(path: str, expected: str) -> Check:
    """Assert a regular file with exactly this content."""
    return Check(kind=CheckKind.CONTENT, path=path, expected=expected)


def absent(path: str) -> Check:
    """Assert that nothing is there."""
    return Check(kind=CheckKind.ABSENT, path=path)
