"""Defines the facts, budgets and losses by which ``victim_choice`` and others decide on evictions.

Losses are compared field by field. The priority of the most important victim comes first, then the
number of pods that leave. Next is the cost that pods declare in the annotation
``controller.kubernetes.io/pod-deletion-cost``, and last the GPU time that is lost.
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
MOST_GRACE_S = 86_400  # a pod with a longer grace period is never evicted
SOON_S = 3600.0  # a pod whose deletion may take longer does not count as gone
LATE_S = 60.0  # a pod that is overdue by this much does not count as gone: it may never end
_NO_PRIORITY = -(2**31) - 1  # below all priorities of Kubernetes
_MOST_COST = 2**31 - 1  # the annotation is an int32


class EvictionFacts(msgspec.Struct, frozen=True, gc=False):
    """The facts about a bound pod that decide its eviction. All times are Unix time in seconds."""

    namespace: str
    name: str
    started_at: float = 0.0  # 0 if unknown
    leaves_at: float = 0.0  # when a pod that is being deleted has to be gone, 0 for other pods
    grace_s: int = DEFAULT_GRACE_S  # the termination grace period, at most MOST_GRACE_S + 1
    cost: int = 0  # the deletion cost that the pod declares
    gang: GangName | None = None
    gang_size: int = 0  # the number of pods that start together, 0 if the labels do not state it
    static: bool = False  # the kubelet restarts the pod even if the object is deleted


def eviction_facts(pod: Pod) -> EvictionFacts:
    """Extract the facts from ``pod``. Invalid values count as missing."""
    meta, grace = pod.metadata, pod.spec.termination_grace_period_seconds
    return EvictionFacts(
        namespace=meta.namespace,
        name=meta.name,
        started_at=unix_seconds(pod.bound_at or meta.creation_timestamp),
        leaves_at=unix_seconds(meta.deletion_timestamp),
        grace_s=DEFAULT_GRACE_S if grace is None else min(max(grace, 0), MOST_GRACE_S + 1),
        cost=_deletion_cost(meta.annotations.get(DELETION_COST_ANNOTATION, "")),
        gang=gang_of(pod),
        gang_size=labelled_size(pod),
        static=MIRROR_ANNOTATION in meta.annotations,
    )


def _deletion_cost(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(_MOST_COST))):
        return 0
    return max(-_MOST_COST, min(int(text), _MOST_COST))


class Loss(NamedTuple):
    """The cost of a set of victims, compared field by field. A smaller loss is better.

    ``gpu_milliseconds`` is the GPU time that the victims have occupied since their start.
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


NO_LOSS = Loss()


def total_loss(losses: Iterable[Loss]) -> Loss:
    return reduce(Loss.plus, losses, NO_LOSS)


class EvictionBudget(NamedTuple):
    """A limit, such as a PodDisruptionBudget, which ``allows`` this many evictions now."""

    name: Hashable
    allows: int


@dataclass(frozen=True, slots=True)
class EvictionRules:
    """The facts and limits that decide which pods may be evicted now."""

    facts: Mapping[str, EvictionFacts]  # by UID
    gangs: Mapping[GangName, Collection[str]]  # the UIDs of each gang's bound pods
    evicted: Collection[str] = ()  # the UIDs of pods whose eviction was requested
    # Returns the budget that guards the pod with this UID
    budget: Callable[[str], EvictionBudget | None] = lambda _: None
    withdraws: bool = True  # whether reservations of lower priority may be withdrawn
    # How many pods of a PodGroup's gang start together. If 0, the gang leaves as a whole
    gang_size: Callable[[GangName], int] = lambda _: 0
    soon_s: float = SOON_S  # a pod that ends within this time counts as gone

    def over_budget(self, uids: Iterable[str]) -> list[str]:
        """Return the pods whose eviction exceeds a budget, if the pods are evicted in order."""
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

    def is_being_removed(self, uid: str) -> bool:
        """Return whether a pod is being deleted or evicted, and so does not count for its gang."""
        facts = self.facts.get(uid)
        return uid in self.evicted or (facts is not None and bool(facts.leaves_at))

    def is_leaving(self, uid: str, now_s: float) -> bool:
        """Return whether a pod counts as gone because it will end soon.

        A pod counts as gone if its eviction was requested. A pod that is being deleted also counts
        if it ends soon and is not overdue. ``now_s`` is Unix time in seconds.
        """
        facts = self.facts.get(uid)
        leaves_at = facts.leaves_at if facts is not None else 0.0
        return uid in self.evicted or (
            bool(leaves_at) and -self.soon_s <= now_s - leaves_at < LATE_S
        )


def eviction_loss(booking: Booking, ledger: Ledger, facts: EvictionFacts, now_s: float) -> Loss:
    """Return what the eviction of a pod costs at ``now_s``, Unix time in seconds."""
    info = ledger.info_of(booking.node)
    seconds = max(0, int(now_s - facts.started_at)) if facts.started_at else 0
    milli_gpus = 0  # for each GPU, the larger of the memory and compute shares

    if info is not None and seconds:
        for share in booking.gpus:
            column = info.column(share.uuid)
            total = info.gpu_total(column) if column is not None else 0
            mib, percent = booking.amounts(share, total, info.replicas)
            milli_gpus += max(1000 * mib // max(1, total), 10 * percent)
    return Loss(booking.priority, 1, facts.cost, seconds * milli_gpus)
