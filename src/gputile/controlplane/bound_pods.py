"""Keeps what evictions depend on, for every pod that holds GPUs."""

from collections.abc import Callable, KeysView

from gputile.api.core import Pod
from gputile.core.devices.gang_membership import GangName
from gputile.core.scheduling.eviction_facts import EvictionFacts, eviction_facts


class BoundPods:
    """The bound pods with GPUs. ``holds`` tells whether the ledger has a booking of the pod with a UID."""

    def __init__(self, holds: Callable[[str], bool]) -> None:
        self._holds = holds
        self.facts: dict[str, EvictionFacts] = {}  # by UID
        self.gangs: dict[GangName, set[str]] = {}

    def pod_applied(self, pod: Pod) -> None:
        """Note what is known of a pod, after the ledger has taken it in."""
        uid = pod.metadata.uid
        self.pod_deleted(uid)
        if pod.spec.node_name and self._holds(uid):
            facts = self.facts[uid] = eviction_facts(pod)
            if facts.gang is not None:
                self.gangs.setdefault(facts.gang, set()).add(uid)

    def pod_deleted(self, uid: str) -> None:
        """Forget a pod."""
        facts = self.facts.pop(uid, None)
        if facts is None or facts.gang is None:
            return
        members = self.gangs[facts.gang]
        members.discard(uid)
        if not members:
            del self.gangs[facts.gang]

    def uids(self) -> KeysView[str]:
        """Return the UIDs of these pods."""
        return self.facts.keys()
