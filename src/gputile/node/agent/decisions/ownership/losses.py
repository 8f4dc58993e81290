"""Decides who loses devices by what the kubelet says, and who has what a stand-in was answered."""

from collections.abc import Iterable, Set
from functools import partial

import msgspec

from gputile.core.devices.request import Phase
from gputile.node.agent.state.allocation_state import AllocationState
from gputile.node.agent.state.device_stage import DeviceEvent
from gputile.node.agent.state.known_pods import KnownPod
from gputile.node.agent.state.listing import ListedPod, Listing
from gputile.node.agent.state.pod_devices import ContainerDevices, PodDevices, has_any, with_devices


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
    """Return whether the devices are an init container's, and one of them is among ``ids``."""
    return devices.phase is Phase.INIT and has_any(resource, ids, devices)
