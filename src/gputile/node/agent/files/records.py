"""Saves what the agent remembers through its own death, and restores what it has lost."""

import logging
import time
from collections.abc import Iterable
from pathlib import Path

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node
from gputile.api.quantity import MIB
from gputile.api.well_known import INVENTORY_ANNOTATION, Mode
from gputile.core.devices.inventory import decode_inventory
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.device_table import DeviceTable
from gputile.node.agent.files.allocation_files import NodeFiles
from gputile.node.agent.files.checkpoint import Checkpoint
from gputile.node.agent.files.kubelet_checkpoint import FILE_NAME, owners_in, recover
from gputile.node.agent.node_config import EffectiveMode, Sharing
from gputile.node.agent.node_resources import MachineSeen, node_config_of
from gputile.node.agent.ownership import sync_with_checkpoint
from gputile.node.agent.pod_devices import DeviceOwner
from gputile.support.files import read_whole

log = logging.getLogger(__name__)

_MOST_BYTES = 64 * MIB  # of the kubelet's checkpoint; one of 250 pods has some hundred thousand


class Records:
    """The agent's checkpoint and the kubelet's. ``saved`` is what the agent before this one wrote."""

    def __init__(self, store: NodeFiles, device_plugins: Path) -> None:
        self.store = store
        self._kubelets = device_plugins / FILE_NAME
        loaded = store.load()
        self.lost = loaded is None
        self.saved = loaded or Checkpoint()
        self._recovered: tuple[object, ...] = ()  # what the kubelet's checkpoint was last compared with
        self._problem: str | None = None  # why the kubelet's checkpoint could not be read, as it was said last

    @property
    def effective_mode(self) -> EffectiveMode | None:
        saved = self.saved
        return EffectiveMode(Mode(saved.mode), saved.unit_mib, saved.sharing, saved.replicas) if saved.mode else None

    def starting_state(self, seen: MachineSeen, configuration: Configuration) -> AllocationState:
        """Return what the agent before this one has left, on a machine with the GPUs that are ``seen``."""
        before = self.effective_mode
        mode = before or EffectiveMode(Mode.EXCLUSIVE, configuration.unit_mib)
        offered = node_config_of(seen.machine, seen.health, mode, "", "")
        state = AllocationState(configuration, offered, DeviceTable())
        state.take_over(self.saved.pods, self.store.started(), before, self.saved.registered)
        return state

    def save(self, state: AllocationState) -> None:
        """Write down who holds what, what is in force, and the resources that are served.

        Raises:
            OSError: it cannot be written.
        """
        told = state.advertised
        now = told.effective_mode or EffectiveMode(Mode.EXCLUSIVE, 0)
        self.store.save(
            Checkpoint(
                pods=tuple(state.device_table),
                mode=now.mode.value if told.effective_mode else "",
                unit_mib=now.unit_mib,
                sharing=now.sharing,
                replicas=now.replicas,
                registered=tuple(sorted({*told.resources, *told.registered})),
            )
        )
        told.record_checkpoint(written=True)

    def take_over(self, state: AllocationState) -> None:
        """Go on with what the agent before this one has written until it let go of the node.

        Where its checkpoint has been lost, what is in force is what the node was published with.
        """
        loaded, pods = self.store.load(), tuple(state.device_table)
        if loaded is not None:
            self.saved, self.lost, pods = loaded, False, loaded.pods
        mode = self.effective_mode
        if self.lost and mode is None and state.node is not None:
            mode = published_before(state.node, state.configuration.unit_mib)
        state.take_over(pods, self.store.started(), mode, self.saved.registered)

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
        self._recovered, self._problem = seen, None
        known_pods = {pod.uid: pod for pod in allocation_state.pods.values()}
        mirrored = {pod.kubelet_uid: pod for pod in known_pods.values()}  # users can write what a mirror says
        written = recover(text, mirrored | known_pods, allocation_state.node_config, time.time_ns())
        sync_with_checkpoint(allocation_state, written)

    def owners(self, resource: str, ids: Iterable[str]) -> frozenset[DeviceOwner] | None:
        """Return the containers for which the kubelet's checkpoint has just these IDs.

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
