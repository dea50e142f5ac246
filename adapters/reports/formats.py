"""How values read on a page."""

import unicodedata
from datetime import UTC, datetime

DASH = "–"
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
"""Unicode categories that a terminal obeys instead of showing: control, format (direction), surrogates, separators."""
_TINY = 1e-4


def visible(text: str) -> str:
    """Return a text in which nothing acts: what would steer a terminal or turn the reading direction is written out.

    What an agent said is shown to people; it must not colour, move, hide or answer for itself.
    """
    return "".join(
        char if char in "\n\t" or unicodedata.category(char) not in _HIDDEN else char.encode("unicode_escape").decode()
        for char in text
    )


def score(value: float | None) -> str:
    """Return three digits; a dash where nothing is scored."""
    return DASH if value is None else f"{value:.3f}".replace("-", "−")


def signed(value: float | None) -> str:
    """Return three digits with a sign; a dash where undefined."""
    return DASH if value is None else f"{value:+.3f}".replace("-", "−")


def interval(low: float | None, high: float | None, *, with_sign: bool = False) -> str:
    """Return ``[low, high]``; a dash where there is none."""
    if low is None or high is None:
        return DASH
    show = signed if with_sign else score
    return f"[{show(low)}, {show(high)}]"


def count(value: float | None) -> str:
    """Return a whole number with thousands separated."""
    return DASH if value is None else f"{value:,.0f}"


def number(value: object, digits: int = 4) -> str:
    """Return a measured number with so many significant digits, ``≈ 0`` below 1e-4; a dash for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return DASH
    if 0 < abs(value) < _TINY:
        return "≈ 0"
    return f"{value:.{digits}g}".replace("-", "−")


def duration(seconds: float | None) -> str:
    """Return ``1.2 s``, ``3 min 05 s`` or ``2 h 07 min``."""
    if seconds is None:
        return DASH
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:  # noqa: PLR2004 - an hour
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def when(at_ms: int) -> str:
    """Return a moment, UTC."""
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def p_value(value: float | None) -> str:
    """Return ``p = 0.013`` or ``p < 0.001``."""
    if value is None:
        return DASH
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"  # noqa: PLR2004 - the usual floor
