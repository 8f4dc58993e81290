"""Describes what the eviction of a pod depends on, and what it costs, beside its GPUs."""

import msgspec

from gputile.api.conversion import unix_seconds
from gputile.api.core import Pod
from gputile.api.well_known import DELETION_COST_ANNOTATION, GPU_RESOURCES, MIRROR_ANNOTATION
from gputile.core.devices.gang_membership import GangName, gang_of, labelled_size
from gputile.core.kube_predicates.inter_pod import anti_affinity_terms
from gputile.core.kube_predicates.pod_requests import Amounts, pod_requests
from gputile.core.kube_predicates.ports_and_disks import disks, host_ports

DEFAULT_GRACE_S = 30
MOST_GRACE_S = 86_400  # who may take longer to leave is evicted for nobody
_MOST_AMOUNTS = 16  # resources of one pod that are kept
_MOST_COST = 2**31 - 1  # what Kubernetes takes for the annotation: an int32


class EvictionFacts(msgspec.Struct, frozen=True, gc=False):
    """One bound pod. Times are Unix time in seconds, 0 for none.

    ``leaves_at`` is when the pod is to be gone whose deletion was requested. ``grace_s`` is how long it may take to
    leave, ``MOST_GRACE_S`` + 1 where that is longer. ``gang`` starts together: ``gang_size`` pods of it, 0 where it
    does not say. A ``static`` pod is started again by its kubelet whatever becomes of its object, so it never leaves.
    ``cost`` is what the pod says that its loss costs. ``amounts`` is what it takes of its node beside
    GPUs, in the units of ``pod_requests``; None where it takes, or forbids, anything else.
    """

    namespace: str
    name: str
    started_at: float = 0.0
    leaves_at: float = 0.0
    grace_s: int = DEFAULT_GRACE_S
    cost: int = 0
    gang: GangName | None = None
    gang_size: int = 0
    static: bool = False
    amounts: Amounts | None = None


def eviction_facts(pod: Pod) -> EvictionFacts:
    """Return what is known of ``pod``; what it says wrongly counts as not said."""
    meta, grace = pod.metadata, pod.spec.termination_grace_period_seconds
    return EvictionFacts(
        namespace=meta.namespace,
        name=meta.name,
        started_at=unix_seconds(pod.bound_at or meta.creation_timestamp),
        leaves_at=unix_seconds(meta.deletion_timestamp),
        grace_s=DEFAULT_GRACE_S if grace is None else min(max(grace, 0), MOST_GRACE_S + 1),
        cost=_cost(meta.annotations.get(DELETION_COST_ANNOTATION, "")),
        gang=gang_of(pod),
        gang_size=labelled_size(pod),
        static=MIRROR_ANNOTATION in meta.annotations,
        amounts=_amounts(pod),
    )


def _amounts(pod: Pod) -> Amounts | None:
    spec = pod.spec
    if host_ports(spec) or disks(spec) or spec.claims or anti_affinity_terms(pod):
        return None
    amounts = pod_requests(spec, pod.status)
    for name in GPU_RESOURCES:
        amounts.pop(name, None)
    return amounts if len(amounts) <= _MOST_AMOUNTS else None


def _cost(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(_MOST_COST))):
        return 0
    return max(-_MOST_COST, min(int(text), _MOST_COST))
