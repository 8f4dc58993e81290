"""The devices of all pods of the node, and which containers were let start: the state that decides who has which GPU.

Devices leave the table as ``device_stage`` says, by ``apply`` and ``drop``. Whose they are is corrected by the
kubelet's list (``listing_sync``), which changes no stage.
"""

from collections.abc import Callable, Iterable, Iterator

from gputile.core.devices.request import Phase
from gputile.node.agent.allocate.device_stage import DeviceEvent, DeviceStage, after, stage_of
from gputile.node.agent.allocate.pod_devices import EMPTY, ContainerDevices, PodDevices, directory_name


class DeviceTable:
    """The devices of each pod by its UID. ``started`` are the allocation directories with which a container was let
    start since the machine did.
    """

    def __init__(self, pods: Iterable[PodDevices] = (), started: Iterable[str] = ()) -> None:
        self.started = frozenset(started)
        self._by_uid: dict[str, PodDevices] = {}
        self._holders: dict[tuple[str, str], set[str]] = {}  # UIDs by resource and device ID
        for pod_devices in pods:
            self.put(pod_devices)

    def __iter__(self) -> Iterator[PodDevices]:
        return iter(tuple(self._by_uid.values()))

    def __len__(self) -> int:
        return len(self._by_uid)

    def get(self, uid: str) -> PodDevices | None:
        """Return what a pod holds."""
        return self._by_uid.get(uid)

    def put(self, pod_devices: PodDevices) -> None:
        """Add a pod's devices, or replace those of this UID."""
        self._unlist(self._by_uid.get(pod_devices.uid))
        self._by_uid[pod_devices.uid] = pod_devices
        for devices in pod_devices.devices:
            for device_id in devices.ids:
                self._holders.setdefault((devices.resource, device_id), set()).add(pod_devices.uid)

    def drop(self, uid: str) -> None:
        """Forget what a pod held."""
        self._unlist(self._by_uid.pop(uid, None))

    def stage(self, devices: ContainerDevices) -> DeviceStage:
        """Return the stage of devices that the table has."""
        return stage_of(kept=True, started=devices.directory in self.started)

    def stage_of(self, uid: str, container: str) -> DeviceStage:
        """Return the stage of a container of a pod, whether the table has devices of it or not."""
        found = self.get(uid)
        mounted = {each.directory for each in found.devices if each.container == container} if found else set()
        usual = {directory_name(uid, container)} - self.directories()
        return stage_of(kept=bool(mounted), started=not self.started.isdisjoint(mounted or usual))

    def directories(self) -> set[str]:
        """Return the allocation directories of all devices."""
        return {devices.directory for pod_devices in self._by_uid.values() for devices in pod_devices.devices}

    def directory_for(self, uid: str, container: str, usual: str = "") -> str:
        """Return the allocation directory of a container: one for all of its resources, and no other container's.

        A container may have mounted what was answered in the name of another one, of its own pod or not. ``usual`` is
        the name for a container that has none yet, by default that of its pod and container.
        """
        owners = [
            (pod_devices.uid == uid and devices.container == container, devices.directory)
            for pod_devices in self._by_uid.values()
            for devices in pod_devices.devices
        ]
        name = next(
            (directory for own, directory in owners if own and directory), usual or directory_name(uid, container)
        )
        taken = {directory for own, directory in owners if not own}
        while name in taken:
            name += ".1"  # no name of a container has a dot
        return name

    def is_fixed(self, devices: ContainerDevices) -> bool:
        """Return whether no other container of the pod may have the devices: an init container hands its own on."""
        return devices.phase is not Phase.INIT and self.stage(devices) is DeviceStage.STARTED

    def let_start(self, directory: str) -> None:
        """Remember that a container is let start with this allocation directory."""
        self.started |= {directory}

    def kept_after(
        self, pod_devices: PodDevices, event: DeviceEvent, concerned: Callable[[ContainerDevices], bool]
    ) -> PodDevices:
        """Return what the pod keeps when ``event`` happens to those of its devices that it concerns."""
        kept = tuple(
            devices
            for devices in pod_devices.devices
            if not concerned(devices) or after(self.stage(devices), event).has_devices
        )
        return pod_devices if len(kept) == len(pod_devices.devices) else pod_devices.only(kept)

    def apply(
        self,
        pod_devices: PodDevices,
        event: DeviceEvent,
        concerned: Callable[[ContainerDevices], bool] = lambda _: True,
    ) -> None:
        """Let ``event`` happen to those devices of a pod that it concerns."""
        self.keep(self.kept_after(pod_devices, event, concerned))

    def keep(self, pod_devices: PodDevices) -> None:
        """Put what is left of a pod's devices; forget the pod where that is nothing."""
        if pod_devices.devices:
            self.put(pod_devices)
        else:
            self.drop(pod_devices.uid)

    def on(self, index: int, without: str = "") -> Iterator[PodDevices]:
        """Yield the devices of the pods on a GPU, without those of the pod ``without``."""
        return (h for h in self._by_uid.values() if index in h.indices and h.uid != without)

    def slots(self, resource: str, index: int) -> set[int]:
        """Return the slots of a GPU that are held."""
        return {slot for h in self._by_uid.values() for slot in h.slots.get(resource, EMPTY).get(index, ())}

    def mib(self, index: int, without: str = "") -> int:
        """Return the MiB of a GPU that pods hold as memory units."""
        return sum(pod_devices.mib(index) for pod_devices in self.on(index, without))

    def holders(self, resource: str, ids: Iterable[str]) -> list[PodDevices]:
        """Return the devices of the pods that have one of ``ids``."""
        uids: set[str] = set().union(*(self._holders.get((resource, device_id), ()) for device_id in ids))
        if len(uids) > 1:
            return [pod_devices for pod_devices in self if pod_devices.uid in uids]
        return [self._by_uid[uid] for uid in uids]

    def _unlist(self, pod_devices: PodDevices | None) -> None:
        """Take a pod's devices that were put out of the list of holders."""
        for devices in pod_devices.devices if pod_devices is not None else ():
            for device_id in devices.ids:
                uids = self._holders.get((devices.resource, device_id), set())
                uids.discard(pod_devices.uid if pod_devices is not None else "")
                if not uids:
                    self._holders.pop((devices.resource, device_id), None)
