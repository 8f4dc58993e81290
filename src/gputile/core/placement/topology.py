"""The best-connected set of cards (``ack.node.gpu.schedule=topology``).

A pod that asks k cards gets the set whose smallest pairwise bandwidth is largest; among equals the set that leaves
the best set for the next pod of the same size; then the one that leaves the most bandwidth; then the lowest
indices (T2).

Cards that a swap does not tell apart are looked at once, so that a switch with 16 equal links is as easy as one
card. A node could report a matrix made to be hard: each phase of a search stops after ``MOST_STEPS`` and what was
found so far is taken.
"""

from collections.abc import Iterator
from functools import lru_cache
from math import inf, nextafter

Matrix = tuple[tuple[float, ...], ...]

MOST_STEPS = 20_000
_GRAIN = 1024  # bandwidths are added up as integers, in 1/1024 GB/s, so that no order of adding decides


@lru_cache(maxsize=4096)
def best_set(bandwidth: Matrix, free: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return the positions of the ``size`` cards to give out of the ``free`` positions, both ascending.

    ``bandwidth`` is symmetric, GB/s; empty where nobody measured it, then any set is as good.
    """
    if not bandwidth or size >= len(free):
        return free[:size]
    cards = _Cards(bandwidth, free)
    candidates = sorted(
        (cards.links_lost(chosen), chosen) for chosen in cards.connected(free, size, cards.bottleneck(free, size))
    )
    next_size = min(size, len(free) - size)
    highest = cards.bottleneck(free, next_size)
    champion, champion_left = free[:size], -inf
    cards.restart()
    for _, chosen in candidates:
        if cards.exhausted:
            break
        rest = tuple(p for p in free if p not in chosen)
        if champion_left > -inf and not cards.has_connected(rest, next_size, nextafter(champion_left, inf)):
            continue
        left = cards.bottleneck(rest, next_size, restart=False)
        if left > champion_left:
            champion, champion_left = chosen, left
        if left >= highest:
            break
    return champion


class _Cards:
    """The free cards of a node, to be searched within a budget of steps."""

    def __init__(self, bandwidth: Matrix, free: tuple[int, ...]) -> None:
        self._bandwidth = bandwidth
        self._alike = _alike(bandwidth, free)
        self._grains = {(a, b): round(_GRAIN * bandwidth[a][b]) for a in free for b in free if a != b}
        self._degree = {a: sum(self._grains[a, b] for b in free if b != a) for a in free}
        self._steps = 0

    @property
    def exhausted(self) -> bool:
        """Whether the budget is spent."""
        return self._steps >= MOST_STEPS

    def restart(self) -> None:
        """Give the next phase a budget of its own."""
        self._steps = 0

    def links_lost(self, chosen: tuple[int, ...]) -> int:
        """Return the bandwidth that the others lose with ``chosen``: all links of these, those among them once."""
        inner = sum(self._grains[a, b] for i, a in enumerate(chosen) for b in chosen[i + 1 :])
        return sum(self._degree[a] for a in chosen) - inner

    def bottleneck(self, free: tuple[int, ...], size: int, *, restart: bool = True) -> float:
        """Return the largest smallest pairwise bandwidth of ``size`` of the ``free`` cards; infinity for one card."""
        if size <= 1:
            return inf
        if restart:
            self.restart()
        levels = sorted({self._bandwidth[a][b] for i, a in enumerate(free) for b in free[i + 1 :]})
        low, high = 0, len(levels) - 1  # the lowest level always works
        while low < high:
            middle = (low + high + 1) // 2
            if self.has_connected(free, size, levels[middle]):
                low = middle
            else:
                high = middle - 1
        if restart:
            self.restart()
        return levels[low]

    def has_connected(self, free: tuple[int, ...], size: int, level: float) -> bool:
        """Return whether some ``size`` of the ``free`` cards are pairwise connected at ``level`` or better."""
        return next(self.connected(free, size, level), None) is not None

    def connected(self, free: tuple[int, ...], size: int, level: float) -> Iterator[tuple[int, ...]]:
        """Yield the sets of ``size`` cards that are pairwise connected at ``level`` or better, in index order.

        Of sets that differ by cards alike, only the one with the lowest indices.
        """
        self._steps += len(free) ** 2 // 16  # the next line takes as long as that many steps
        near = {a: sum(1 << b for b in free if b > a and self._bandwidth[a][b] >= level) for a in free}
        earlier: dict[int, int] = {}  # the card alike that goes before, as a mask
        last: dict[int, int] = {}
        for card in free:
            kind = self._alike[card]
            earlier[card] = last.get(kind, 0)
            last[kind] = 1 << card

        def extend(chosen: tuple[int, ...], taken: int, candidates: int) -> Iterator[tuple[int, ...]]:
            if len(chosen) == size:
                self._steps += size**2 // 64  # what the caller does with it
                yield chosen
                return
            while candidates.bit_count() >= size - len(chosen) and not self.exhausted:
                self._steps += 1
                bit = candidates & -candidates
                candidates ^= bit
                card = bit.bit_length() - 1
                if not earlier[card] & ~taken:
                    yield from extend((*chosen, card), taken | bit, candidates & near[card])

        yield from extend((), 0, sum(1 << a for a in free))


def _alike(bandwidth: Matrix, free: tuple[int, ...]) -> dict[int, int]:
    """Return for each card the first of those that a swap does not tell from it."""
    first_of: dict[int, int] = {}
    for card in free:
        for first in set(first_of.values()):
            if all(bandwidth[first][p] == bandwidth[card][p] for p in free if p not in (first, card)):
                first_of[card] = first
                break
        else:
            first_of[card] = card
    return first_of
