"""Takes in what the kubelet has written down of pods: devices that were lost, and whose they are.

Its checkpoint also tells what a container will mount: the directory and files of the answer that it got, even if that
was meant for another.
"""

from collections.abc import Iterable
from functools import partial

import msgspec

from gputile.core.devices.request import Phase
from gputile.node.agent.decisions.ownership.losses import absorb
from gputile.node.agent.state.allocation_state import AllocationState
from gputile.node.agent.state.device_stage import DeviceEvent
from gputile.node.agent.state.device_table import DeviceTable
from gputile.node.agent.state.pod_devices import ContainerDevices, PodDevices, has_any, with_devices
from gputile.node.agent.state.stand_in_uids import stand_in


def sync_with_checkpoint(state: AllocationState, written: Iterable[PodDevices]) -> None:
    """Bring the devices in step with those that the kubelet's checkpoint has of known pods."""
    known_pods = {pod.uid: pod for pod in state.pods.values()}
    for pod_devices in written:
        known = state.device_table.get(pod_devices.uid) or pod_devices.only(())
        for former in _answered_as(state.device_table, pod_devices):
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


def _answered_as(device_table: DeviceTable, pod_devices: PodDevices) -> list[PodDevices]:
    """Return what a pod was answered under a stand-in, or as the pod that had its name before."""
    held = (device_table.holders(devices.resource, devices.ids) for devices in pod_devices.devices)
    formers = {other.uid: other for others in held for other in others if other.key == pod_devices.key}
    formers.pop(pod_devices.uid, None)
    return [each for each in formers.values() if any(_gives(each, devices) for devices in pod_devices.devices)]


def _gives(former: PodDevices, devices: ContainerDevices) -> bool:
    """Return whether the container was answered with just these devices under the UID of ``former``."""
    answered = former.container_devices(devices.container, devices.resource)
    return answered is not None and set(answered.ids) == set(devices.ids)


def _drop_stand_ins(device_table: DeviceTable, key: str, devices: ContainerDevices) -> None:
    """Take the devices, which are of the pod with this key, from whoever stands for it or for nobody known."""
    for former in device_table.holders(devices.resource, devices.ids):
        if former.identified and not (stand_in(former.uid) and former.key == key):
            continue
        device_table.apply(DeviceEvent.REASSIGNED, former, partial(has_any, devices.resource, devices.ids))
