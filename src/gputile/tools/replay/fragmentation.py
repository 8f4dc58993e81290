"""Records how fragmentation grows while demand arrives, for the plot."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gputile.tools.replay.engine import Curve, Placer, curve, steps
from gputile.tools.replay.policies import Fragments
from gputile.tools.replay.trace import Arrivals, Workload


@dataclass(frozen=True, slots=True)
class Trail:
    """A replay in per cent of the cluster's GPUs, at each whole per cent of demand that was reached."""

    arrived: list[float]
    allocated: list[float]
    fragmented: list[float]
    """Free GPU that the typical pods cannot use (``Fragments``)."""


def replay_with_trail(placer: Placer, workload: Workload, arrivals: Arrivals) -> tuple[Curve, Trail]:
    """Replay one order of arrival, and follow the fragments; only the node that changed is looked at again."""
    cluster = placer.cluster
    fragments = Fragments(workload)
    allowed = fragments.allowed(cluster)
    lost = fragments.of(cluster.cpu, cluster.free(), allowed)
    total = float(lost.sum())
    placed, followed = [], []
    for row in steps(placer, workload, arrivals):
        if row >= 0:
            one = np.array([row])
            now = float(fragments.of(cluster.cpu[one], cluster.free(one), allowed[one])[0])
            total += now - float(lost[row])
            lost[row] = now
        placed.append(row >= 0)
        followed.append(total)
    found = curve(cluster, workload, arrivals, iter(placed))
    return found, _trail(found, np.array(followed))


def _trail(found: Curve, fragmented: npt.NDArray[np.float64]) -> Trail:
    per_cent = 100 * found.arrived / found.total
    _, first = np.unique(np.floor(per_cent), return_index=True)
    return Trail(
        per_cent[first].tolist(),
        (100 * found.used[first] / found.total).tolist(),
        (100 * fragmented[first] / found.total).tolist(),
    )
