"""Finds the best-connected set of GPUs (``ack.node.gpu.schedule=topology``).

A pod with k GPUs gets the set whose smallest pairwise bandwidth is largest; among equals the set that leaves the best
set for the next pod of the same size; then the one that leaves the most bandwidth; then the lowest indices (T2). All
sets are compared, which takes too long with more than ``MOST_COMPARED`` free GPUs: then the first ones are used.
"""

from functools import lru_cache
from itertools import combinations

import numpy as np
import numpy.typing as npt

Matrix = tuple[tuple[float, ...], ...]
Float64 = npt.NDArray[np.float64]

MOST_COMPARED = 16
_GRAIN = 1024  # bandwidths are added up as integers, in 1/1024 GB/s, so that the order of addition does not matter


@lru_cache(maxsize=4096)
def best_set(bandwidth: Matrix, free: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return the best ``size`` positions out of the ``free`` ones, both ascending.

    ``bandwidth`` is symmetric, in GB/s; it is empty if it was not measured, and then the first positions are used.
    """
    if not bandwidth or size >= len(free) or len(free) > MOST_COMPARED:
        return free[:size]
    links = np.array(bandwidth)[np.ix_(free, free)]
    grains = np.rint(_GRAIN * links).astype(np.int64)
    np.fill_diagonal(grains, 0)
    sets = np.array(list(combinations(range(len(free)), size)))
    masks = (1 << sets).sum(axis=1)
    next_best = _best_within(links, min(size, len(free) - size))
    left = next_best[(1 << len(free)) - 1 - masks]
    inner = sum(grains[sets[:, i], sets[:, j]] for i, j in combinations(range(size), 2))
    lost = grains.sum(axis=1)[sets].sum(axis=1) - inner
    best = np.lexsort((lost, -left, -_slowest(links, sets)))[0]  # of equals the first: the sort is stable
    return tuple(free[position] for position in sets[best].tolist())


def _slowest(links: Float64, sets: npt.NDArray[np.int64]) -> Float64:
    """Return the smallest bandwidth between two GPUs of each set, infinity for sets of one GPU: shape [sets]."""
    slowest = np.full(len(sets), np.inf)
    for i, j in combinations(range(sets.shape[1]), 2):
        slowest = np.minimum(slowest, links[sets[:, i], sets[:, j]])
    return slowest


def _best_within(links: Float64, size: int) -> Float64:
    """Return the bandwidth of the best subset of ``size`` GPUs of each set of GPUs: shape [2 ** GPUs].

    The index is the bit mask of the set. The bandwidth is -infinity for sets of fewer GPUs.
    """
    gpus = len(links)
    sets = np.array(list(combinations(range(gpus), size)))
    best = np.full(1 << gpus, -np.inf)
    best[(1 << sets).sum(axis=1)] = _slowest(links, sets)
    for gpu in range(gpus):  # a set is as good as the best of its subsets with one GPU less
        by_gpu = best.reshape(-1, 2, 1 << gpu)
        np.maximum(by_gpu[:, 1], by_gpu[:, 0], out=by_gpu[:, 1])
    return best
