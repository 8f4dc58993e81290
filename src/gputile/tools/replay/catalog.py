"""Lists the policies that a replay knows, by name."""

from collections.abc import Callable
from typing import get_args

from gputile.api.well_known import Placement
from gputile.tools.replay.cluster import ReplayCluster
from gputile.tools.replay.engine import LivePlacer, Placer, ReferencePlacer, ReferencePolicy
from gputile.tools.replay.policies import BestFit, Fgd, Random
from gputile.tools.replay.trace import Arrivals, Nodes, Workload

_REFERENCES: dict[str, Callable[[Workload, int], ReferencePolicy]] = {
    "random": lambda _workload, seed: Random(seed),
    "bestfit": lambda _workload, _seed: BestFit(),
    "fgd": lambda workload, _seed: Fgd(workload),
}
_LIVE: dict[str, Placement] = {name: name for name in get_args(Placement)}

POLICIES = (*_REFERENCES, *_LIVE)


def make_placer(
    name: str, nodes: Nodes, workload: Workload, arrivals: Arrivals, seed: int, *, ranked: bool = True
) -> Placer:
    """Return what places pods by a policy, on an empty cluster.

    gputile's own policies see the nodes only, and ``packing`` learns the workload as it arrives; FGD knows all of it.
    ``ranked`` is whether gputile's own rank nodes for pods without GPUs too.
    """
    if name in _LIVE:
        return LivePlacer(ReplayCluster(nodes, workload.shapes, arrivals.rank, _LIVE[name]), ranked=ranked)
    cluster = ReplayCluster(nodes, workload.shapes, arrivals.rank)
    return ReferencePlacer(cluster, _REFERENCES[name](workload, seed))
