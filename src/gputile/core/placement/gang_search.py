"""Searches places for all pods of a gang at once, or for none, with backtracking.

It knows neither GPUs nor nodes: a ``SearchState`` offers the places of one pod after the other, best first, given the
places of the pods before it. The first descent places pod by pod as a scheduler would; only if that fails does the
search try other places. It finds places whenever there are any, within its budget of tries.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Place = TypeVar("Place")

MOST_COUNTED = 256  # this many pods of a hopeless gang are placed, to say how many would fit
_STEPS, _STEPS_A_TRY = 4096, 4  # how many steps a search may take, beside its tries


class SearchState(Protocol[Place]):
    """Where pods may be placed. Pods of one kind are interchangeable; ``member`` is a pod's position in the gang."""

    def most(self, enough: int) -> int:
        """Return how many of the gang's pods could have a place at once, at most, where that is less than ``enough``.

        Else any number from ``enough`` on.
        """

    def options(self, member: int) -> Iterator[Place]:
        """Yield the places that the pod could have now, best first, each once."""

    def put(self, member: int, place: Place) -> None:
        """Place the pod."""

    def take_back(self, member: int) -> None:
        """Undo the latest ``put``, which was that of this pod."""

    def state_key(self) -> Hashable:
        """Return a key that distinguishes states in which the same pods are placed."""


@dataclass(frozen=True, slots=True)
class Search(Generic[Place]):
    """What a search found.

    ``places`` are those of the gang's pods, None for one that has none. Where the gang ``fits``, enough of them have
    one; else they are the most that were placed at once. ``certain``: no other search would find more. ``hopeless``:
    that is so by the bound alone.
    """

    places: tuple[Place | None, ...]
    fits: bool
    certain: bool
    hopeless: bool = False

    @property
    def placed(self) -> int:
        return sum(place is not None for place in self.places)


def search(kinds: Sequence[Hashable], needed: int, search_state: SearchState[Place], budget: int) -> Search[Place]:
    """Find places for all pods of a gang, or, where that fails, for at least ``needed`` of them.

    ``kinds`` tells which pods are interchangeable, the hardest to place first; ``budget`` is how many places may be
    tried. The search state is left unchanged.
    """
    enough = len(kinds)
    most = search_state.most(enough)
    if most < needed:
        # The number of pods that fit is still worth knowing: one descent without backtracking.
        found = _Descent(kinds, 0, search_state, min(enough, MOST_COUNTED)).search()
        return Search(found.places, False, True, hopeless=True)
    if most >= enough:
        found = _Descent(kinds, enough, search_state, budget).search()
        if found.fits or needed >= enough:
            return found
    else:
        found = Search((None,) * enough, False, True)
    some = _Descent(kinds, needed, search_state, budget).search()
    return some if some.fits or some.placed > found.placed else Search(found.places, False, some.certain)


@dataclass(slots=True)
class _Level(Generic[Place]):
    """One pod's turn on the way down, which began with ``placed`` pods placed."""

    member: int
    placed: int
    options: Iterator[Place]
    holds: bool = False
    tried: bool = False
    passed_over: bool = False


class _Descent(Generic[Place]):
    """One depth-first search for places of at least ``needed`` pods. No recursion: gangs may have thousands of pods."""

    def __init__(self, kinds: Sequence[Hashable], needed: int, search_state: SearchState[Place], budget: int) -> None:
        self._kinds = kinds
        self._needed = needed
        self._search_state = search_state
        self._left = budget
        self._steps_left = _STEPS_A_TRY * budget + _STEPS
        self._places: list[Place | None] = [None] * len(kinds)
        self._best: tuple[Place | None, ...] = tuple(self._places)
        self._most = 0
        # States from which not enough pods can be placed, by the pod whose turn it was and the number of placed pods.
        self._dead: dict[tuple[int, int], set[Hashable]] = {}
        self._levels: list[_Level[Place]] = []
        self._state = 0  # changes whenever the search state does
        self._full: dict[Hashable, int] = {}  # kind -> a state in which there is no place for it

    def search(self) -> Search[Place]:
        """Go down until enough have a place, all ways are tried, or the budget is spent. Nothing stays placed."""
        done = self._enter(0, 0)
        while self._levels and not done and self._left > 0 and self._steps_left > 0:
            self._steps_left -= 1
            done = self._step(self._levels[-1])
        while self._levels:
            self._leave_place(self._levels.pop())
        fits = self._most >= self._needed
        return Search(self._best, fits, fits or (self._left > 0 and self._steps_left > 0))

    def _step(self, level: _Level[Place]) -> bool:
        """Try the next thing for the pod of the lowest level; return whether the bottom is reached."""
        self._leave_place(level)
        if not level.passed_over:
            try:
                place = next(level.options)
            except StopIteration:
                if not level.tried:
                    self._full[self._kinds[level.member]] = self._state
                level.passed_over = True  # go on without this pod, where enough others are left
                return self._enter(level.member + 1, level.placed)
            self._left -= 1
            self._state += 1
            self._search_state.put(level.member, place)
            self._places[level.member], level.holds, level.tried = place, True, True
            return self._enter(level.member + 1, level.placed + 1)
        self._dead.setdefault((level.member, level.placed), set()).add(self._search_state.state_key())
        self._levels.pop()
        return False

    def _enter(self, member: int, placed: int) -> bool:
        """Begin the turn of ``member``; return whether all have had theirs and enough have a place."""
        if placed > self._most:
            self._most, self._best = placed, tuple(self._places)
        if member == len(self._kinds):
            return placed >= self._needed
        if placed + len(self._kinds) - member < self._needed:
            return False
        dead = self._dead.get((member, placed))
        if dead is None or self._search_state.state_key() not in dead:
            full = self._full.get(self._kinds[member]) == self._state
            options = iter(()) if full else self._search_state.options(member)
            self._levels.append(_Level(member, placed, options))
        return False

    def _leave_place(self, level: _Level[Place]) -> None:
        if level.holds:
            level.holds = False
            self._state += 1
            self._places[level.member] = None
            self._search_state.take_back(level.member)
