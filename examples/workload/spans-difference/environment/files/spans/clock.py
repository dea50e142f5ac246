"""Times of one day as spans of minutes: ``09:00-12:30`` is 540 up to 750."""

import re

from spans.span import Span
from spans.spanset import SpanSet

MINUTES_A_DAY = 24 * 60
_TIMES = re.compile(r"\s*(\d\d):(\d\d)\s*-\s*(\d\d):(\d\d)\s*")


def parse_day(text: str) -> SpanSet:
    """Return the minutes that ``text`` names, several ranges parted by commas."""
    return SpanSet(_range(item) for item in text.split(",")) if text.strip() else SpanSet()


def _range(item: str) -> Span:
    found = _TIMES.fullmatch(item)
    if found is None:
        raise ValueError(f"{item.strip()!r} is no range of times")
    start, end = _minutes(found[1], found[2]), _minutes(found[3], found[4])
    return Span.checked(start, end)


def _minutes(hours: str, minutes: str) -> int:
    total = int(hours) * 60 + int(minutes)
    if int(minutes) > 59 or total > MINUTES_A_DAY:
        raise ValueError(f"{hours}:{minutes} is no time of a day")
    return total


def format_day(minutes: SpanSet) -> str:
    """Return the text that :func:`parse_day` reads back."""
    return ", ".join(f"{_time(span.start)}-{_time(span.end)}" for span in minutes.spans)


def _time(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"
