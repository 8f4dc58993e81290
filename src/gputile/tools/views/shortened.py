"""Shortens what is told of many objects: equal texts are told once, and only the first of the others."""

from collections.abc import Hashable, Sequence
from typing import Final, TypeVar

from gputile.api.wording import first_of

Told = TypeVar("Told", bound=Hashable)

MOST: Final = 20  # so many objects are told of one by one
NAMED: Final = 3


def shortened(told: Sequence[tuple[str, Told]], most: int = MOST) -> tuple[list[tuple[str, Told]], int]:
    """Return names with what is told of each, and of how many nothing is told.

    Up to ``most`` stay as they are. Of more, those of which the same is told are one, "a, b, c and 7 more", and
    only the first ``most`` are left.
    """
    if len(told) <= most:
        return list(told), 0
    alike: dict[Told, list[str]] = {}
    for name, what in told:
        alike.setdefault(what, []).append(name)
    groups = [(first_of(names, NAMED), what) for what, names in alike.items()]
    return groups[:most], sum(len(names) for names in list(alike.values())[most:])
