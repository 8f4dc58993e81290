"""Replays arrivals with gputile's policies and with published policies.

A pod is placed on the best node that it fits. Among equal nodes, the lowest row is chosen. No pod
leaves.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.replay.cluster import ReplayCluster, after
from benchmarks.replay.trace import Arrivals, PodShape, Workload
from gputile.core.kube_predicates.pod_requests import HostResources
from gputile.core.placement.prices import prices
from gputile.core.placement.vectorized import UNFIT

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

TYPICAL_COVER = 0.95
"""Share of the pods that the typical pods represent."""


class Placer(Protocol):
    """Places the pods of a replay."""

    cluster: ReplayCluster

    def arrive(self, uid: str, index: int) -> None:
        """Observe that a pod of ``cluster.shapes[index]`` has arrived, before it is placed."""
        ...

    def place(self, uid: str, index: int) -> int | None:
        """Book a pod of ``cluster.shapes[index]``. Return the row of its node, or None if none
        fits.
        """
        ...


class LivePlacer:
    """Places pods as a live cluster does.

    It applies kube-scheduler's filters, and then the extender's scores, GPUs and booking. If
    ``ranked`` is set, the extender also ranks nodes for pods without GPUs
    (``PlacementEngine.rank_without_gpus``). Otherwise kube-scheduler's own scores spread these
    pods. The policy packing learns from each pod before the pod is placed.
    """

    def __init__(self, cluster: ReplayCluster, *, ranked: bool = True) -> None:
        self.cluster = cluster
        self._ranked = ranked

    def arrive(self, uid: str, index: int) -> None:
        """Learn from the pod."""
        cluster, engine = self.cluster, self.cluster.engine
        if engine.demand is not None:
            engine.demand.observe(cluster.pod(uid, index), cluster.request(index))
            if engine.demand.due():
                engine.reprice(prices(engine.demand.demand()))

    def place(self, uid: str, index: int) -> int | None:
        """Book a pod on the best node. Return the row of the node."""
        cluster, engine = self.cluster, self.cluster.engine
        request, shape = cluster.request(index), cluster.shapes[index]
        host = HostResources(shape.cpu, shape.memory)
        if request is None and not self._ranked:
            scores = spread_scores(cluster, shape)
        else:
            scores = engine.scores(request.shape if request else None, host)[: len(cluster.gpus)]
        scores = np.where(cluster.admits(index), scores, UNFIT)
        row = int(scores.argmax())
        if scores[row] == UNFIT:
            return None
        cluster.book(uid, index, row)
        return row


def spread_scores(cluster: ReplayCluster, shape: PodShape) -> Int64:
    """Return for each node kube-scheduler's default score for a pod without GPUs.

    The score is the sum of NodeResourcesFit (LeastAllocated) and NodeResourcesBalancedAllocation as
    of v1.36, each from 0 to 100.
    """
    arrays, count = cluster.ledger.node_arrays, len(cluster.gpus)
    cpu = np.clip((cluster.cpu - shape.cpu) / np.maximum(arrays.all_cpu[:count], 1), 0, 1)
    memory = np.clip(
        (cluster.memory - shape.memory) / np.maximum(arrays.all_host_mib[:count], 1), 0, 1
    )
    scores: Int64 = (
        np.trunc(50 * (cpu + memory)) + np.trunc(100 * (1 - np.abs(cpu - memory) / 2))
    ).astype(np.int64)
    return scores


class ReferencePolicy(Protocol):
    """A published policy, which orders the nodes that a pod fits.

    ``lasting`` states whether a node's score stays the same until something on the node changes.
    """

    lasting: bool

    def score(self, cluster: ReplayCluster, shape: PodShape, rows: Int64) -> tuple[Float64, Int64]:
        """Return the score of each of ``rows``, and the GPU on each for a pod with one GPU.

        A higher score is better. The pod fits all ``rows``.
        """
        ...


class ReferencePlacer:
    """Places pods by a published policy.

    It scores only the nodes that have changed since the last pod of the same shape.
    """

    def __init__(self, cluster: ReplayCluster, policy: ReferencePolicy) -> None:
        self.cluster = cluster
        self._policy = policy
        size = len(cluster.shapes), len(cluster.gpus)
        self._scores = np.full(size, -np.inf)
        self._gpus = np.zeros(size, np.int64)
        self._seen = [-1] * len(cluster.shapes)

    def arrive(self, uid: str, index: int) -> None:
        """Do nothing: published policies do not learn from arrivals."""

    def place(self, uid: str, index: int) -> int | None:
        """Book a pod on the best node. Return the row of the node."""
        self._look_again(index)
        scores, shape = self._scores[index], self.cluster.shapes[index]
        row = int(scores.argmax())
        if scores[row] == -np.inf:
            return None
        gpus = [int(self._gpus[index, row])][: shape.gpus]
        if shape.gpus > 1:
            gpus = np.flatnonzero(self.cluster.free(np.array([row]))[0] >= shape.milli)[
                : shape.gpus
            ].tolist()
        self.cluster.book_on(uid, index, row, gpus)
        return row

    def _look_again(self, index: int) -> None:
        cluster, changes = self.cluster, self.cluster.ledger.changes
        count = len(cluster.gpus)
        changed = (
            changes.rows_since(self._seen[index])
            if self._policy.lasting and self._seen[index] >= 0
            else None
        )
        rows = np.arange(count) if changed is None else changed.astype(np.int64)
        fit = cluster.fits(index, rows)
        self._scores[index, rows[~fit]] = -np.inf
        rows = rows[fit]
        if len(rows):
            self._scores[index, rows], self._gpus[index, rows] = self._policy.score(
                cluster, cluster.shapes[index], rows
            )
        self._seen[index] = changes.position


@dataclass(frozen=True, slots=True)
class Curve:
    """The demand and the allocation in milli-GPU after each arrival, as arrays."""

    arrived: Int64
    used: Int64
    placed: npt.NDArray[np.bool_]
    total: int

    @property
    def failed(self) -> int:
        """The number of pods that did not fit any node."""
        return int((~self.placed).sum())


def replay(placer: Placer, workload: Workload, arrivals: Arrivals) -> Curve:
    """Replay one order of arrival. ``placer`` has an empty cluster with the workload's shapes."""
    order = workload.shape[arrivals.pods]
    demand = np.array([shape.demand for shape in workload.shapes], np.int64)[order]
    placed = np.fromiter(
        (row >= 0 for row in steps(placer, workload, arrivals)), np.bool_, len(order)
    )
    return Curve(
        demand.cumsum(), (demand * placed).cumsum(), placed, int(placer.cluster.gpus.sum()) * 1000
    )


