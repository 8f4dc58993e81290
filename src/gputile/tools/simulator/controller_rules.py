"""Decides which pods start together and which pods are preempted, by the controller's own rules.

The rules for gangs, evictions and PodDisruptionBudgets are the same as in the controller. There is
one difference: the controller waits until evicted pods have ended, and the simulation removes them
at once. Pods that are being deleted stay, because it is unknown when they will end.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from gputile.api.core import Node, Pod
from gputile.api.wording import first_of
from gputile.api.workloads import PodDisruptionBudget, PodGroup
from gputile.core.devices.gang_membership import (
    GangName,
    gang_of,
    has_gang_gate,
    has_other_gates,
    needed_members,
    queue_priority,
    started_pods,
    too_few_text,
)
from gputile.core.devices.request import requests_gputile_gpu
from gputile.core.kube_predicates.node_fit import selects
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.scheduling.eviction_rules import EvictionBudget, EvictionRules, eviction_facts
from gputile.core.scheduling.gang_plan import GangCandidate
from gputile.core.scheduling.gang_victims import GangVictims, VictimSearchInput, choose_gang_victims
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.core.scheduling.pod_filter import accepts_now

_NAMED: Final = 5  # the largest number of victims that a text names


@dataclass(slots=True)
class PodGroups:
    """The known PodGroups, by namespace and name."""

    sizes: dict[tuple[str, str], int] = field(default_factory=dict)  # minMember
    unreadable: dict[tuple[str, str], str] = field(default_factory=dict)  # why it is invalid
    # The end of the message about an unknown PodGroup. It states where the PodGroup is missing.
    absent: str = "is in none of the files"

    def add(self, group: PodGroup) -> None:
        """Add a PodGroup, or replace the PodGroup of the same namespace and name."""
        key = group.metadata.namespace or "default", group.metadata.name
        self.sizes[key] = group.spec.min_member
        self.unreadable.pop(key, None)

    def why_unknown(self, gang: GangName) -> str:
        """Return why a gang's size is unknown. The gang must refer to a PodGroup."""
        wrong = self.unreadable.get((gang.namespace, gang.name))
        if wrong is not None:
            return f"the cluster's PodGroup {gang}: {wrong}"
        return f"PodGroup {gang} {self.absent}, or its spec.minMember is not 1 or more"


@dataclass(frozen=True, slots=True)
class PodBatch:
    """Pods that are placed together: the gated pods of a gang, or a single other pod."""

    gang: GangName | None
    pods: list[Pod]


def pod_batches(pods: Iterable[Pod], *, gangs: bool) -> list[PodBatch]:
    """Return the batches in the order of placement: by priority, then in the order of ``pods``.

    With ``gangs``, the gated pods of a gang form one batch at the position of the gang's last pod.
    The gang's other pods are placed one by one. At equal priority, they are placed before the
    batch, and count as started pods of the gang if they fit.
    """
    found: dict[GangName | int, PodBatch] = {}
    last: dict[GangName | int, tuple[int, bool]] = {}
    for i, pod in enumerate(pods):
        gang = member_of(pod) if gangs else None
        if gang is not None:
            last[gang] = i, True
        together = gang is not None and is_gated(pod)
        key = gang if gang is not None and together else i
        found.setdefault(key, PodBatch(gang if together else None, [])).pods.append(pod)
        last.setdefault(key, (i, False))
    ordered = sorted(found, key=lambda key: (-queue_priority(found[key].pods), last[key]))
    return [found[key] for key in ordered]


def member_of(pod: Pod) -> GangName | None:
    """Return the pod's gang, or None if the pod has no gang or has gates of other controllers."""
    return gang_of(pod) if not has_other_gates(pod) else None


def is_gated(pod: Pod) -> bool:
    """Return whether a pod has the gate of its gang, or admission would add that gate."""
    return has_gang_gate(pod) or requests_gputile_gpu(pod)


def started_by_gang(pods: Iterable[Pod]) -> dict[GangName, int]:
    """Return for each gang how many of the bound ``pods`` count as started."""
    members: dict[GangName, list[Pod]] = {}
    for pod in pods:
        gang = gang_of(pod)
        if gang is not None:
            members.setdefault(gang, []).append(pod)
    return {gang: len(started_pods(bound)) for gang, bound in members.items()}


