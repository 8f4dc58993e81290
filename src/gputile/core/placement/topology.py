"""Finds the best-connected set of GPUs (``ack.node.gpu.schedule=topology``).

A pod that asks k GPUs gets the set whose smallest pairwise bandwidth is largest; among equals the set that leaves
the best set for the next pod of the same size; then the one that leaves the most bandwidth; then the lowest
indices (T2).

Interchangeable GPUs are tried only once, so a switch with 16 equal links is as easy as one GPU. A node could report a
matrix that makes the search long, so each phase stops after ``MOST_STEPS`` with the best set so far.
"""

from collections.abc import Iterator
from functools import lru_cache
from math import inf, nextafter

Matrix = tuple[tuple[float, ...], ...]

MOST_STEPS = 3000
_GRAIN = 1024  # bandwidths are added up as integers, in 1/1024 GB/s, so that no order of adding decides


@lru_cache(maxsize=4096)
def best_set(bandwidth: Matrix, free: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return the positions of the ``size`` GPUs to give out of the ``free`` positions, both ascending.

    ``bandwidth`` is symmetric, GB/s; empty if it was not measured, and then any set is as good.
    """
    if not bandwidth or size >= len(free):
        return free[:size]
    gpus = _FreeGpus(bandwidth, free)
    candidates = sorted(
        (gpus.links_lost(chosen), chosen) for chosen in gpus.connected(free, size, gpus.bottleneck(free, size))
    )
    next_size = min(size, len(free) - size)
    highest = gpus.bottleneck(free, next_size)
    champion, champion_left = free[:size], -inf
    gpus.restart()
    for _, chosen in candidates:
        if gpus.exhausted:
            break
        rest = tuple(p for p in free if p not in chosen)
        if champion_left > -inf and not gpus.has_connected(rest, next_size, nextafter(champion_left, inf)):
            continue
        left = gpus.bottleneck(rest, next_size, restart=False)
        if left > champion_left:
            champion, champion_left = chosen, left
        if left >= highest:
            break
    return champion


class _FreeGpus:
    """The free GPUs of a node, to be searched within a budget of steps."""

    def __init__(self, bandwidth: Matrix, free: tuple[int, ...]) -> None:
        self._bandwidth = bandwidth
        self._alike = _alike(bandwidth, free)
        self._grains = {(a, b): round(_GRAIN * bandwidth[a][b]) for a in free for b in free if a != b}
        self._degree = {a: sum(self._grains[a, b] for b in free if b != a) for a in free}
        self._steps = 0

    @property
    def exhausted(self) -> bool:
        return self._steps >= MOST_STEPS

    def restart(self) -> None:
        self._steps = 0

    def links_lost(self, chosen: tuple[int, ...]) -> int:
        """Return the bandwidth that the others lose with ``chosen``: all links of these, those among them once."""
        inner = sum(self._grains[a, b] for i, a in enumerate(chosen) for b in chosen[i + 1 :])
        return sum(self._degree[a] for a in chosen) - inner

    def bottleneck(self, free: tuple[int, ...], size: int, *, restart: bool = True) -> float:
        """Return the largest smallest pairwise bandwidth of ``size`` of the ``free`` GPUs; infinity for one GPU."""
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
        """Return whether some ``size`` of the ``free`` GPUs are pairwise connected at ``level`` or better."""
        return next(self.connected(free, size, level), None) is not None

    def connected(self, free: tuple[int, ...], size: int, level: float) -> Iterator[tuple[int, ...]]:
        """Yield the sets of ``size`` GPUs that are pairwise connected at ``level`` or better, in index order.

        Of sets that differ only in interchangeable GPUs, only the one with the lowest indices.
        """
        self._steps += len(free) ** 2 // 16  # the next line takes as long as that many steps
        near = {a: sum(1 << b for b in free if b > a and self._bandwidth[a][b] >= level) for a in free}
        earlier: dict[int, int] = {}  # the interchangeable GPU that comes before, as a mask
        last: dict[int, int] = {}
        for gpu in free:
            kind = self._alike[gpu]
            earlier[gpu] = last.get(kind, 0)
            last[kind] = 1 << gpu

        def extend(chosen: tuple[int, ...], taken: int, candidates: int) -> Iterator[tuple[int, ...]]:
            if len(chosen) == size:
                self._steps += size**2 // 64  # the caller's own steps for each set
                yield chosen
                return
            while candidates.bit_count() >= size - len(chosen) and not self.exhausted:
                self._steps += 1
                bit = candidates & -candidates
                candidates ^= bit
                gpu = bit.bit_length() - 1
                if not earlier[gpu] & ~taken:
                    yield from extend((*chosen, gpu), taken | bit, candidates & near[gpu])

        yield from extend((), 0, sum(1 << a for a in free))


def _alike(bandwidth: Matrix, free: tuple[int, ...]) -> dict[int, int]:
    """Return for each GPU the first one that it is interchangeable with."""
    first_of: dict[int, int] = {}
    for gpu in free:
        for first in set(first_of.values()):
            if all(bandwidth[first][p] == bandwidth[gpu][p] for p in free if p not in (first, gpu)):
                first_of[gpu] = first
                break
        else:
            first_of[gpu] = gpu
    return first_of
