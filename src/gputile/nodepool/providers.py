"""The providers, by name."""

from collections.abc import Callable, Mapping
from typing import Final

from gputile.nodepool import aks, eks, gke
from gputile.nodepool.plan import Plan
from gputile.nodepool.pool import NodePool

PROVIDERS: Final[Mapping[str, Callable[[NodePool], Plan]]] = {"eks": eks.plan, "aks": aks.plan, "gke": gke.plan}


def plan_for(pool: NodePool) -> Plan:
    """Return what there is to do for a pool with its provider."""
    return PROVIDERS[pool.provider](pool)
