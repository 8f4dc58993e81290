"""Lists the providers by name."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from gputile.tools.nodepool import aks, eks, gke
from gputile.tools.nodepool.hints import node_type_note
from gputile.tools.nodepool.plan import PoolPlan
from gputile.tools.nodepool.pool import NodePool

PROVIDERS: Final[Mapping[str, Callable[[NodePool], PoolPlan]]] = {"eks": eks.plan, "aks": aks.plan, "gke": gke.plan}


def plan_for(pool: NodePool) -> PoolPlan:
    """Return what there is to do for a pool with its provider."""
    plan = PROVIDERS[pool.provider](pool)
    return replace(plan, notes=(*plan.notes, node_type_note(pool)))
