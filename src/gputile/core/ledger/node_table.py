"""Keeps the nodes as rows of arrays, and counts there what pods take of them.

``NodeTable`` knows neither pods nor events: the ledger says which booking is counted and which no more.
"""

from collections.abc import Collection, Iterator

from gputile.api.core import Pod
from gputile.core.devices.inventory import model_label_value, model_number
from gputile.core.kube_predicates.pod_requests import NO_HOST_RESOURCES, HostResources, host_request
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.node_arrays import MIXED_GROUPS, NO_GROUP, NodeArrays, group_number
from gputile.core.ledger.node_info import NodeInfo, ServingMode


class NodeTable:
    """One row a node; rows of nodes that are gone are used again."""

    def __init__(self) -> None:
        self.node_arrays = NodeArrays()
        self.row_of: dict[str, int] = {}
        self._node_info: dict[int, NodeInfo] = {}  # by row
        self._free_rows: list[int] = list(range(self.node_arrays.rows - 1, -1, -1))

    def copy(self) -> "NodeTable":
        twin = NodeTable()
        twin.node_arrays = self.node_arrays.copy()
        twin.row_of = self.row_of.copy()
        twin._node_info = self._node_info.copy()
        twin._free_rows = self._free_rows.copy()
        return twin

    # -- nodes

    def put(self, node_info: NodeInfo) -> int | None:
        """Write down a node as if nothing were booked on it; return its row, None where nothing of it has changed."""
        row = self.row_of.get(node_info.name)
        if row is not None and self._node_info[row] == node_info:
            return None
        if row is None:
            row = self.row_of[node_info.name] = self._new_row()
        gpus = node_info.inventory.gpus
        self.node_arrays.grow(self.node_arrays.rows, len(gpus))
        self._node_info[row] = node_info
        arrays = self.node_arrays
        arrays.clear(row)
        arrays.serving_mode[row] = node_info.serving_mode
        arrays.max_pods_per_gpu[row] = node_info.max_pods_per_gpu
        arrays.unit[row] = node_info.unit_mib
        arrays.spread[row] = node_info.placement == "spread"
        arrays.grouped[row] = node_info.grouped
        arrays.packed[row] = node_info.placement == "packing" and not node_info.by_claims
        arrays.by_claims[row] = node_info.by_claims
        arrays.all_cpu[row] = arrays.cpu[row] = node_info.host.cpu
        arrays.all_host_mib[row] = arrays.host_mib[row] = node_info.host.mib
        for i, gpu in enumerate(gpus):
            arrays.total[row, i] = node_info.gpu_total(i)
            arrays.usable[row, i] = gpu.healthy
            arrays.model[row, i] = model_number(model_label_value(gpu.model))
        return row

    def drop(self, name: str) -> int | None:
        row = self.row_of.pop(name, None)
        if row is not None:
            self.node_arrays.clear(row)
            del self._node_info[row]
            self._free_rows.append(row)
        return row

    def block(self, row: int, *, blocked: bool) -> None:
        """Let a node take nothing, or again what it serves.

        A node that serves nothing of gputile's stays as it is: what is wrong with it is the better reason, and GPUs
        that another device plugin hands out are known to nobody but it. So does a node of claims: kube-scheduler counts
        there.
        """
        node_info = self._node_info[row]
        blocks = blocked and node_info.serving_mode.blocks and not node_info.by_claims
        self.node_arrays.serving_mode[row] = ServingMode.BLOCKED if blocks else node_info.serving_mode

    def _new_row(self) -> int:
        if not self._free_rows:
            old = self.node_arrays.rows
            self.node_arrays.grow(old + 1, self.node_arrays.gpus)
            self._free_rows = list(range(self.node_arrays.rows - 1, old - 1, -1))
        return self._free_rows.pop()

    # -- what is booked

    def count(self, row: int, booking: Booking, sign: int, there: Collection[Booking]) -> bool:
        """Count a booking that came to the node in ``row`` (1), or went (-1). Return ``knows_gpus``.

        ``there`` are the bookings on the node from now on.
        """
        arrays, node_info, known = self.node_arrays, self._node_info[row], booking.allocation is not None
        self.charge(row, HostResources(sign * booking.host.cpu, sign * booking.host.mib))
        for share in booking.gpus:
            column = node_info.column(share.uuid)
            if column is None:
                known = False
                continue
            mib, percent = booking.takes(share, arrays.total[row, column], node_info.replicas)
            arrays.used[row, column] += sign * mib
            arrays.percent[row, column] += sign * percent
            arrays.pods[row, column] += sign
            if arrays.grouped[row]:
                if sign > 0:
                    groups = {group_number(booking.trust_group), int(arrays.group[row, column])} - {NO_GROUP}
                else:
                    groups = {group_number(other.trust_group) for other in there if other.on_gpu(share.uuid)}
                arrays.group[row, column] = MIXED_GROUPS if len(groups) > 1 else next(iter(groups), NO_GROUP)
        return known

    def charge(self, row: int, host: HostResources) -> None:
        """Take CPU and memory from the node in ``row``; negative amounts come back."""
        self.node_arrays.cpu[row] -= host.cpu
        self.node_arrays.host_mib[row] -= host.mib

    # -- questions

    def node_info(self, row: int) -> NodeInfo | None:
        return self._node_info.get(row)

    def nodes(self) -> Iterator[tuple[int, NodeInfo]]:
        for name in sorted(self.row_of):
            yield self.row_of[name], self._node_info[self.row_of[name]]

    def knows_gpus(self, row: int, booking: Booking) -> bool:
        """Return whether a booking names its GPUs, and the node in ``row`` has them all."""
        node_info = self._node_info[row]
        return booking.allocation is not None and all(node_info.column(each.uuid) is not None for each in booking.gpus)


class NonGpuPods:
    """The bound pods without a booking, and what they ask for on each node."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, HostResources]] = {}  # by UID
        self._on_node: dict[str, HostResources] = {}

    def copy(self) -> "NonGpuPods":
        twin = NonGpuPods()
        twin._held, twin._on_node = self._held.copy(), self._on_node.copy()
        return twin

    def on_node(self, name: str) -> HostResources:
        """Return what such pods ask for on a node."""
        return self._on_node.get(name, NO_HOST_RESOURCES)

    def put(self, pod: Pod) -> tuple[tuple[str, HostResources], ...]:
        """Take in a pod without a booking; return by how much that changes what is in use of which nodes."""
        node = "" if pod.finished else pod.spec.node_name
        host = host_request(pod) if node else NO_HOST_RESOURCES
        if host != NO_HOST_RESOURCES and self._held.get(pod.metadata.uid) == (node, host):
            return ()
        changes = self.drop(pod.metadata.uid)
        if host == NO_HOST_RESOURCES:
            return changes
        self._held[pod.metadata.uid] = node, host
        return (*changes, self._add(node, host))

    def drop(self, uid: str) -> tuple[tuple[str, HostResources], ...]:
        """Forget a pod; return by how much that changes what is in use of which node."""
        node, host = self._held.pop(uid, ("", NO_HOST_RESOURCES))
        return (self._add(node, HostResources(-host.cpu, -host.mib)),) if node else ()

    def uids(self) -> frozenset[str]:
        return frozenset(self._held)

    def _add(self, node: str, host: HostResources) -> tuple[str, HostResources]:
        before = self.on_node(node)
        left = HostResources(before.cpu + host.cpu, before.mib + host.mib)
        if left != NO_HOST_RESOURCES:
            self._on_node[node] = left
        else:
            self._on_node.pop(node, None)
        return node, host
