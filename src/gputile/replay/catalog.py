"""The policies a replay knows, by name."""

from collections.abc import Callable

from gputile.replay.engine import Policy
from gputile.replay.packing import Packing
from gputile.replay.policies import BestFit, Binpack, Fgd, Random, Spread
from gputile.replay.trace import Nodes, Workload

_MAKERS: dict[str, Callable[[Nodes, Workload, int], Policy]] = {
    "random": lambda _nodes, _workload, seed: Random(seed),
    "bestfit": lambda _nodes, _workload, _seed: BestFit(),
    "fgd": lambda _nodes, workload, _seed: Fgd(workload),
    "binpack": lambda _nodes, _workload, _seed: Binpack(),
    "spread": lambda _nodes, _workload, _seed: Spread(),
    "packing": lambda nodes, _workload, _seed: Packing(nodes),
}

POLICIES = tuple(_MAKERS)


def make_policy(name: str, nodes: Nodes, workload: Workload, seed: int) -> Policy:
    """Return a fresh policy; ``packing`` sees the nodes only, and learns the workload as it arrives."""
    return _MAKERS[name](nodes, workload, seed)
