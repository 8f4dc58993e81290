"""Replays arrivals: filter, score, the best node, ties to the lowest rank; nothing leaves."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gputile.tools.replay.cluster import ReplayCluster
from gputile.tools.replay.trace import Arrivals, Nodes, PodShape, Workload

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


class ReplayPolicy(Protocol):
    """What orders the nodes that fit a pod."""

    def score(self, cluster: ReplayCluster, shape: PodShape, rows: Int64) -> tuple[Float64, Int64]:
        """Return the score of each of ``rows``, higher is better, and the GPU for a pod with one. Shapes [rows].

        The pod fits all of ``rows``. Must depend on nothing but the state of the row itself between two calls of
        ``arrived`` that return True.
        """
        ...

    def arrived(self, shape: PodShape) -> bool:
        """Note that a pod arrived, before it is scored; return whether scores of before no longer hold."""
        ...


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


class Chooser:
    """Finds the best node for a pod, and scores only nodes that changed since a pod of its shape last came."""

    def __init__(self, cluster: ReplayCluster, shapes: tuple[PodShape, ...], policy: ReplayPolicy) -> None:
        self.cluster, self.shapes, self.policy = cluster, shapes, policy
        count = len(cluster.cpu)
        self._allowed = [cluster.of_models(shape.models) for shape in shapes]
        self._scores = np.full((len(shapes), count), -np.inf)
        self._gpus = np.zeros((len(shapes), count), np.int64)
        self._log: list[int] = []
        self._seen = [-1] * len(shapes)

    def changed(self, row: int) -> None:
        """Note that the state of a node is not what it was."""
        self._log.append(row)

    def forget(self) -> None:
        """Score everything anew."""
        self._seen = [-1] * len(self.shapes)
        self._log.clear()

    def choose(self, index: int) -> tuple[int, int] | None:
        """Return the best node's row, and the GPU on it, for a pod of ``shapes[index]``; None where it fits nowhere."""
        shape, scores, gpus = self.shapes[index], self._scores[index], self._gpus[index]
        seen = self._seen[index]
        if seen < len(self._log):
            changed = range(len(scores)) if seen < 0 else set(self._log[seen:])
            rows = np.fromiter(changed, np.int64, len(changed))
            rows = rows[self._allowed[index][rows]]
            fit = self.cluster.fits(shape, rows)
            scores[rows[~fit]] = -np.inf
            rows = rows[fit]
            if len(rows):
                scores[rows], gpus[rows] = self.policy.score(self.cluster, shape, rows)
            self._seen[index] = len(self._log)
        best = int(scores.argmax())
        if scores[best] == -np.inf:
            return None
        return best, int(gpus[best])


def replay(nodes: Nodes, workload: Workload, arrivals: Arrivals, policy: ReplayPolicy) -> Curve:
    """Replay one order of arrival."""
    cluster = ReplayCluster.empty(nodes, arrivals.rank)
    return curve(nodes, workload, arrivals, (row >= 0 for row in steps(cluster, workload, arrivals, policy)))


def steps(cluster: ReplayCluster, workload: Workload, arrivals: Arrivals, policy: ReplayPolicy) -> Iterator[int]:
    """Place one pod after the other; yield the row of its node, or -1 where it failed."""
    chooser = Chooser(cluster, workload.shapes, policy)
    for index in workload.shape[arrivals.pods].tolist():
        shape = workload.shapes[index]
        if policy.arrived(shape):
            chooser.forget()
        choice = chooser.choose(index)
        if choice is None:
            yield -1
            continue
        row, gpu = choice
        cluster.place(row, shape, gpu)
        chooser.changed(row)
        yield row


def curve(nodes: Nodes, workload: Workload, arrivals: Arrivals, placed: Iterator[bool]) -> Curve:
    """Collect which pods were placed."""
    order = workload.shape[arrivals.pods]
    demand = np.array([shape.demand for shape in workload.shapes], np.int64)[order]
    ok = np.fromiter(placed, np.bool_, len(order))
    return Curve(demand.cumsum(), (demand * ok).cumsum(), ok, nodes.milli)
