"""Sets of whole numbers as half-open spans."""

from spans.clock import format_day, parse_day
from spans.span import Span
from spans.spanset import SpanSet
from spans.table import render
from spans.text import format_spans, parse_spans

__all__ = ["Span", "SpanSet", "format_day", "format_spans", "parse_day", "parse_spans", "render"]
