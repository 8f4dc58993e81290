"""Replays arrivals: filter, score, the best node, ties to the lowest rank; nothing leaves."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gputile.core.kube_predicates.pod_requests import HostResources
from gputile.core.placement.prices import prices
from gputile.core.placement.vectorized import UNFIT
from gputile.tools.replay.cluster import ReplayCluster
from gputile.tools.replay.trace import Arrivals, PodShape, Workload

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


class Placer(Protocol):
    """What decides where the pods of a replay go."""

    @property
    def cluster(self) -> ReplayCluster:
        """The cluster that it fills."""
        ...

    def arrive(self, uid: str, index: int) -> None:
        """Note that a pod of ``cluster.shapes[index]`` has come, before it is placed."""
        ...

    def place(self, uid: str, index: int) -> int | None:
        """Book a pod of ``cluster.shapes[index]``; return the row of its node, None where it fits nowhere."""
        ...


class LivePlacer:
    """Decides as a live cluster does: kube-scheduler's filters, the extender's scores, choice of GPUs and booking.

    If ``ranked``, the extender ranks nodes for pods without GPUs too (``PlacementEngine.rank_without_gpus``); otherwise
    kube-scheduler spreads them by its own scores. With the policy packing it learns from each pod before placing it.
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
        """Book a pod on the best node; return its row."""
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
    """Return what kube-scheduler's defaults give a pod without GPUs on each node: shape [nodes].

    The scores of NodeResourcesFit (LeastAllocated) and NodeResourcesBalancedAllocation, 0 to 100 each, as of v1.36.
    """
    arrays, count = cluster.ledger.node_arrays, len(cluster.gpus)
    cpu = np.clip((cluster.cpu - shape.cpu) / np.maximum(arrays.all_cpu[:count], 1), 0, 1)
    memory = np.clip((cluster.memory - shape.memory) / np.maximum(arrays.all_host_mib[:count], 1), 0, 1)
    scores: Int64 = (np.trunc(50 * (cpu + memory)) + np.trunc(100 * (1 - np.abs(cpu - memory) / 2))).astype(np.int64)
    return scores


class ReferencePolicy(Protocol):
    """A published policy: what orders the nodes that fit a pod."""

    @property
    def lasting(self) -> bool:
        """Whether a score of a node holds until something on the node changes."""
        ...

    def score(self, cluster: ReplayCluster, shape: PodShape, rows: Int64) -> tuple[Float64, Int64]:
        """Return the score of each of ``rows``, which the pod fits, and the GPU for a pod with one. Shapes [rows].

        Higher is better.
        """
        ...


class ReferencePlacer:
    """Places by a published policy; scores only nodes that changed since a pod of the same shape last came."""

    def __init__(self, cluster: ReplayCluster, policy: ReferencePolicy) -> None:
        self.cluster = cluster
        self._policy = policy
        size = len(cluster.shapes), len(cluster.gpus)
        self._scores = np.full(size, -np.inf)
        self._gpus = np.zeros(size, np.int64)
        self._seen = [-1] * len(cluster.shapes)

    def arrive(self, uid: str, index: int) -> None:
        """Do nothing: a published policy learns nothing from pods that come."""

    def place(self, uid: str, index: int) -> int | None:
        """Book a pod on the best node; return its row."""
        self._look_again(index)
        scores, shape = self._scores[index], self.cluster.shapes[index]
        row = int(scores.argmax())
        if scores[row] == -np.inf:
            return None
        gpus = [int(self._gpus[index, row])][: shape.gpus]
        if shape.gpus > 1:
            gpus = np.flatnonzero(self.cluster.free(np.array([row]))[0] >= shape.milli)[: shape.gpus].tolist()
        self.cluster.book_on(uid, index, row, gpus)
        return row

    def _look_again(self, index: int) -> None:
        cluster, changes = self.cluster, self.cluster.ledger.changes
        count = len(cluster.gpus)
        changed = changes.rows_since(self._seen[index]) if self._policy.lasting and self._seen[index] >= 0 else None
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
    """How the cluster filled: arrays of shape [arrivals], in milli-GPU."""

    arrived: Int64
    used: Int64
    placed: npt.NDArray[np.bool_]
    total: int

    @property
    def failed(self) -> int:
        """Pods that fitted nowhere."""
        return int((~self.placed).sum())


def replay(placer: Placer, workload: Workload, arrivals: Arrivals) -> Curve:
    """Replay one order of arrival on an empty cluster of the workload's shapes."""
    order = workload.shape[arrivals.pods]
    demand = np.array([shape.demand for shape in workload.shapes], np.int64)[order]
    placed = np.fromiter((row >= 0 for row in steps(placer, workload, arrivals)), np.bool_, len(order))
    return Curve(demand.cumsum(), (demand * placed).cumsum(), placed, int(placer.cluster.gpus.sum()) * 1000)


def steps(placer: Placer, workload: Workload, arrivals: Arrivals) -> Iterator[int]:
    """Place one pod after the other; yield the row of its node, or -1 where it failed."""
    for number, index in enumerate(workload.shape[arrivals.pods].tolist()):
        placer.arrive(str(number), index)
        row = placer.place(str(number), index)
        yield -1 if row is None else row
