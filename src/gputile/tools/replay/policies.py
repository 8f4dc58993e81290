"""Implements the reference policies of the protocol."""

from collections import Counter

import numpy as np
import numpy.typing as npt

from gputile.tools.replay.cluster import ReplayCluster, after
from gputile.tools.replay.trace import PodShape, Workload

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

TYPICAL_COVER = 0.95
"""Share of the pods that the typical pods stand for."""


class Random:
    """A node that fits, and a GPU that fits on it, each uniformly at random, drawn anew for every pod."""

    lasting = False

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def score(self, cluster: ReplayCluster, shape: PodShape, rows: Int64) -> tuple[Float64, Int64]:
        """Return random scores."""
        ready = cluster.free(rows) >= shape.milli
        gpus = np.where(ready, self._rng.random(ready.shape), -1.0).argmax(axis=1)
        return self._rng.random(len(rows)), gpus


class BestFit:
    """The node with the least left over: int(100 (1 - (left CPU / 128000 + left milli-GPU / 8000) / 2))."""

    lasting = True

    def score(self, cluster: ReplayCluster, shape: PodShape, rows: Int64) -> tuple[Float64, Int64]:
        """Return the published score; the GPU is the fullest that fits."""
        left_cpu = cluster.cpu[rows] - shape.cpu
        free = cluster.free(rows)
        left_gpu = free.sum(axis=1) - shape.demand
        return np.trunc(100 * (1 - (left_cpu / 128000 + left_gpu / 8000) / 2)), _tightest(free, shape)


class Fgd:
    """Fragmentation gradient descent: the placement after which the node's fragmentation grows least.

    score = int(100 sigmoid((F before - F after) / 1000)), the best GPU of the node by the same score.
    """

    lasting = True

    def __init__(self, workload: Workload) -> None:
        self._fragments = Fragments(workload)

    def score(self, cluster: ReplayCluster, shape: PodShape, rows: Int64) -> tuple[Float64, Int64]:
        """Return 0 to 100."""
        free = cluster.free(rows)
        allowed = self._fragments.allowed(cluster)[rows]
        before = self._fragments.of(cluster.cpu[rows], free, allowed)
        ways, possible = after(free, shape)
        count, number, width = ways.shape
        left = np.repeat(cluster.cpu[rows] - shape.cpu, number)
        later = self._fragments.of(left, ways.reshape(-1, width), np.repeat(allowed, number, axis=0))
        # Sums in another order differ in the last digits, and a difference of nothing scores 49 instead of 50.
        gain = np.round(before[:, None] - later.reshape(count, number), 6)
        scores = np.where(possible, np.trunc(100 / (1 + np.exp(-gain / 1000))), -1.0)
        gpus = scores.argmax(axis=1)
        return scores[np.arange(count), gpus], gpus


class Fragments:
    """How much of a node's free GPU the typical pods of a workload cannot use.

    Typical pods are the distinct (CPU, milli-GPU, GPUs, models) by falling count until ``TYPICAL_COVER`` of the pods
    are covered, their shares renormalised.
    """

    def __init__(self, workload: Workload) -> None:
        counts: Counter[tuple[int, int, int, frozenset[str]]] = Counter()
        for index, count in Counter(workload.shape.tolist()).most_common():
            shape = workload.shapes[index]
            counts[shape.cpu, shape.milli, shape.gpus, shape.models] += count
        typical, covered = [], 0
        for key, count in counts.most_common():
            if covered >= TYPICAL_COVER * len(workload.shape):
                break
            typical.append((*key, count))
            covered += count
        self._cpu, self._milli, self._gpus = np.array([pod[:3] for pod in typical], np.int64).T
        self._models = [pod[3] for pod in typical]
        self._weight = np.array([pod[4] for pod in typical]) / covered
        self._cache: tuple[ReplayCluster, Bool] | None = None

    def allowed(self, cluster: ReplayCluster) -> Bool:
        """Return which nodes have a model that each typical pod allows: shape [nodes, typical pods]."""
        if self._cache is None or self._cache[0] is not cluster:
            like = {shape.models: row for shape, row in zip(cluster.shapes, cluster.allowed, strict=True)}
            self._cache = cluster, np.stack([like[models] for models in self._models], axis=1)
        return self._cache[1]

    def of(self, cpu: Int64, free: Int64, allowed: Bool) -> Float64:
        """Return F of each node, in milli-GPU, from its free CPU, free milli-GPU [nodes, GPUs] and ``allowed``."""
        total = free.sum(axis=1)
        enough = free[:, None, :] >= self._milli[:, None]
        usable = np.where(enough, free[:, None, :], 0).sum(axis=2)
        runs = allowed & (cpu[:, None] >= self._cpu) & (enough.sum(axis=2) >= self._gpus) & (self._gpus > 0)
        result: Float64 = total - np.where(runs, usable, 0) @ self._weight
        return result


def _tightest(free: Int64, shape: PodShape) -> Int64:
    tightest: Int64 = np.where(free >= shape.milli, free, np.iinfo(np.int64).max).argmin(axis=1)
    return tightest
