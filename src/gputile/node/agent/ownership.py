"""Decides who has and who loses devices, by what the kubelet lists and has written down.

The kubelet wins: what was assumed at ``Allocate`` becomes certain once it says who has an ID.

Devices may have been answered under a stand-in (nobody could be asked at the time, or a static pod that the API
server did not know yet) or, rarely, under the name's former owner: a pod that was deleted by force and created again
while the watch lagged behind. Only the label changes; the IDs, and the directory that the container was given, stay.

The kubelet's checkpoint also tells what a container will mount: the directory and files of the answer that it got, even
if that was meant for another.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass
from functools import partial

import msgspec

from gputile.core.devices.request import Phase
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.device_ids import DeviceIdError, ListedPod, Listing, by_gpu
from gputile.node.agent.device_table import DeviceEvent, DeviceStage, DeviceTable
from gputile.node.agent.known_pods import KnownPod
from gputile.node.agent.node_config import is_served
from gputile.node.agent.pod_devices import (
    ContainerDevices,
    PodDevices,
    directory_name,
    has_any,
    pod_devices_for,
    stand_in,
    with_devices,
)


def release(state: AllocationState, ids: Iterable[str], resource: str, listing: Listing | None, uid: str) -> None:
    """Forget the old owners of IDs that the kubelet advertises or gives: it does so with free ones only.

    There is one exception. While the kubelet waits for an answer, a ``List`` that finds a pod gone makes it count
    the used IDs anew, without those that it is about to give (``UpdateAllocatedDevices`` in
    pkg/kubelet/cm/devicemanager). So what ``List`` still shows is kept, and everything of a living pod where
    ``List`` fails.

    Containers that were let start keep theirs even if the kubelet has forgotten them: it does after the loss of its
    checkpoint, and where it refuses a pod that another one had started and dies before it has told the API server.
    While ``List`` fails, a pod of which nobody has said that it is gone may run as well: it is merely not known.
    """
    free = set(ids)
    for pod_devices in state.device_table.holders(resource, free):
        if pod_devices.uid == uid:
            continue
        pod = state.pod_of(pod_devices)
        shown = listing.get(pod_devices.key) if listing is not None else None
        there = shown is not None or (pod_devices.identified and state.still_to_come(pod_devices.key))
        alive = pod.alive if pod is not None else there and pod_devices.key not in state.pods
        if not alive or (listing is not None and state.has_left(pod_devices.key, listing)):
            heard = listing is not None or pod is not None or state.is_buried(pod_devices)
            state.device_table.apply(DeviceEvent.POD_GONE if heard else DeviceEvent.UNLISTED, pod_devices)
        elif listing is not None and (event := loss(state, pod_devices)) is not None:
            nothing = ListedPod(pod_devices.namespace, pod_devices.name)
            state.device_table.apply(event, pod_devices, partial(_offered, shown or nothing, resource, free))


def release_inits(state: AllocationState, free: Set[str], resource: str) -> None:
    """Forget that init containers which have not been let start were answered with IDs that the kubelet advertises.

    No list shows them. A kubelet that advertises their IDs has forgotten them, and asks for them anew.
    """
    forgotten = partial(_is_init_with, resource, free)
    for pod_devices in state.device_table.holders(resource, free):
        state.device_table.apply(DeviceEvent.UNLISTED, pod_devices, forgotten)


def loss(state: AllocationState, pod_devices: PodDevices) -> DeviceEvent | None:
    """Return what it means that the kubelet does not count devices as the pod's; None if that is no news.

    A pod that runs has been admitted with all of its devices: those were given for good. One that the kubelet lists
    and that is not known has not gone: the API server may not have been heard yet, and its containers may run.
    """
    pod = state.pod_of(pod_devices)
    if pod is None:
        return DeviceEvent.POD_GONE if pod_devices.key in state.pods else DeviceEvent.UNLISTED
    return DeviceEvent.UNLISTED if pod.pod.status.phase != "Running" else None


def absorb(state: AllocationState, former: PodDevices, pod: KnownPod, own: PodDevices) -> PodDevices:
    """Return ``own``, a pod's devices, with those that it was answered under another UID, which is forgotten."""
    for devices in former.devices:
        if own.container_devices(devices.container, devices.resource) is None:
            asked = pod.container_request(devices.container)
            known = msgspec.structs.replace(devices, phase=asked.phase) if asked else devices
            own = with_devices(own, known, state.node_config)
    state.device_table.apply(DeviceEvent.REASSIGNED, former)
    return own


