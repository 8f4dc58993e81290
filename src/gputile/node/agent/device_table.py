"""Keeps the devices of all pods of the node, each container's at its stage.

This is the state that decides which pod has which GPU.

Devices come in, change their stage and leave by events, and by nothing else. The container of
an allocation directory has one stage, whatever resources it has devices of. Where it is shown whose devices are, they
are reassigned from their former owner, and answered for the right one; its directory, and so its stage, go with them.

``-`` means that nothing changes:

| stage    | answered | let start | unlisted | moved    | reassigned | pod gone | cannot run |
|----------|----------|-----------|----------|----------|------------|----------|------------|
| released | answered | orphaned  | -        | -        | -          | -        | -          |
| answered | -        | started   | released | -        | released   | released | -          |
| started  | -        | -         | -        | orphaned | orphaned   | orphaned | answered   |
| orphaned | started  | -         | -        | -        | -          | -        | released   |

The checkpoint keeps the devices, and the file ``boot`` in an allocation's directory tells that its container was let
start. Both outlive the agent, so the next agent finds each container in the stage in which the last one left it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

from gputile.core.devices.request import Phase
from gputile.node.agent.pod_devices import EMPTY, ContainerDevices, PodDevices, directory_name


class DeviceStage(StrEnum):
    """How far the devices of a container have come."""

    RELEASED = "released"
    """The agent keeps no devices for the container, and it does not run."""
    ANSWERED = "answered"
    """``Allocate`` was answered with them. The kubelet may not have written that down, and so may give them away."""
    STARTED = "started"
    """The container was let start with them and may run, whatever the kubelet knows of it."""
    ORPHANED = "orphaned"
    """The container was let start and may run, but its devices are not kept for it any more."""

    @property
    def has_devices(self) -> bool:
        return self in (DeviceStage.ANSWERED, DeviceStage.STARTED)

    @property
    def may_run(self) -> bool:
        """Whether the container was let start since the machine did."""
        return self in (DeviceStage.STARTED, DeviceStage.ORPHANED)


class DeviceEvent(StrEnum):
    """What happens to the devices of a container."""

    ANSWERED = "answered"
    """``Allocate`` is answered for the container."""
    LET_START = "let start"
    """``PreStartContainer`` is answered for the container, be it that its devices were released while it waited."""
    UNLISTED = "unlisted"
    """The kubelet shows that it does not count them as the container's, and the pod does not run."""
    MOVED = "moved"
    """The kubelet gives them to another container of the pod, and they are not those of an init container."""
    REASSIGNED = "reassigned"
    """They are another container's, or another answer's, by what the kubelet lists, has written down or asks for."""
    POD_GONE = "pod gone"
    """The pod has ended or is deleted, and the kubelet has let go of its devices."""
    CANNOT_RUN = "cannot run"
    """The machine has started anew, or the container's allocation directory was removed after its pod had gone."""


_RELEASED, _ANSWERED, _STARTED, _ORPHANED = DeviceStage

TRANSITIONS: Final[Mapping[DeviceStage, Mapping[DeviceEvent, DeviceStage]]] = {
    _RELEASED: {DeviceEvent.ANSWERED: _ANSWERED, DeviceEvent.LET_START: _ORPHANED},
    _ANSWERED: {
        DeviceEvent.LET_START: _STARTED,
        DeviceEvent.UNLISTED: _RELEASED,
        DeviceEvent.REASSIGNED: _RELEASED,
        DeviceEvent.POD_GONE: _RELEASED,
    },
    _STARTED: {
        DeviceEvent.MOVED: _ORPHANED,
        DeviceEvent.REASSIGNED: _ORPHANED,
        DeviceEvent.POD_GONE: _ORPHANED,
        DeviceEvent.CANNOT_RUN: _ANSWERED,
    },
    _ORPHANED: {DeviceEvent.ANSWERED: _STARTED, DeviceEvent.CANNOT_RUN: _RELEASED},
}
"""What each event makes of each stage. An event that is not there changes nothing."""


def after(stage: DeviceStage, event: DeviceEvent) -> DeviceStage:
    return TRANSITIONS[stage].get(event, stage)


