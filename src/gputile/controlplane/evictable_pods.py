"""Keeps what evictions depend on: bound pods with GPUs, their gangs, and the budgets that guard them.

kube-scheduler prefers nodes with the fewest violations of PodDisruptionBudgets, and what ``preempt`` adds to its
victims counts too. For gputile's own evictions a budget counts what the API server refuses.

Anybody may create thousands of budgets in a namespace, so they are found by a label that a pod must have for them.
"""

from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from gputile.api.core import Pod
from gputile.api.other_groups import PodDisruptionBudget
from gputile.core.devices.gang_membership import GangName
from gputile.core.kube_predicates.node_fit import selects
from gputile.core.scheduling.eviction_rules import EvictionBudget, EvictionFacts, eviction_facts
from gputile.kube.objects import Applied, Deleted, Replaced, UnreadableObject, WatchEvent


class BoundPods:
    """The bound pods with GPUs. ``holds`` tells whether the ledger has a booking of the pod with a UID."""

    def __init__(self, holds: Callable[[str], bool]) -> None:
        self._holds = holds
        self.facts: dict[str, EvictionFacts] = {}  # by UID
        self.gangs: dict[GangName, set[str]] = {}
        self._owned: set[GangName] = set()  # whose set no snapshot has

    def snapshot(self) -> "BoundPods":
        """Return a copy that stays as it is."""
        copy = BoundPods(self._holds)
        copy.facts, copy.gangs, self._owned = self.facts.copy(), self.gangs.copy(), set()
        return copy

    def pod_applied(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        self.pod_deleted(uid)
        if pod.spec.node_name and self._holds(uid):
            facts = self.facts[uid] = eviction_facts(pod)
            if facts.gang is not None:
                self._members(facts.gang).add(uid)

    def pod_deleted(self, uid: str) -> None:
        facts = self.facts.pop(uid, None)
        if facts is None or facts.gang is None:
            return
        members = self._members(facts.gang)
        members.discard(uid)
        if not members:
            del self.gangs[facts.gang]
            self._owned.discard(facts.gang)

    def _members(self, gang: GangName) -> set[str]:
        """Return the pods of a gang, to be changed."""
        if gang not in self._owned:
            self._owned.add(gang)
            self.gangs[gang] = set(self.gangs.get(gang, ()))
        elif gang not in self.gangs:
            self.gangs[gang] = set()
        return self.gangs[gang]

    def uids(self) -> KeysView[str]:
        return self.facts.keys()


_Key = tuple[str, str]  # namespace and name
_Label = tuple[
    str, str, str | None
]  # the namespace, a label's key, and its value, None for any; the key is "" for none
_MOST_CANDIDATES = 64  # budgets that may select a pod: if there are more, all of them are taken to
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
        self._by_label: dict[_Label, tuple[_Key, ...]] = {}

    def snapshot(self) -> "Budgets":
        """Return a copy that stays as it is."""
        copy = Budgets(self._holds)
        copy._pods, copy._budgets, copy._by_label = self._pods.copy(), self._budgets.copy(), self._by_label.copy()
        return copy

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
                self._put(_key(budget), budget)
            case Deleted(budget):
                self._put(_key(budget), None)
            case Replaced(found, unreadable):
                kept = {(each.namespace, each.name) for each in unreadable} | {_key(budget) for budget in found}
                for key in self._budgets.keys() - kept:
                    self._put(key, None)
                for budget in found:
                    self._put(_key(budget), budget)
            case UnreadableObject():
                pass  # logged by the reflector; the last word on the budget stands

    def _put(self, key: _Key, budget: PodDisruptionBudget | None) -> None:
        before = self._budgets.pop(key, None)
        labels = _labels(before) if before is not None else frozenset()
        if budget is not None:
            self._budgets[key] = budget
        wanted = _labels(budget) if budget is not None else frozenset()
        for label in labels - wanted:
            left = tuple(each for each in self._by_label[label] if each != key)
            self._by_label[label] = left
            if not left:
                del self._by_label[label]
        for label in wanted - labels:
            self._by_label[label] = (*self._by_label.get(label, ()), key)

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
        candidates: list[_Key] = []
        for label in _labels_of(pod):
            candidates += self._by_label.get(label, ())
        if len(candidates) > _MOST_CANDIDATES:
            return candidates
        return [
            key
            for key in candidates
            if selects((budget := self._budgets[key]).spec.selector, pod.labels)
            and pod.name not in (budget.status.disrupted_pods or {})
        ]


def _labels(budget: PodDisruptionBudget) -> frozenset[_Label]:
    """Return the labels of which a pod has one if the budget selects it."""
    namespace, selector = budget.metadata.namespace, budget.spec.selector
    if selector is None:
        return frozenset()
    for key, value in selector.match_labels.items():
        return frozenset({(namespace, key, value)})
    for rule in selector.match_expressions:
        if rule.operator == "In":
            return frozenset((namespace, rule.key, value) for value in rule.values)
        if rule.operator == "Exists":
            return frozenset({(namespace, rule.key, None)})
    return frozenset({(namespace, "", None)})


def _labels_of(pod: _Held) -> Iterator[_Label]:
    """Yield each label by which budgets that may select the pod are found."""
    yield pod.namespace, "", None
    for key, value in pod.labels.items():
        yield pod.namespace, key, value
        yield pod.namespace, key, None


@dataclass(frozen=True, slots=True)
class EvictionSources:
    """What is known of the pods that may have to leave."""

    bound_pods: BoundPods
    budgets: Budgets


def _is_selective(budget: PodDisruptionBudget) -> bool:
    selector = budget.spec.selector
    return selector is not None and bool(selector.match_labels or selector.match_expressions)


def _key(budget: PodDisruptionBudget) -> _Key:
    return budget.metadata.namespace, budget.metadata.name
