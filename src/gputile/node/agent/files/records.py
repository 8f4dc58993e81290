"""Saves what the agent remembers through its own death, and restores what it has lost."""

import logging
from pathlib import Path

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node
from gputile.api.quantity import MIB
from gputile.api.well_known import INVENTORY_ANNOTATION, Mode
from gputile.core.devices.inventory import decode_inventory
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.files.allocation_files import NodeFiles
from gputile.node.agent.files.checkpoint import Checkpoint
from gputile.node.agent.files.kubelet_checkpoint import FILE_NAME, entries_in
from gputile.node.agent.holdings import adopt, derive
from gputile.node.agent.node_config import EffectiveMode, Sharing
from gputile.node.agent.node_resources import MachineSeen, node_config_of
from gputile.support.files import read_whole

log = logging.getLogger(__name__)

_MOST_BYTES = 64 * MIB  # of the kubelet's checkpoint; one of 250 pods has some hundred thousand


class Records:
    """The agent's checkpoint, the allocation directories and the kubelet's checkpoint.

    ``saved`` is what the agent before this one wrote.
    """

    def __init__(self, store: NodeFiles, device_plugins: Path) -> None:
        self.store = store
        self._kubelets = device_plugins / FILE_NAME
        loaded = store.load()
        self.lost = loaded is None
        self.saved = loaded or Checkpoint()
        self._version: tuple[int, int, int] | None = None  # of the kubelet's checkpoint, as it was read last
        self._complete: tuple[object, ...] = ()  # what each directory was last seen to have a record of
        self._problem: str | None = None  # why the kubelet's checkpoint could not be read, as it was said last

    @property
    def effective_mode(self) -> EffectiveMode | None:
        saved = self.saved
        if not saved.mode:
            return None
        return EffectiveMode(Mode(saved.mode), saved.unit_mib, saved.sharing, saved.replicas, saved.claims)

    def starting_state(self, seen: MachineSeen, configuration: Configuration) -> AllocationState:
        """Return what the agent before this one has left, on a machine with the GPUs that are ``seen``."""
        before = self.effective_mode
        mode = before or EffectiveMode(Mode.EXCLUSIVE, configuration.unit_mib)
        offered = node_config_of(seen.machine, seen.health, mode, "", "")
        state = AllocationState(configuration, offered)
        state.take_over(self.store.records(), self.store.started(), before, self.saved.registered)
        return state

    def save(self, state: AllocationState) -> None:
        """Write down what is in force, and the resources that are served.

        Raises:
            OSError: it cannot be written.
        """
        told = state.advertised
        now = told.effective_mode or EffectiveMode(Mode.EXCLUSIVE, 0)
        self.store.save(
            Checkpoint(
                mode=now.mode.value if told.effective_mode else "",
                unit_mib=now.unit_mib,
                sharing=now.sharing,
                replicas=now.replicas,
                claims=now.claims,
                registered=tuple(sorted({*told.resources, *told.registered})),
            )
        )
        told.record_checkpoint(written=True)

    def take_over(self, state: AllocationState) -> None:
        """Go on with what the agent before this one has written until it let go of the node.

        Where its checkpoint has been lost, what is in force is what the node was published with.
        """
        loaded = self.store.load()
        if loaded is not None:
            self.saved, self.lost = loaded, False
        mode = self.effective_mode
        if self.lost and mode is None and state.node is not None:
            mode = published_before(state.node, state.configuration.unit_mib)
        state.take_over(self.store.records(), self.store.started(), mode, self.saved.registered)

    def read(self, state: AllocationState, now_ns: int) -> None:
        """Read what the kubelet has written down, if that is new, and derive who has which devices."""
        try:
            stat = self._kubelets.stat()
            version = stat.st_ino, stat.st_mtime_ns, stat.st_size  # the kubelet puts a new file in the old one's place
            if version != self._version:
                state.written = entries_in(read_whole(self._kubelets, _MOST_BYTES))
                self._version, self._problem = version, None
        except OSError as error:
            self._version = None
            state.written = () if isinstance(error, FileNotFoundError) else None
            self._say(error)
        derive(state, now_ns)
        if self._complete != (state.written, state.device_table):
            for entry in state.written or ():
                if (record := adopt(state, entry)) is not None:
                    self.store.write_record(entry.directory, record)
            derive(state, now_ns)
            self._complete = state.written, state.device_table

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
        unit, replicas = inventory.unit_mib or unit_mib, inventory.replicas or 1
        return EffectiveMode(Mode(inventory.mode), unit, sliced, replicas, inventory.claims)
    except (KeyError, ValueError):
        return None
