"""What the agent remembers through its own death, and how it gets back what it has lost."""

import logging
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from gputile.api.core import Node
from gputile.api.well_known import INVENTORY_ANNOTATION, Mode
from gputile.core.devices.inventory import decode_inventory
from gputile.core.devices.request import Phase
from gputile.node.agent.advertise.node_config import EffectiveMode, Sharing
from gputile.node.agent.allocate.allocation_state import AllocationState
from gputile.node.agent.allocate.device_table import DeviceTable
from gputile.node.agent.allocate.pod_devices import ContainerDevices, PodDevices, with_devices
from gputile.node.agent.checkpoint.codec import Checkpoint
from gputile.node.agent.checkpoint.kubelet_checkpoint import FILE_NAME, owners_in, recover
from gputile.node.agent.checkpoint.node_files import NodeFiles
from gputile.support.files import read_whole

log = logging.getLogger(__name__)

_MOST_BYTES = 64 * 1024 * 1024  # of the kubelet's checkpoint; one of 250 pods has some hundred thousand


class Records:
    """The agent's checkpoint and the kubelet's. ``saved`` is what the agent before this one wrote."""

    def __init__(self, store: NodeFiles, device_plugins: Path) -> None:
        self.store = store
        self._kubelets = device_plugins / FILE_NAME
        loaded = store.load()
        self.lost = loaded is None
        self.saved = loaded or Checkpoint()
        self._recovered: tuple[object, ...] = ()  # what the kubelet's checkpoint was last compared with
        self._problem = ""  # why the kubelet's checkpoint could not be read, as it was said last

    @property
    def effective_mode(self) -> EffectiveMode | None:
        """What was in force when the checkpoint was written; None where nothing was yet."""
        saved = self.saved
        return EffectiveMode(Mode(saved.mode), saved.unit_mib, saved.sharing, saved.replicas) if saved.mode else None

    def save(
        self, allocation_state: AllocationState, effective_mode: EffectiveMode | None, resources: Iterable[str]
    ) -> None:
        """Write down who holds what, what is in force, and the ``resources`` that are served."""
        now = effective_mode or EffectiveMode(Mode.EXCLUSIVE, 0)
        self.store.save(
            Checkpoint(
                pods=tuple(allocation_state.device_table),
                mode=now.mode.value if effective_mode else "",
                unit_mib=now.unit_mib,
                sharing=now.sharing,
                replicas=now.replicas,
                registered=tuple(sorted({*resources, *self.saved.registered})),
            )
        )

    def read_again(self, device_table: DeviceTable) -> None:
        """Take in what the agent before this one has written until it let go of the node."""
        device_table.started = self.store.started()
        loaded = self.store.load()
        if loaded is None:
            return
        self.saved, self.lost = loaded, False
        for pod_devices in device_table:
            device_table.drop(pod_devices.uid)
        for pod_devices in loaded.pods:
            device_table.put(pod_devices)

    def recover(self, allocation_state: AllocationState) -> None:
        """Read from the kubelet's checkpoint what was lost with the agent's own, or answered by the agent before.

        It also tells whose the devices are that were given to nobody knew whom, init containers included, and what a
        container will mount: the directory and files of the answer it got, even if that was meant for another.
        """
        device_table, node_config = allocation_state.device_table, allocation_state.node_config
        try:
            stat = self._kubelets.stat()
            pods = tuple((pod.uid, pod.alive, pod.request, pod.trust_group) for pod in allocation_state.pods.values())
            seen = (stat.st_ino, stat.st_mtime_ns, node_config, tuple(device_table), pods)
            if seen == self._recovered:  # the kubelet puts a new file in the place of the old one
                return
            text = read_whole(self._kubelets, _MOST_BYTES)
        except OSError as error:
            self._say(error)
            return
        self._recovered, self._problem = seen, ""
        known_pods = {pod.uid: pod for pod in allocation_state.pods.values()}
        mirrored = {pod.kubelet_uid: pod for pod in known_pods.values()}  # users can write what a mirror says
        for pod_devices in recover(text, mirrored | known_pods, node_config, time.time_ns()):
            known = device_table.get(pod_devices.uid) or pod_devices.only(())
            for former in _answered_as(device_table, pod_devices):
                known = allocation_state.absorb(former, known_pods[known.uid], known)
            for devices in pod_devices.devices:
                before = known.container_devices(devices.container, devices.resource)
                # The list, which says more of the other containers, does not show an init container.
                mistaken = devices.phase is Phase.INIT and before is not None and set(before.ids) != set(devices.ids)
                if before is None or mistaken:
                    known = with_devices(known, devices, node_config)
                elif set(before.ids) == set(devices.ids) and devices.mounts is not None:
                    # The kubelet goes by the answer that it kept, not by the one that was given last.
                    kept = msgspec.structs.replace(before, directory=devices.directory, mounts=devices.mounts)
                    known = with_devices(known, kept, node_config)
                _drop_stand_ins(device_table, devices)
            device_table.put(known)

    def owners(self, resource: str, ids: Iterable[str]) -> frozenset[tuple[str, str]] | None:
        """Return the UID and name of each container for which the kubelet's checkpoint has just these IDs.

        The kubelet writes down all that a container has before it asks for the next one, and before any of them starts.
        None where the checkpoint cannot be read.
        """
        try:
            return owners_in(read_whole(self._kubelets, _MOST_BYTES), resource, ids)
        except FileNotFoundError:
            return frozenset()
        except OSError as error:
            self._say(error)
            return None

    def _say(self, error: OSError) -> None:
        """Say once why the kubelet's checkpoint cannot be read; there need not be one."""
        if str(error) != self._problem and not isinstance(error, FileNotFoundError):
            log.warning("the kubelet's checkpoint is not read: %s", error)
            self._problem = str(error)


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


def _drop_stand_ins(device_table: DeviceTable, devices: ContainerDevices) -> None:
    for former in device_table.holders(devices.resource, devices.ids):
        if former.identified:
            continue
        device_table.keep(former.without(devices.resource, devices.ids))


def published_before(node: Node, unit_mib: int) -> EffectiveMode | None:
    """Return the mode that ``node`` was published with, for an agent that has lost its checkpoint.

    ``unit_mib`` is the memory unit where the inventory names none.
    """
    try:
        inventory = decode_inventory(node.metadata.annotations[INVENTORY_ANNOTATION])
        sliced = Sharing.TIME_SLICING if inventory.replicas else Sharing.NONE
        return EffectiveMode(Mode(inventory.mode), inventory.unit_mib or unit_mib, sliced, inventory.replicas or 1)
    except (KeyError, ValueError):
        return None
