"""The best-connected set of cards (``ack.node.gpu.schedule=topology``).

A pod that asks k cards gets the set whose smallest pairwise bandwidth is largest; among equals the set that leaves
the best set for the next pod of the same size; then the one that leaves the most bandwidth; then the lowest
indices (T2).
"""

from collections.abc import Iterator
from functools import lru_cache

Matrix = tuple[tuple[float, ...], ...]


@lru_cache(maxsize=4096)
def best_set(bandwidth: Matrix, free: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return the positions of the ``size`` cards to give out of the ``free`` positions, both ascending.

    ``bandwidth`` is symmetric, GB/s; empty where nobody measured it, then any set is as good.
    """
    if not bandwidth or size >= len(free):
        return free[:size]
    best = bottleneck(bandwidth, free, size)
    champion: tuple[float, float, tuple[int, ...]] | None = None
    for chosen in _cliques(bandwidth, free, size, best):
        rest = tuple(p for p in free if p not in chosen)
        left = bottleneck(bandwidth, rest, min(size, len(rest)))
        total = sum(bandwidth[a][b] for i, a in enumerate(rest) for b in rest[i + 1 :])
        if champion is None or (left, total) > champion[:2]:
            champion = (left, total, chosen)
    return champion[2] if champion else free[:size]


@lru_cache(maxsize=65536)
def bottleneck(bandwidth: Matrix, free: tuple[int, ...], size: int) -> float:
    """Return the largest smallest pairwise bandwidth of ``size`` of the ``free`` cards; infinity for one card."""
    if size <= 1:
        return float("inf")
    levels = sorted({bandwidth[a][b] for i, a in enumerate(free) for b in free[i + 1 :]})
    low, high = 0, len(levels) - 1  # the lowest level always works
    while low < high:
        middle = (low + high + 1) // 2
        if next(_cliques(bandwidth, free, size, levels[middle]), None) is None:
            high = middle - 1
        else:
            low = middle
    return levels[low]


def _cliques(bandwidth: Matrix, free: tuple[int, ...], size: int, level: float) -> Iterator[tuple[int, ...]]:
    """Yield the sets of ``size`` cards that are pairwise connected at ``level`` or better, in index order."""

    def extend(chosen: tuple[int, ...], candidates: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(chosen) == size:
            yield chosen
            return
        for i, card in enumerate(candidates):
            if len(chosen) + len(candidates) - i < size:
                return
            near = tuple(other for other in candidates[i + 1 :] if bandwidth[card][other] >= level)
            yield from extend((*chosen, card), near)

    yield from extend((), free)
