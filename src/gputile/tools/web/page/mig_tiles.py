"""Draws MIG instances for the page.

kube-scheduler counts them by profile, and gputile books none.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from gputile.api.core import Node, Pod
from gputile.api.well_known import MIG_PREFIX
from gputile.core.kube_predicates.pod_requests import node_allocatable, pod_requests
from gputile.tools.web.page.records import MigCount, MigTile

_NONE: Final[tuple[MigCount, ...]] = ()


def instances_of_pod(pod: Pod) -> tuple[MigCount, ...]:
    """Return how many MIG instances of each profile a pod asks for."""
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        resources = container.resources
        if any(name.startswith(MIG_PREFIX) for name in (*resources.limits, *resources.requests)):
            return _counts(pod_requests(pod.spec))
    return _NONE


def instances_of_node(node: Node | None, pods: Iterable[tuple[MigCount, ...]]) -> tuple[MigTile, ...]:
    """Return the profiles of which a node has instances, or of which its ``pods`` have some."""
    counted = _counts(node_allocatable(node)) if node is not None else _NONE
    offered = {each.profile: each.count for each in counted}
    held: dict[str, int] = {}
    for counts in pods:
        for each in counts:
            held[each.profile] = held.get(each.profile, 0) + each.count
    return tuple(
        MigTile(profile, offered.get(profile, 0), held.get(profile, 0)) for profile in sorted(offered.keys() | held)
    )


def asked_text(counts: tuple[MigCount, ...]) -> str:
    """Return what a pod asks for, in words."""
    return "asks for " + ", ".join(f"{each.count} of {MIG_PREFIX}{each.profile}" for each in counts)


def _counts(amounts: Mapping[str, int]) -> tuple[MigCount, ...]:
    found = ((name.removeprefix(MIG_PREFIX), count) for name, count in amounts.items() if name.startswith(MIG_PREFIX))
    return tuple(MigCount(profile, count) for profile, count in sorted(found) if count > 0)