def _offered(listed: ListedPod, resource: str, free: Set[str], devices: ContainerDevices) -> bool:
    """Return whether one of the devices is among the ``free`` ones, and the kubelet does not list them."""
    return has_any(resource, free, devices) and not listed.has(resource, devices.ids)


def _is_init_with(resource: str, ids: Set[str], devices: ContainerDevices) -> bool:
    return devices.phase is Phase.INIT and has_any(resource, ids, devices)


def sync_with_listing(state: AllocationState, listing: Listing, now_ns: int) -> None:
    """Put each listed device under the pod and the container that the kubelet lists it for."""
    for key, listed in listing.items():
        pod = state.pods.get(key)
        if pod is None or not pod.alive:
            continue
        for container, resource, ids in listed.parts():
            held = state.device_table.get(pod.uid)
            devices = held.container_devices(container, resource) if held else None
            certain = devices is not None and frozenset(devices.ids) == ids
            named = _ListedDevices(pod, container, resource, ids)
            if not (certain and _only_holder(state, listing, named)) and _ours(resource, ids):
                _take_over(state, listing, named, now_ns)


def _only_holder(state: AllocationState, listing: Listing, listed: "_ListedDevices") -> bool:
    """Return whether no other UID has the IDs wrongly.

    It does if it may be this pod: a stand-in, the former pod of its name, or a pod that nobody knew. And it does if the
    kubelet lists it without them, and it was not let start with them.
    """
    for other in state.device_table.holders(listed.resource, listed.ids):
        if other.uid == listed.pod.uid:
            continue
        if other.key == listed.pod.key or not other.identified:
            return False
        shown = listing.get(other.key)
        if shown is not None and not shown.has(listed.resource, listed.ids) and not _runs_with(state, other, listed):
            return False
    return True


def settle(state: AllocationState, listing: Listing, now_ns: int) -> None:
    """Correct what is remembered by what the kubelet lists while it waits for an answer.

    It admits nothing meanwhile, so a listed container that has no devices got none, whatever was answered before:
    the kubelet died before it wrote the answer down, or it was for another pod. One that was let start is another
    matter: that the kubelet had written down, and has forgotten.
    """
    sync_with_listing(state, listing, now_ns)
    for pod_devices in state.device_table:
        listed = listing.get(pod_devices.key)
        if listed is None or not pod_devices.identified:
            continue
        event = loss(state, pod_devices)
        if event is not None:
            state.device_table.apply(event, pod_devices, partial(_bare, listed))


@dataclass(frozen=True, slots=True)
class _ListedDevices:
    """What the kubelet lists for one container of a pod."""

    pod: KnownPod
    container: str
    resource: str
    ids: frozenset[str]

    def devices(self, directory: str, mounts: tuple[tuple[str, str], ...] | None) -> ContainerDevices:
        """Return them as devices of the container, with the directory that it mounts."""
        request = self.pod.container_request(self.container)
        phase = request.phase if request else Phase.APP
        return ContainerDevices(self.container, phase, self.resource, tuple(sorted(self.ids)), directory, mounts)


def _take_over(state: AllocationState, listing: Listing, listed: _ListedDevices, now_ns: int) -> None:
    """Take the devices from whoever was thought to have them, and give them to the container that is listed."""
    pod, device_table = listed.pod, state.device_table
    own = device_table.get(pod.uid) or pod_devices_for(
        pod.uid, pod, pod.key, state.node_config, pod.trust_group, now_ns
    )
    directory, mounts = directory_name(pod.uid, listed.container), None
    holders = device_table.holders(listed.resource, listed.ids)
    own_answer = any(former.key == pod.key or not former.identified for former in holders)
    for former in holders:
        other = listing.get(former.key)
        if former.key != pod.key and other is not None and other.has(listed.resource, listed.ids):
            continue  # the kubelet has given them to both
        mistaken = own_answer and former.key != pod.key and former.identified
        if mistaken and _runs_with(state, former, listed):
            continue  # the kubelet has forgotten that, and has given them to another
        answered = _answered_as(former, listed)
        if answered is not None and not mistaken:
            directory, mounts = answered.directory, answered.mounts
        if former.uid == own.uid:
            own = own.only(tuple(each for each in own.devices if each.container or each is not answered))
            continue
        if former.key == pod.key:  # the same pod under a stand-in, or mistaken for the former one of its name
            own = absorb(state, former, pod, own)
        else:
            device_table.apply(DeviceEvent.REASSIGNED, former, partial(has_any, listed.resource, listed.ids))
    answered_now = with_devices(own, listed.devices(directory, mounts), state.node_config)
    device_table.apply(DeviceEvent.ANSWERED, answered_now)


