"""Lists the providers by name."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from gputile.tools.nodepool import aks, eks, gke
from gputile.tools.nodepool.hints import node_type_note
from gputile.tools.nodepool.pool import NodePool
from gputile.tools.nodepool.setup import PoolSetup

PROVIDERS: Final[Mapping[str, Callable[[NodePool], PoolSetup]]] = {"eks": eks.setup, "aks": aks.setup, "gke": gke.setup}


def setup_for(pool: NodePool) -> PoolSetup:
    """Return what there is to do for a pool with its provider."""
    found = PROVIDERS[pool.provider](pool)
    return replace(found, notes=(*found.notes, node_type_note(pool)))
