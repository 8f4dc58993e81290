"""How fragmentation grows while demand arrives: what the plot shows."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gputile.tools.replay.cluster import ReplayCluster
from gputile.tools.replay.engine import Curve, ReplayPolicy, curve, steps
from gputile.tools.replay.policies import Fragments
from gputile.tools.replay.trace import Arrivals, Nodes, Workload


@dataclass(frozen=True, slots=True)
class Trail:
    """A replay in per cent of the cluster's GPUs, at each whole per cent of demand that was reached."""

    arrived: list[float]
    allocated: list[float]
    fragmented: list[float]
    """Free GPU that the typical pods cannot use (``Fragments``)."""


def replay_with_trail(
    nodes: Nodes, workload: Workload, arrivals: Arrivals, policy: ReplayPolicy
) -> tuple[Curve, Trail]:
    """Replay one order of arrival, and follow the fragments; only the node that changed is looked at again."""
    cluster = ReplayCluster.empty(nodes, arrivals.rank)
    fragments = Fragments(workload)
    allowed = fragments.allowed(cluster)
    lost = fragments.of(cluster.cpu, cluster.free, allowed)
    total = float(lost.sum())
    placed, followed = [], []
    for row in steps(cluster, workload, arrivals, policy):
        if row >= 0:
            now = float(fragments.of(cluster.cpu[[row]], cluster.free[[row]], allowed[[row]])[0])
            total += now - float(lost[row])
            lost[row] = now
        placed.append(row >= 0)
        followed.append(total)
    found = curve(nodes, workload, arrivals, iter(placed))
    return found, _trail(found, np.array(followed))


def _trail(found: Curve, fragmented: npt.NDArray[np.float64]) -> Trail:
    per_cent = 100 * found.arrived / found.total
    _, first = np.unique(np.floor(per_cent), return_index=True)
    return Trail(
        per_cent[first].tolist(),
        (100 * found.used[first] / found.total).tolist(),
        (100 * fragmented[first] / found.total).tolist(),
    )
