"""Counts how many objects a file holds, before any of them is read.

Reading a file of the largest allowed size takes up to half a minute, so a file with too many objects is refused first.
"""

import re

import msgspec

MOST_OBJECTS = 250_000
_ITEMS = re.compile(r"^items:[ \t\r]*(?:#.*)?\n(?:[ \t\r]*(?:#.*)?\n)*( *)- ", re.MULTILINE)
_NEXT_DOCUMENT = "\n---"
_END = re.compile(r"\n(?:---|[^\s#-])")  # another document, or another key of this one


class _List(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


_LIST = msgspec.json.Decoder(_List)


def excess(text: str) -> str | None:
    """Return what there are too many of in ``text``, JSON or YAML, None where that is not certain yet.

    In YAML whole documents count, and the items of a list that is written in block style, as kubectl writes it.
    """
    if len(text) <= MOST_OBJECTS:
        return None
    try:
        listed = len(_LIST.decode(text).items or ())
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        listed = max((_items_in_block(text, match) for match in _ITEMS.finditer(text)), default=0)
        documents = 1 + text.count(_NEXT_DOCUMENT)
        if documents > MOST_OBJECTS:
            return f"{documents:,} documents are more than the {MOST_OBJECTS:,} that a file may hold"
    return too_many(listed)


def too_many(listed: int) -> str | None:
    """Return why a list of so many objects is refused, None where it is not."""
    if listed <= MOST_OBJECTS:
        return None
    return f"items: {listed:,} objects are more than the {MOST_OBJECTS:,} that a list may hold"


def _items_in_block(text: str, first: re.Match[str]) -> int:
    end = _END.search(text, first.end())
    return 1 + text.count(f"\n{first[1]}- ", first.end(), end.start() if end else len(text))
