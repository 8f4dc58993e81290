"""Fits text and tables to a terminal, and escapes control characters."""

import unicodedata
from bisect import bisect_right
from collections.abc import Sequence

_OBEYED = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))  # control, format, surrogates, line and paragraph separators


def inert(text: str) -> str:
    r"""Return ``text`` with control characters escaped, such as ``\x1b``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_code(each) if unicodedata.category(each) in _OBEYED else each for each in text)


def columns_of(text: str) -> int:
    """Return the width of ``text`` in columns: two for a wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def padded(text: str, width: int) -> str:
    """Return ``text`` padded with spaces to ``width`` columns."""
    return text + " " * (width - columns_of(text))


def shortened(text: str, width: int) -> str:
    """Return ``text`` cut to ``width`` columns; it ends in dots if something was cut."""
    if columns_of(text) <= width:
        return text
    dots = "..." if width > len("...") else ""
    return _cut(text, width - len(dots))[0] + dots


def wrapped(text: str, width: int) -> list[str]:
    """Break ``text`` into lines of at most ``width`` columns, between words if possible."""
    if columns_of(text) <= width:
        return [text]
    lines = [""]
    for word in text.split(" "):
        taken = columns_of(lines[-1]) + bool(lines[-1])
        if lines[-1] and taken + columns_of(word) > width:
            lines.append("")
        elif lines[-1]:
            lines[-1] += " "
        parts = _cut(word, width)
        lines[-1] += parts[0]
        lines += parts[1:]
    return lines


def _cut(word: str, width: int) -> list[str]:
    """Cut a word into parts of at most ``width`` columns; a wide character is not divided."""
    parts, taken = [""], 0
    for each in word:
        size = columns_of(each)
        if parts[-1] and taken + size > width:
            parts.append("")
            taken = 0
        parts[-1] += each
        taken += size
    return parts


def _code(character: str) -> str:
    return character.encode("unicode_escape").decode()


_GAP = 2
_TALLEST = 2  # lines of a row if the terminal has too few lines
_NARROWEST = 8  # the smallest width of a table's column


def aligned(rows: Sequence[Sequence[str]], width: int | None = None, tallest: int | None = None) -> list[str]:
    """Return the lines of a table whose columns are as wide as their widest cells, with two spaces between columns.

    If that is wider than ``width``, the widest cells are wrapped. ``tallest`` limits the lines of a cell below the
    heading.
    """
    cells = [[inert(cell) for cell in row] for row in rows]
    widths = [max(map(columns_of, column)) for column in zip(*cells, strict=True)]
    if width is not None:
        words = [
            max(columns_of(word) for cell in column for word in cell.split(" ")) for column in zip(*cells, strict=True)
        ]
        for narrowest in (words, [_NARROWEST] * len(widths)):  # cut words only if nothing else helps
            widths = _fitted(widths, narrowest, width - _GAP * (len(widths) - 1))
    return [line for number, row in enumerate(cells) for line in _lines(row, widths, tallest if number else None)]


def table(rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Return the rows as the text of a table; see ``aligned``."""
    return "".join(f"{line}\n" for line in aligned(rows, width))


def first_rows(rows: Sequence[Sequence[str]], width: int | None, lines: int) -> tuple[list[str], int]:
    """Return the text of as many rows as fit into ``lines`` lines, with the heading, and the number of these rows.

    A row takes at most two lines.
    """
    counts = range(2, min(len(rows), lines) + 1)
    fit = bisect_right(counts, lines, key=lambda count: len(aligned(rows[:count], width, _TALLEST)))
    count = min(len(rows), max(2, 1 + fit))
    return aligned(rows[:count], width, _TALLEST)[: max(1, lines)], count


def _fitted(widths: Sequence[int], narrowest: Sequence[int], most: int) -> list[int]:
    """Reduce the largest widths until their sum is at most ``most``, if ``narrowest`` allows it."""
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
