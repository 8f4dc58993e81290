"""Stores nodes and their bookings in arrays, with one row per node and one column per GPU.

Placement reads the arrays. Only ``NodeTable`` changes them. The table knows neither pods nor
events: the ledger calls it for each node and booking that is added or removed. Rows and columns
grow by doubling. A row without a node has no usable GPU.
"""

from collections.abc import Collection, Iterator, KeysView

import numpy as np
import numpy.typing as npt

from gputile.api.core import Pod
from gputile.core.devices.inventory import model_label_value, model_number
from gputile.core.kube_predicates.pod_requests import NO_HOST_RESOURCES, HostResources, host_request
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.node_info import NodeInfo, ServingMode

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]

NO_GROUP, MIXED_GROUPS = 0, -1


def group_number(name: str) -> int:
    """Return the number of a trust group in ``NodeArrays.group``.

    The number is Python's 64-bit hash, whose key is random in each process. So nobody can construct
    two names with the same number. The number is never -1 or 0 (``MIXED_GROUPS``, ``NO_GROUP``).
    """
    return hash(name) or 1


class NodeArrays:
    """The arrays of all nodes. Each array has the shape [rows, GPUs] or [rows].

    ``used``, ``percent``, ``cpu`` and ``host_mib`` have types that can hold any sum of
    amounts in annotations and pods.
    """

    def __init__(self, rows: int = 16, gpus: int = 8) -> None:
        self.total: Int32 = np.zeros((rows, gpus), np.int32)  # MiB
        self.used: Int64 = np.zeros((rows, gpus), np.int64)  # MiB
        self.percent: Int64 = np.zeros((rows, gpus), np.int64)  # of compute, in use
        self.pods: Int32 = np.zeros((rows, gpus), np.int32)  # or time slices in use
        # The trust group of the GPU's pods, NO_GROUP or MIXED_GROUPS. Only for ``grouped`` nodes
        self.group: Int64 = np.zeros((rows, gpus), np.int64)
        self.usable: Bool = np.zeros((rows, gpus), np.bool_)  # the GPU exists and is healthy
        self.model: Int64 = np.zeros((rows, gpus), np.int64)  # the number of the model
        self.serving_mode: Int32 = np.zeros(rows, np.int32)  # a ``ServingMode``
        self.max_pods_per_gpu: Int32 = np.zeros(rows, np.int32)
        self.unit: Int32 = np.zeros(rows, np.int32)  # the memory unit in MiB
        self.spread: Bool = np.zeros(rows, np.bool_)  # pods get the least used GPU
        self.grouped: Bool = np.zeros(rows, np.bool_)  # each GPU is for one trust group only
        self.packed: Bool = np.zeros(rows, np.bool_)  # GPUs are chosen by the policy ``packing``
        self.by_claims: Bool = np.zeros(rows, np.bool_)  # GPUs are requested by ResourceClaims
        self.all_cpu: Int64 = np.zeros(rows, np.int64)  # the milli-CPU that pods may use
        self.all_host_mib: Int64 = np.zeros(rows, np.int64)  # the MiB of RAM that pods may use
        self.cpu: Int64 = np.zeros(rows, np.int64)  # the part of ``all_cpu`` that is left
        self.host_mib: Int64 = np.zeros(rows, np.int64)  # the part of ``all_host_mib`` that is left

    @property
    def rows(self) -> int:
        return int(self.total.shape[0])

    @property
    def gpus(self) -> int:
        return int(self.total.shape[1])

    def grow(self, rows: int, gpus: int) -> None:
        new_rows, new_gpus = self.rows, self.gpus
        while new_rows < rows:
            new_rows *= 2
        while new_gpus < gpus:
            new_gpus *= 2
        if (new_rows, new_gpus) == (self.rows, self.gpus):
            return
        for name, old in list(vars(self).items()):
            shape = (new_rows, new_gpus) if old.ndim == 2 else (new_rows,)
            new = np.zeros(shape, old.dtype)
            new[tuple(slice(length) for length in old.shape)] = old
            setattr(self, name, new)

    def copy(self) -> "NodeArrays":
        twin = NodeArrays.__new__(NodeArrays)
        for name, array in vars(self).items():
            setattr(twin, name, array.copy())
        return twin

    def clear(self, row: int) -> None:
        for array in vars(self).values():
            array[row] = 0


