"""Checks whether IDs that the kubelet chose, or is about to be told to choose, can be served."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gputile.api.well_known import GPU_CORE, GPU_MEMORY, MIG_PREFIX, Mode
from gputile.core.devices.inventory import CORE_PERCENT
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.device_ids import by_gpu
from gputile.node.agent.device_lists import displaced
from gputile.node.agent.device_table import ContainerDevices, DeviceTable, PodDevices
from gputile.node.agent.node_config import NodeConfig

SHARED_RESOURCES = (GPU_MEMORY, GPU_CORE)
SlotsByGpu = Mapping[int, frozenset[int]]


class AllocationConflict(Exception):
    """The kubelet's choice cannot be served; the text goes into the pod's status."""


class Occupied(AllocationConflict):
    """It cannot be served beside those who hold the GPUs now; it can once they have gone."""


@dataclass(frozen=True, slots=True)
class AllocationRules:
    """The rules of a node that advertises ``node_config``, beside the pods of ``device_table``; at most ``most_pods``
    may be on a GPU.
    """

    node_config: NodeConfig
    device_table: DeviceTable
    most_pods: int

    def check(self, pod_devices: PodDevices, devices: ContainerDevices, gpus: int, *, reused: bool = False) -> None:
        """Refuse what a container must not start with. ``pod_devices`` is what the pod has once it gets ``devices``.

        ``gpus`` is the number of GPUs that it asks for. ``reused`` says that its IDs are those of an init
        container of the pod: the kubelet takes them in any order, and the pod holds the GPUs anyway.

        Raises:
            Occupied: it is only a matter of time.
            AllocationConflict: says which rule is broken.
        """
        node_config, resource = self.node_config, devices.resource
        if not node_config.advertises(resource):
            withheld = node_config.withheld
            why = withheld.text if withheld is not None else f"the mode is {node_config.mode.value}"
            raise AllocationConflict(f"{resource} is not offered here: {why}")
        taken = [other for other in self.device_table.holders(resource, devices.ids) if other.uid != pod_devices.uid]
        slots: SlotsByGpu = {}  # MIG instances have none: each is one pod's alone
        if not resource.startswith(MIG_PREFIX):
            slots = by_gpu(devices.ids)
        else:
            gone = [
                i
                for i in devices.ids
                if (instance := node_config.instance(resource, i)) is None or not instance.healthy
            ]
            if gone:
                raise AllocationConflict(f"MIG instance {gone[0]} is not there or not healthy")
        self._check_gpus(slots)
        if resource in SHARED_RESOURCES and not reused:
            _check_spread(pod_devices, devices, slots, gpus)
        if taken:
            raise Occupied(f"device IDs are held by pod {taken[0].key} already")
        if resource in SHARED_RESOURCES:
            self._check_room(pod_devices, slots)
        self._check_company(pod_devices, slots)

    def check_others(self, pod_devices: PodDevices, resource: str) -> None:
        """Refuse what cannot be on its GPUs beside the other pods: for want of room, or for their sake.

        Raises:
            Occupied: says who or what is in the way.
        """
        if resource.startswith(MIG_PREFIX):
            return
        slots = pod_devices.slots.get(resource, {})
        if resource in SHARED_RESOURCES:
            self._check_room(pod_devices, slots)
        self._check_company(pod_devices, slots)

    def given_twice(self, pod_devices: PodDevices, devices: ContainerDevices) -> str | None:
        """Return why a container must not start with IDs that another pod holds too, None where it may.

        The kubelet can give the same IDs to two pods: a ``List`` that finds a pod gone, while the kubelet waits for an
        answer, makes it count anew without those that it is about to give (``UpdateAllocatedDevices`` in its device
        manager). An ID of memory or compute is a name, and each of the pods has its own limits: there it is enough that
        the GPU has room for both.
        """
        others = [
            other for other in self.device_table.holders(devices.resource, devices.ids) if other.uid != pod_devices.uid
        ]
        if not others:
            return None
        who = f"the kubelet has given {devices.ids[0]} to pod {others[0].key} too"
        if self.node_config.replicated and not devices.resource.startswith(MIG_PREFIX):
            return None
        if devices.resource not in SHARED_RESOURCES:
            return f"{who}: delete one of the two pods, so that it is admitted anew"
        try:
            self._check_room(pod_devices, by_gpu(devices.ids))
        except AllocationConflict as error:
            return f"{who}, and {error}: delete one of the two pods, so that it is admitted anew"
        return None

    def left(self, index: int, uid: str) -> tuple[int, int]:
        """Return the MiB and the percent of compute that pods other than ``uid`` leave of a GPU."""
        gpu = self.node_config.gpu(index)
        percent = sum(other.percent(index) for other in self.device_table.on(index, uid))
        return (gpu.mib if gpu is not None else 0) - self.device_table.mib(index, uid), CORE_PERCENT - percent

    def stranger_on(self, pod_devices: PodDevices, index: int) -> PodDevices | None:
        """Return a pod on the GPU that the pod must not share it with; unknown pods are judged once they are known."""
        if not (self.node_config.mode is Mode.SHARE or self.node_config.replicated) or not pod_devices.identified:
            return None
        others = (other for other in self.device_table.on(index, pod_devices.uid) if other.identified)
        return next((other for other in others if other.trust_group != pod_devices.trust_group), None)

    def check_trust_groups(self, pod_devices: PodDevices, indices: Iterable[int]) -> None:
        """Refuse GPUs without isolation that pods of another trust group use.

        Raises:
            Occupied: says which GPU and pod.
        """
        for index in indices:
            stranger = self.stranger_on(pod_devices, index)
            if stranger is not None:
                raise Occupied(f"GPU {index} is used by pod {stranger.key} of another trust group, without isolation")

    def _check_gpus(self, slots: SlotsByGpu) -> None:
        for index in slots:
            gpu = self.node_config.gpu(index)
            if gpu is None:
                raise AllocationConflict(f"GPU {index} is not there any more")
            if not gpu.healthy:
                raise AllocationConflict(f"GPU {index} is unhealthy")
            if displaced(gpu, self.device_table):
                raise AllocationConflict(f"pods of another GPU hold device IDs of GPU {index}")

    def _check_room(self, pod_devices: PodDevices, slots: SlotsByGpu) -> None:
        for index in slots:
            gpu = self.node_config.gpu(index)
            if gpu is None:
                continue
            (mib, percent), own = self.left(index, pod_devices.uid), pod_devices.mib(index)
            if own > mib:
                raise Occupied(f"GPU {index} has {mib} of {gpu.mib} MiB left, the pod would hold {own}")
            if (taken := CORE_PERCENT - percent + pod_devices.percent(index)) > CORE_PERCENT:
                raise Occupied(f"GPU {index} would have {taken} of {CORE_PERCENT} percent of its compute taken")

    def _check_company(self, pod_devices: PodDevices, slots: SlotsByGpu) -> None:
        for index in slots:
            others = list(self.device_table.on(index, pod_devices.uid))
            if not self.node_config.mode.shared and not self.node_config.replicated and others:
                raise Occupied(f"GPU {index} is held by pod {others[0].key}")
            if self.node_config.mode.isolates_memory and len(others) >= self.most_pods:
                raise Occupied(f"GPU {index} holds {len(others)} pods, the most that a GPU may hold here")
        self.check_trust_groups(pod_devices, slots)


def _check_spread(pod_devices: PodDevices, devices: ContainerDevices, slots: SlotsByGpu, gpus: int) -> None:
    names = ", ".join(f"GPU {index}" for index in slots)
    if len(slots) != gpus:
        asked = "one GPU" if gpus == 1 else f"{gpus} GPUs"
        raise AllocationConflict(f"the kubelet chose {devices.resource} on {names}; the container asks for {asked}")
    if len({len(held) for held in slots.values()}) > 1:
        raise AllocationConflict(f"the kubelet chose unequal parts of {devices.resource} on {names}")
    for other in SHARED_RESOURCES:
        there = pod_devices.container_slots(devices.container, other)
        if other != devices.resource and there and there.keys() != slots.keys():
            raise AllocationConflict(f"the container's {other} is on other GPUs than its {devices.resource} on {names}")


def rules_of(state: AllocationState, device_table: DeviceTable | None = None) -> AllocationRules:
    """Return the rules by which pods get devices beside those of ``device_table``, by default of all pods."""
    beside = state.device_table if device_table is None else device_table
    return AllocationRules(state.node_config, beside, state.configuration.max_pods_per_gpu)
