"""Defines device IDs, and the table of the devices that each pod has.

Device IDs have the format of NVIDIA's device plugin. So tools that read PodResources, such as
DCGM's exporter, find the GPU of a pod. The ID of a whole GPU or of a MIG instance is its UUID. A
part of a GPU is a memory unit, a percent of compute or a time slice. Its ID is the GPU's UUID, two
colons and a number: ``GPU-4c8e...::412``. So each ID names its GPU. The number has no meaning.
``device_lists`` defines how many parts a GPU has.

The kubelet's PodResources ``List`` returns the device IDs of each container of each pod. It
includes the pod that is being admitted, whose containers have no devices yet. It omits init
containers that are not sidecars.

The table is immutable, and is always computed as a whole (``holdings.derive``). A row contains the
devices of one pod. They come from the kubelet's checkpoint, from the allocation directory of a
running container, or from an Allocate response that the checkpoint does not contain yet.

The kubelet's calls name no pod, but its checkpoint does. A ``KubeletEntry`` is the checkpoint's
entry for one resource of a container. ``Limits`` is the record that the agent wrote into the
directory that the container mounts. Each memory ID of a pod stands for ``unit_mib``, the unit of
the pod, which never changes.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import msgspec

from gputile.api.well_known import DRIVER, GPU_CORE, GPU_MEMORY, WHOLE_GPU
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
    """Group the IDs by the UUID of their GPU or MIG instance, sorted by UUID."""
    found: dict[str, list[str]] = {}
    # This loop must be fast, because each request of the kubelet lists all free IDs of the node.
    for device_id in device_ids:
        uuid = device_id.partition(_SEPARATOR)[0]
        if uuid in found:
            found[uuid].append(device_id)
        else:
            found[uuid] = [device_id]
    return {uuid: frozenset(found[uuid]) for uuid in sorted(found)}


def in_order(device_ids: Iterable[str]) -> list[str]:
    """Sort the IDs of one GPU by their numbers."""
    return sorted(sorted(device_ids), key=len)


Resources = Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class ListedPod:
    """A pod in the kubelet's list. Its containers are in spec order, with IDs by resource."""

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
"""The pods in the kubelet's list, by key."""


Mounts = tuple[tuple[str, str], ...]
"""The mounts of a container, each as a path in the container and a path on the host."""

LIMITS_VERSION = 1
LIMITS_FILE = "limits.json"
CONTAINER_DIRECTORY = "/etc/gputile/allocation"


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of an Allocate response and, once the container has started, of its limits.

    ``since_ns`` is the time of the response. ``devices`` are the container's IDs by resource. A
    claim has no devices, but a name in ``claim``. Until the container starts, ``pod``, ``uid`` and
    ``container`` are those of the presumed caller, or "" if it is unknown, and ``gpus`` is empty.
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
    mounts: Mounts = ()
    claim: str = ""
    version: int = LIMITS_VERSION

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.pod}" if self.pod else ""

    def encode(self) -> bytes:
        return msgspec.json.encode({"version": self.version, **msgspec.to_builtins(self)})


@dataclass(frozen=True, slots=True)
class KubeletEntry:
    """The IDs of one resource that the kubelet has allocated to a container.

    ``uid`` is the kubelet's UID of the pod. ``directory`` is the name of the allocation directory
    that the container mounts, and ``mounts`` are all its mounts. If the stored Allocate response
    cannot be read, ``mounts`` is empty, and ``directory`` is the container's default directory.
    """

    uid: str
    container: str
    resource: str
    ids: frozenset[str]
    directory: str
    mounts: Mounts = ()


def directory_name(uid: str, container: str) -> str:
    """Return the default name of a container's allocation directory, for all its resources."""
    if uid.replace("-", "").isalnum():
        return f"{uid}-{container}"
    return f"{hashlib.sha256(uid.encode()).hexdigest()[:32]}-{container or 'container'}"


EMPTY: Mapping[str, frozenset[str]] = MappingProxyType({})


class ContainerDevices(msgspec.Struct, frozen=True):
    """A container's IDs of one resource. ``directory`` is the container's allocation directory."""

    container: str
    phase: Phase
    resource: str
    ids: tuple[str, ...]
    directory: str = ""


