"""Stores what evictions depend on: bound pods with GPUs, their gangs, and PodDisruptionBudgets.

This module computes how many evictions each budget allows, as the API server's Eviction API does.
kube-scheduler prefers nodes on which preemption violates the fewest budgets. So when the extender's
``preempt`` adds victims on a node, it also adds their violations to the node's violation count.

If a namespace has more than ``_MOST_BUDGETS`` budgets, its running pods are not evicted. Otherwise
a tenant could slow the planning down with thousands of budgets.
"""

from collections.abc import Callable, KeysView, Mapping
from itertools import islice

import msgspec

from gputile.api.core import Pod
from gputile.api.workloads import PodDisruptionBudget
from gputile.core.devices.gang_membership import GangName
from gputile.core.kube_predicates.node_fit import selects
from gputile.core.scheduling.eviction_rules import EvictionBudget, EvictionFacts, eviction_facts
from gputile.kube.objects import Applied, Deleted, Replaced, UnreadableObject, WatchEvent

# In a namespace with more budgets, each pod counts as selected by several budgets.
_MOST_BUDGETS = 256
_UNGUARDED = frozenset({"Pending", "Succeeded", "Failed"})


class _Guarded(msgspec.Struct, frozen=True, gc=False):
    """The fields of a pod that determine which budgets limit its eviction."""

    labels: Mapping[str, str]
    by_eviction: bool  # whether budgets limit the pod's eviction
    ready: bool


class EvictablePods:
    """The bound pods with GPUs, and the PodDisruptionBudgets of the cluster.

    ``holds`` returns whether the ledger has a booking for a pod's UID.
    """

    def __init__(self, holds: Callable[[str], bool]) -> None:
        self._holds = holds
        self.facts: dict[str, EvictionFacts] = {}  # by UID
        self.gangs: dict[GangName, frozenset[str]] = {}
        self._guarded: dict[str, _Guarded] = {}  # by UID
        self._budgets: dict[str, dict[str, PodDisruptionBudget]] = {}  # by namespace and name

    def snapshot(self) -> "EvictablePods":
        """Return a copy that later events do not change."""
        copy = EvictablePods(self._holds)
        copy.facts = self.facts.copy()
        copy.gangs = self.gangs.copy()
        copy._guarded = self._guarded.copy()
        copy._budgets = {namespace: budgets.copy() for namespace, budgets in self._budgets.items()}
        return copy

    def pod_applied(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        self.pod_deleted(uid)
        if not (pod.spec.node_name and self._holds(uid)):
            return
        facts = self.facts[uid] = eviction_facts(pod)
        guarded = pod.status.phase not in _UNGUARDED and not pod.metadata.deletion_timestamp
        self._guarded[uid] = _Guarded(pod.metadata.labels, guarded, pod.status.is_ready)
        if facts.gang is not None:
            self.gangs[facts.gang] = self.gangs.get(facts.gang, frozenset()) | {uid}

    def pod_deleted(self, uid: str) -> None:
        facts = self.facts.pop(uid, None)
        self._guarded.pop(uid, None)
        if facts is None or facts.gang is None:
            return
        if rest := self.gangs.pop(facts.gang) - {uid}:
            self.gangs[facts.gang] = rest

    def uids(self) -> KeysView[str]:
        return self.facts.keys()

    def budget_event(self, event: WatchEvent[PodDisruptionBudget]) -> None:
        match event:
            case Applied(budget):
                self._budgets.setdefault(budget.metadata.namespace, {})[budget.metadata.name] = (
                    budget
                )
            case Deleted(budget):
                self._budgets.get(budget.metadata.namespace, {}).pop(budget.metadata.name, None)
            case Replaced(found, unreadable):
                before, self._budgets = self._budgets, {}
                for budget in found:
                    self._budgets.setdefault(budget.metadata.namespace, {})[
                        budget.metadata.name
                    ] = budget
                for each in unreadable:
                    if (known := before.get(each.namespace, {}).get(each.name)) is not None:
                        self._budgets.setdefault(each.namespace, {})[each.name] = known
            case UnreadableObject():
                pass  # The reflector logs the object. The last known budget stays in force.

    def budget(self, uid: str) -> EvictionBudget | None:
        """Return the budget that limits a pod's eviction by the API server, or None.

        As in the API server's ``getPodDisruptionBudgets``, an empty selector selects every pod of
        the namespace, and a pod with several budgets is not evicted. As in its ``canIgnorePDB``,
        budgets do not limit the eviction of a pod that is pending, finished or being deleted.
        """
        budgets = self._guarding(uid)
        if not budgets or not self._guarded[uid].by_eviction:
            return None
        key = budgets[0].metadata.namespace, budgets[0].metadata.name
        if len(budgets) > 1:
            return EvictionBudget(key, 0)
        if not self._guarded[uid].ready and budgets[0].allows_unready:
            return None
        return EvictionBudget(key, budgets[0].status.disruptions_allowed)

    def _guarding(self, uid: str) -> list[PodDisruptionBudget]:
        """Return the budgets that select a pod and do not yet count its eviction in their status.

        If the namespace has too many budgets, return any two, so that the pod is not evicted.
        """
        facts = self.facts.get(uid)
        budgets = self._budgets.get(facts.namespace, {}) if facts is not None else {}
        if facts is None or len(budgets) > _MOST_BUDGETS:
            return list(islice(budgets.values(), 2))
        labels = self._guarded[uid].labels
        return [
            budget
            for budget in budgets.values()
            if selects(budget.spec.selector, labels)
            and facts.name not in (budget.status.disrupted_pods or {})
        ]
