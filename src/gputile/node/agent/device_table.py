"""Names device IDs, and answers who holds what on which GPU.

Device IDs are named as NVIDIA's plugin does, so that tools that read PodResources, such as DCGM's exporter, find the
GPU of a pod. The device ID of a whole GPU is its UUID, that of a MIG instance the instance's UUID. A part of a GPU (a
memory unit, a percent of compute, a time slice) is the UUID, two colons and a number: ``GPU-4c8e...::412``. So a
container is on the GPU that its IDs name, however the kubelet chose them. The number is only a name;
``device_lists`` says what a part is worth.

The kubelet's PodResources ``List`` has the device IDs of each container of each pod. It has the pod that is being
admitted, whose containers have no devices yet, and leaves out init containers that are not sidecars.

The table is computed as a whole (``holdings.derive``) and never changed. A row is what one pod holds by the kubelet's
checkpoint, by the directory of a container that runs, or by an answer that the kubelet has yet to write down.

The kubelet names no pod in its calls. Its checkpoint does: ``KubeletEntry`` is what it has written down for one
resource of a container, and ``Limits`` what the agent wrote into the directory that the container mounts.
What a pod has is worth ``unit_mib`` for each ID of memory, the unit of its own pod, for ever.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from gputile.api.well_known import DRIVER, GPU_CORE, GPU_MEMORY
from gputile.core.devices.allocation import GpuShare
from gputile.core.devices.request import Phase

_SEPARATOR = "::"


def part_id(uuid: str, number: int) -> str:
    """Return the ID of a part of a GPU.

    >>> part_id("GPU-4c8e", 412)
    'GPU-4c8e::412'
    """
    return f"{uuid}{_SEPARATOR}{number}"


def by_gpu(device_ids: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return the IDs by the UUID of the GPU or MIG instance that they name, in the order of the UUIDs."""
    found: dict[str, list[str]] = {}
    for device_id in device_ids:  # the kubelet names all free IDs of the node in each of its questions
        uuid = device_id.partition(_SEPARATOR)[0]
        if uuid in found:
            found[uuid].append(device_id)
        else:
            found[uuid] = [device_id]
    return {uuid: frozenset(found[uuid]) for uuid in sorted(found)}


def in_order(device_ids: Iterable[str]) -> list[str]:
    """Return the IDs of one GPU in the order of their numbers."""
    return sorted(sorted(device_ids), key=len)


Resources = Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class ListedPod:
    """One pod: its containers in the order of its spec, with the IDs of each resource."""

    namespace: str
    name: str
    containers: Mapping[str, Resources] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def ids(self, container: str, resource: str) -> frozenset[str]:
        return self.containers.get(container, {}).get(resource, frozenset())

    def parts(self) -> Iterator[tuple[str, str, frozenset[str]]]:
        for container, resources in self.containers.items():
            for resource, ids in resources.items():
                yield container, resource, ids


Listing = Mapping[str, ListedPod]
"""The listed pods by key."""


LIMITS_VERSION = 1
LIMITS_FILE = "limits.json"
CONTAINER_DIRECTORY = "/etc/gputile/allocation"


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one allocation directory says: who was answered what at ``since_ns``, and the limits once it was let start.

    ``devices`` are the container's IDs by resource; a claim has none. ``pod``, ``uid`` and ``container`` are those of
    who was taken for the caller, "" where nobody was, until a start says whose they are. ``gpus`` are empty until then.
    ``mounts`` is what the answer had the container mount, each as container path and host path.
    """

    namespace: str
    pod: str
    uid: str
    container: str
    mode: str
    unit_mib: int
    gpus: tuple[GpuShare, ...] = msgspec.field(name="cards", default=())
    devices: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    phase: Phase = Phase.APP
    since_ns: int = 0
    mounts: tuple[tuple[str, str], ...] = ()
    version: int = LIMITS_VERSION

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.pod}" if self.pod else ""

    def encode(self) -> bytes:
        return msgspec.json.encode({"version": self.version, **msgspec.to_builtins(self)})


@dataclass(frozen=True, slots=True)
class KubeletEntry:
    """The IDs of one resource that the kubelet has given to a container, by the UID that it has for the pod.

    ``directory`` is the name of the allocation directory that the container mounts, and ``mounts`` all that it does:
    None where the answer cannot be read, and the directory is then the one that the container would get.
    """

    uid: str
    container: str
    resource: str
    ids: frozenset[str]
    directory: str
    mounts: tuple[tuple[str, str], ...] | None = None


def directory_name(uid: str, container: str) -> str:
    """Return the name of the directory of one container's allocation: the same for both of its resources."""
    if uid.replace("-", "").isalnum():
        return f"{uid}-{container}"
    return f"{hashlib.sha256(uid.encode()).hexdigest()[:32]}-{container or 'container'}"


