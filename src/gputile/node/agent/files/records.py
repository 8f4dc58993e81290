"""Reads what is on disk of the node's devices: the kubelet's checkpoint, and what the last agent left.

``kubelet_internal_checkpoint`` in the device plugin directory names the pod's UID, the container, the IDs and the
answer of every allocation, init containers included (``pkg/kubelet/cm/devicemanager/checkpoint``). It is the kubelet's
private file: where it cannot be read, PodResources tells of the containers of running pods.
"""

import logging
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node
from gputile.api.quantity import MIB
from gputile.api.well_known import INVENTORY_ANNOTATION, Mode
from gputile.core.devices.inventory import decode_inventory
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.answers import CONTAINER_DIRECTORY
from gputile.node.agent.device_table import KubeletEntry, directory_name
from gputile.node.agent.files.allocation_files import Checkpoint, NodeFiles
from gputile.node.agent.holdings import derive
from gputile.node.agent.node_config import EffectiveMode, Sharing, is_served
from gputile.node.agent.node_resources import node_config_of
from gputile.node.gateway.protocols import deviceplugin_v1beta1_pb2 as pb
from gputile.node.nvml.gpu_monitor import Observation
from gputile.support.files import read_whole

_MOST_KEPT = 1024
FILE_NAME = "kubelet_internal_checkpoint"


class _CheckpointEntry(msgspec.Struct, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: dict[str, list[str]] | None = msgspec.field(name="DeviceIDs", default=None)
    alloc_resp: bytes | None = None

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(device_id for group in (self.device_ids or {}).values() for device_id in group)


class _Data(msgspec.Struct, rename="pascal"):
    pod_device_entries: list[_CheckpointEntry] | None = None
    registered_devices: dict[str, msgspec.Raw] | None = None


class _CheckpointFile(msgspec.Struct, rename="pascal"):
    data: _Data
    checksum: Any = None


def read_checkpoint(text: bytes) -> tuple[tuple[KubeletEntry, ...] | None, dict[str, bytes]]:
    """Return what the kubelet's checkpoint has of every container, and the device IDs of other plugins by resource.

    The first is None where the file cannot be read. The IDs are those of healthy devices, as JSON.
    """
    try:
        data = msgspec.json.decode(text, type=_CheckpointFile).data
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None, {}
    found = []
    for each in data.pod_device_entries or []:
        mounts = _mounts(each.alloc_resp)
        directory = _directory(mounts) or directory_name(each.pod_uid, each.container_name)
        found.append(KubeletEntry(each.pod_uid, each.container_name, each.resource_name, each.ids, directory, mounts))
    registered = data.registered_devices or {}
    return tuple(found), {name: bytes(ids) for name, ids in registered.items() if not is_served(name)}


def mounts_of(mounts: Iterable[pb.Mount]) -> tuple[tuple[str, str], ...]:
    return tuple((mount.container_path, mount.host_path) for mount in mounts)


def _directory(mounts: Iterable[tuple[str, str]] | None) -> str:
    """Return the name of the allocation directory among what a container mounts, "" where there is none."""
    return PurePosixPath(dict(mounts or ()).get(CONTAINER_DIRECTORY, "")).name


@lru_cache(_MOST_KEPT)  # the kubelet writes all of it anew at each admission
def _mounts(answer: bytes | None) -> tuple[tuple[str, str], ...] | None:
    """Return what an answer has the container mount, whoever it was thought to be for; None if it cannot be read."""
    try:
        mounts = pb.ContainerAllocateResponse.FromString(answer).mounts if answer else None
    except DecodeError:
        return None
    return mounts_of(mounts) if mounts is not None else None


log = logging.getLogger(__name__)

_MOST_BYTES = 64 * MIB  # of the kubelet's checkpoint; one of 250 pods has some hundred thousand


class Records:
    """The agent's checkpoint, the allocation directories and the kubelet's checkpoint.

    ``saved`` is what the agent before this one wrote.
    """

    def __init__(self, store: NodeFiles, device_plugins: Path) -> None:
        self.store = store
        self._kubelets = device_plugins / FILE_NAME
        self.saved = store.load() or Checkpoint()
        self._version: tuple[int, int, int] | None = None  # of the kubelet's checkpoint, as it was read last
        self._problem: str | None = None  # why the kubelet's checkpoint could not be read, as it was said last

    def starting_state(self, seen: Observation, configuration: Configuration) -> AllocationState:
        """Return what the agent before this one has left, on a machine with the GPUs that are ``seen``."""
        mode = self.saved.effective_mode or EffectiveMode(Mode.EXCLUSIVE, configuration.unit_mib)
        state = AllocationState(configuration, node_config_of(seen.machine, seen.health, mode, "", ""))
        state.take_over(self.store.records(), self.store.started(), self.saved.effective_mode)
        return state

    def save(self, state: AllocationState) -> None:
        """Write down what is in force.

        Raises:
            OSError: it cannot be written.
        """
        self.store.save(Checkpoint(state.advertised.effective_mode))
        state.advertised.unsaved = False

    def take_over(self, state: AllocationState) -> None:
        """Go on with what the agent before this one has written until it let go of the node.

        Where its checkpoint has been lost, what is in force is what the node was published with.
        """
        self.saved = self.store.load() or self.saved
        mode = self.saved.effective_mode
        if mode is None and state.node is not None:
            mode = published_before(state.node, state.configuration.unit_mib)
        state.take_over(self.store.records(), self.store.started(), mode)

    def read(self, state: AllocationState, now_ns: int) -> None:
        """Read what the kubelet has written down, if that is new, and derive who has which devices."""
        try:
            stat = self._kubelets.stat()
            version = stat.st_ino, stat.st_mtime_ns, stat.st_size  # the kubelet puts a new file in the old one's place
            if version != self._version:
                state.written, state.of_other_plugins = read_checkpoint(read_whole(self._kubelets, _MOST_BYTES))
                self._version, self._problem = version, None
        except OSError as error:
            self._version = None
            state.written = () if isinstance(error, FileNotFoundError) else None
            state.of_other_plugins = {}
            self._say(error)
        derive(state, now_ns)

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
        mode, unit, replicas = Mode(inventory.mode), inventory.unit_mib or unit_mib, inventory.replicas or 1
        return EffectiveMode(mode, unit, sliced, replicas, claims=inventory.claims)
    except (KeyError, ValueError):
        return None
