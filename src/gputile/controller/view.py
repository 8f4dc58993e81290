"""The controller's view of the cluster: the ledger, what kube-scheduler counts, and the pods of gangs.

Watches feed it, and so do the answers to the controller's own writes, so that a round of planning sees what the one
before it wrote. News of an older version of a pod than the one known is no news.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod
from gputile.api.podgroups import PodGroup
from gputile.api.wellknown import HOLD_ANNOTATION, INVENTORY_ANNOTATION
from gputile.device.gang import GangName, gang_of
from gputile.device.hold import Hold, encode_hold, hold_of
from gputile.intree.predicates import Predicates
from gputile.kube.reflector import Applied, Deleted, Event, Replaced, Unreadable
from gputile.ledger.events import (
    NodeApplied,
    NodeDeleted,
    NodesReplaced,
    PodApplied,
    PodDeleted,
    PodsReplaced,
    TimePassed,
)
from gputile.ledger.ledger import Ledger
from gputile.scheduling.placer import Placer


@dataclass(slots=True)
class Ground:
    """Where pods may be placed: cards, and what kube-scheduler counts."""

    placer: Placer
    predicates: Predicates


class View:
    """One event loop owns it. ``changed`` is called after everything that may let a gang start or end its wait."""

    def __init__(self, configuration: Configuration, changed: Callable[[], None] = lambda: None) -> None:
        self.ledger = Ledger(configuration)
        self.nodes: dict[str, Node] = {}
        self.groups: dict[tuple[str, str], int] | None = None  # None while nobody knows PodGroups here
        self.freed = 0  # grows whenever there may be room that was not there before
        self.now_ns = 0
        self._vacant = Ledger(configuration)  # the same nodes without a pod
        self._changed = changed
        self._pods: dict[str, Pod] = {}  # by UID: those that count for kube-scheduler, and all of gangs
        self._versions: dict[str, int] = {}
        self._gangs: dict[GangName, dict[str, Pod]] = {}
        self._live: Ground | None = None
        self._empty: Ground | None = None
        self._placer = Placer(self.ledger)

    # -- questions

    def gangs(self) -> Iterator[tuple[GangName, list[Pod]]]:
        """Yield the gangs with their pods, finished ones included."""
        for name, pods in self._gangs.items():
            yield name, list(pods.values())

    def node(self, name: str) -> Node | None:
        """Return a node."""
        return self.nodes.get(name)

    def ground(self) -> Ground:
        """Return the cluster as it is."""
        if self._live is None:
            self._live = Ground(self._placer, Predicates(list(self.nodes.values())))
            for pod in self._pods.values():
                self._occupy(pod)
        return self._live

    def empty_ground(self) -> Ground:
        """Return the cluster as if no pod were in it: what does not fit there never will."""
        if self._empty is None:
            self._empty = Ground(Placer(self._vacant), Predicates(list(self.nodes.values())))
        return self._empty

    def hold(self, pod: Pod) -> Hold | None:
        """Return a pod's hold, None where it has none or it has ended."""
        hold = hold_of(pod)
        return hold if hold is not None and hold.expires_ns > self.now_ns else None

    # -- facts

    def take_pods(self, event: Event[Pod]) -> None:
        """Take an event of the pods' watch."""
        match event:
            case Applied(pod):
                self._apply(pod)
            case Deleted(pod):
                self._forget(pod.metadata.uid)
                self.ledger.apply(PodDeleted(pod.metadata.uid))
            case Replaced(pods, unreadable):
                kept = {pod.metadata.uid for pod in pods} | {each.uid for each in unreadable}
                for uid in self._versions.keys() - kept:
                    self._forget(uid)
                for pod in pods:
                    self._apply(pod)
                self.ledger.apply(
                    PodsReplaced(
                        [self._pods.get(pod.metadata.uid, pod) for pod in pods],
                        frozenset(each.uid for each in unreadable),
                    )
                )
                self.freed += 1
            case Unreadable():
                return
        self._changed()

    def take_nodes(self, event: Event[Node]) -> None:
        """Take an event of the nodes' watch."""
        match event:
            case Applied(node):
                self._apply_node(node)
            case Deleted(node):
                self.nodes.pop(node.metadata.name, None)
                self._rebuild()
                for ledger in (self.ledger, self._vacant):
                    ledger.apply(NodeDeleted(node.metadata.name))
            case Replaced(nodes, unreadable):
                kept = {each.name for each in unreadable}
                self.nodes = {name: node for name, node in self.nodes.items() if name in kept}
                self.nodes |= {node.metadata.name: node for node in nodes}
                for ledger in (self.ledger, self._vacant):
                    ledger.apply(NodesReplaced(nodes, frozenset(kept)))
                self._rebuild()
            case Unreadable():
                return
        self._changed()

    def take_groups(self, event: Event[PodGroup]) -> None:
        """Take an event of the PodGroups' watch."""
        groups = self.groups if self.groups is not None else {}
        match event:
            case Applied(group):
                groups[group.metadata.namespace, group.metadata.name] = group.spec.min_member
            case Deleted(group):
                groups.pop((group.metadata.namespace, group.metadata.name), None)
            case Replaced(all_groups, _):
                groups = {(each.metadata.namespace, each.metadata.name): each.spec.min_member for each in all_groups}
            case Unreadable(namespace, name):
                groups.pop((namespace, name), None)
        self.groups = groups
        self._changed()

    def tick(self, now_ns: int) -> None:
        """Let it be ``now_ns``, Unix time in nanoseconds. That is earlier than before where a clock was set back."""
        self.now_ns = now_ns
        position = self.ledger.changes.position
        self.ledger.apply(TimePassed(self.now_ns))
        if self.ledger.changes.position != position:
            self.freed += 1
        for pods in self._gangs.values():
            for pod in pods.values():
                if not pod.spec.node_name:
                    self._occupy(pod)

    # -- the controller's own writes

    def expect(self, pod: Pod, hold: Hold | None) -> Pod:
        """See a pod as it will be once a write of its hold is executed; return it as it will be."""
        annotations = {key: text for key, text in pod.metadata.annotations.items() if key != HOLD_ANNOTATION}
        if hold is not None:
            annotations[HOLD_ANNOTATION] = encode_hold(hold)
        else:
            self.freed += 1
        expected = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=annotations))
        self._store(expected)
        return expected

    def written(self, pod: Pod) -> None:
        """Take the API server's answer to a write. A pod that is gone meanwhile stays gone."""
        if pod.metadata.uid in self._versions:
            self._apply(pod)

    def not_written(self, pod: Pod) -> None:
        """Take back what was expected of ``pod``, unless something newer is known of it."""
        if self._versions.get(pod.metadata.uid) == _version(pod):
            self.freed += 1
            self._store(pod)

    # -- within

    def _apply(self, pod: Pod) -> None:
        version = _version(pod)
        if version < self._versions.get(pod.metadata.uid, 0):
            return
        self._versions[pod.metadata.uid] = version
        self._store(pod)

    def _store(self, pod: Pod) -> None:
        uid, gang = pod.metadata.uid, gang_of(pod)
        before = self.ledger.booking(uid)
        old = self._pods.get(uid)
        if old is not None and gang_of(old) != gang:
            self._leave_gang(old)
        if gang is not None:
            self._gangs.setdefault(gang, {})[uid] = pod
        if gang is not None or (pod.spec.node_name and not pod.finished):
            self._pods[uid] = pod
        else:
            self._pods.pop(uid, None)
        self.ledger.apply(PodApplied(pod))
        after = self.ledger.booking(uid)
        ended = pod.finished and old is not None and not old.finished
        if ended or (before is not None and (after is None or after.node != before.node)):
            self.freed += 1
        self._occupy(pod)

    def _forget(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        self._versions.pop(uid, None)
        if pod is None:
            return
        self.freed += 1
        self._leave_gang(pod)
        if self._live is not None:
            self._live.predicates.remove(uid)

    def _leave_gang(self, pod: Pod) -> None:
        gang = gang_of(pod)
        pods = self._gangs.get(gang) if gang is not None else None
        if gang is not None and pods is not None:
            pods.pop(pod.metadata.uid, None)
            if not pods:
                del self._gangs[gang]

    def _occupy(self, pod: Pod) -> None:
        """Count the pod where it is, or where a place is kept for it."""
        if self._live is None:
            return
        hold = None if pod.spec.node_name else self.hold(pod)
        node = pod.spec.node_name or (hold.node if hold is not None else "")
        self._live.predicates.remove(pod.metadata.uid)
        if node:
            self._live.predicates.place(pod, node)

    def _apply_node(self, node: Node) -> None:
        before = self.nodes.get(node.metadata.name)
        self.nodes[node.metadata.name] = node
        for ledger in (self.ledger, self._vacant):
            ledger.apply(NodeApplied(node))
        if before is None or _schedulable(before) != _schedulable(node):
            self._rebuild()

    def _rebuild(self) -> None:
        self._live = self._empty = None
        self.freed += 1


def _schedulable(node: Node) -> tuple[object, ...]:
    """Return what kube-scheduler and gputile look at."""
    meta = node.metadata
    return meta.labels, meta.annotations.get(INVENTORY_ANNOTATION), node.spec, node.status.allocatable


def _version(pod: Pod) -> int:
    text = pod.metadata.resource_version
    return int(text) if text.isdecimal() else 0
