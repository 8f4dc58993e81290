"""Defines device IDs, and the table of the devices that each pod holds.

Device IDs have the format of NVIDIA's device plugin, so that tools that read PodResources, such as
DCGM's exporter, find the GPU of a pod. The device ID of a whole GPU is its UUID, and that of a MIG
instance is the instance's UUID. The ID of a part of a GPU (a memory unit, a percent of compute, a
time slice) is the GPU's UUID, two colons and a number: ``GPU-4c8e...::412``. So the IDs of a
container always name its GPU, however the kubelet chose them. The number has no meaning;
``device_lists`` defines what a part is worth.

The kubelet's PodResources ``List`` returns the device IDs of each container of each pod. It
includes the pod that is being admitted, whose containers have no devices yet, and omits init
containers that are not sidecars.

The table is computed as a whole (``holdings.derive``) and is immutable. A row is what one pod holds
according to the kubelet's checkpoint, the allocation directory of a running container, or an
Allocate response that the kubelet has not checkpointed yet.

The kubelet's calls name no pod, but its checkpoint does: ``KubeletEntry`` is the checkpoint's entry
for one resource of a container, and ``Limits`` is what the agent wrote into the directory that the
container mounts. Each memory ID of a pod is worth ``unit_mib``, the unit of the pod itself, for the
pod's whole life.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

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
    """Group the IDs by the UUID of their GPU or MIG instance, sorted by UUID."""
    found: dict[str, list[str]] = {}
    # A hot loop: each of the kubelet's requests lists all free IDs of the node.
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
    """A pod in the kubelet's list: its containers in spec order, with the IDs of each resource."""

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
    """The record in an allocation directory: the Allocate response, and limits after the start.

    ``since_ns`` is the time of the response. ``devices`` are the container's IDs by resource; a
    claim has none, but its name is ``claim``. Until the container starts, ``pod``, ``uid`` and
    ``container`` are those of the presumed caller ("" if there was none), and ``gpus`` is empty.
    ``mounts`` is what the response mounts, each as container path and host path.
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
    cannot be read, ``mounts`` is None and ``directory`` is the one that the container would get.
    """

    uid: str
    container: str
    resource: str
    ids: frozenset[str]
    directory: str
    mounts: tuple[tuple[str, str], ...] | None = None


def directory_name(uid: str, container: str) -> str:
    """Return the name of a container's allocation directory, which both of its resources share."""
    if uid.replace("-", "").isalnum():
        return f"{uid}-{container}"
    return f"{hashlib.sha256(uid.encode()).hexdigest()[:32]}-{container or 'container'}"


EMPTY: Mapping[str, frozenset[str]] = MappingProxyType({})


class ContainerDevices(msgspec.Struct, frozen=True):
    """A container's IDs of one resource; ``directory`` is the name of its allocation directory."""

    container: str
    phase: Phase
    resource: str
    ids: tuple[str, ...]
    directory: str = ""


class PodDevices(msgspec.Struct, frozen=True, dict=True):
    """All devices of one pod.

    ``identified`` is False while the owner of the IDs is unknown; ``uid`` is then the name of the
    directory.
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

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def pod_uid(self) -> str:
        """The UID of the pod; for a claim it differs from ``uid``."""
        return self.uid

    @cached_property
    def ids_by_gpu(self) -> dict[str, dict[str, frozenset[str]]]:
        """The IDs of all containers together, by resource and GPU."""
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
        """Return the MiB of a GPU that the pod holds in memory units; 0 for whole GPUs."""
        return len(self.ids_by_gpu.get(GPU_MEMORY, EMPTY).get(gpu, ())) * self.unit_mib

    def percent(self, gpu: str) -> int:
        return len(self.ids_by_gpu.get(GPU_CORE, EMPTY).get(gpu, ()))

    def container_ids(self, container: str, resource: str) -> Mapping[str, frozenset[str]]:
        devices = self.container_devices(container, resource)
        return by_gpu(devices.ids) if devices else EMPTY

    def container_devices(self, container: str, resource: str) -> ContainerDevices | None:
        return next(
            (p for p in self.devices if p.container == container and p.resource == resource), None
        )

    def replaced(self, devices: ContainerDevices) -> "PodDevices":
        """Return a copy with ``devices`` instead of the container's ones of the same resource."""
        others = tuple(
            p
            for p in self.devices
            if (p.container, p.resource) != (devices.container, devices.resource)
        )
        return self.only((*others, devices))

    def only(self, devices: tuple[ContainerDevices, ...]) -> "PodDevices":
        return msgspec.structs.replace(self, devices=devices)


CLAIM_DIRECTORY_PREFIX = "claim-"


class PreparedClaim(PodDevices, frozen=True, dict=True):
    """What a prepared claim holds.

    ``uid`` and ``claim`` are the claim's UID and name; ``namespace`` and ``name`` are the pod's,
    ``owner`` is its UID. The kubelet names the claim when it prepares it, so the row needs no
    device IDs. ``shares`` is what the claim has of each GPU, sorted by index; the share of a MIG
    instance has the instance's UUID.
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

    def percent(self, gpu: str) -> int:
        return sum(share.percent for share in self.shares if share.uuid == gpu)

    def used_by(self, container: str, phase: Phase) -> "PreparedClaim":
        """Return a copy with the container that uses the claim.

        It has the allocation directory and no device IDs.
        """
        devices = (ContainerDevices(container, phase, DRIVER, (), self.directory),)
        return msgspec.structs.replace(self, devices=devices)


def with_shares(row: PodDevices, shares: tuple[GpuShare, ...]) -> PreparedClaim:
    """Return a copy of the row that holds ``shares`` instead of device IDs."""
    return PreparedClaim(**msgspec.structs.asdict(row), shares=shares)


class DeviceTable:
    """The devices of each pod by its UID. GPUs are named by their UUIDs.

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
        """Return whether the container was allowed to start with the devices that it holds."""
        held = self.get(uid)
        return held is not None and any(
            each.container == container and each.directory in self.started for each in held.devices
        )

    def directories(self) -> set[str]:
        return {each.directory for held in self._by_uid.values() for each in held.devices}

    def on(self, gpu: str, without: str = "") -> Iterator[PodDevices]:
        """Yield the rows of the pods on a GPU, except that of the pod with the UID ``without``."""
        return (held for held in self._by_uid.values() if gpu in held.gpus and held.uid != without)

    def ids(self, resource: str, gpu: str) -> set[str]:
        return {
            each
            for held in self._by_uid.values()
            for each in held.ids_by_gpu.get(resource, EMPTY).get(gpu, ())
        }

    def mib(self, gpu: str, without: str = "") -> int:
        """Return the MiB of a GPU that pods hold in memory units."""
        return sum(held.mib(gpu) for held in self.on(gpu, without))

    def holders(self, resource: str, ids: Iterable[str]) -> list[PodDevices]:
        wanted = set(ids)
        return [
            held
            for held in self._by_uid.values()
            if any(
                each.resource == resource and not wanted.isdisjoint(each.ids)
                for each in held.devices
            )
        ]
