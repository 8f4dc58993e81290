"""Checks whether a pod can use the device IDs that the kubelet chose or the agent prefers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gputile.api.well_known import GPU_CORE, GPU_MEMORY, MIG_PREFIX, Mode
from gputile.core.devices.inventory import CORE_PERCENT, Gpu
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.device_table import ContainerDevices, DeviceTable, PodDevices, by_gpu
from gputile.node.agent.node_config import MigDevice, NodeConfig

SHARED_RESOURCES = (GPU_MEMORY, GPU_CORE)
IdsByGpu = Mapping[str, frozenset[str]]


class AllocationConflict(Exception):
    """The kubelet's choice of IDs cannot be served. The text appears in the pod's status."""


class Occupied(AllocationConflict):
    """The pod cannot be served until other pods release the GPUs."""


@dataclass(frozen=True, slots=True)
class AllocationRules:
    """The rules for new allocations on a node that already has the pods in ``device_table``.

    At most ``most_pods`` pods may be on a GPU.
    """

    node_config: NodeConfig
    device_table: DeviceTable
    most_pods: int

    def check(self, pod_devices: PodDevices, devices: ContainerDevices, gpus: int) -> None:
        """Check the allocation of ``devices``, which ``pod_devices`` includes.

        ``gpus`` is the number of requested GPUs. It is 0 if the number is unknown, or if IDs come
        from an init container of the pod. The kubelet takes such IDs in any order, and the pod has
        their GPUs anyway.

        Raises:
            Occupied: The allocation cannot be served until other pods release the GPUs.
            AllocationConflict: A rule is broken, which the text states.
        """
        node_config, resource = self.node_config, devices.resource
        if not node_config.advertises(resource):
            why = node_config.withheld or f"the mode is {node_config.mode}"
            raise AllocationConflict(f"{resource} is not offered here: {why}")
        by_uuid = by_gpu(devices.ids)
        for uuid in by_uuid:
            self._check_device(resource, uuid)
        if resource in SHARED_RESOURCES and gpus:
            self._check_spread(pod_devices, devices, by_uuid, gpus)
        for other, _ in self.device_table.holders(resource, devices.ids):
            if other.uid != pod_devices.uid:
                raise Occupied(f"device IDs are already allocated to pod {other.key}")
        self.check_others(pod_devices)

    def check_others(self, held: PodDevices) -> None:
        """Check that a pod or claim may share its GPUs with the pods that are on them.

        The GPUs must have enough capacity, and the pods must be in the same trust group. Raises
        Occupied if a check fails. Its text names the pods or the limit.
        """
        if self.node_config.mode.shared:
            self._check_room(held)
        for uuid in sorted(held.gpus):
            others = list(self.device_table.on(uuid, held.uid))
            name = self.node_config.names([uuid])
            slices = sum(each.slices(uuid) for each in (held, *others))
            replicas = self.node_config.effective_mode.replicas
            if not self.node_config.mode.shared and others and slices > replicas:
                used_by = ", ".join(sorted(other.key for other in others))
                raise Occupied(f"{name} is used by pod {used_by}")
            if self.node_config.mode.isolates_memory and len(others) >= self.most_pods:
                raise Occupied(
                    f"{name} holds {len(others)} pods, the most that a GPU may hold here"
                )
        self.check_trust_groups(held, sorted(held.gpus))

    def given_twice(self, pod_devices: PodDevices, devices: ContainerDevices) -> str | None:
        """Return why a container must not start with IDs that another pod also has, or None.

        The kubelet can allocate the same IDs to two pods. This happens if a pod ends while the
        kubelet waits for an Allocate response. A ``List`` call then makes the kubelet recount the
        IDs in use, without the IDs of this response (``UpdateAllocatedDevices`` in its device
        manager). IDs of memory, compute and time slices are interchangeable. For them it is
        sufficient that the GPU has room for both pods.
        """
        if devices.resource in SHARED_RESOURCES or self.node_config.replicated:
            return None
        for other, _ in self.device_table.holders(devices.resource, devices.ids):
            if other.uid != pod_devices.uid:
                who = f"the kubelet has also allocated {devices.ids[0]} to pod {other.key}"
                return f"{who}: delete one of the two pods, so that it is admitted again"
        return None

    def left(self, uuid: str, uid: str) -> tuple[int, int]:
        """Return the MiB and the percent of compute of a GPU that no pod except ``uid`` has."""
        gpu, table = self.node_config.gpu(uuid), self.device_table
        mib = (gpu.mib if gpu is not None else 0) - table.mib(uuid, uid)
        return mib, CORE_PERCENT - sum(other.percent(uuid) for other in table.on(uuid, uid))

    def check_trust_groups(self, pod_devices: PodDevices, uuids: Iterable[str]) -> None:
        """Check that no other trust group uses the GPUs, if the mode does not isolate pods.

        An unknown pod is checked when it has been identified. Raises Occupied if another trust
        group uses a GPU. Its text names the GPU and the pod.
        """
        isolated = self.node_config.mode is not Mode.SHARE and not self.node_config.replicated
        if isolated or not pod_devices.identified:
            return
        for uuid in uuids:
            for other in self.device_table.on(uuid, pod_devices.uid):
                if other.identified and other.trust_group != pod_devices.trust_group:
                    raise Occupied(
                        f"{self.node_config.names([uuid])} is used by pod {other.key} of another "
                        "trust group, without isolation"
                    )

    def _check_device(self, resource: str, uuid: str) -> None:
        device: Gpu | MigDevice | None = self.node_config.gpu(uuid)
        if is_mig := resource.startswith(MIG_PREFIX):
            of_node = self.node_config.instances
            device = next((i for i in of_node if (i.resource, i.uuid) == (resource, uuid)), None)
        if device is None:
            kind = "MIG instance" if is_mig else "GPU"
            raise AllocationConflict(f"{kind} {uuid[:64]} does not exist on this node")
        if not device.healthy:
            raise AllocationConflict(f"{self.node_config.names([uuid])} is unhealthy")

    def _check_room(self, pod_devices: PodDevices) -> None:
        for gpu in self.node_config.gpus(pod_devices.gpus):
            (mib, percent), own = self.left(gpu.uuid, pod_devices.uid), pod_devices.mib(gpu.uuid)
            holders = ", ".join(
                sorted(other.key for other in self.device_table.on(gpu.uuid, pod_devices.uid))
            )
            if own > mib:
                raise Occupied(
                    f"GPU {gpu.index} has {mib} of {gpu.mib} MiB left, but the pod needs {own}; "
                    f"used by {holders}"
                )
            if (taken := CORE_PERCENT - percent + pod_devices.percent(gpu.uuid)) > CORE_PERCENT:
                raise Occupied(
                    f"GPU {gpu.index} would need {taken} of {CORE_PERCENT} percent of its compute; "
                    f"used by {holders}"
                )

    def _check_spread(
        self, pod_devices: PodDevices, devices: ContainerDevices, by_uuid: IdsByGpu, gpus: int
    ) -> None:
        names = self.node_config.names(by_uuid)
        if len(by_uuid) != gpus:
            asked = "one GPU" if gpus == 1 else f"{gpus} GPUs"
            raise AllocationConflict(
                f"the kubelet chose {devices.resource} on {names}; the container asks for {asked}"
            )
        if len({len(held) for held in by_uuid.values()}) > 1:
            raise AllocationConflict(
                f"the kubelet chose unequal parts of {devices.resource} on {names}"
            )
        for other in SHARED_RESOURCES:
            there = pod_devices.container_ids(devices.container, other)
            if other != devices.resource and there and there.keys() != by_uuid.keys():
                raise AllocationConflict(
                    f"the container's {other} is on other GPUs than its {devices.resource} on "
                    f"{names}"
                )


def rules_of(state: AllocationState, device_table: DeviceTable | None = None) -> AllocationRules:
    """Return the rules for allocations next to the pods of ``device_table``.

    Without ``device_table``, the pods are those of the state.
    """
    beside = state.device_table if device_table is None else device_table
    return AllocationRules(state.node_config, beside, state.configuration.max_pods_per_gpu)