class DeviceTable:
    """The devices of each pod by its UID.

    It begins with what was kept of an earlier one: its ``pods``, and as ``started`` the allocation directories with
    which a container was let start since the machine did.
    """

    def __init__(self, pods: Iterable[PodDevices] = (), started: Iterable[str] = ()) -> None:
        self._stages = dict.fromkeys(started, DeviceStage.ORPHANED)  # by allocation directory, without released ones
        self._by_uid: dict[str, PodDevices] = {}
        self._holders: dict[tuple[str, str], set[str]] = {}  # UIDs by resource and device ID
        for pod_devices in pods:
            self.apply(DeviceEvent.ANSWERED, pod_devices)

    def __iter__(self) -> Iterator[PodDevices]:
        return iter(tuple(self._by_uid.values()))

    def __len__(self) -> int:
        return len(self._by_uid)

    def get(self, uid: str) -> PodDevices | None:
        return self._by_uid.get(uid)

    def apply(
        self,
        event: DeviceEvent,
        pod_devices: PodDevices,
        concerned: Callable[[ContainerDevices], bool] = lambda _: True,
    ) -> None:
        """Let ``event`` happen to the devices of a pod.

        What is answered is all that the pod has from now on. Every other event happens to those devices that the table
        has of the pod and that it concerns; they leave if they are not kept for their container at its next stage.
        """
        if event is DeviceEvent.ANSWERED:
            self._replace(pod_devices.uid, pod_devices, DeviceEvent.REASSIGNED)
            for devices in pod_devices.devices:
                self._change(devices.directory, event)
        elif (held := self._by_uid.get(pod_devices.uid)) is not None:
            self._replace(held.uid, self.kept_after(held, event, concerned), event)

    def apply_by_directory(self, event: DeviceEvent, directories: Iterable[str]) -> None:
        """Let ``event``, which makes no devices leave, happen to the containers with these allocation directories."""
        for directory in directories:
            self._change(directory, event)

    def see_started(self, directories: Iterable[str]) -> None:
        """Take in that just these allocation directories tell that their container was let start."""
        found, known = set(directories), self.started()
        self.apply_by_directory(DeviceEvent.LET_START, found - known)
        self.apply_by_directory(DeviceEvent.CANNOT_RUN, known - found)

    def stage(self, directory: str) -> DeviceStage:
        return self._stages.get(directory, DeviceStage.RELEASED)

    def stage_of(self, uid: str, container: str) -> DeviceStage:
        found = self.get(uid)
        mounted = {each.directory for each in found.devices if each.container == container} if found else set()
        usual = {directory_name(uid, container)} - self.directories()
        stages = [self.stage(directory) for directory in mounted or usual]
        return next((stage for stage in stages if stage.may_run), next(iter(stages), DeviceStage.RELEASED))

    def directories(self) -> set[str]:
        return {directory for directory, stage in self._stages.items() if stage.has_devices}

    def started(self) -> set[str]:
        return {directory for directory, stage in self._stages.items() if stage.may_run}

    def directory_for(self, uid: str, container: str, usual: str = "") -> str:
        """Return the allocation directory of a container: one for all of its resources, and no other container's.

        A container may have mounted what was answered in the name of another one, of its own pod or not; so one that
        was answered by a guess is not its own. ``usual`` is the name for a container that has none yet, by default that
        of its pod and container.
        """
        owners = [
            (pod_devices.uid == uid and devices.container == container and not devices.guessed, devices.directory)
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
        return devices.phase is not Phase.INIT and self.stage(devices.directory) is DeviceStage.STARTED

    def kept_after(
        self, pod_devices: PodDevices, event: DeviceEvent, concerned: Callable[[ContainerDevices], bool]
    ) -> PodDevices:
        """Return what the pod keeps when ``event`` happens to those of its devices that it concerns."""
        kept = tuple(
            devices
            for devices in pod_devices.devices
            if not concerned(devices) or after(self.stage(devices.directory), event).has_devices
        )
        return pod_devices if len(kept) == len(pod_devices.devices) else pod_devices.only(kept)

    def on(self, index: int, without: str = "") -> Iterator[PodDevices]:
        """Yield the devices of the pods on a GPU, without those of the pod ``without``."""
        return (h for h in self._by_uid.values() if index in h.indices and h.uid != without)

    def slots(self, resource: str, index: int) -> set[int]:
        return {slot for h in self._by_uid.values() for slot in h.slots.get(resource, EMPTY).get(index, ())}

    def mib(self, index: int, without: str = "") -> int:
        """Return the MiB of a GPU that pods hold as memory units."""
        return sum(pod_devices.mib(index) for pod_devices in self.on(index, without))

    def holders(self, resource: str, ids: Iterable[str]) -> list[PodDevices]:
        uids: set[str] = set().union(*(self._holders.get((resource, device_id), ()) for device_id in ids))
        if len(uids) > 1:
            return [pod_devices for pod_devices in self if pod_devices.uid in uids]
        return [self._by_uid[uid] for uid in uids]

    def _change(self, directory: str, event: DeviceEvent) -> None:
        self._stages[directory] = after(self.stage(directory), event)
        if self._stages[directory] is DeviceStage.RELEASED:
            del self._stages[directory]

    def _replace(self, uid: str, pod_devices: PodDevices, event: DeviceEvent) -> None:
        """Put a pod's devices in the place of those that it had; ``event`` happens to containers that have none now."""
        former = self._by_uid.get(uid)
        for devices in former.devices if former is not None else ():
            for device_id in devices.ids:
                uids = self._holders.get((devices.resource, device_id), set())
                uids.discard(uid)
                if not uids:
                    self._holders.pop((devices.resource, device_id), None)
        if pod_devices.devices:
            self._by_uid[uid] = pod_devices
        else:
            self._by_uid.pop(uid, None)
        for devices in pod_devices.devices:
            for device_id in devices.ids:
                self._holders.setdefault((devices.resource, device_id), set()).add(uid)
        left = {devices.directory for devices in former.devices} if former is not None else set()
        left.difference_update(each.directory for other in self._by_uid.values() if left for each in other.devices)
        for directory in left:
            self._change(directory, event)
