"""Decides which pods start together, and which leave for others, by the controller's own rules.

The controller evicts pods and waits until they have ended; here they are removed at once. Pods that
are being deleted stay, since it is unknown for how long. The other rules are the same: which pods
may be evicted, gangs, and PodDisruptionBudgets.
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
    gated,
    has_other_gates,
    needed_members,
    queue_priority,
    started,
    too_few_text,
)
from gputile.core.devices.request import is_decided
from gputile.core.kube_predicates.node_fit import selects
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.scheduling.eviction_rules import EvictionBudget, EvictionRules, eviction_facts
from gputile.core.scheduling.gang_plan import GangCandidate
from gputile.core.scheduling.gang_victims import GangVictims, VictimSearchInput, choose_gang_victims
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.core.scheduling.pod_filter import accepts_now

_NAMED: Final = 5  # the most victims that a text names


@dataclass(slots=True)
class PodGroups:
    """The known PodGroups, by namespace and name.

    ``sizes`` has the minMember of each valid PodGroup, ``unreadable`` the error of each invalid one
    in the cluster. ``absent`` completes the message for any other name: it states where there is no
    such PodGroup.
    """

    sizes: dict[tuple[str, str], int] = field(default_factory=dict)
    unreadable: dict[tuple[str, str], str] = field(default_factory=dict)
    absent: str = "is in none of the files"

    def add(self, group: PodGroup) -> None:
        """Add a PodGroup; it replaces one of the same namespace and name."""
        key = group.metadata.namespace or "default", group.metadata.name
        self.sizes[key] = group.spec.min_member
        self.unreadable.pop(key, None)

    def why_unknown(self, gang: GangName) -> str:
        """Return why the size of a gang that names a PodGroup is unknown."""
        wrong = self.unreadable.get((gang.namespace, gang.name))
        if wrong is not None:
            return f"the cluster's PodGroup {gang}: {wrong}"
        return f"PodGroup {gang} {self.absent}, or its spec.minMember is not 1 or more"


@dataclass(frozen=True, slots=True)
class PodBatch:
    """Pods that are placed together: those of a gang, or a single pod."""

    gang: GangName | None
    pods: list[Pod]


def pod_batches(pods: Iterable[Pod], *, gangs: bool) -> list[PodBatch]:
    """Return the batches in the order of placement: by priority, then in the order of ``pods``.

    With ``gangs``, the gated pods of a gang form one batch at the position of the gang's last pod.
    Pods of the gang without a gate are bound one by one. At equal priority they come before this
    batch, and then count as started.
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
    """Return the gang that a pod counts for; None without a gang, or if others gate the pod."""
    return gang_of(pod) if not has_other_gates(pod) else None


def is_gated(pod: Pod) -> bool:
    """Return whether a pod of a gang has the gang's gate, or admission would add the gate."""
    return gated(pod) or is_decided(pod)


def started_by_gang(pods: Iterable[Pod]) -> dict[GangName, int]:
    """Return how many of the bound ``pods`` of each gang count as started."""
    members: dict[GangName, list[Pod]] = {}
    for pod in pods:
        gang = gang_of(pod)
        if gang is not None:
            members.setdefault(gang, []).append(pod)
    return {gang: len(started(bound)) for gang, bound in members.items()}


def incomplete(
    gang: GangName, size: int, running: int, waiting: int, groups: PodGroups
) -> str | None:
    """Return why a gang could not start yet even with enough GPUs; None if it could.

    ``size`` pods start together; a size of 0 is unknown. ``running`` pods have started, and
    ``waiting`` pods could start.
    """
    if not size:
        return f"gang {gang.name}: {groups.why_unknown(gang)}"
    if waiting < needed_members(size, running):
        return too_few_text(gang, size, running + waiting)
    return None


@dataclass(frozen=True, slots=True)
class Victim:
    """A pod that is evicted, or loses its reservation, for ``preemptors`` (``namespace/name``)."""

    pod: Pod
    preemptors: tuple[str, ...]


class VictimFinder:
    """Finds victims among all ``pods``, which ``engine`` and ``predicates`` have counted."""

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
        self._evicted: Counter[Hashable] = Counter()  # by budget
        priorities = (booking.priority for booking in engine.ledger.bookings())
        self._lowest = (
            min(priorities, default=None)
            if engine.ledger.configuration.preemption.enabled
            else None
        )

    def find(
        self, members: Sequence[GangCandidate], needed: int, now_ns: int
    ) -> GangVictims | None:
        """Return GPUs for ``needed`` of ``members`` and the victims that free them, if possible."""
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
        """Return the budget of a pod. As in the Eviction API, with several it is never evicted."""
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
    """Return the victims with their priorities: "team/a (priority 0) and 3 more"."""
    return first_of([f"{pod.key} (priority {pod.spec.priority or 0})" for pod in victims], _NAMED)
