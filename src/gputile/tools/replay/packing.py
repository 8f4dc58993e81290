"""The ``packing`` policy in a replay: prices learnt from the arrivals so far, and from nothing else."""

import numpy as np
import numpy.typing as npt

from gputile.core.placement.packing.demand import DemandEstimator, generic
from gputile.core.placement.packing.prices import Prices, prices
from gputile.core.placement.packing.scoring import (
    PodDemand,
    ScoringContext,
    allowed,
    score,
    scoring_context,
    usable_cpu,
)
from gputile.tools.replay.cluster import ReplayCluster
from gputile.tools.replay.trace import Nodes, PodShape

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

FIRST_REFRESH = 25
REFRESH_GROWTH = 1.4
REFRESH_LIMIT = 500
"""Prices are learnt anew after 25 arrivals, then ever more seldom, at last every 500 arrivals."""


class Packing:
    """The placement that costs the pods to come least, with prices that are refreshed as pods arrive."""

    def __init__(self, nodes: Nodes) -> None:
        self._total = float(nodes.cpu.sum()), float(nodes.gpus.sum())
        gpus = int(nodes.gpus.max(initial=1))
        self._estimator = DemandEstimator(generic(self._total[0] / max(self._total[1], 1.0), gpus))
        self._prices: Prices = prices(self._estimator.demand())
        self._cpu_per_mib = 0.0
        self._count, self._due = 0, FIRST_REFRESH
        self._context: ScoringContext | None = None
        self._hosts = np.zeros((0, 0), np.bool_)

    def arrived(self, shape: PodShape) -> bool:
        """Learn from the pod; return True when prices changed."""
        self._estimator.observe(shape.gpus, shape.milli, shape.cpu, shape.models, shape.memory)
        self._count += 1
        if self._count < self._due:
            return False
        self._due += min(int(self._due * (REFRESH_GROWTH - 1)) + 1, REFRESH_LIMIT)
        self._prices = prices(self._estimator.demand())
        self._cpu_per_mib = self._estimator.cpu_per_mib
        self._context = None
        return True

    def score(self, cluster: ReplayCluster, shape: PodShape, rows: Int64) -> tuple[Float64, Int64]:
        """Return what the placement changes in each node's worth, in GPUs."""
        view = self._look(cluster)
        free = cluster.free[rows]
        cpu, memory = cluster.cpu[rows], cluster.memory[rows]
        now = usable_cpu(cpu, memory, self._cpu_per_mib)
        left = usable_cpu(cpu - shape.cpu, memory - shape.memory, self._cpu_per_mib)
        ask = PodDemand(shape.gpus, shape.milli, now - left)
        return score(view, now, free, free - shape.milli, self._hosts[:, rows], ask)

    def _look(self, cluster: ReplayCluster) -> ScoringContext:
        if self._context is None:
            view = scoring_context(self._prices, cluster.cpu, cluster.free, cluster.models, self._total)
            hosts = [allowed(need.models, cluster.models) for need, _ in view.needs]
            self._hosts = np.array(hosts, np.bool_).reshape(len(hosts), len(cluster.models))
            self._context = view
        return self._context
