"""Finds entries of a list that stand in it before, however long it is."""

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import msgspec


def repeated(entries: Iterable[Hashable]) -> Iterator[int]:
    """Yield the number of each entry that is equal to an earlier one."""
    seen: set[Hashable] = set()
    for i, entry in enumerate(entries):
        if entry in seen:
            yield i
        seen.add(entry)


def identity(value: Any) -> bytes:
    """Return what is the same for equal values of JSON."""
    return msgspec.json.encode(value, order="deterministic")
