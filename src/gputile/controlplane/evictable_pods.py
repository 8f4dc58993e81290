"""Keeps what evictions depend on: bound pods with GPUs, their gangs, and the budgets that guard them.

kube-scheduler prefers nodes with the fewest violations of PodDisruptionBudgets, and what ``preempt`` adds to its
victims counts too. For gputile's own evictions a budget counts what the API server refuses.
"""

from collections.abc import Callable, Iterable, KeysView, Mapping, Sequence

import msgspec

from gputile.api.core import Pod
from gputile.api.other_groups import PodDisruptionBudget
from gputile.core.devices.gang_membership import GangName
from gputile.core.kube_predicates.node_fit import selects
from gputile.core.scheduling.eviction_facts import EvictionFacts, eviction_facts
from gputile.core.scheduling.victim_groups import EvictionBudget
from gputile.kube.objects import Applied, Deleted, Replaced, UnreadableObject, WatchEvent


class BoundPods:
    """The bound pods with GPUs. ``holds`` tells whether the ledger has a booking of the pod with a UID."""

    def __init__(self, holds: Callable[[str], bool]) -> None:
        self._holds = holds
        self.facts: dict[str, EvictionFacts] = {}  # by UID
        self.gangs: dict[GangName, set[str]] = {}

    def copy(self) -> "BoundPods":
        """Return a private copy; nothing is applied to it."""
        twin = BoundPods(self._holds)
        twin.facts = self.facts.copy()
        twin.gangs = {name: uids.copy() for name, uids in self.gangs.items()}
        return twin

    def pod_applied(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        self.pod_deleted(uid)
        if pod.spec.node_name and self._holds(uid):
            facts = self.facts[uid] = eviction_facts(pod)
            if facts.gang is not None:
                self.gangs.setdefault(facts.gang, set()).add(uid)

    def pod_deleted(self, uid: str) -> None:
        facts = self.facts.pop(uid, None)
        if facts is None or facts.gang is None:
            return
        members = self.gangs[facts.gang]
        members.discard(uid)
        if not members:
            del self.gangs[facts.gang]

    def uids(self) -> KeysView[str]:
        return self.facts.keys()


_Key = tuple[str, str]  # namespace and name
_UNGUARDED = frozenset({"Pending", "Succeeded", "Failed"})


class _Held(msgspec.Struct, frozen=True, gc=False):
    namespace: str
    name: str
    labels: Mapping[str, str]
    guarded: bool  # from the API server's eviction
    ready: bool


class Budgets:
    """The budgets of the cluster, and the labels of the pods that hold GPUs: no more of either than there are.

    ``holds`` tells whether the ledger has a booking of the pod with a UID.
    """

    def __init__(self, holds: Callable[[str], bool]) -> None:
        self._holds = holds
        self._pods: dict[str, _Held] = {}
        self._budgets: dict[_Key, PodDisruptionBudget] = {}
        self._in_namespace: dict[str, list[_Key]] = {}

    def copy(self) -> "Budgets":
        """Return a private copy; nothing is applied to it."""
        twin = Budgets(self._holds)
        twin._pods, twin._budgets = self._pods.copy(), self._budgets.copy()
        twin._in_namespace = self._in_namespace  # made anew whenever budgets change
        return twin

    def __len__(self) -> int:
        return len(self._pods)

    def pod_applied(self, pod: Pod) -> None:
        meta = pod.metadata
        if pod.spec.node_name and self._holds(meta.uid):
            guarded = pod.status.phase not in _UNGUARDED and not meta.deletion_timestamp
            self._pods[meta.uid] = _Held(meta.namespace, meta.name, meta.labels, guarded, pod.status.is_ready)
        else:
            self._pods.pop(meta.uid, None)

    def pod_deleted(self, uid: str) -> None:
        self._pods.pop(uid, None)

    def uids(self) -> KeysView[str]:
        return self._pods.keys()

    def budgets(self, event: WatchEvent[PodDisruptionBudget]) -> None:
        match event:
            case Applied(budget):
                self._budgets[_key(budget)] = budget
            case Deleted(budget):
                self._budgets.pop(_key(budget), None)
            case Replaced(found, unreadable):
                kept = {(each.namespace, each.name) for each in unreadable}
                self._budgets = {key: budget for key, budget in self._budgets.items() if key in kept}
                self._budgets |= {_key(budget): budget for budget in found}
            case UnreadableObject():
                pass  # logged by the reflector; the last word on the budget stands
        self._in_namespace = {}
        for key in self._budgets:
            self._in_namespace.setdefault(key[0], []).append(key)

    def violations(self, before: Sequence[str], uids: Sequence[str]) -> int:
        """Return how many of the pods ``uids`` have no budget left when those in ``before`` are evicted first.

        As ``filterPodsWithPDBViolation`` of kube-scheduler counts: a budget without a selector, or with an empty one,
        selects nothing; a pod whose eviction has begun takes no more of it.
        """
        allowed: dict[_Key, int] = {}
        violating = [self._violates(self._counted(uid), allowed) for uid in (*before, *uids)]
        return sum(violating[len(before) :])

    def budget(self, uid: str) -> EvictionBudget | None:
        """Return what guards a pod from the API server's eviction, None for nothing.

        As ``getPodDisruptionBudgets`` of its eviction: an empty selector selects every pod of its namespace, and no pod
        of several budgets is evicted. As its ``canIgnorePDB``: nothing guards a pod that has not begun to run.
        """
        keys = self._guarding(uid)
        if not keys or not self._pods[uid].guarded:
            return None
        budget = self._budgets[keys[0]]
        if len(keys) > 1:
            return EvictionBudget(keys[0], 0)
        if not self._pods[uid].ready and budget.lets_unready_go:
            return None
        return EvictionBudget(keys[0], budget.status.disruptions_allowed)

    def _violates(self, keys: Iterable[_Key], allowed: dict[_Key, int]) -> bool:
        """Take an eviction from what each of the budgets has ``allowed`` left; return whether one has too little."""
        violated = False
        for key in keys:
            left = allowed[key] = allowed.get(key, self._budgets[key].status.disruptions_allowed) - 1
            violated |= left < 0
        return violated

    def _counted(self, uid: str) -> list[_Key]:
        pod = self._pods.get(uid)
        return [key for key in self._guarding(uid) if pod and pod.labels and _is_selective(self._budgets[key])]

    def _guarding(self, uid: str) -> list[_Key]:
        """Return the budgets that select a pod, without those by which its eviction has begun."""
        pod = self._pods.get(uid)
        if pod is None:
            return []
        return [
            key
            for key in self._in_namespace.get(pod.namespace, ())
            if selects((budget := self._budgets[key]).spec.selector, pod.labels)
            and pod.name not in (budget.status.disrupted_pods or {})
        ]


def _is_selective(budget: PodDisruptionBudget) -> bool:
    selector = budget.spec.selector
    return selector is not None and bool(selector.match_labels or selector.match_expressions)


def _key(budget: PodDisruptionBudget) -> _Key:
    return budget.metadata.namespace, budget.metadata.name