class Changes:
    """A bounded log of changed rows. Readers that are too far behind recompute all rows."""

    def __init__(self, retained: int = 4096) -> None:
        self._retained = retained
        self._rows: list[int] = []
        self._base = 0

    @property
    def position(self) -> int:
        """The number of changes so far, to pass to the next call of ``rows_since``."""
        return self._base + len(self._rows)

    def add(self, row: int) -> None:
        self._rows.append(row)
        if len(self._rows) >= 2 * self._retained:
            self._base += self._retained
            del self._rows[: self._retained]

    def rows_since(self, position: int) -> Rows | None:
        """Return the distinct rows changed since ``position``, or None if the log is too short."""
        if position < self._base:
            return None
        # The first call of numpy.unique would load numpy.ma, which takes 40 ms during a request.
        return np.array(sorted(set(self._rows[position - self._base :])), dtype=np.intp)


class NodeTable:
    """The arrays, with one row for each node. Rows of deleted nodes are reused."""

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

    def set(self, node_info: NodeInfo) -> int | None:
        """Store a node without bookings. Return its row, or None if the node has not changed."""
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
        """Block or unblock a node. No pods are bound to a blocked node.

        These nodes are never blocked:

        - a node that already serves nothing for another reason
        - a node on which gputile does not book individual GPUs (``ServingMode.blocks``)
        - a node that serves claims, since kube-scheduler counts the GPUs there
        """
        node_info = self._node_info[row]
        blocks = blocked and node_info.serving_mode.blocks and not node_info.by_claims
        self.node_arrays.serving_mode[row] = (
            ServingMode.BLOCKED if blocks else node_info.serving_mode
        )

    def _new_row(self) -> int:
        if not self._free_rows:
            old = self.node_arrays.rows
            self.node_arrays.grow(old + 1, self.node_arrays.gpus)
            self._free_rows = list(range(self.node_arrays.rows - 1, old - 1, -1))
        return self._free_rows.pop()

    # -- what is booked

    def count(self, row: int, booking: Booking, sign: int, there: Collection[Booking]) -> bool:
        """Add (1) or remove (-1) a booking on the node in ``row``.

        Return whether all GPUs of the booking are known. ``there`` are the bookings on the node
        after the change.
        """
        arrays, node_info = self.node_arrays, self._node_info[row]
        known = booking.allocation is not None and (node_info.sliced or not booking.time_sliced)
        self.charge(row, HostResources(sign * booking.host.cpu, sign * booking.host.mib))
        for share in booking.gpus:
            column = node_info.column(share.uuid)
            if column is None:
                known = False
                continue
            mib, percent = booking.amounts(share, arrays.total[row, column], node_info.replicas)
            arrays.used[row, column] += sign * mib
            arrays.percent[row, column] += sign * percent
            arrays.pods[row, column] += sign
            if arrays.grouped[row]:
                if sign > 0:
                    groups = {group_number(booking.trust_group), int(arrays.group[row, column])} - {
                        NO_GROUP
                    }
                else:
                    groups = {
                        group_number(other.trust_group)
                        for other in there
                        if other.on_gpu(share.uuid)
                    }
                arrays.group[row, column] = (
                    MIXED_GROUPS if len(groups) > 1 else next(iter(groups), NO_GROUP)
                )
        return known

    def charge(self, row: int, host: HostResources) -> None:
        """Subtract CPU and memory from what is left on a node. Amounts may be negative."""
        self.node_arrays.cpu[row] -= host.cpu
        self.node_arrays.host_mib[row] -= host.mib

    # -- questions

    def node_info(self, row: int) -> NodeInfo | None:
        return self._node_info.get(row)

    def nodes(self) -> Iterator[tuple[int, NodeInfo]]:
        for name in sorted(self.row_of):
            yield self.row_of[name], self._node_info[self.row_of[name]]


class NonGpuPods:
    """The bound pods without a booking, and the sum of their requests on each node."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, HostResources]] = {}  # by UID
        self._on_node: dict[str, HostResources] = {}

    def copy(self) -> "NonGpuPods":
        twin = NonGpuPods()
        twin._held, twin._on_node = self._held.copy(), self._on_node.copy()
        return twin

    def on_node(self, name: str) -> HostResources:
        return self._on_node.get(name, NO_HOST_RESOURCES)

    def set(self, pod: Pod) -> tuple[tuple[str, HostResources], ...]:
        """Add or update a pod without a booking. Return how much each node's usage changes."""
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
        """Remove a pod. Return how much the usage of its node changes."""
        node, host = self._held.pop(uid, ("", NO_HOST_RESOURCES))
        return (self._add(node, HostResources(-host.cpu, -host.mib)),) if node else ()

    def uids(self) -> KeysView[str]:
        return self._held.keys()

    def _add(self, node: str, host: HostResources) -> tuple[str, HostResources]:
        before = self.on_node(node)
        left = HostResources(before.cpu + host.cpu, before.mib + host.mib)
        if left != NO_HOST_RESOURCES:
            self._on_node[node] = left
        else:
            self._on_node.pop(node, None)
        return node, host
