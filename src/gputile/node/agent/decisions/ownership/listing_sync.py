"""Puts every device ID under the pod that the kubelet says has it.

What was assumed at ``Allocate`` becomes certain.

Devices may have been answered under a stand-in (nobody could be asked at the time, or a static pod that the API
server did not know yet) or, rarely, under the name's former owner: a pod that was deleted by force and created again
while the watch lagged behind. Only the label changes; the IDs, and the directory that the container was given, stay.
"""

from dataclasses import dataclass
from functools import partial

from gputile.core.devices.request import Phase
from gputile.node.agent.decisions.ownership.losses import absorb, loss
from gputile.node.agent.state.allocation_directory import directory_name
from gputile.node.agent.state.allocation_state import AllocationState
from gputile.node.agent.state.device_ids import DeviceIdError, by_gpu
from gputile.node.agent.state.device_stage import DeviceEvent, DeviceStage
from gputile.node.agent.state.known_pods import KnownPod
from gputile.node.agent.state.listing import ListedPod, Listing
from gputile.node.agent.state.node_config import is_served
from gputile.node.agent.state.pod_devices import ContainerDevices, PodDevices, has_any, pod_devices_for, with_devices


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
