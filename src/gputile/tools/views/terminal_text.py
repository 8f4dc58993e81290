"""Fits text and tables to a terminal, and escapes control characters."""

import unicodedata
from collections.abc import Sequence

# Unicode categories that terminals act on: control, format, surrogates, and line separators.
_CONTROL = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))


def inert(text: str) -> str:
    r"""Return ``text`` with control characters escaped, such as ``\x1b``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        each.encode("unicode_escape").decode() if unicodedata.category(each) in _CONTROL else each
        for each in text
    )


def columns_of(text: str) -> int:
    """Return the width of ``text`` in columns. Wide characters count as 2, combining ones as 0."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def padded(text: str, width: int) -> str:
    return text + " " * (width - columns_of(text))


def shortened(text: str, width: int) -> str:
    """Return ``text`` cut to ``width`` columns. If something was cut, the text ends in dots."""
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
        used = columns_of(lines[-1]) + bool(lines[-1])
        if lines[-1] and used + columns_of(word) > width:
            lines.append("")
        elif lines[-1]:
            lines[-1] += " "
        parts = _cut(word, width)
        lines[-1] += parts[0]
        lines += parts[1:]
    return lines


def _cut(word: str, width: int) -> list[str]:
    """Cut a word into parts of at most ``width`` columns, without dividing a wide character."""
    parts, used = [""], 0
    for each in word:
        size = columns_of(each)
        if parts[-1] and used + size > width:
            parts.append("")
            used = 0
        parts[-1] += each
        used += size
    return parts


_GAP = 2
_NARROWEST = 8  # the smallest width of a table's column


def aligned(rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Return a table's lines. Columns fit their widest cells and are two spaces apart.

    If the table would be wider than ``width``, cells of the widest columns are wrapped.
    """
    cells = [[inert(cell) for cell in row] for row in rows]
    widths = [max(map(columns_of, column)) for column in zip(*cells, strict=True)]
    if width is not None:
        words = [
            max(columns_of(word) for cell in column for word in cell.split(" "))
            for column in zip(*cells, strict=True)
        ]
        # Cut words only if the table is too wide even with one word per line.
        for narrowest in (words, [_NARROWEST] * len(widths)):
            widths = _fitted(widths, narrowest, width - _GAP * (len(widths) - 1))
    lines = []
    for row in cells:
        parts = [wrapped(cell, size) for cell, size in zip(row, widths, strict=True)]
        for number in range(max(map(len, parts), default=0)):
            texts = [part[number] if number < len(part) else "" for part in parts]
            lines.append((" " * _GAP).join(map(padded, texts, widths)).rstrip())
    return lines


def _fitted(widths: Sequence[int], narrowest: Sequence[int], most: int) -> list[int]:
    """Reduce the largest widths until all widths add up to ``most``, or are ``narrowest``."""
    found = list(widths)
    while sum(found) > most:
        wider = [column for column, width in enumerate(found) if width > narrowest[column]]
        if not wider:
            break
        found[max(wider, key=lambda column: found[column])] -= 1
    return found
