"""Spans as people write them: ``1-5, 9`` is 1, 2, 3, 4, 5 and 9, both ends included."""

import re

from spans.span import Span
from spans.spanset import SpanSet

_ITEM = re.compile(r"\s*([+-]?\d+)\s*(?:-\s*([+-]?\d+)\s*)?")


def parse_spans(text: str) -> SpanSet:
    """Return the set that ``text`` names; ValueError says which item is wrong."""
    if not text.strip():
        return SpanSet()
    return SpanSet(_item(item) for item in text.split(","))


def _item(item: str) -> Span:
    found = _ITEM.fullmatch(item)
    if found is None:
        raise ValueError(f"{item.strip()!r} is neither a number nor a range")
    first = int(found[1])
    last = first if found[2] is None else int(found[2])
    if last < first:
        raise ValueError(f"{item.strip()!r} ends before it begins")
    return Span(first, last + 1)


def format_spans(numbers: SpanSet) -> str:
    """Return the shortest text that :func:`parse_spans` reads back."""
    return ", ".join(_written(span) for span in numbers.spans)


def _written(span: Span) -> str:
    last = span.end - 1
    return str(span.start) if last == span.start else f"{span.start}-{last}"
