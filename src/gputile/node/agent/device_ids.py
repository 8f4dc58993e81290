"""Encodes in a device ID which GPU it is on: ``g3-00412`` is slot 412 of the GPU with index 3.

Whoever holds an ID is on its GPU, whatever else is known of them: that makes the kubelet's own assignment of IDs
readable. The slot is only a name, what an ID is worth is said elsewhere (``slots``). Slots have five digits, so that
IDs sort by GPU and slot, and more where a GPU has more slots.

The kubelet's PodResources ``List`` tells the device IDs of each container of each pod. It shows the pod that is being
admitted, whose containers have no devices yet, and leaves out init containers that are not sidecars.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

_MOST_KEPT = 8192
_ID = re.compile(r"g(0|[1-9][0-9]{0,2})-([0-9]{5,9})", re.ASCII)


class DeviceIdError(ValueError):
    """The text is not a device ID of gputile."""


def encode(index: int, slot: int) -> str:
    """Return the ID of a slot of the GPU with ``index``.

    >>> encode(3, 412)
    'g3-00412'
    """
    return f"g{index}-{slot:05d}"


@lru_cache(_MOST_KEPT)  # the kubelet names all free IDs of the node in each of its questions
def decode(device_id: str) -> tuple[int, int]:
    """Return the index of the GPU and the slot.

    Raises:
        DeviceIdError: the text is not what ``encode`` makes of any GPU and slot.
    """
    match = _ID.fullmatch(device_id)
    if match is None or (len(match[2]) > 5 and match[2][0] == "0"):
        raise DeviceIdError(f"{device_id[:64]!r} is not a device ID such as g3-00412")
    return int(match[1]), int(match[2])


def by_gpu(device_ids: Iterable[str]) -> dict[int, frozenset[int]]:
    """Return the slots of each GPU that ``device_ids`` name, by the GPU's index in ascending order.

    Raises:
        DeviceIdError: one of them is not a device ID.
    """
    found: dict[int, set[int]] = {}
    for device_id in device_ids:
        index, slot = decode(device_id)
        found.setdefault(index, set()).add(slot)
    return {index: frozenset(found[index]) for index in sorted(found)}


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
