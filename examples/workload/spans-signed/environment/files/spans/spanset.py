"""A set of whole numbers, kept as sorted spans that do not touch."""

from typing import Iterable, Iterator, List, Tuple

from spans.span import Span


def merge(spans: Iterable[Span]) -> List[Span]:
    """Return the same numbers as sorted spans that do not touch."""
    merged: List[Span] = []
    for span in sorted(spans):
        if merged and merged[-1].touches(span):
            merged[-1] = Span(merged[-1].start, max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return merged


class SpanSet:
    """An immutable set of whole numbers."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._spans = tuple(merge(spans))

    @classmethod
    def of(cls, *pairs: Tuple[int, int]) -> "SpanSet":
        """Return the set of some (start, end) pairs; ValueError when one of them is empty."""
        return cls(Span.checked(start, end) for start, end in pairs)

    @property
    def spans(self) -> Tuple[Span, ...]:
        """The spans, sorted."""
        return self._spans

    def __len__(self) -> int:
        return sum(span.end - span.start for span in self._spans)

    def __iter__(self) -> Iterator[int]:
        for span in self._spans:
            yield from range(span.start, span.end)

    def __contains__(self, number: object) -> bool:
        return any(number in span for span in self._spans)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpanSet) and self._spans == other._spans

    def __hash__(self) -> int:
        return hash(self._spans)

    def __repr__(self) -> str:
        return f"SpanSet.of({', '.join(f'({span.start}, {span.end})' for span in self._spans)})"

    def union(self, other: "SpanSet") -> "SpanSet":
        """Return the numbers that are in either set."""
        return SpanSet(self._spans + other._spans)

    def intersection(self, other: "SpanSet") -> "SpanSet":
        """Return the numbers that are in both sets."""
        pairs = (one.common(two) for one in self._spans for two in other._spans)
        return SpanSet(span for span in pairs if span is not None)

    def difference(self, other: "SpanSet") -> "SpanSet":
        """Return the numbers of this set that are not in the other one."""
        left: List[Span] = []
        for span in self._spans:
            start = span.start
            for hole in other._spans:
                if hole.end <= start or hole.start >= span.end:
                    continue
                if hole.start > start:
                    left.append(Span(start, hole.start))
                start = hole.end
            if start < span.end:
                left.append(Span(start, span.end))
        return SpanSet(left)

    def gaps(self) -> "SpanSet":
        """Return what lies between the spans."""
        pairs = zip(self._spans, self._spans[1:])
        return SpanSet(Span(before.end, after.start) for before, after in pairs)

    __or__ = union
    __and__ = intersection
    __sub__ = difference