def _runs_with(state: AllocationState, former: PodDevices, listed: _ListedDevices) -> bool:
    """Return whether a container of another pod was let start with one of the devices."""
    return any(
        devices.resource == listed.resource
        and not listed.ids.isdisjoint(devices.ids)
        and state.device_table.stage(devices.directory) is DeviceStage.STARTED
        for devices in former.devices
    )


def _answered_as(former: PodDevices, listed: _ListedDevices) -> ContainerDevices | None:
    """Return the devices of ``former`` under which the listed ones were answered; init containers hand theirs on."""
    found = (
        devices
        for devices in reversed(former.devices)
        if devices.resource == listed.resource
        and frozenset(devices.ids) == listed.ids
        and (former.uid != listed.pod.uid or devices.phase is not Phase.INIT)
    )
    return next(found, None)


def _bare(listed: ListedPod, devices: ContainerDevices) -> bool:
    """Return whether the kubelet lists the container, and lists none of these devices, its own or another's."""
    if listed.has(devices.resource, devices.ids):
        return False
    if not devices.container:  # one of the pod's that nobody knew
        return True
    return devices.container in listed.containers and not listed.ids(devices.container, devices.resource)


def _ours(resource: str, ids: frozenset[str]) -> bool:
    if not is_served(resource):
        return False
    try:
        return bool(by_gpu(ids))
    except DeviceIdError:
        return False


def sync_with_checkpoint(state: AllocationState, written: Iterable[PodDevices]) -> None:
    """Bring the devices in step with those that the kubelet's checkpoint has of known pods."""
    known_pods = {pod.uid: pod for pod in state.pods.values()}
    for pod_devices in written:
        known = state.device_table.get(pod_devices.uid) or pod_devices.only(())
        for former in _formers_of(state.device_table, pod_devices):
            known = absorb(state, former, known_pods[known.uid], known)
        for devices in pod_devices.devices:
            before = known.container_devices(devices.container, devices.resource)
            # The list, which says more of the other containers, does not show an init container.
            mistaken = devices.phase is Phase.INIT and before is not None and set(before.ids) != set(devices.ids)
            if before is None or mistaken:
                known = with_devices(known, devices, state.node_config)
            elif set(before.ids) == set(devices.ids) and devices.mounts is not None:
                # The kubelet goes by the answer that it kept, not by the one that was given last.
                kept = msgspec.structs.replace(
                    before, directory=devices.directory, mounts=devices.mounts, guessed=False
                )
                known = with_devices(known, kept, state.node_config)
            _drop_stand_ins(state.device_table, pod_devices.key, devices)
        state.device_table.apply(DeviceEvent.ANSWERED, known)


def _formers_of(device_table: DeviceTable, pod_devices: PodDevices) -> list[PodDevices]:
    """Return what a pod was answered under a stand-in, or as the pod that had its name before."""
    held = (device_table.holders(devices.resource, devices.ids) for devices in pod_devices.devices)
    formers = {other.uid: other for others in held for other in others if other.key == pod_devices.key}
    formers.pop(pod_devices.uid, None)
    return [each for each in formers.values() if any(_gives(each, devices) for devices in pod_devices.devices)]


def _gives(former: PodDevices, devices: ContainerDevices) -> bool:
    answered = former.container_devices(devices.container, devices.resource)
    return answered is not None and set(answered.ids) == set(devices.ids)


def _drop_stand_ins(device_table: DeviceTable, key: str, devices: ContainerDevices) -> None:
    """Take the devices, which are of the pod with this key, from whoever stands for it or for nobody known."""
    for former in device_table.holders(devices.resource, devices.ids):
        if former.identified and not (stand_in(former.uid) and former.key == key):
            continue
        device_table.apply(DeviceEvent.REASSIGNED, former, partial(has_any, devices.resource, devices.ids))
