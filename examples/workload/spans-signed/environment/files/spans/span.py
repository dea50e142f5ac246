"""One half-open span of whole numbers."""

from typing import NamedTuple, Optional


class Span(NamedTuple):
    """The numbers from ``start`` up to, not including, ``end``."""

    start: int
    end: int

    @classmethod
    def checked(cls, start: int, end: int) -> "Span":
        """Return a span, or raise ValueError when it would be empty or backwards."""
        if end <= start:
            raise ValueError(f"span {start}..{end} holds nothing")
        return cls(start, end)

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self.start <= number < self.end

    def touches(self, other: "Span") -> bool:
        """Say whether both together are one span: they overlap, or one begins where the other ends."""
        return self.start <= other.end and other.start <= self.end

    def common(self, other: "Span") -> Optional["Span"]:
        """Return what lies in both, or None."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        return Span(start, end) if start < end else None
