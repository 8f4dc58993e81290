"""What the eviction of a pod depends on, and what it costs, beside the GPUs that the ledger knows of."""

import msgspec

from gputile.api.core import Pod
from gputile.api.timestamps import unix_seconds
from gputile.api.well_known import DELETION_COST_ANNOTATION
from gputile.core.devices.gang_membership import GangName, gang_of, labelled_size

DEFAULT_GRACE_S = 30
MOST_GRACE_S = 86_400
_MOST_COST = 2**31 - 1  # what Kubernetes takes for the annotation: an int32


class EvictionFacts(msgspec.Struct, frozen=True, gc=False):
    """One bound pod. Times are Unix time in seconds, 0 for none.

    ``leaves_at`` is when the pod is to be gone whose deletion was requested. ``gang`` starts together: ``gang_size``
    pods of it, 0 where the pod does not say. ``cost`` is what the pod says that its loss costs.
    """

    namespace: str
    name: str
    started_at: float = 0.0
    leaves_at: float = 0.0
    grace_s: int = DEFAULT_GRACE_S
    cost: int = 0
    gang: GangName | None = None
    gang_size: int = 0


def eviction_facts(pod: Pod) -> EvictionFacts:
    """Return what is known of ``pod``; what it says wrongly counts as not said."""
    meta, grace = pod.metadata, pod.spec.termination_grace_period_seconds
    return EvictionFacts(
        namespace=meta.namespace,
        name=meta.name,
        started_at=unix_seconds(pod.bound_at or meta.creation_timestamp),
        leaves_at=unix_seconds(meta.deletion_timestamp),
        grace_s=DEFAULT_GRACE_S if grace is None else min(max(grace, 0), MOST_GRACE_S),
        cost=_cost(meta.annotations.get(DELETION_COST_ANNOTATION, "")),
        gang=gang_of(pod),
        gang_size=labelled_size(pod),
    )


def _cost(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(_MOST_COST))):
        return 0
    return max(-_MOST_COST, min(int(text), _MOST_COST))
