"""Names the kubelet's devices as NVIDIA's plugin does.

So tools that read PodResources, such as DCGM's exporter, find the GPU of a pod by the device IDs that it has. The
device ID of a whole GPU is its UUID, that of a MIG instance the instance's UUID. A part of a GPU (a memory unit, a
percent of compute, a time slice) is the UUID, two colons and a number: ``GPU-4c8e...::412``. Whoever holds an ID is on
its GPU, whatever else is known of them: that makes the kubelet's own assignment of IDs readable. The number is only a
name; what a part is worth is said elsewhere (``device_lists``).

The kubelet's PodResources ``List`` tells the device IDs of each container of each pod. It shows the pod that is being
admitted, whose containers have no devices yet, and leaves out init containers that are not sidecars.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

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

    def has(self, resource: str, ids: Iterable[str]) -> bool:
        wanted = frozenset(ids)
        return any(found >= wanted for _, each, found in self.parts() if each == resource)


Listing = Mapping[str, ListedPod]
"""The listed pods by key."""
