"""Computes what is taken on each GPU of this node, by the core that the scheduler uses.

A pod counts with what it really holds once it has been admitted, and with what is booked for it until then. The facts
of the node are made by the very function that the scheduler's ledger uses, from the same annotation that the agent
publishes.

A booked pod needs no choice. The code that chooses needs numpy, 10 MiB on every node, so it is imported when needed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, ObjectMeta
from gputile.api.well_known import INVENTORY_ANNOTATION, MODE_LABEL, Mode
from gputile.core.devices.inventory import Inventory, encode_inventory
from gputile.core.devices.request import Shape
from gputile.core.ledger.node_info import NodeInfo, node_info_of
from gputile.node.agent.state.device_table import DeviceTable
from gputile.node.agent.state.known_pods import KnownPod
from gputile.node.agent.state.pod_devices import PodDevices

if TYPE_CHECKING:
    from gputile.core.ledger.snapshot import GpuState


@dataclass(slots=True)
class _Taken:
    mib: int = 0
    percent: int = 0
    pods: int = 0
    groups: frozenset[str] = frozenset()


def node_info(inventory: Inventory, mode: Mode, labels: Mapping[str, str], configuration: Configuration) -> NodeInfo:
    meta = ObjectMeta(
        name="self",
        labels={**labels, MODE_LABEL: mode.value},
        annotations={INVENTORY_ANNOTATION: encode_inventory(inventory)},
    )
    return node_info_of(Node(metadata=meta), configuration)


class FreeCapacity:
    """The GPUs of the node and who is on them, at one moment."""

    def __init__(self, node: NodeInfo, device_table: DeviceTable, pods: Iterable[KnownPod], without: str = "") -> None:
        self._node = node
        self._groups: dict[str, int] = {}
        self._taken = {gpu.index: _Taken() for gpu in node.inventory.gpus}
        known = {pod.uid: pod for pod in pods if pod.alive}
        for pod_devices in device_table:
            if pod_devices.uid != without:
                self._hold(pod_devices, known.get(pod_devices.uid))
        for uid, pod in known.items():
            if uid != without and device_table.get(uid) is None and pod.allocation is not None:
                for share in pod.allocation.gpus:
                    self._add(share.index, share.mib, share.percent, pod.trust_group)

    def choose(self, shape: Shape, trust_group: str, usable: Iterable[int]) -> tuple[int, ...] | None:
        """Return the indices of the GPUs that a pod gets of those that are ``usable``; None where it does not fit."""
        from gputile.core.ledger.node_arrays import NO_GROUP
        from gputile.core.ledger.snapshot import NodeState
        from gputile.core.placement.choose import choose_gpus

        allowed = frozenset(usable)
        state = NodeState(
            self._node, self._node.serving_mode, tuple(self._state(i, allowed) for i in range(len(self._taken)))
        )
        chosen = choose_gpus(state, shape, self._groups.get(trust_group, NO_GROUP))
        return tuple(state.gpu.index for state in chosen) if chosen else None

    def pods_on(self, index: int) -> int:
        return self._taken[index].pods if index in self._taken else 0

    def _state(self, position: int, allowed: frozenset[int]) -> "GpuState":
        from gputile.core.ledger.node_arrays import MIXED_GROUPS, NO_GROUP
        from gputile.core.ledger.snapshot import GpuState

        gpu = self._node.inventory.gpus[position]
        taken, group = self._taken[gpu.index], NO_GROUP
        if taken.groups:
            group = MIXED_GROUPS if len(taken.groups) > 1 else self._groups[next(iter(taken.groups))]
        if gpu.index not in allowed:
            gpu = msgspec.structs.replace(gpu, healthy=False)
        return GpuState(gpu, self._node.gpu_total(position), taken.mib, taken.percent, taken.pods, group)

    def _hold(self, pod_devices: PodDevices, pod: KnownPod | None) -> None:
        """Count a pod's devices, and what else of its booking is still to come on the same GPUs."""
        booked = {share.index: share for share in pod.allocation.gpus} if pod and pod.allocation else {}
        if not pod_devices.indices <= booked.keys():
            booked = {}
        for index in sorted(pod_devices.indices | booked.keys()):
            share = booked.get(index)
            mib, percent = pod_devices.mib(index), pod_devices.percent(index)
            if share is not None:
                mib, percent = max(mib, share.mib), max(percent, share.percent)
            self._add(index, mib, percent, pod_devices.trust_group)

    def _add(self, index: int, mib: int, percent: int, trust_group: str) -> None:
        taken = self._taken.get(index)
        if taken is None:
            return
        self._groups.setdefault(trust_group, len(self._groups) + 1)
        self._taken[index] = replace(
            taken,
            mib=taken.mib + mib,
            percent=taken.percent + percent,
            pods=taken.pods + 1,
            groups=taken.groups | {trust_group},
        )
