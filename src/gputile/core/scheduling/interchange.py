"""Tells whether others may leave a node instead of a pod that kube-scheduler proposes as a victim.

kube-scheduler has a pod leave because a resource of the node lacks, or because the pod's ports, disks or rules about
other pods are in the way. Of the first kind is a pod that asks for resources only: others that free as much of each are
as good. Resources of GPUs do not count here: whether the request fits its GPUs is judged beside this.
"""

from collections import Counter
from collections.abc import Collection, Mapping

from gputile.api.core import Pod
from gputile.core.kube_predicates.disks import disks
from gputile.core.kube_predicates.host_ports import host_ports
from gputile.core.kube_predicates.inter_pod import looks_at_pods
from gputile.core.kube_predicates.pod_requests import PODS, Amounts
from gputile.core.scheduling.eviction_facts import EvictionFacts


class Interchange:
    """Which pods may leave for ``pod``, and which instead of others. ``facts`` are those of the bound pods, by UID."""

    def __init__(self, pod: Pod, facts: Mapping[str, EvictionFacts]) -> None:
        spec = pod.spec
        only_resources = not (host_ports(spec) or disks(spec) or spec.claims or looks_at_pods(pod))
        self._facts = facts if only_resources else {}
        self._all_facts = facts

    def never_leaves(self, uid: str) -> bool:
        """Return whether a pod is static: its kubelet starts it again."""
        known = self._all_facts.get(uid)
        return known is not None and known.static

    def amounts(self, uid: str) -> Amounts | None:
        """Return what a pod takes of its node, its place as a pod included; None where nobody can leave instead."""
        known = self._facts.get(uid)
        return known.amounts | {PODS: 1} if known is not None and known.amounts is not None else None

    def surplus(self, proposed: Collection[str], leaving: Collection[str]) -> Amounts | None:
        """Return how much more pods free that leave than the ``proposed`` ones would, negative where that is less.

        None where a proposed one is not among them in whose place nobody can leave.
        """
        found: Counter[str] = Counter()
        for uid in leaving:
            if uid not in proposed:
                found.update(self.amounts(uid) or {})
        for uid in proposed:
            if uid not in leaving:
                amounts = self.amounts(uid)
                if amounts is None:
                    return None
                found.subtract(amounts)
        return found

    def replaces(self, proposed: Collection[str], leaving: Collection[str]) -> bool:
        """Return whether the pods that leave free as much of everything as the ``proposed`` ones would."""
        surplus = self.surplus(proposed, leaving)
        return surplus is not None and min(surplus.values(), default=0) >= 0
