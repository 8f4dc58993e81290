"""Finds the victims of preemption in a simulation, with the controller's own search.

The controller evicts pods and waits until they have ended; here they are removed at once. Pods that are being deleted
stay, since it is unknown for how long. The other rules are the same: which pods may be evicted, gangs, and
PodDisruptionBudgets.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gputile.api.core import Node, Pod
from gputile.api.wording import first_of
from gputile.api.workloads import PodDisruptionBudget
from gputile.core.devices.gang_membership import GangName
from gputile.core.kube_predicates.node_fit import selects
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.scheduling.eviction_rules import EvictionBudget, EvictionRules, eviction_facts
from gputile.core.scheduling.gang_plan import GangCandidate
from gputile.core.scheduling.gang_victims import GangVictims, VictimSearchInput, choose_gang_victims
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.core.scheduling.pod_filter import takes_now
from gputile.tools.simulator.gangs import PodGroups

_NAMED = 5


@dataclass(frozen=True, slots=True)
class Victim:
    """A pod that is evicted, or a pending one that loses its reservation, and its preemptors (``namespace/name``)."""

    pod: Pod
    preemptors: tuple[str, ...]


class VictimFinder:
    """Finds victims among ``pods``: all pods of the cluster, which ``engine`` and ``predicates`` have counted."""

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
        self._lowest = min(priorities, default=None) if engine.ledger.configuration.preemption.enabled else None

    def find(self, members: Sequence[GangCandidate], needed: int, now_ns: int) -> GangVictims | None:
        """Return GPUs for ``needed`` of ``members``, and the victims that free them; None if no victims make room."""
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
        if not all(takes_now(self._engine.ledger, pods[uid], place.node) for uid, place in found.places.items()):
            return None
        self._evicted.update(budget.name for uid in found.evicted if (budget := self._budget(uid)) is not None)
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
        facts = {uid: eviction_facts(pod) for uid, pod in bound.items() if self._engine.ledger.booking(uid) is not None}
        gangs: dict[GangName, set[str]] = {}
        for uid, each in facts.items():
            if each.gang is not None:
                gangs.setdefault(each.gang, set()).add(uid)
        return EvictionRules(facts, gangs, budget=self._budget, gang_size=self._gang_size)

    def _gang_size(self, name: GangName) -> int:
        return max(0, self._sizes.get((name.namespace, name.name), 0)) if name.by_object else 0

    def _budget(self, uid: str) -> EvictionBudget | None:
        """Return the eviction budget of a pod, if any. As in the Eviction API, a pod with several is never evicted."""
        meta = self.pods[uid].metadata
        guarding = [
            budget
            for budget in self._budgets
            if budget.metadata.namespace == meta.namespace and selects(budget.spec.selector, meta.labels)
        ]
        if not guarding:
            return None
        allows = guarding[0].status.disruptions_allowed if len(guarding) == 1 else 0
        name = meta.namespace, guarding[0].metadata.name
        return EvictionBudget(name, allows - self._evicted[name])


def victims_text(victims: Iterable[Pod]) -> str:
    """Return the victims with their priorities: "team/a (priority 0) and 3 more"."""
    return first_of([f"{pod.key} (priority {pod.spec.priority or 0})" for pod in victims], _NAMED)
