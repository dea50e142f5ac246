"""Words of messages: what a misspelt name was meant to be, and how many of something there are."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

NEAR = 0.7
"""Source: difflib, whose own default of 0.6 takes ``cloud`` for ``local``."""
_LONG = re.compile(r'\{"type": ?"error", ?"error": ?\{.*?"message": ?"(?P<message>(?:[^"\\]|\\.)*).*', re.DOTALL)
"""An error document of a model's API, whole or cut off. Source: Anthropic Messages API, errors."""


def did_you_mean(given: str, known: Iterable[str], *, near: float = NEAR) -> str:
    """Return ``did you mean 'mini'?``, or nothing when no known name reads alike or it alone begins so.

    Args:
        given: what was written.
        known: what could have been meant.
        near: how alike two names are, from 0 to 1, for one to be taken for the other.
    """
    names = list(dict.fromkeys(known))
    lower = {name.lower(): name for name in reversed(names)}
    alike = get_close_matches(given.lower(), lower, n=1, cutoff=near)
    begun = [name for name in names if name.startswith(given)] if given else []
    if alike or len(begun) == 1:
        return f"did you mean {lower[alike[0]] if alike else begun[0]!r}?"
    return ""


def one_of(given: str, known: Iterable[str]) -> str:
    """Return the hint for a name that is none of ``known``: ``did you mean 'mini'? There are mini, nop, oracle``."""
    names = list(known)
    meant = did_you_mean(given, names)
    listed = f"use one of {', '.join(names)}" if names else "there is none yet"
    return f"{meant} {listed[0].upper()}{listed[1:]}" if meant else listed


def without_documents(text: str) -> str:
    """Return a message with the error document of a model's answer replaced by what it says.

    ``status 400: {"type":"error","error":{...,"message":"prompt is too long"}}`` -> ``status 400: prompt is too long``.
    """
    return _LONG.sub(lambda found: found["message"].replace('\\"', '"').replace("\\n", "\n"), text)


def counted(count: float, noun: str) -> str:
    """Return ``1 shard``, ``2 shards``, ``1,920 trials``; ``noun`` is in the singular."""
    return f"{count:,.0f} {noun if count == 1 else _plural(noun)}"


def _plural(noun: str) -> str:
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"
