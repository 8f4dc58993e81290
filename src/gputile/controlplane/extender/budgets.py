"""How many PodDisruptionBudgets the eviction of GPU pods would violate, counted as kube-scheduler counts it.

kube-scheduler prefers nodes with the fewest violations. What ``preempt`` adds to its victims has to count too.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from gputile.api.core import Pod
from gputile.api.policy import PodDisruptionBudget
from gputile.core.kube_predicates.node_fit import selects
from gputile.kube.decoding import Applied, Deleted, Replaced, UnreadableObject, WatchEvent


class _Held(NamedTuple):
    namespace: str
    name: str
    labels: Mapping[str, str]


class Budgets:
    """The budgets of the cluster, and the labels of the pods that hold GPUs: no more of either than there are.

    ``holds`` tells whether the ledger has a booking of the pod with a UID.
    """

    def __init__(self, holds: Callable[[str], bool]) -> None:
        self._holds = holds
        self._pods: dict[str, _Held] = {}
        self._budgets: dict[tuple[str, str], PodDisruptionBudget] = {}
        self._in_namespace: dict[str, list[tuple[str, str]]] = {}

    def __len__(self) -> int:
        return len(self._pods)

    def pod_applied(self, pod: Pod) -> None:
        """Note what a pod is called, after the ledger has taken it in."""
        meta = pod.metadata
        if pod.spec.node_name and meta.labels and self._holds(meta.uid):
            self._pods[meta.uid] = _Held(meta.namespace, meta.name, meta.labels)
        else:
            self._pods.pop(meta.uid, None)

    def pod_deleted(self, uid: str) -> None:
        """Forget a pod."""
        self._pods.pop(uid, None)

    def pods_replaced(self, pods: Sequence[Pod], unreadable: Collection[str]) -> None:
        """Take in a complete list of pods; of those that cannot be read the last word stands."""
        self._pods = {uid: held for uid, held in self._pods.items() if uid in unreadable}
        for pod in pods:
            self.pod_applied(pod)

    def budgets(self, event: WatchEvent[PodDisruptionBudget]) -> None:
        """Take an event of the budgets' watch."""
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
        violating = self._violating((*before, *uids))
        return sum(position >= len(before) for position in violating)

    def over_budget(self, uids: Sequence[str]) -> list[str]:
        """Return those of the pods ``uids`` that have no budget left when all are evicted in this order."""
        return [uids[position] for position in self._violating(uids)]

    def _violating(self, uids: Sequence[str]) -> list[int]:
        """Return the positions of the pods that violate a budget when all are evicted in this order."""
        allowed: dict[tuple[str, str], int] = {}
        violating = []
        for position, uid in enumerate(uids):
            violated = False
            for key in self._of(uid):
                left = allowed.get(key, self._budgets[key].status.disruptions_allowed) - 1
                allowed[key] = left
                violated |= left < 0
            if violated:
                violating.append(position)
        return violating

    def _of(self, uid: str) -> list[tuple[str, str]]:
        pod = self._pods.get(uid)
        if pod is None:
            return []
        return [
            key
            for key in self._in_namespace.get(pod.namespace, ())
            if (selector := (budget := self._budgets[key]).spec.selector) is not None
            and (selector.match_labels or selector.match_expressions)
            and selects(selector, pod.labels)
            and pod.name not in (budget.status.disrupted_pods or {})
        ]


def _key(budget: PodDisruptionBudget) -> tuple[str, str]:
    return budget.metadata.namespace, budget.metadata.name
