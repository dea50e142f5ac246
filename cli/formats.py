"""How values read in a terminal."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from domain.maths.statistics import Estimate

_STATE_STYLES = {
    "succeeded": "green",
    "completed": "green",
    "scored": "green",
    "failed": "red",
    "infra_error": "red",
    "blocked": "bold red",
    "cancelled": "yellow",
    "ungraded": "yellow",
    "running": "cyan",
}


def state(text: str) -> str:
    """Return a state in its colour."""
    style = _STATE_STYLES.get(text)
    return f"[{style}]{text}[/]" if style else text


def plain(text: str) -> str:
    """Return a text that comes from outside as it is to be read: no markup, nothing that steers the terminal."""
    from rich.markup import escape

    from adapters.reports.formats import visible

    return escape(visible(text))


def told(text: str) -> str:
    """Return what an agent's end or an assessment says: the message of a model's error, not its document."""
    from domain.records.wording import without_documents

    return plain(without_documents(text))


def when(at_ms: int) -> str:
    """Return a moment in local time."""
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def duration(seconds: float) -> str:
    """Return ``1.2 s``, ``3 min 05 s`` or ``2 h 07 min``."""
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:  # noqa: PLR2004 - an hour
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def score(value: float | None) -> str:
    """Return a score with three digits, or a dash where nothing is scored."""
    return "–" if value is None else f"{value:.3f}"


def interval(low: float | None, high: float | None) -> str:
    """Return an interval, or a dash."""
    return "–" if low is None or high is None else f"[{low:.3f}, {high:.3f}]"


def estimate(found: "Estimate") -> str:
    """Return a value with its interval."""
    bounds = interval(found.low, found.high).replace("[", r"\[")
    return f"{score(found.value)} {bounds}" if found.low is not None else score(found.value)


def counts(found: Mapping[str, int]) -> str:
    """Return ``completed 12, agent_timeout 1``; a dash when there is nothing."""
    shown = [f"{state(name)} {count}" for name, count in sorted(found.items(), key=lambda item: -item[1]) if count]
    return ", ".join(shown) or "–"


def body(values: Mapping[str, object]) -> str:
    """Return an event's body as ``key=value`` pairs, without what is empty."""
    return "  ".join(f"[dim]{key}=[/]{_plain(value)}" for key, value in values.items() if value not in (None, ""))


def _plain(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else plain(str(value))
