"""Rows as a plain text table."""

from typing import Optional, Sequence

Row = Sequence[object]


def render(header: Row, rows: Sequence[Row], limit: Optional[int] = None) -> str:
    """Return a table: columns as wide as their widest cell, numbers to the right, short rows filled up.

    Args:
        header: names of the columns.
        rows: the cells; None is an empty one.
        limit: most characters of a cell of ``rows``; a longer one ends in an ellipsis (…). None: no limit.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit {limit} leaves no room")
    lines = [[str(name) for name in header]]
    lines += [[_cell(row, column, limit) for column in range(len(header))] for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    right = [_is_numeric(rows, column) for column in range(len(header))]
    drawn = [_line(line, widths, right) for line in lines]
    drawn.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(drawn)


def _cell(row: Row, column: int, limit: Optional[int]) -> str:
    value = row[column] if column < len(row) else None
    text = "" if value is None else str(value)
    if limit is not None and len(text) > limit:
        return text[: limit - 1] + "…"
    return text


def _is_numeric(rows: Sequence[Row], column: int) -> bool:
    values = [row[column] for row in rows if column < len(row) and row[column] is not None]
    return bool(values) and all(isinstance(value, (int, float)) for value in values)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if to_right else cell.ljust(width) for cell, width, to_right in zip(cells, widths, right)
    )
    return "  ".join(padded).rstrip()
