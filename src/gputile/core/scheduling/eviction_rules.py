"""Decides whether a pod may be evicted, and what that costs: all preemption goes by these rules.

A loss is compared field by field: the priority of the most important victim first, then how many pods leave, then the
cost that pods state (``controller.kubernetes.io/pod-deletion-cost``), then the GPU time that is lost.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import msgspec

from gputile.api.conversion import unix_seconds
from gputile.api.core import Pod
from gputile.api.well_known import DELETION_COST_ANNOTATION, MIRROR_ANNOTATION
from gputile.core.devices.gang_membership import GangName, gang_of, labelled_size
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.ledger import Ledger

DEFAULT_GRACE_S = 30
MOST_GRACE_S = 86_400  # a pod that may take longer to leave is never evicted
SOON_S = 3600.0  # a pod that is being deleted and may take longer does not count as gone
LATE_S = 60.0  # nor does one that should have been gone for so long: it may never go
_NO_PRIORITY = -(2**31) - 1  # below all of Kubernetes'
_MOST_COST = 2**31 - 1  # what Kubernetes takes for the annotation: an int32


class EvictionFacts(msgspec.Struct, frozen=True, gc=False):
    """One bound pod. Times are Unix time in seconds, 0 for none.

    ``leaves_at`` is when the pod is to be gone whose deletion was requested. ``grace_s`` is how long it may take to
    leave, ``MOST_GRACE_S`` + 1 where that is longer. ``gang`` starts together: ``gang_size`` pods of it, 0 where it
    does not say. A ``static`` pod is started again by its kubelet whatever becomes of its object, so it never leaves.
    ``cost`` is what the pod says that its loss costs.
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
    )


def _cost(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(_MOST_COST))):
        return 0
    return max(-_MOST_COST, min(int(text), _MOST_COST))


class Loss(NamedTuple):
    """What a set of victims costs; the smaller the better, from the first field on.

    ``gpu_milliseconds`` is the time since they started, times their part of the GPUs.
    """

    priority: int = _NO_PRIORITY
    pods: int = 0
    cost: int = 0
    gpu_milliseconds: int = 0

    def plus(self, other: "Loss") -> "Loss":
        return Loss(
            max(self.priority, other.priority),
            self.pods + other.pods,
            self.cost + other.cost,
            self.gpu_milliseconds + other.gpu_milliseconds,
        )


NOTHING = Loss()


def total_loss(losses: Iterable[Loss]) -> Loss:
    return reduce(Loss.plus, losses, NOTHING)


class EvictionBudget(NamedTuple):
    """What guards a pod: a PodDisruptionBudget, known by ``name``, that ``allows`` so many evictions now."""

    name: Hashable
    allows: int


@dataclass(frozen=True, slots=True)
class EvictionRules:
    """Which pods may be evicted now. ``gangs`` are the UIDs of each gang's bound pods.

    ``evicted`` are pods whose eviction was requested. ``budget`` returns what guards the pod with a UID, None for
    nothing. ``withdraws`` tells whether a reservation of a pod of lower priority may be withdrawn. ``gang_size``
    returns how many pods of a gang by PodGroup start together, 0 if unknown: such a gang leaves whole. Pods that leave
    within ``soon_s`` seconds count as gone.
    """

    facts: Mapping[str, EvictionFacts]
    gangs: Mapping[GangName, Collection[str]]
    evicted: Collection[str] = ()
    budget: Callable[[str], EvictionBudget | None] = lambda _: None
    withdraws: bool = True
    gang_size: Callable[[GangName], int] = lambda _: 0
    soon_s: float = SOON_S

    def over_budget(self, uids: Iterable[str]) -> list[str]:
        """Return the pods that no budget lets go after the others before them."""
        begun: Counter[Hashable] = Counter()
        over: list[str] = []
        for uid in uids:
            budget = self.budget(uid)
            if budget is None:
                continue
            if begun[budget.name] >= budget.allows:
                over.append(uid)
            else:
                begun[budget.name] += 1
        return over

    def was_told_to_leave(self, uid: str) -> bool:
        """Return whether a pod is being deleted, or its eviction was requested: it no longer counts for its gang."""
        facts = self.facts.get(uid)
        return uid in self.evicted or (facts is not None and bool(facts.leaves_at))

    def is_leaving(self, uid: str, now_s: float) -> bool:
        """Return whether a pod counts as gone at ``now_s`` (Unix time in seconds): it leaves, and is not late."""
        facts = self.facts.get(uid)
        leaves_at = facts.leaves_at if facts is not None else 0.0
        return uid in self.evicted or (bool(leaves_at) and -self.soon_s <= now_s - leaves_at < LATE_S)


def eviction_loss(booking: Booking, ledger: Ledger, facts: EvictionFacts, now_s: float) -> Loss:
    """Return what the eviction of a pod costs at ``now_s``, Unix time in seconds."""
    info = ledger.info_of(booking.node)
    seconds = max(0, int(now_s - facts.started_at)) if facts.started_at else 0
    milli_gpus = 0  # of each GPU its memory or its compute, what is more
    if info is not None and seconds:
        for share in booking.gpus:
            column = info.column(share.uuid)
            total = info.gpu_total(column) if column is not None else 0
            mib, percent = booking.takes(share, total, info.replicas)
            milli_gpus += max(1000 * mib // max(1, total), 10 * percent)
    return Loss(booking.priority, 1, facts.cost, seconds * milli_gpus)
