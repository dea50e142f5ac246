"""How long a job was worked on, over all the calls that went on with it: spans of time, kept beside its state."""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

PAUSE_MS = 60_000
"""Spans that lie closer are one: between two batches' trials the trainer works, and nobody reports it."""
_BEAT_MS = 2_000
Span = tuple[int, int]
"""Start and end in milliseconds since 1970."""


def worked_ms(spans: Iterable[Span], pause_ms: int = PAUSE_MS) -> int:
    """Return the length of the union of spans, in which gaps shorter than ``pause_ms`` count as work."""
    found = sorted(spans)
    if not found:
        return 0
    total_ms, (begun, ended) = 0, found[0]
    for first, last in found:
        if first - ended > pause_ms:
            total_ms += ended - begun
            begun = first
            ended = last
        ended = max(ended, last)
    return total_ms + ended - begun


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True, kw_only=True)
class WorkLog:
    """The spans of calls, written as they grow, so that one that is killed has its time counted.

    Args:
        path: a JSON file; what cannot be read of it is no span.
        now_ms: a clock.
    """

    path: Path
    now_ms: Callable[[], int] = _now_ms
    earlier: tuple[Span, ...] = field(init=False)
    """Spans of the calls before this one."""
    started_ms: int = field(init=False)
    _written_ms: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        """Begin this call's span."""
        self.earlier = _read(self.path)
        self.started_ms = self.now_ms()
        self.beat()

    @property
    def spans(self) -> tuple[Span, ...]:
        """Every call's span, this one's up to now."""
        return (*self.earlier, (self.started_ms, self.now_ms()))

    def beat(self) -> None:
        """Note that this call still works; cheap when it was noted just now."""
        if self.now_ms() - self._written_ms < _BEAT_MS:
            return
        self._written_ms = self.now_ms()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_suffix(".draft")
        draft.write_text(json.dumps(self.spans), encoding="utf-8")
        draft.replace(self.path)


def _read(path: Path) -> tuple[Span, ...]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return tuple((int(first), int(last)) for first, last in found)
    except (FileNotFoundError, ValueError, TypeError):
        return ()