class PodContainer(NamedTuple):
    """A container, by the names of its pod; ``uid`` is the pod's, which tells it from a predecessor of its name."""

    uid: str
    namespace: str
    pod: str
    name: str


EMPTY: Mapping[str, frozenset[str]] = MappingProxyType({})


class ContainerDevices(msgspec.Struct, frozen=True):
    """The IDs of one resource that one container got. ``directory`` is the name of its allocation's directory.

    ``mounts`` is what the answer had it mount, each as container path and host path: the kubelet keeps to that at every
    start. None where nobody knows.
    """

    container: str
    phase: Phase
    resource: str
    ids: tuple[str, ...]
    directory: str = ""
    mounts: tuple[tuple[str, str], ...] | None = None


class PodDevices(msgspec.Struct, frozen=True, dict=True):
    """All that one pod got.

    ``identified`` is unset while nobody knows whose the IDs are; ``uid`` is then the name of the directory.
    ``known`` is unset while the API server has not told of the pod, as of a static one without a mirror.
    """

    uid: str
    namespace: str
    name: str
    unit_mib: int
    mode: str
    trust_group: str
    since_ns: int
    devices: tuple[ContainerDevices, ...] = ()
    identified: bool = True
    known: bool = True

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def pod_uid(self) -> str:
        """The UID of the pod, where ``uid`` is a claim's."""
        return self.uid

    @cached_property
    def ids_by_gpu(self) -> dict[str, dict[str, frozenset[str]]]:
        """The IDs by resource and GPU, those of all containers together: what the kubelet keeps for the pod."""
        ids: dict[str, set[str]] = {}
        for devices in self.devices:
            ids.setdefault(devices.resource, set()).update(devices.ids)
        return {resource: by_gpu(held) for resource, held in ids.items()}

    @cached_property
    def gpus(self) -> frozenset[str]:
        """The UUIDs of the GPUs, or MIG instances, that the pod is on."""
        return frozenset(uuid for gpus in self.ids_by_gpu.values() for uuid in gpus)

    @cached_property
    def container_gpus(self) -> dict[str, frozenset[str]]:
        found: dict[str, frozenset[str]] = {}
        for devices in self.devices:
            found[devices.container] = found.get(devices.container, frozenset()) | by_gpu(devices.ids).keys()
        return found

    def mib(self, gpu: str) -> int:
        """Return the MiB of a GPU that the pod holds as memory units; 0 for whole GPUs."""
        return len(self.ids_by_gpu.get(GPU_MEMORY, EMPTY).get(gpu, ())) * self.unit_mib

    def percent(self, gpu: str) -> int:
        return len(self.ids_by_gpu.get(GPU_CORE, EMPTY).get(gpu, ()))

    def container_ids(self, container: str, resource: str) -> Mapping[str, frozenset[str]]:
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


CLAIM_DIRECTORY_PREFIX = "claim-"


class PreparedDevice(msgspec.Struct, frozen=True):
    """A device as the kubelet was answered. ``request`` is the claim's own name for it."""

    request: str
    name: str
    share_id: str = ""


