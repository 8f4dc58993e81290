"""Measures and breaks text for a terminal, and removes what could give the terminal orders.

Names and reasons come from manifests, nodes and pods that others wrote. What a terminal would obey (escape sequences,
changes of the direction of writing) is shown by its code instead.
"""

import unicodedata

_OBEYED = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))  # control, format, surrogates, line and paragraph separators


def inert(text: str) -> str:
    r"""Return ``text`` with every character that a terminal would obey written as its code: ``\x1b``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_code(each) if unicodedata.category(each) in _OBEYED else each for each in text)


def columns_of(text: str) -> int:
    """Return how many columns of a terminal ``text`` takes: two for a wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def padded(text: str, width: int) -> str:
    """Return ``text`` with spaces after it, ``width`` columns wide at least."""
    return text + " " * (width - columns_of(text))


def shortened(text: str, width: int) -> str:
    """Return ``text`` in at most ``width`` columns; it ends in dots where something is left out."""
    if columns_of(text) <= width:
        return text
    dots = "..." if width > len("...") else ""
    return _cut(text, width - len(dots))[0] + dots


def wrapped(text: str, width: int) -> list[str]:
    """Return ``text`` in lines of at most ``width`` columns, broken between words; words that are too long are cut."""
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
    """Return a word in parts of at most ``width`` columns, a wide character whole."""
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
