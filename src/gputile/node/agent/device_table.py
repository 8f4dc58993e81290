"""Answers who holds what on which GPU.

The table is computed as a whole (``AllocationState.derive``) and never changed. A row is what one pod holds, whatever
it was told by: the kubelet's checkpoint, the directory of a container that runs, or an answer on its way.
"""

from collections.abc import Iterable, Iterator, Set

from gputile.node.agent.pod_devices import EMPTY, PodDevices


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
