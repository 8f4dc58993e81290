"""Finds entries of a list that stand in it before, however long it is."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gputile.api.wording import shown
from gputile.tools.simulator.rules.values.fields import Broken


def repeated(entries: Iterable[Hashable]) -> Iterator[int]:
    """Yield the number of each entry that is equal to an earlier one."""
    seen: set[Hashable] = set()
    for i, entry in enumerate(entries):
        if entry in seen:
            yield i
        seen.add(entry)


def broken_repeats(path: str, entries: Sequence[Mapping[str, Any]], field: str) -> Iterator[Broken]:
    """Yield the entries of the list at ``path`` whose ``field`` has the value that an earlier one has."""
    seen: set[Hashable] = set()
    for i, value in enumerate(entry.get(field) for entry in entries):
        if value and value in seen:
            yield f"{path}[{i}].{field}", f"Duplicate value: {shown(str(value))}"
        seen.add(value)


def identity(value: Any) -> bytes:
    """Return what is the same for equal values of JSON."""
    return msgspec.json.encode(value, order="deterministic")