def incomplete(
    gang: GangName, size: int, running: int, waiting: int, groups: PodGroups
) -> str | None:
    """Return a reason, other than a lack of GPUs, why a gang cannot start, or None.

    ``size`` is the number of pods that must start together, or 0 if unknown. ``running`` is the
    number of pods that have started, and ``waiting`` is the number of pods that could start.
    """
    if not size:
        return f"gang {gang.name}: {groups.why_unknown(gang)}"
    if waiting < needed_members(size, running):
        return too_few_text(gang, size, running + waiting)
    return None


@dataclass(frozen=True, slots=True)
class Victim:
    """A pod that is preempted: it is evicted, or loses its reservation."""

    pod: Pod
    preemptors: tuple[str, ...]  # the pods that need its GPUs, by namespace/name


class VictimFinder:
    """Finds victims among ``pods``, which must be known to ``engine`` and ``predicates``."""

    def __init__(
        self,
        engine: PlacementEngine,
        predicates: Predicates,
        nodes: Sequence[Node],
        pods: Iterable[Pod],
        budgets: Sequence[PodDisruptionBudget] = (),
        groups: PodGroups | None = None,
    ) -> None:
        self.pods = {pod.metadata.uid: pod for pod in pods}
        self._engine, self._predicates, self._nodes = engine, predicates, nodes
        self._budgets, self._sizes = budgets, groups.sizes if groups is not None else {}
        self._evicted: Counter[Hashable] = Counter()  # the numbers of evicted pods by budget
        priorities = (booking.priority for booking in engine.ledger.bookings())
        self._lowest = (
            min(priorities, default=None)
            if engine.ledger.configuration.preemption.enabled
            else None
        )

    def find(
        self, members: Sequence[GangCandidate], needed: int, now_ns: int
    ) -> GangVictims | None:
        """Find victims whose removal makes ``needed`` of ``members`` fit.

        Return the victims and the placement of the members, or None if there is no solution.
        """
        priority = min((member.pod.spec.priority or 0 for member in members), default=0)
        if needed <= 0 or self._lowest is None or priority <= self._lowest:
            return None
        if any(member.pod.spec.preemption_policy == "Never" for member in members):
            return None
        cluster = VictimSearchInput(self._engine, self._predicates, self._empty, self.pods)
        rules = replace(self._rules, withdraws=len(members) == 1)
        found = choose_gang_victims(members, needed, cluster, rules, now_ns)
        if found is None or not (found.evicted or found.withdrawn):
            return None
        pods = {member.pod.metadata.uid: member.pod for member in members}
        if not all(
            accepts_now(self._engine.ledger, pods[uid], place.node)
            for uid, place in found.places.items()
        ):
            return None
        self._evicted.update(
            budget.name for uid in found.evicted if (budget := self._budget(uid)) is not None
        )
        return found

    @cached_property
    def _empty(self) -> Predicates:
        return Predicates(self._nodes)

    @cached_property
    def _rules(self) -> EvictionRules:
        bound = {
            uid: pod
            for uid, pod in self.pods.items()
            if pod.spec.node_name and not pod.finished and not pod.metadata.deletion_timestamp
        }
        facts = {
            uid: eviction_facts(pod)
            for uid, pod in bound.items()
            if self._engine.ledger.booking(uid) is not None
        }
        gangs: dict[GangName, set[str]] = {}
        for uid, each in facts.items():
            if each.gang is not None:
                gangs.setdefault(each.gang, set()).add(uid)
        return EvictionRules(facts, gangs, budget=self._budget, gang_size=self._gang_size)

    def _gang_size(self, name: GangName) -> int:
        return max(0, self._sizes.get((name.namespace, name.name), 0)) if name.by_object else 0

    def _budget(self, uid: str) -> EvictionBudget | None:
        """Return a pod's budget, or None if it has no budget.

        The Eviction API never evicts a pod with several budgets, so the result allows no eviction.
        """
        meta = self.pods[uid].metadata
        guarding = [
            budget
            for budget in self._budgets
            if budget.metadata.namespace == meta.namespace
            and selects(budget.spec.selector, meta.labels)
        ]
        if not guarding:
            return None
        allows = guarding[0].status.disruptions_allowed if len(guarding) == 1 else 0
        name = meta.namespace, guarding[0].metadata.name
        return EvictionBudget(name, allows - self._evicted[name])


def victims_text(victims: Iterable[Pod]) -> str:
    """Return the victims with their priorities, such as "team/a (priority 0) and 3 more"."""
    return first_of([f"{pod.key} (priority {pod.spec.priority or 0})" for pod in victims], _NAMED)