class PreparedClaim(PodDevices, frozen=True, dict=True):
    """What a prepared claim holds: ``uid`` and ``claim`` are its own, ``namespace`` and ``name`` those of the pod.

    The kubelet names a claim when it asks to prepare it, so its row needs no device IDs: ``shares`` is what it has of
    each GPU, in the order of their indices, and all of it where ``whole``; a MIG instance has the instance's UUID.
    """

    claim: str = ""
    owner: str = ""
    whole: bool = False
    shares: tuple[GpuShare, ...] = ()
    results: tuple[PreparedDevice, ...] = ()

    @property
    def pod_uid(self) -> str:
        return self.owner

    @property
    def directory(self) -> str:
        """The name of its allocation directory."""
        return f"{CLAIM_DIRECTORY_PREFIX}{self.uid}"

    @cached_property
    def gpus(self) -> frozenset[str]:
        return frozenset(share.uuid for share in self.shares)

    @cached_property
    def container_gpus(self) -> dict[str, frozenset[str]]:
        return {devices.container: self.gpus for devices in self.devices}

    def mib(self, gpu: str) -> int:
        return sum(share.mib for share in self.shares if share.uuid == gpu)

    def percent(self, gpu: str) -> int:
        return sum(share.percent for share in self.shares if share.uuid == gpu)

    def used_by(self, container: str, phase: Phase) -> "PreparedClaim":
        """Return the claim with the container that uses it, tied to its allocation directory without IDs."""
        devices = (ContainerDevices(container, phase, DRIVER, (), self.directory),)
        return msgspec.structs.replace(self, devices=devices)


def with_shares(row: PodDevices, shares: tuple[GpuShare, ...]) -> PreparedClaim:
    """Return a row that holds these shares, without device IDs."""
    return PreparedClaim(**msgspec.structs.asdict(row), shares=shares)


def gpus_of(pod_devices: PodDevices, container: str, gpus: int = 0) -> frozenset[str]:
    """Return the UUIDs of the GPUs that a container is on.

    ``gpus`` is how many it shares, 0 where it has whole ones. A container that takes over the IDs of an init container
    gets them in any order, perhaps not of each GPU: it is on the GPUs that the pod has.
    """
    held = pod_devices.container_gpus.get(container, frozenset())
    if gpus and len(held) != gpus:
        return frozenset(sorted(pod_devices.gpus)[:gpus])
    return held


class DeviceTable:
    """The devices of each pod by its UID. GPUs are named by their UUIDs.

    ``started`` are the allocation directories with which a container was let start since the machine did.
    """

    def __init__(self, pods: Iterable[PodDevices] = (), started: Set[str] = frozenset()) -> None:
        self._by_uid = {pod_devices.uid: pod_devices for pod_devices in pods}
        self.started = started

    def __iter__(self) -> Iterator[PodDevices]:
        return iter(self._by_uid.values())

    def __len__(self) -> int:
        return len(self._by_uid)

    def get(self, uid: str) -> PodDevices | None:
        return self._by_uid.get(uid)

    def runs(self, uid: str, container: str) -> bool:
        """Return whether a container was let start with the devices that it holds."""
        held = self.get(uid)
        return held is not None and any(
            each.container == container and each.directory in self.started for each in held.devices
        )

    def directories(self) -> set[str]:
        return {each.directory for held in self._by_uid.values() for each in held.devices}

    def on(self, gpu: str, without: str = "") -> Iterator[PodDevices]:
        """Yield the devices of the pods on a GPU, without those of the pod ``without``."""
        return (held for held in self._by_uid.values() if gpu in held.gpus and held.uid != without)

    def ids(self, resource: str, gpu: str) -> set[str]:
        return {each for held in self._by_uid.values() for each in held.ids_by_gpu.get(resource, EMPTY).get(gpu, ())}

    def mib(self, gpu: str, without: str = "") -> int:
        """Return the MiB of a GPU that pods hold as memory units."""
        return sum(held.mib(gpu) for held in self.on(gpu, without))

    def holders(self, resource: str, ids: Iterable[str]) -> list[PodDevices]:
        wanted = set(ids)
        return [
            held
            for held in self._by_uid.values()
            if any(each.resource == resource and not wanted.isdisjoint(each.ids) for each in held.devices)
        ]
