"""Builds the page from objects of the API server, and computes its changes.

Only records of changed objects are computed again. This module does no I/O and reads no clock.
"""

from collections import Counter
from collections.abc import Sequence, Set
from itertools import islice

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod
from gputile.api.resource_claims import ResourceClaim
from gputile.api.well_known import ALLOCATION_ANNOTATION
from gputile.core.devices.inventory import Inventory
from gputile.core.ledger.ledger import Ledger
from gputile.tools.simulator.foreign_cluster import adopted_node, with_allocation
from gputile.tools.web.records import Difference, NodeTile, PageContent, PendingPod
from gputile.tools.web.tiles import instances_of_pod, node_tile, pending_pod

_OWN_FIRST = 1000  # more than the pods on a GPU, so that the pod's own GPUs come first


class PageState:
    """The cluster's objects and the resulting page. Not thread-safe: one event loop owns it."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self._ledger = Ledger(configuration)
        self._nodes: dict[str, Node] = {}
        # The GPUs of nodes that gputile does not serve. Pods there are shown on GPUs that are read
        # from annotations of other systems, or assumed.
        self._adopted: dict[str, Inventory] = {}
        self._with_gpus: dict[str, Pod] = {}  # copies of these pods with allocations, by UID
        self._pods: dict[str, Pod] = {}
        # Maps nodes to their pods with MIG instances, by UID.
        self._on_instances: dict[str, dict[str, Pod]] = {}
        self._tiles: dict[str, NodeTile] = {}
        self._pending: dict[str, PendingPod] = {}
        self._pending_uid: dict[str, str] = {}
        self._touched_nodes: set[str] = set()
        self._touched_pods: dict[str, str] = {}  # UID -> namespace/name
        self._position = self._ledger.changes.position

    # -- changes of objects

    def pod_applied(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if _is_known(self._pods.get(uid), pod):
            return
        self._touch(uid, pod)
        self._instances_freed(self._pods.get(uid))
        self._pods[uid] = pod
        if pod.spec.node_name and not pod.finished and instances_of_pod(pod):
            self._on_instances.setdefault(pod.spec.node_name, {})[uid] = pod
            self._touched_nodes.add(pod.spec.node_name)
        self._apply_to_ledger(pod)
        self._touch(uid, pod)

    def pod_deleted(self, uid: str) -> None:
        self._instances_freed(self._pods.get(uid))
        self._touch(uid, self._pods.pop(uid, None))
        self._with_gpus.pop(uid, None)
        self._ledger.remove_pod(uid)

    def pods_replaced(self, pods: Sequence[Pod], unreadable: frozenset[str] = frozenset()) -> None:
        """Apply a list of all pods. Pods with ``unreadable`` UIDs keep their last state."""
        listed = unreadable.union(pod.metadata.uid for pod in pods)
        for uid in self._pods.keys() - listed:
            self.pod_deleted(uid)
        self._ledger.replace_pods((), listed)
        for pod in pods:
            self.pod_applied(pod)

    def node_applied(self, node: Node) -> None:
        if self._adopt(node):
            self._apply_pods_on({node.metadata.name})

    def node_deleted(self, name: str) -> None:
        self._nodes.pop(name, None)
        self._adopted.pop(name, None)
        self._touched_nodes.add(name)
        self._ledger.remove_node(name)

    def nodes_replaced(
        self, nodes: Sequence[Node], unreadable: frozenset[str] = frozenset()
    ) -> None:
        """Apply a list of all nodes. Nodes with ``unreadable`` names keep their last state."""
        listed = unreadable.union(node.metadata.name for node in nodes)
        for name in self._nodes.keys() - listed:
            self.node_deleted(name)
        self._ledger.replace_nodes((), listed)
        self._apply_pods_on({node.metadata.name for node in nodes if self._adopt(node)})

    def claim_applied(self, claim: ResourceClaim) -> None:
        self._ledger.apply_claim(claim)

    def claim_deleted(self, uid: str) -> None:
        self._ledger.remove_claim(uid)

    def claims_replaced(
        self, claims: Sequence[ResourceClaim], unreadable: frozenset[str] = frozenset()
    ) -> None:
        """Apply a list of all claims. Claims with ``unreadable`` UIDs keep their last state."""
        self._ledger.replace_claims(claims, unreadable)

    def time_passed(self, now_ns: int) -> None:
        """Expire reservations that end at or before ``now_ns``, Unix time in nanoseconds."""
        self._ledger.set_time(now_ns)

    # -- reads

    @property
    def nodes(self) -> list[Node]:
        return list(self._nodes.values())

    @property
    def pods(self) -> list[Pod]:
        return [self._with_gpus.get(uid, pod) for uid, pod in self._pods.items()]

    @property
    def claims(self) -> list[ResourceClaim]:
        """The ResourceClaims that request gputile's GPUs."""
        return self._ledger.claims.all()

    @property
    def page(self) -> PageContent:
        """The page as of the last call of ``next_difference``."""
        return PageContent(dict(self._tiles), dict(self._pending))

    def tile(self, node: str) -> NodeTile | None:
        """Return the node's record in ``page``, or None if the page does not show the node."""
        return self._tiles.get(node)

    @property
    def namespaces(self) -> set[str]:
        bound = {pod.namespace for tile in self._tiles.values() for pod in tile.pods}
        return bound.union(pod.namespace for pod in self._pending.values())

    @property
    def differs(self) -> bool:
        """Whether the next call of ``next_difference`` may return changes."""
        return (
            bool(self._touched_nodes or self._touched_pods)
            or self._ledger.changes.position != self._position
        )

    def next_difference(self, most: int | None = None) -> Difference:
        """Update the page, and return its changes since the last call.

        One call compares at most ``most`` nodes and ``most`` pods. Later calls compare the others.
        """
        nodes, nodes_gone = self._changed_nodes(most)
        pending, pending_gone = self._changed_pending(most)
        return Difference(nodes, nodes_gone, pending, pending_gone)

    # -- private

    def _adopt(self, node: Node) -> bool:
        """Apply a node. Return whether its GPUs have changed and gputile does not serve them."""
        name = node.metadata.name
        if _is_known(self._nodes.get(name), node):
            return False
        before = self._adopted.pop(name, None)
        adopted = adopted_node(node, self.configuration.unit_mib)
        if adopted is not None:
            node, self._adopted[name] = adopted
        self._nodes[name] = node
        self._touched_nodes.add(name)
        self._ledger.apply_node(node)
        return self._adopted.get(name) != before

    def _apply_pods_on(self, nodes: Set[str]) -> None:
        for uid, pod in self._pods.items() if nodes else ():
            if pod.spec.node_name in nodes:
                self._touch(uid, pod)
                self._apply_to_ledger(pod)

    def _apply_to_ledger(self, pod: Pod) -> None:
        shown = self._with_allocation(pod)
        if shown is not pod:
            self._with_gpus[pod.metadata.uid] = shown
        else:
            self._with_gpus.pop(pod.metadata.uid, None)
        self._ledger.apply_pod(shown)

    def _with_allocation(self, pod: Pod) -> Pod:
        inventory = self._adopted.get(pod.spec.node_name)
        if inventory is None or pod.finished or ALLOCATION_ANNOTATION in pod.metadata.annotations:
            return pod
        holders = Counter[str]()
        for booking in self._ledger.on_node(pod.spec.node_name):
            own = booking.uid == pod.metadata.uid  # a pod stays on the GPUs that were assumed
            for share in booking.gpus:
                holders[share.uuid] += -_OWN_FIRST if own else 1
        return with_allocation(pod, inventory, holders, self.configuration.unit_mib)

    def _touch(self, uid: str, pod: Pod | None) -> None:
        """Mark a pod as changed, and also the node on which the pod has a booking."""
        if pod is not None:
            self._touched_pods[uid] = pod.key
        booking = self._ledger.booking(uid)
        if booking is not None:
            self._touched_nodes.add(booking.node)

    def _instances_freed(self, pod: Pod | None) -> None:
        """Remove a pod from the pods with MIG instances, and mark its node as changed."""
        on_node = self._on_instances.get(pod.spec.node_name) if pod is not None else None
        if (
            pod is not None
            and on_node is not None
            and on_node.pop(pod.metadata.uid, None) is not None
        ):
            self._touched_nodes.add(pod.spec.node_name)
            if not on_node:
                del self._on_instances[pod.spec.node_name]

    def _changed_nodes(self, most: int | None) -> tuple[dict[str, NodeTile], tuple[str, ...]]:
        changed: dict[str, NodeTile] = {}
        deleted: list[str] = []
        for name in sorted(self._next_nodes(most)):
            row = self._ledger.row_of.get(name)
            tile = self._tile(name, row) if row is not None else None
            before = self._tiles.get(name)
            if tile is None and before is not None:
                deleted.append(name)
                del self._tiles[name]
            elif tile is not None and tile != before:
                changed[name] = self._tiles[name] = tile
        return changed, tuple(deleted)

    def _tile(self, name: str, row: int) -> NodeTile | None:
        on_instances = self._on_instances.get(name, {}).values()
        return node_tile(self._ledger, row, self._nodes.get(name), self._pods, on_instances)

    def _next_nodes(self, most: int | None) -> set[str]:
        rows = self._ledger.changes.rows_since(self._position)
        self._position = self._ledger.changes.position
        if rows is None:
            self._touched_nodes.update(self._ledger.row_of)
        else:
            infos = (self._ledger.node_info(int(row)) for row in rows)
            self._touched_nodes.update(info.name for info in infos if info is not None)
        names = set(islice(self._touched_nodes, most))
        self._touched_nodes -= names
        return names

    def _changed_pending(self, most: int | None) -> tuple[dict[str, PendingPod], tuple[str, ...]]:
        changed: dict[str, PendingPod] = {}
        deleted: list[str] = []
        touched = dict(islice(self._touched_pods.items(), most))
        for uid in touched:
            del self._touched_pods[uid]
        for uid, key in touched.items():
            pod = self._pods.get(uid)
            found = pending_pod(pod, self.configuration) if pod is not None else None
            if found is not None:
                self._pending_uid[key] = uid
            elif self._pending_uid.get(key) != uid:
                continue  # the record belongs to another pod of the same name
            else:
                del self._pending_uid[key]
            if found is None:
                del self._pending[key]
                changed.pop(key, None)
                deleted.append(key)
            elif found != self._pending.get(key):
                changed[key] = self._pending[key] = found
        return changed, tuple(key for key in deleted if key not in changed)


def page_state(
    configuration: Configuration,
    nodes: Sequence[Node],
    pods: Sequence[Pod],
    claims: Sequence[ResourceClaim],
    now_ns: int,
) -> PageState:
    """Build the page of a cluster with these objects. ``now_ns`` is Unix time in nanoseconds."""
    state = PageState(configuration)
    state.time_passed(now_ns)
    state.nodes_replaced(nodes)
    state.pods_replaced(pods)
    state.claims_replaced(claims)
    state.next_difference()
    return state


def _is_known(known: Pod | Node | None, listed: Pod | Node) -> bool:
    """Return whether an object still has the known UID and resourceVersion."""
    version = listed.metadata.resource_version
    same = known is not None and (known.metadata.uid, known.metadata.resource_version) == (
        listed.metadata.uid,
        version,
    )
    return same and version != ""
