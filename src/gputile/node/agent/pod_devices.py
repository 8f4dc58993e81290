"""Describes which device IDs went to which pod, as far as the kubelet still stands by it.

The kubelet names no pod in its calls, and PodResources shows no init containers, so what was answered is remembered
here and in a checkpoint. What a pod has is worth ``unit_mib`` for each ID of memory, the unit of its own pod, for ever.
Where the API server does not know a pod, or nobody does, a stand-in takes the place of its UID.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from gputile.api.well_known import GPU_CORE, GPU_MEMORY
from gputile.core.devices.request import Phase
from gputile.node.agent.device_ids import by_gpu
from gputile.node.agent.known_pods import KnownPod
from gputile.node.agent.node_config import NodeConfig


@dataclass(frozen=True, slots=True, order=True)
class DeviceOwner:
    """A container for which the kubelet's checkpoint has devices, by the UID that the kubelet has for its pod.

    ``directory`` is the name of the allocation directory that it mounts, "" where the answer cannot be read.
    """

    uid: str
    container: str
    directory: str = ""


def directory_name(uid: str, container: str) -> str:
    """Return the name of the directory of one container's allocation: the same for both of its resources."""
    if uid.replace("-", "").isalnum():
        return f"{uid}-{container}"
    return f"{hashlib.sha256(uid.encode()).hexdigest()[:32]}-{container or 'container'}"


_STATIC, _UNKNOWN = "static:", "unknown:"


def static_uid(key: str) -> str:
    """Return what stands for the UID of a pod that the API server does not know: a static pod."""
    return _STATIC + key


def unknown_uid(device_id: str, at_ns: int) -> str:
    """Return what stands for the UID of a pod that nobody knows, which was given ``device_id`` at this Unix time in
    nanoseconds: an init container's IDs are given again to the containers after it.
    """
    return f"{_UNKNOWN}{device_id}:{at_ns}"


def stand_in(uid: str) -> bool:
    return uid.startswith((_STATIC, _UNKNOWN))


class PodContainer(NamedTuple):
    """A container, by the names of its pod; ``uid`` is the pod's, which tells it from a predecessor of its name."""

    uid: str
    namespace: str
    pod: str
    name: str


EMPTY: Mapping[int, frozenset[int]] = MappingProxyType({})


class ContainerDevices(msgspec.Struct, frozen=True):
    """The IDs of one resource that one container got. ``directory`` is the name of its allocation's directory.

    ``mounts`` is what the answer had it mount, each as container path and host path: the kubelet keeps to that at every
    start. None where nobody knows. ``guessed``: the kubelet did not say who asked, so it may be another container that
    mounts the directory.
    """

    container: str
    phase: Phase
    resource: str
    ids: tuple[str, ...]
    directory: str = ""
    mounts: tuple[tuple[str, str], ...] | None = None
    guessed: bool = False


class PodDevices(msgspec.Struct, frozen=True, dict=True):
    """All that one pod got.

    ``gpus`` is the UUID that each index stood for when the IDs were given: after a reboot an index can be another
    GPU's. ``identified`` is unset while nobody knows whose the IDs are; ``uid`` is then a stand-in. ``kubelet_uid`` is
    the UID that the kubelet has for the pod, another one for a static pod; "" where nobody knows.
    """

    uid: str
    namespace: str
    name: str
    unit_mib: int
    mode: str
    trust_group: str
    since_ns: int
    devices: tuple[ContainerDevices, ...] = msgspec.field(name="parts", default=())
    gpus: dict[int, str] = msgspec.field(name="cards", default_factory=dict)
    identified: bool = True
    kubelet_uid: str = ""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @cached_property
    def slots(self) -> dict[str, dict[int, frozenset[int]]]:
        """The slots of each GPU by resource, those of all containers together: what the kubelet keeps for the pod."""
        ids: dict[str, set[str]] = {}
        for devices in self.devices:
            ids.setdefault(devices.resource, set()).update(devices.ids)
        return {resource: by_gpu(held) for resource, held in ids.items()}

    @cached_property
    def indices(self) -> frozenset[int]:
        return frozenset(index for gpus in self.slots.values() for index in gpus)

    @cached_property
    def container_indices(self) -> dict[str, frozenset[int]]:
        found: dict[str, frozenset[int]] = {}
        for devices in self.devices:
            found[devices.container] = found.get(devices.container, frozenset()) | by_gpu(devices.ids).keys()
        return found

    def mib(self, index: int) -> int:
        """Return the MiB of a GPU that the pod holds as memory units; 0 for whole GPUs."""
        return len(self.slots.get(GPU_MEMORY, EMPTY).get(index, ())) * self.unit_mib

    def percent(self, index: int) -> int:
        return len(self.slots.get(GPU_CORE, EMPTY).get(index, ()))

    def container_slots(self, container: str, resource: str) -> Mapping[int, frozenset[int]]:
        devices = self.container_devices(container, resource)
        return by_gpu(devices.ids) if devices else EMPTY

    def container_devices(self, container: str, resource: str) -> ContainerDevices | None:
        return next((p for p in self.devices if p.container == container and p.resource == resource), None)

    def replaced(self, devices: ContainerDevices) -> "PodDevices":
        """Return the pod with ``devices`` in the place of what the container had of the resource."""
        others = tuple(p for p in self.devices if (p.container, p.resource) != (devices.container, devices.resource))
        return self.only((*others, devices))

    def only(self, devices: tuple[ContainerDevices, ...]) -> "PodDevices":
        return msgspec.structs.replace(self, devices=devices)


def has_any(resource: str, ids: Collection[str], devices: ContainerDevices) -> bool:
    return devices.resource == resource and not set(ids).isdisjoint(devices.ids)


def pod_devices_for(
    uid: str, pod: KnownPod | None, key: str, node_config: NodeConfig, trust_group: str, now_ns: int
) -> PodDevices:
    """Return a pod without devices yet, or for the stand-in ``uid`` where ``pod`` is None."""
    namespace, _, name = key.partition("/")
    unit = pod.request.unit_mib if pod and pod.request else node_config.effective_mode.unit_mib
    mode, identified, kubelet_uid = node_config.mode.value, bool(key), pod.kubelet_uid if pod else ""
    return PodDevices(
        uid, namespace, name, unit, mode, trust_group, now_ns, identified=identified, kubelet_uid=kubelet_uid
    )


def with_devices(pod_devices: PodDevices, devices: ContainerDevices, node_config: NodeConfig) -> PodDevices:
    pod_devices = pod_devices.replaced(devices)
    gpus = {gpu.index: gpu.uuid for gpu in node_config.inventory.gpus if gpu.index in pod_devices.indices}
    return msgspec.structs.replace(pod_devices, gpus=gpus | pod_devices.gpus)


def gpus_of(pod_devices: PodDevices, container: str, gpus: int = 0) -> tuple[int, ...]:
    """Return the indices of the GPUs that a container is on.

    ``gpus`` is how many it shares, 0 where it has whole ones. A container that takes over the IDs of an init container
    gets them in any order, perhaps not of each GPU: it is on the GPUs that the pod has.
    """
    held = pod_devices.container_indices.get(container, frozenset())
    if gpus and len(held) != gpus:
        return tuple(sorted(pod_devices.indices))[:gpus]
    return tuple(sorted(held))
