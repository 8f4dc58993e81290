"""The policies a replay knows, by name."""

from collections.abc import Callable

from gputile.tools.replay.engine import ReplayPolicy
from gputile.tools.replay.packing import Packing
from gputile.tools.replay.policies import BestFit, Binpack, Fgd, Random, Spread
from gputile.tools.replay.trace import Nodes, Workload

_MAKERS: dict[str, Callable[[Nodes, Workload, int], ReplayPolicy]] = {
    "random": lambda _nodes, _workload, seed: Random(seed),
    "bestfit": lambda _nodes, _workload, _seed: BestFit(),
    "fgd": lambda _nodes, workload, _seed: Fgd(workload),
    "binpack": lambda _nodes, _workload, _seed: Binpack(),
    "spread": lambda _nodes, _workload, _seed: Spread(),
    "packing": lambda nodes, _workload, _seed: Packing(nodes),
}

POLICIES = tuple(_MAKERS)


def make_policy(name: str, nodes: Nodes, workload: Workload, seed: int) -> ReplayPolicy:
    """Return a fresh policy; ``packing`` sees the nodes only, and learns the workload as it arrives."""
    return _MAKERS[name](nodes, workload, seed)
