"""Places for all pods of a gang at once, or for none: a search that takes back what leads nowhere.

It knows neither cards nor nodes: a ``Ground`` offers the places of one pod after the other, best first, as things stand
with the pods placed so far. The first way down is what a scheduler would do pod by pod; only where that fails are other
places tried. Within its budget of tries the search finds places wherever there are any.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Place = TypeVar("Place")

MOST_COUNTED = 256  # of a gang that has no chance, so many are placed to tell how many would fit


class Ground(Protocol[Place]):
    """Where pods may be placed. Pods of one kind are interchangeable; ``member`` is a pod's position in the gang."""

    def room(self, member: int, enough: int) -> int:
        """Return how many pods like this one fit at most, as long as that is less than ``enough``."""

    def options(self, member: int) -> Iterator[Place]:
        """Yield the places that the pod could have now, best first; none twice."""

    def put(self, member: int, place: Place) -> None:
        """Place the pod."""

    def take_back(self, member: int) -> None:
        """Undo the latest ``put``, which was that of this pod."""

    def mark(self) -> Hashable:
        """Return what tells apart states in which the same pods are placed."""


@dataclass(frozen=True, slots=True)
class Search(Generic[Place]):
    """What a search found.

    ``places`` are those of the gang's pods, None for one that has none. Where the gang ``fits``, enough of them have
    one; else they are the most that were placed at once. ``certain``: no other search would find more.
    """

    places: tuple[Place | None, ...]
    fits: bool
    certain: bool

    @property
    def placed(self) -> int:
        """How many pods have a place."""
        return sum(place is not None for place in self.places)


def search(kinds: Sequence[Hashable], needed: int, ground: Ground[Place], budget: int) -> Search[Place]:
    """Find places for all pods of a gang, or, where that fails, for at least ``needed`` of them.

    ``kinds`` tells which pods are interchangeable, the hardest to place first; ``budget`` is how many places may be
    tried. The ground is left as it was found.
    """
    everybody = _Descent(kinds, len(kinds), ground, budget)
    found = everybody.run()
    if found.fits or needed >= len(kinds):
        return found
    some = _Descent(kinds, needed, ground, budget).run()
    return some if some.fits or some.placed > found.placed else Search(found.places, False, some.certain)


@dataclass(slots=True)
class _Level(Generic[Place]):
    """One pod's turn on the way down. ``key`` tells the state that it began in."""

    member: int
    placed: int
    key: Hashable
    options: Iterator[Place]
    holds: bool = False
    passed_over: bool = False


class _Descent(Generic[Place]):
    """One depth-first search for places of at least ``needed`` pods. No recursion: gangs may have thousands of pods."""

    def __init__(self, kinds: Sequence[Hashable], needed: int, ground: Ground[Place], budget: int) -> None:
        self._kinds = kinds
        self._needed = needed
        self._ground = ground
        self._left = budget
        self._places: list[Place | None] = [None] * len(kinds)
        self._best: tuple[Place | None, ...] = tuple(self._places)
        self._most = 0
        self._dead: set[Hashable] = set()
        self._levels: list[_Level[Place]] = []

    def run(self) -> Search[Place]:
        needed = self._needed
        if self._hopeless():
            # What there is room for is still worth knowing: one way down, without taking anything back.
            self._needed, self._left = 0, min(len(self._kinds), MOST_COUNTED)
            self._descend()
            return Search(self._best, False, True)
        self._descend()
        fits = self._most >= needed
        return Search(self._best, fits, fits or self._left > 0)

    def _hopeless(self) -> bool:
        """Return whether some kind of pods has too little room even for itself."""
        spare = len(self._kinds) - self._needed
        for kind in dict.fromkeys(self._kinds):
            members = [i for i, other in enumerate(self._kinds) if other == kind]
            least = len(members) - spare
            if least > 0 and self._ground.room(members[0], least) < least:
                return True
        return False

    def _descend(self) -> None:
        """Go down until enough have a place, all ways are tried, or the budget is spent. Nothing stays placed."""
        try:
            done = self._enter(0, 0)
            while self._levels and not done and self._left > 0:
                done = self._step(self._levels[-1])
        finally:
            for level in reversed(self._levels):
                self._leave_place(level)

    def _step(self, level: _Level[Place]) -> bool:
        """Try the next thing for the pod of the lowest level; return whether the bottom is reached."""
        self._leave_place(level)
        place = next(level.options, None) if not level.passed_over else None
        if place is not None:
            self._left -= 1
            self._ground.put(level.member, place)
            self._places[level.member], level.holds = place, True
            return self._enter(level.member + 1, level.placed + 1)
        if not level.passed_over:
            level.passed_over = True  # go on without this pod, where enough others are left
            return self._enter(level.member + 1, level.placed)
        self._dead.add(level.key)
        self._levels.pop()
        return False

    def _enter(self, member: int, placed: int) -> bool:
        """Begin the turn of ``member``; return whether all have had theirs and enough have a place."""
        if placed > self._most:
            self._most, self._best = placed, tuple(self._places)
        if member == len(self._kinds):
            return placed >= self._needed
        key = (member, placed, self._ground.mark())
        if placed + len(self._kinds) - member >= self._needed and key not in self._dead:
            self._levels.append(_Level(member, placed, key, self._ground.options(member)))
        return False

    def _leave_place(self, level: _Level[Place]) -> None:
        if level.holds:
            level.holds = False
            self._places[level.member] = None
            self._ground.take_back(level.member)
