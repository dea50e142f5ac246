"""Words of messages: what a misspelt name was meant to be, and how many of something there are."""

from collections.abc import Iterable
from difflib import get_close_matches

_NEAR = 0.7
"""How alike two names are, from 0 to 1, for one to be taken for the other. Source: difflib; its own default of 0.6
takes ``cloud`` for ``local``."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'mini'?``, or nothing when no known name reads alike or begins so."""
    names = list(dict.fromkeys(known))
    lower = {name.lower(): name for name in reversed(names)}
    near = get_close_matches(given.lower(), lower, n=1, cutoff=_NEAR)
    begun = [name for name in names if name.startswith(given)] if given else []
    if near or len(begun) == 1:
        return f"did you mean {lower[near[0]] if near else begun[0]!r}?"
    return ""


def one_of(given: str, known: Iterable[str]) -> str:
    """Return the hint for a name that is none of ``known``: ``did you mean 'mini'? There are mini, nop, oracle``."""
    names = list(known)
    meant = did_you_mean(given, names)
    listed = f"use one of {', '.join(names)}" if names else "there is none yet"
    return f"{meant} {listed[0].upper()}{listed[1:]}" if meant else listed


def counted(count: float, noun: str) -> str:
    """Return ``1 shard``, ``2 shards``, ``1,920 trials``; ``noun`` is in the singular."""
    return f"{count:,.0f} {noun if count == 1 else _plural(noun)}"


def _plural(noun: str) -> str:
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"
