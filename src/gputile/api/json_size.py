"""Tells whether JSON has too many items to decode.

A megabyte of empty objects takes seconds, one of text no time.
"""

from typing import Final

_PART: Final = 1 << 16


def has_more_items(text: bytes, most: int) -> bool:
    """Return whether JSON has more than ``most`` objects, lists, and further fields and entries in them.

    That takes some milliseconds for megabytes. What is no JSON is judged by the same signs.
    """
    if not _reaches(text, most):
        return False
    # Some of the signs may be text. A backslash stands only in text, and before a quote it ends none.
    plain = text.replace(rb"\\", b"").replace(rb"\"", b"")
    if plain.count(b'"') > 4 * (most + 1):  # an item has two texts at most, its name and its value
        return True
    return _reaches(b"".join(plain.split(b'"')[::2]), most)


def _reaches(text: bytes, most: int) -> bool:
    """Return whether there are more than ``most`` signs of an item; no more of the text is looked at than tells."""
    if len(text) <= most:  # each sign is a byte: what kube-scheduler asks need not be counted
        return False
    count = 0
    for start in range(0, len(text), _PART):
        end = start + _PART
        count += text.count(b",", start, end) + text.count(b"{", start, end) + text.count(b"[", start, end)
        if count > most:
            return True
    return False
