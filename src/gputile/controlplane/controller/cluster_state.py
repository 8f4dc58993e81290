"""Stores the controller's view of the cluster: the ledger, kube-scheduler's predicates, and gangs.

The state is updated by watches and by the responses to the controller's own writes. So each round
sees the writes of the previous round. A version of a pod that is older than the known version is
ignored, unless it comes from a list.
"""

import asyncio
from collections.abc import Callable, Collection
from copy import copy
from dataclasses import dataclass

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod
from gputile.api.well_known import (
    HANDOVER_ANNOTATION,
    INVENTORY_ANNOTATION,
    MIRROR_ANNOTATION,
    RESERVATION_ANNOTATION,
)
from gputile.api.workloads import PodDisruptionBudget, PodGroup
from gputile.controlplane.controller.waiting_pods import GangMembers, WaitingPods
from gputile.controlplane.event_loop import garbage_collection_paused, yielding_to_loop
from gputile.controlplane.evictable_pods import EvictablePods
from gputile.core.devices.allocation import Reservation, encode_reservation, reservation_of
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.ledger.booking import frees
from gputile.core.ledger.ledger import Ledger
from gputile.core.scheduling.gang_victims import VictimSearchInput
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.kube.objects import Applied, Deleted, Replaced, UnreadableObject, WatchEvent


@dataclass(slots=True)
class ClusterPlacement:
    """The nodes of a cluster with their free GPUs, and the rules that kube-scheduler checks."""

    engine: PlacementEngine  # the free GPUs
    predicates: Predicates  # the resources and rules that kube-scheduler checks

    def snapshot(self) -> "ClusterPlacement":
        return ClusterPlacement(self.engine.snapshot(), self.predicates.snapshot())


