"""Decodes the kubelet's PodResources ``List`` into the device IDs of each container of each pod.

``List`` shows the pod that is being admitted, whose containers have no devices yet, and leaves out init containers
that are not sidecars.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

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