class PodDevices(msgspec.Struct, frozen=True, dict=True):
    """All devices of one pod, which are one row of the table.

    ``identified`` is False while the pod is unknown. ``uid`` is then the name of the
    allocation directory. A pod that shares several GPUs counts as having at least ``least_units``
    and ``least_percent`` on each of them, even if the kubelet has distributed its IDs unevenly.
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
    least_units: int = 0
    least_percent: int = 0

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def pod_uid(self) -> str:
        """The UID of the pod. In the row of a claim, it differs from ``uid``."""
        return self.uid

    @cached_property
    def ids_by_gpu(self) -> dict[str, dict[str, frozenset[str]]]:
        """The IDs of all containers, by resource and GPU."""
        ids: dict[str, set[str]] = {}
        for devices in self.devices:
            ids.setdefault(devices.resource, set()).update(devices.ids)
        return {resource: by_gpu(held) for resource, held in ids.items()}

    @cached_property
    def gpus(self) -> frozenset[str]:
        """The UUIDs of the GPUs or MIG instances of the pod."""
        return frozenset(uuid for gpus in self.ids_by_gpu.values() for uuid in gpus)

    @cached_property
    def container_gpus(self) -> dict[str, frozenset[str]]:
        found: dict[str, frozenset[str]] = {}
        for devices in self.devices:
            found[devices.container] = (
                found.get(devices.container, frozenset()) | by_gpu(devices.ids).keys()
            )
        return found

    def mib(self, gpu: str) -> int:
        """Return the MiB of the pod's memory units on a GPU, which is 0 for a whole GPU."""
        units = len(self.ids_by_gpu.get(GPU_MEMORY, EMPTY).get(gpu, ()))
        return max(units, self.least_units if gpu in self.gpus else 0) * self.unit_mib

    def slices(self, gpu: str) -> int:
        """Return the number of the pod's time slices of a GPU, or 1 for any other device."""
        return len(self.ids_by_gpu.get(WHOLE_GPU, EMPTY).get(gpu, ())) or 1

    def percent(self, gpu: str) -> int:
        percent = len(self.ids_by_gpu.get(GPU_CORE, EMPTY).get(gpu, ()))
        return max(percent, self.least_percent if gpu in self.gpus else 0)

    def container_ids(self, container: str, resource: str) -> Mapping[str, frozenset[str]]:
        devices = self.container_devices(container, resource)
        return by_gpu(devices.ids) if devices else EMPTY

    def container_devices(self, container: str, resource: str) -> ContainerDevices | None:
        return next(
            (p for p in self.devices if p.container == container and p.resource == resource), None
        )

    def replaced(self, devices: ContainerDevices) -> "PodDevices":
        """Return a copy in which ``devices`` replace the container's IDs of the same resource."""
        others = tuple(
            p
            for p in self.devices
            if (p.container, p.resource) != (devices.container, devices.resource)
        )
        return msgspec.structs.replace(self, devices=(*others, devices))


CLAIM_DIRECTORY_PREFIX = "claim-"


class PreparedClaim(PodDevices, frozen=True, dict=True):
    """The row of a prepared claim.

    ``uid`` and ``claim`` are the UID and the name of the claim. ``namespace``, ``name`` and
    ``owner`` are the namespace, the name and the UID of the pod. The row has no device IDs, because
    the kubelet's calls name the claim instead. ``shares`` are the claim's parts of GPUs, sorted by
    index. A share of a MIG instance has the instance's UUID.
    """

    claim: str = ""
    owner: str = ""
    shares: tuple[GpuShare, ...] = ()

    @property
    def pod_uid(self) -> str:
        return self.owner

    @property
    def directory(self) -> str:
        return f"{CLAIM_DIRECTORY_PREFIX}{self.uid}"

    @cached_property
    def gpus(self) -> frozenset[str]:
        return frozenset(share.uuid for share in self.shares)

    @cached_property
    def container_gpus(self) -> dict[str, frozenset[str]]:
        return {devices.container: self.gpus for devices in self.devices}

    def mib(self, gpu: str) -> int:
        return sum(share.mib for share in self.shares if share.uuid == gpu)

    def slices(self, gpu: str) -> int:
        return sum(share.uuid == gpu for share in self.shares)

    def percent(self, gpu: str) -> int:
        return sum(share.percent for share in self.shares if share.uuid == gpu)

    def used_by(self, container: str, phase: Phase) -> "PreparedClaim":
        """Return a copy with ``container`` as the only container, which has no device IDs."""
        devices = (ContainerDevices(container, phase, DRIVER, (), self.directory),)
        return msgspec.structs.replace(self, devices=devices)


def with_shares(row: PodDevices, shares: tuple[GpuShare, ...]) -> PreparedClaim:
    """Return a copy of the row with ``shares`` instead of device IDs."""
    return PreparedClaim(**msgspec.structs.asdict(row), shares=shares)


class DeviceTable:
    """The rows of all pods, by UID. GPUs are identified by their UUIDs.

    ``started`` are the allocation directories whose containers were allowed to start since the
    machine booted.
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
        """Return whether the container was allowed to start with the devices in this table."""
        held = self.get(uid)
        return held is not None and any(
            each.container == container and each.directory in self.started for each in held.devices
        )

    def directories(self) -> set[str]:
        return {each.directory for held in self for each in held.devices}

    def on(self, gpu: str, without: str = "") -> Iterator[PodDevices]:
        """Yield the rows of the pods on a GPU, except the row with the UID ``without``."""
        return (held for held in self if gpu in held.gpus and held.uid != without)

    def mib(self, gpu: str, without: str = "") -> int:
        """Return the MiB of all pods' memory units on a GPU."""
        return sum(held.mib(gpu) for held in self.on(gpu, without))

    def holders(
        self, resource: str, ids: Iterable[str]
    ) -> Iterator[tuple[PodDevices, ContainerDevices]]:
        """Yield all containers with IDs of ``resource`` of each pod that has one of ``ids``."""
        wanted = set(ids)
        for held in self:
            devices = [each for each in held.devices if each.resource == resource]
            if any(not wanted.isdisjoint(each.ids) for each in devices):
                yield from ((held, each) for each in devices)
