"""Rows of text as the columns of a table."""

from collections.abc import Sequence

_GAP = 2


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row; every column is as wide as its widest cell, with two spaces between columns."""
    widths = [max(map(len, column)) + _GAP for column in zip(*rows, strict=True)]
    return ["".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows as the text of a table, each line with its end."""
    return "".join(f"{line}\n" for line in aligned(rows))