class ClusterState:
    """The state of the cluster. Only one event loop may change it.

    ``changed`` is called after changes that may let a gang start. Rounds are planned on a
    ``snapshot`` in another thread. A snapshot copies the maps and arrays, but not the objects in
    them, which are immutable.

    ``placement`` contains all pods. ``empty_placement`` describes the empty cluster, which has only
    static pods and pods of DaemonSets. A pod that does not fit there can start only on new nodes.
    Placeholder pods are recognized only in ``namespace``. Memory is bounded by the nodes, the
    PodGroups, the versions of all pods, the running pods, and the pods of unfinished gangs.
    """

    def __init__(
        self,
        configuration: Configuration,
        changed: Callable[[], None] = lambda: None,
        namespace: str = "",
    ) -> None:
        self.listing = asyncio.Lock()  # locked while a list is applied; other tasks run meanwhile
        self.ledger = Ledger(configuration)
        self.nodes: dict[str, Node] = {}
        self.groups: dict[tuple[str, str], int] | None = None  # None until PodGroups are known
        self.budgets_read = False  # whether PodDisruptionBudgets are known
        self.freed_counter = 0  # increased whenever room may have become free
        self.grown_counter = 0  # increased whenever the empty cluster may have more room
        self.now_ns = 0
        self.members = GangMembers()
        self.evictable = EvictablePods(lambda uid: self.ledger.booking(uid) is not None)
        self._vacant = Ledger(configuration)  # the same nodes without pods
        self._changed = changed
        self.waiting = WaitingPods(configuration, namespace)
        self._pods: dict[str, Pod] = {}  # by UID: unfinished pods with a node or a reservation
        self._versions: dict[str, int] = {}
        self._reservation_ends: dict[str, int] = {}  # by UID of unbound pods, Unix ns; may be over
        self.placement = ClusterPlacement(PlacementEngine(self.ledger), Predicates(()))
        self.empty_placement = ClusterPlacement(PlacementEngine(self._vacant), Predicates(()))

    def snapshot(self) -> "ClusterState":
        """Return a copy for planning. ``assume_write`` on the copy does not change this state."""
        twin: ClusterState = copy(self)
        twin.nodes = self.nodes.copy()
        twin.groups = self.groups.copy() if self.groups is not None else None
        twin.members, twin.waiting = self.members.copy(), self.waiting.copy()
        twin.evictable = self.evictable.snapshot()
        twin._pods, twin._versions = self._pods.copy(), self._versions.copy()
        twin._reservation_ends = self._reservation_ends.copy()
        twin.placement = self.placement.snapshot()
        twin.empty_placement = self.empty_placement.snapshot()
        twin.ledger, twin._vacant = twin.placement.engine.ledger, twin.empty_placement.engine.ledger
        return twin

    # -- queries

    def knows(self, uid: str) -> bool:
        return uid in self._versions

    def reservation(self, pod: Pod) -> Reservation | None:
        reservation = reservation_of(pod)
        return (
            reservation
            if reservation is not None and reservation.expires_ns > self.now_ns
            else None
        )

    def victim_search_input(self, closed: Collection[str] = ()) -> VictimSearchInput:
        """Return what a search for victims reads. The nodes in ``closed`` are not searched."""
        placement, empty = self.placement, self.empty_placement.predicates
        return VictimSearchInput(placement.engine, placement.predicates, empty, self._pods, closed)

    def reserved_pods(self) -> list[Pod]:
        """Return the unbound pods that have a reservation in force and no nominated node.

        Pods with a nominated node are excluded, because kube-scheduler and autoscalers already
        count each of them on its nominated node.
        """
        found = (
            self._pods[uid]
            for uid, ends_ns in self._reservation_ends.items()
            if ends_ns > self.now_ns
        )
        return [pod for pod in found if not pod.status.nominated_node_name]

    def reservation_end(self, uid: str) -> int:
        """Return when an unbound pod's reservation ends or ended (Unix ns), or 0 if it has none."""
        return self._reservation_ends.get(uid, 0)

    # -- watch events

    def pod_changed(self, event: WatchEvent[Pod]) -> None:
        match event:
            case Applied(pod):
                self._apply(pod)
                self._changed()
            case Deleted(pod):
                self._forget(pod.metadata.uid)
                self._changed()

    async def pod_event(self, event: WatchEvent[Pod]) -> None:
        """Apply a pod event or a complete list."""
        if not isinstance(event, Replaced):
            self.pod_changed(event)
            return
        listed = {pod.metadata.uid for pod in event.objects} | {
            each.uid for each in event.unreadable
        }
        async with self.listing:
            with garbage_collection_paused():
                async for uid in yielding_to_loop(self._versions.keys() - listed):
                    self._forget(uid)
                # Unfinished pods are applied first, because a finished pod is stored only if other
                # pods of its gang have not finished.
                for finished in (False, True):
                    async for pod in yielding_to_loop(event.objects):
                        if pod.finished is not finished:
                            continue
                        # A listed version may be older than the known one after a restore of etcd.
                        if version_of(pod) < self._versions.get(pod.metadata.uid, 0):
                            self._forget(pod.metadata.uid)
                        self._apply(pod)
                self.freed_counter += 1
        self._changed()

    def node_changed(self, event: WatchEvent[Node]) -> None:
        match event:
            case Applied(node):
                self._apply_node(node)
                self._changed()
            case Deleted(node):
                self._forget_node(node.metadata.name)
                self._changed()

    async def node_event(self, event: WatchEvent[Node]) -> None:
        """Apply a node event or a complete list."""
        if not isinstance(event, Replaced):
            self.node_changed(event)
            return
        listed = {node.metadata.name for node in event.objects} | {
            each.name for each in event.unreadable
        }
        async with self.listing:
            with garbage_collection_paused():
                async for name in yielding_to_loop(self.nodes.keys() - listed):
                    self._forget_node(name)
                async for node in yielding_to_loop(event.objects):
                    self._apply_node(node)
        self._changed()

    def group_event(self, event: WatchEvent[PodGroup]) -> None:
        groups = self.groups if self.groups is not None else {}
        match event:
            case Applied(group):
                groups[group.metadata.namespace, group.metadata.name] = group.spec.min_member
            case Deleted(group):
                groups.pop((group.metadata.namespace, group.metadata.name), None)
            case Replaced(all_groups, _):
                groups = {
                    (each.metadata.namespace, each.metadata.name): each.spec.min_member
                    for each in all_groups
                }
            case UnreadableObject(namespace, name):
                groups.pop((namespace, name), None)
        self.groups = groups
        self._changed()

    def budget_event(self, event: WatchEvent[PodDisruptionBudget]) -> None:
        self.evictable.budget_event(event)
        self.budgets_read = self.budgets_read or isinstance(event, Replaced)

    def pod_gone(self, pod: Pod) -> None:
        self._forget(pod.metadata.uid)
        self._changed()

    def set_time(self, now_ns: int) -> None:
        """Set the current Unix time, and expire reservations. The time may also go back."""
        before, self.now_ns = self.now_ns, now_ns
        position = self.ledger.changes.position
        self.ledger.set_time(self.now_ns)
        if self.ledger.changes.position != position:
            self.freed_counter += 1
        first, last = min(before, self.now_ns), max(before, self.now_ns)
        for uid in [
            uid for uid, ends_ns in self._reservation_ends.items() if first < ends_ns <= last
        ]:
            self._count_on_node(self._pods[uid])

    # -- the controller's own writes

    def has_changed(self, pod: Pod) -> bool:
        """Return whether the pod is gone, or has changed since ``pod`` was read."""
        return self._versions.get(pod.metadata.uid) != version_of(pod)

    def assume_write(self, pod: Pod, reservation: Reservation | None) -> Pod:
        """Change this state as if the reservation had been written. Return the changed pod.

        If ``reservation`` is None, the reservation is removed.
        """
        annotations = {
            key: text
            for key, text in pod.metadata.annotations.items()
            if key != RESERVATION_ANNOTATION
        }
        if reservation is not None:
            annotations[RESERVATION_ANNOTATION] = encode_reservation(reservation)
        else:
            self.freed_counter += 1
        expected = msgspec.structs.replace(
            pod, metadata=msgspec.structs.replace(pod.metadata, annotations=annotations)
        )
        self._store(expected)
        return expected

    def confirm_write(self, pod: Pod) -> None:
        if pod.metadata.uid in self._versions:
            self._apply(pod)

    def revert_write(self, pod: Pod) -> None:
        """Undo ``assume_write`` for ``pod``, unless a newer version is known."""
        if not self.has_changed(pod):
            self.freed_counter += 1
            self._store(pod)

    # -- internals

    def _apply(self, pod: Pod) -> None:
        version = version_of(pod)
        if version < self._versions.get(pod.metadata.uid, 0):
            return
        self._versions[pod.metadata.uid] = version
        self._store(pod)

    def _store(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        before = self.ledger.booking(uid)
        old = self._pods.get(uid)
        self.members.pod_applied(pod)
        if not pod.finished and (pod.spec.node_name or reservation_of(pod) is not None):
            self._pods[uid] = pod
        else:
            self._pods.pop(uid, None)
        self.ledger.apply_pod(pod)
        self.waiting.pod_applied(pod)
        self.evictable.pod_applied(pod)
        after = self.ledger.booking(uid)
        ended = pod.finished and old is not None and not old.finished
        if ended or frees(before, after):
            self.freed_counter += 1
        self._count_on_node(pod)

    def _forget(self, uid: str) -> None:
        self.ledger.remove_pod(uid)
        self.waiting.pod_deleted(uid)
        self.evictable.pod_deleted(uid)
        self.members.pod_deleted(uid)
        self._versions.pop(uid, None)
        if self._pods.pop(uid, None) is None:
            return
        self.freed_counter += 1
        self._reservation_ends.pop(uid, None)
        self.placement.predicates.remove(uid)
        self._update_empty_cluster(uid)

    def _count_on_node(self, pod: Pod) -> None:
        """Count the pod on the node to which it is bound, or on which it has a reservation."""
        uid = pod.metadata.uid
        reservation = None if pod.spec.node_name or pod.finished else reservation_of(pod)
        node = pod.spec.node_name
        if reservation is not None:
            self._reservation_ends[uid] = reservation.expires_ns
            node = reservation.node if reservation.expires_ns > self.now_ns else ""
        else:
            self._reservation_ends.pop(uid, None)
        self.placement.predicates.remove(uid)
        if node:
            self.placement.predicates.place(pod, node)
        self._update_empty_cluster(
            uid, pod if node and _is_on_every_node(pod) and not pod.finished else None
        )

    def _update_empty_cluster(self, uid: str, pod: Pod | None = None) -> None:
        """Store ``pod`` in ``empty_placement``. If it is None, remove the pod with this UID."""
        was_there = self.empty_placement.predicates.remove(uid)
        if pod is not None:
            self.empty_placement.predicates.place(pod, pod.spec.node_name)
        elif was_there:
            self._room_changed()

    def _apply_node(self, node: Node) -> None:
        name = node.metadata.name
        before = self.nodes.get(name)
        self.nodes[name] = node
        for ledger in (self.ledger, self._vacant):
            ledger.apply_node(node)
        if before is None or _schedulable(before) != _schedulable(node):
            for placement in (self.placement, self.empty_placement):
                placement.predicates.set_node(node)
            self._room_changed()

    def _forget_node(self, name: str) -> None:
        self.nodes.pop(name, None)
        for ledger in (self.ledger, self._vacant):
            ledger.remove_node(name)
        for placement in (self.placement, self.empty_placement):
            placement.predicates.drop_node(name)
        self._room_changed()

    def _room_changed(self) -> None:
        self.freed_counter += 1
        self.grown_counter += 1


def _schedulable(node: Node) -> tuple[object, ...]:
    """Return the fields of a node that placement depends on."""
    meta = node.metadata
    gpus = meta.annotations.get(INVENTORY_ANNOTATION), HANDOVER_ANNOTATION in meta.annotations
    return meta.labels, gpus, node.spec, node.status.allocatable


def _is_on_every_node(pod: Pod) -> bool:
    """Return whether this is a static pod or a pod of a DaemonSet.

    Labels are not trusted, because any tenant may write them. An owner reference is trusted,
    because Kubernetes deletes pods whose owner does not exist.
    """
    meta = pod.metadata
    daemon = any(
        (owner.controller, owner.kind) == (True, "DaemonSet") for owner in meta.owner_references
    )
    return daemon or MIRROR_ANNOTATION in meta.annotations


def version_of(pod: Pod) -> int:
    """Return a pod's resourceVersion as an increasing number, or 0 if it is not a number."""
    text = pod.metadata.resource_version
    return int(text) if text.isdecimal() else 0
