"""Lays out rows of text as the columns of a table."""

from bisect import bisect_right
from collections.abc import Sequence

from gputile.tools.views.terminal_text import columns_of, inert, padded, shortened, wrapped

_GAP = 2
_TALLEST = 2  # lines of a row where there are not lines for all
_NARROWEST = 8  # columns of text: a column of a table gets no narrower


def aligned(rows: Sequence[Sequence[str]], width: int | None = None, tallest: int | None = None) -> list[str]:
    """Return the lines of a table: every column is as wide as its widest cell, with two spaces between columns.

    Where that is more than ``width`` columns of a terminal, the text of the widest cells goes on in further lines
    below itself. Without ``width`` each row is one line. Of the text of a cell below the heading ``tallest`` lines are
    left, where that is given.
    """
    cells = [[inert(cell) for cell in row] for row in rows]
    widths = [max(map(columns_of, column)) for column in zip(*cells, strict=True)]
    if width is not None:
        words = [
            max(columns_of(word) for cell in column for word in cell.split(" ")) for column in zip(*cells, strict=True)
        ]
        for narrowest in (words, [_NARROWEST] * len(widths)):  # words are cut only where nothing else helps
            widths = _fitted(widths, narrowest, width - _GAP * (len(widths) - 1))
    return [line for number, row in enumerate(cells) for line in _lines(row, widths, tallest if number else None)]


def table(rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Return the rows as the text of a table, each line with its end; see ``aligned``."""
    return "".join(f"{line}\n" for line in aligned(rows, width))


def first_rows(rows: Sequence[Sequence[str]], width: int | None, lines: int) -> tuple[list[str], int]:
    """Return the text of as many rows, the heading first, as ``lines`` lines have room for, and how many those are.

    A row takes two lines at most. Of a row that is too long for all of the lines its beginning is there.
    """
    counts = range(2, min(len(rows), lines) + 1)
    fit = bisect_right(counts, lines, key=lambda count: len(aligned(rows[:count], width, _TALLEST)))
    count = min(len(rows), max(2, 1 + fit))
    return aligned(rows[:count], width, _TALLEST)[: max(1, lines)], count


def _fitted(widths: Sequence[int], narrowest: Sequence[int], most: int) -> list[int]:
    """Return the widths with the widest made narrower until together they are at most ``most``, if they can be."""
    found = list(widths)
    while sum(found) > most:
        wider = [column for column, width in enumerate(found) if width > narrowest[column]]
        if not wider:
            break
        found[max(wider, key=lambda column: found[column])] -= 1
    return found


def _lines(row: Sequence[str], widths: Sequence[int], tallest: int | None) -> list[str]:
    parts = [_cell(cell, size, tallest) for cell, size in zip(row, widths, strict=True)]
    height = max(map(len, parts), default=0)
    return [
        (" " * _GAP)
        .join(padded(part[line] if line < len(part) else "", size) for part, size in zip(parts, widths, strict=True))
        .rstrip()
        for line in range(height)
    ]


def _cell(text: str, width: int, tallest: int | None) -> list[str]:
    lines = wrapped(text, width)
    if tallest is None or len(lines) <= tallest:
        return lines
    return [*lines[: tallest - 1], shortened(" ".join(lines[tallest - 1 :]), width)]
