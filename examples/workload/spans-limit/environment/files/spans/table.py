"""Rows as a plain text table."""

from typing import Sequence

Row = Sequence[object]


def render(header: Row, rows: Sequence[Row]) -> str:
    """Return a table: columns as wide as their widest cell, numbers to the right, short rows filled up.

    Args:
        header: names of the columns.
        rows: the cells; None is an empty one.
    """
    lines = [[str(name) for name in header]]
    lines += [[_cell(row, column) for column in range(len(header))] for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    right = [_is_numeric(rows, column) for column in range(len(header))]
    drawn = [_line(line, widths, right) for line in lines]
    drawn.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(drawn)


def _cell(row: Row, column: int) -> str:
    value = row[column] if column < len(row) else None
    return "" if value is None else str(value)


def _is_numeric(rows: Sequence[Row], column: int) -> bool:
    values = [row[column] for row in rows if column < len(row) and row[column] is not None]
    return bool(values) and all(isinstance(value, (int, float)) for value in values)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if to_right else cell.ljust(width) for cell, width, to_right in zip(cells, widths, right)
    )
    return "  ".join(padded).rstrip()