def steps(placer: Placer, workload: Workload, arrivals: Arrivals) -> Iterator[int]:
    """Place one pod after the other. Yield the row of its node, or -1 if the pod failed."""
    for number, index in enumerate(workload.shape[arrivals.pods].tolist()):
        placer.arrive(str(number), index)
        row = placer.place(str(number), index)
        yield -1 if row is None else row


class Random:
    """Chooses a random node that the pod fits, and a random GPU of this node."""

    lasting = False

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def score(self, cluster: ReplayCluster, shape: PodShape, rows: Int64) -> tuple[Float64, Int64]:
        """Return random scores."""
        ready = cluster.free(rows) >= shape.milli
        gpus = np.where(ready, self._rng.random(ready.shape), -1.0).argmax(axis=1)
        return self._rng.random(len(rows)), gpus


class BestFit:
    """Chooses the node with the least remainder.

    The score is int(100 (1 - (left CPU / 128000 + left milli-GPU / 8000) / 2)).
    """

    lasting = True

    def score(self, cluster: ReplayCluster, shape: PodShape, rows: Int64) -> tuple[Float64, Int64]:
        """Return the published score. The GPU is the fullest GPU that the pod fits."""
        left_cpu = cluster.cpu[rows] - shape.cpu
        free = cluster.free(rows)
        left_gpu = free.sum(axis=1) - shape.demand
        return np.trunc(100 * (1 - (left_cpu / 128000 + left_gpu / 8000) / 2)), _tightest(
            free, shape
        )


class Fgd:
    """Fragmentation gradient descent: chooses the placement that increases fragmentation least.

    The score is int(100 sigmoid((F before - F after) / 1000)), where F is the node's fragmentation.
    The GPU of the node is chosen by the same score.
    """

    lasting = True

    def __init__(self, workload: Workload) -> None:
        self._fragments = Fragments(workload)

    def score(self, cluster: ReplayCluster, shape: PodShape, rows: Int64) -> tuple[Float64, Int64]:
        """Return scores from 0 to 100."""
        free = cluster.free(rows)
        allowed = self._fragments.allowed(cluster)[rows]
        before = self._fragments.of(cluster.cpu[rows], free, allowed)
        ways, possible = after(free, shape)
        count, number, width = ways.shape
        left = np.repeat(cluster.cpu[rows] - shape.cpu, number)
        later = self._fragments.of(
            left, ways.reshape(-1, width), np.repeat(allowed, number, axis=0)
        )
        # Rounded, because the last digits depend on the order of additions. Without rounding, a
        # difference of 0 could score 49 instead of 50.
        gain = np.round(before[:, None] - later.reshape(count, number), 6)
        scores = np.where(possible, np.trunc(100 / (1 + np.exp(-gain / 1000))), -1.0)
        gpus = scores.argmax(axis=1)
        return scores[np.arange(count), gpus], gpus


class Fragments:
    """Computes how much of a node's free GPUs the typical pods of a workload cannot use.

    Typical pods are the most frequent combinations of CPU, milli-GPU, GPUs and models that cover
    ``TYPICAL_COVER`` of the pods. Their shares are normalised.
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
        """Return for each node and typical pod whether the pod accepts the node's GPU model."""
        if self._cache is None or self._cache[0] is not cluster:
            like = {
                shape.models: row
                for shape, row in zip(cluster.shapes, cluster.allowed, strict=True)
            }
            self._cache = cluster, np.stack([like[models] for models in self._models], axis=1)
        return self._cache[1]

    def of(self, cpu: Int64, free: Int64, allowed: Bool) -> Float64:
        """Return each node's fragmentation F. F and ``free`` [nodes, GPUs] are in milli-GPU."""
        total = free.sum(axis=1)
        enough = free[:, None, :] >= self._milli[:, None]
        usable = np.where(enough, free[:, None, :], 0).sum(axis=2)
        runs = (
            allowed
            & (cpu[:, None] >= self._cpu)
            & (enough.sum(axis=2) >= self._gpus)
            & (self._gpus > 0)
        )
        result: Float64 = total - np.where(runs, usable, 0) @ self._weight
        return result


def _tightest(free: Int64, shape: PodShape) -> Int64:
    tightest: Int64 = np.where(free >= shape.milli, free, np.iinfo(np.int64).max).argmin(axis=1)
    return tightest
