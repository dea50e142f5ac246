"""Shell and Dockerfile text as commands, as far as a reader of text can tell: no shell ever runs here."""

import re
import shlex
from collections.abc import Iterator

_BETWEEN = frozenset({";", "&&", "||", "&", "|"})
_HEREDOC = re.compile(r"""("(?:\\.|[^"\\])*"|'[^']*')|<<-?\s*(['"]?)(\w+)\2""")
"""A quoted text, or the word that ends a heredoc; ``<<`` inside quotes opens none."""


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number of its first line, text) of each line with its continuations.

    Blank lines and comments are left out, and so is what a heredoc holds with the line that opens it: it may be of any
    language.
    """
    gathered: list[str] = []
    first = 1
    ends: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if ends:
            ends = ends[1:] if line.strip() == ends[0] else ends
            continue
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        first = first if gathered else number
        goes_on = line.rstrip().endswith("\\")
        gathered.append(f"{line.rstrip()[:-1]} " if goes_on else line)
        if goes_on:
            continue
        whole = "".join(gathered)
        gathered = []
        ends = [match[3] for match in _HEREDOC.finditer(whole) if match[3]]
        if not ends:
            yield first, whole
    if gathered:
        yield first, "".join(gathered)


def commands(line: str) -> tuple[tuple[tuple[str, ...], str], ...]:
    """Return the words of each command of a line and what follows it (``|``, ``&&`` ...; empty at the end).

    A line with a quote that never closes has none.
    """
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    found: list[tuple[tuple[str, ...], str]] = []
    words: list[str] = []
    try:
        for word in lexer:
            if word not in _BETWEEN:
                words.append(word)
            elif words:
                found.append((tuple(words), word))
                words = []
    except ValueError:
        return ()
    return (*found, (tuple(words), "")) if words else tuple(found)
