"""Stores allocation directories and the agent's checkpoint, and reads the kubelet's checkpoint.

A file is written under a temporary name and renamed, so that a reader sees either the old or the
new content. Files are not flushed to the disk, because no container runs after a crash of the
machine, and the kubelet's checkpoint contains the IDs of all containers. Two agents may run for a
moment during an upgrade. Once the gateway of the newer agent has taken over the node, the older
agent must write nothing more, and the newer agent reads the kubelet's checkpoint.

The agent's checkpoint contains the mode in force, for an agent that starts while the API server is
unavailable.

``kubelet_internal_checkpoint`` in the device plugin directory contains the pod's UID, the
container, the IDs and the response of every allocation, also for init containers
(``pkg/kubelet/cm/devicemanager/checkpoint``). It is a private file of the kubelet. If it cannot be
read, the agent uses the kubelet's List instead, which contains no init containers.
"""

import contextlib
import logging
import shutil
from collections.abc import Iterable, Set
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.conversion import ConversionError, decode
from gputile.api.core import Node
from gputile.api.quantity import MIB
from gputile.api.well_known import INVENTORY_ANNOTATION, Mode
from gputile.core.devices.inventory import decode_inventory
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.device_table import (
    CONTAINER_DIRECTORY,
    LIMITS_FILE,
    KubeletEntry,
    Limits,
    Mounts,
    directory_name,
)
from gputile.node.agent.files.usage_files import UsageFiles, close_to_others
from gputile.node.agent.holdings import derive, listed_entries
from gputile.node.agent.node_config import (
    LIBRARY_MODES,
    EffectiveMode,
    Sharing,
    is_served,
    node_config_of,
)
from gputile.node.arbiter.messages import SHARE_FILE, SOCKET
from gputile.node.gateway import kubelet_pb2 as pb
from gputile.node.gateway.link import NodeLock
from gputile.node.isolation.library import LIMITS, GpuLimit, encode_limits
from gputile.node.nvml.gpu_monitor import Observation
from gputile.support.files import read_whole, write_whole

log = logging.getLogger(__name__)


BOOT_FILE = "boot"
"""The file in an allocation directory with the boot_id (random(4)) at its container's start."""
KUBELET_FILE = "kubelet_internal_checkpoint"
_PASSED = 0o711  # MPS runs a server as the user of its clients, which must reach the pipes
_PRIVATE = 0o600
# The largest file that is read. The kubelet's checkpoint of 250 pods has about 100,000 bytes.
_MOST_BYTES = 64 * MIB
_MOST_KEPT = 1024
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
CHECKPOINT = msgspec.json.Decoder(EffectiveMode)


class StateError(Exception):
    """The agent's state directory cannot be used. The text states the directory and the reason."""


class NodeFiles:
    """The agent's state directory on the host.

    Other users of the node cannot enter the directory that contains the allocation directories.
    Each container mounts its own allocation directory, which all users in the container can enter.
    Raises StateError if the state directory cannot be used.
    """

    def __init__(self, directory: Path, node_lock: NodeLock, usage: UsageFiles) -> None:
        self.directory = directory
        self.usage = usage
        self._file = directory / "checkpoint.json"
        self._node_lock = node_lock
        self._boot = _BOOT_ID.read_text().strip()
        self.allocations = directory / "allocations"
        try:
            close_to_others(directory, _PASSED)
            close_to_others(self.allocations)
        except OSError as error:
            raise StateError(
                f"the directory of the agent's state cannot be used: {error}"
            ) from error

    @property
    def mine(self) -> bool:
        return self._node_lock.is_held

    def load(self) -> EffectiveMode | None:
        """Return the mode in the agent's checkpoint, or None if there is no valid checkpoint."""
        try:
            return decode(read_whole(self._file, _MOST_BYTES), CHECKPOINT)
        except FileNotFoundError:
            return None
        except (ConversionError, OSError) as error:
            log.error("reading the mode from the node object: %s: %s", self._file, error)
            return None

    def save(self, effective_mode: EffectiveMode) -> None:
        """Write the checkpoint, unless another agent has taken over the node.

        Raises OSError if the checkpoint cannot be written.
        """
        if self.mine:
            write_whole(self._file, msgspec.json.encode(effective_mode), _PRIVATE)

    def prepare(self, directory: str) -> Path:
        """Create an allocation directory before its container is created. Return the path."""
        path = self.allocations / directory
        path.mkdir(exist_ok=True)
        path.chmod(0o755)
        return path

    def records(self) -> dict[str, Limits]:
        """Return the valid records with devices, by the name of the allocation directory."""
        found = ((path.name, self.limits(path.name)) for path in sorted(self.allocations.iterdir()))
        return {name: limits for name, limits in found if limits is not None and limits.devices}

    def write_answer(self, directory: str, limits: Limits) -> None:
        """Create an allocation directory with the record of an Allocate response.

        No record is written for a claim, which has no devices. Raises OSError if the directory
        cannot be written.
        """
        path = self.prepare(directory)
        if limits.devices and self.mine:
            write_whole(path / LIMITS_FILE, limits.encode())

    def write_limits(self, directory: str, limits: Limits, usage: Path | None = None) -> None:
        """Write the limits of a container before its creation, and clear its ``usage`` file.

        A usage file that a process has locked belongs to a running container, and is not cleared.
        The library, tools and people read the limits.
        """
        path = self.prepare(directory)
        if usage is not None and not self.usage.is_held(directory):
            self.usage.make(usage)
        write_whole(path / LIMITS_FILE, limits.encode())
        if limits.mode in LIBRARY_MODES:
            gpus = [GpuLimit(gpu.uuid, gpu.mib, gpu.percent) for gpu in limits.gpus]
            write_whole(path / LIMITS, encode_limits(gpus, turn=f"{CONTAINER_DIRECTORY}/{SOCKET}"))
        write_whole(path / BOOT_FILE, self._boot.encode())

    def limits(self, directory: str) -> Limits | None:
        """Return the record in an allocation directory, or None if there is no valid record."""
        try:
            return msgspec.json.decode(
                read_whole(self.allocations / directory / LIMITS_FILE, _MOST_BYTES), type=Limits
            )
        except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError):
            return None

    def started(self) -> frozenset[str]:
        """Return the allocation directories whose containers have started since the last boot."""
        found = set()
        for path in self.allocations.iterdir():
            with contextlib.suppress(OSError):
                if read_whole(path / BOOT_FILE, _MOST_BYTES) == self._boot.encode():
                    found.add(path.name)
        return frozenset(found)

    def started_ns(self, directory: str) -> int:
        """Return when a container was last allowed to start, or 0 if it never was."""
        try:
            return (self.allocations / directory / BOOT_FILE).stat().st_mtime_ns
        except OSError:
            return 0

    def write_share(self, directory: str, content: bytes) -> bool:
        """Write the share file of a container. Return False if it has no allocation directory."""
        path = self.allocations / directory
        if not path.is_dir():
            return False
        write_whole(path / SHARE_FILE, content)
        return True

    def remove_except(self, directories: Iterable[str], pods: Set[str] = frozenset()) -> set[str]:
        """Remove all allocation directories except ``directories``. Return the names that remain.

        The directories of containers with running processes also remain, and so do the directories
        of the pods with the UIDs ``pods``.
        """
        kept = set(directories)
        kept |= {
            name for name in self.usage.names() if name not in kept and self.usage.is_held(name)
        }
        for path in [each for each in self.allocations.iterdir() if each.name not in kept]:
            limits = self.limits(path.name)
            if limits is not None and limits.uid in pods:
                kept.add(path.name)
            else:
                shutil.rmtree(path, ignore_errors=True)
        self.usage.remove_except(kept)
        self.usage.cut_back()
        return kept


class _CheckpointEntry(msgspec.Struct, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: dict[str, list[str]] | None = msgspec.field(name="DeviceIDs", default=None)
    alloc_resp: bytes | None = None

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(
            device_id for group in (self.device_ids or {}).values() for device_id in group
        )


class _Data(msgspec.Struct, rename="pascal"):
    pod_device_entries: list[_CheckpointEntry] | None = None
    registered_devices: dict[str, msgspec.Raw] | None = None


class _CheckpointFile(msgspec.Struct, rename="pascal"):
    data: _Data
    checksum: Any = None


_CHECKPOINT_FILE = msgspec.json.Decoder(_CheckpointFile)


def read_checkpoint(text: bytes) -> tuple[tuple[KubeletEntry, ...], dict[str, bytes]]:
    """Return the entries of the kubelet's checkpoint, and other plugins' device IDs by resource.

    These IDs are of healthy devices, as JSON. Raises ConversionError if the format is unknown.
    """
    data = decode(text, _CHECKPOINT_FILE).data
    found = []
    for each in data.pod_device_entries or []:
        mounts = _mounts(each.alloc_resp)
        mounted = PurePosixPath(dict(mounts).get(CONTAINER_DIRECTORY, "")).name
        directory = mounted or directory_name(each.pod_uid, each.container_name)
        found.append(
            KubeletEntry(
                each.pod_uid, each.container_name, each.resource_name, each.ids, directory, mounts
            )
        )
    registered = data.registered_devices or {}
    return tuple(found), {
        name: bytes(ids) for name, ids in registered.items() if not is_served(name)
    }


@lru_cache(_MOST_KEPT)  # the kubelet rewrites all entries at each admission
def _mounts(answer: bytes | None) -> Mounts:
    """Return the mounts in an encoded Allocate response, or () if the response is invalid."""
    try:
        return mounts_of(pb.ContainerAllocateResponse.FromString(answer or b""))
    except DecodeError:
        return ()


def mounts_of(response: pb.ContainerAllocateResponse) -> Mounts:
    return tuple((mount.container_path, mount.host_path) for mount in response.mounts)


class Records:
    """The files that outlive the agent: its checkpoint, the kubelet's, and allocation records."""

    def __init__(self, store: NodeFiles, device_plugins: Path) -> None:
        self.store = store
        self._kubelets = device_plugins / KUBELET_FILE
        # The version of the kubelet's checkpoint that was last read
        self._version: tuple[int, int, int] | None = None
        self._saved: EffectiveMode | None = None

    def starting_state(self, seen: Observation, configuration: Configuration) -> AllocationState:
        """Return the initial state of an agent, from the files of the previous agent."""
        mode = self.store.load() or EffectiveMode(Mode.EXCLUSIVE, configuration.unit_mib)
        state = AllocationState(
            configuration, node_config_of(seen.machine, seen.health, mode, "", "")
        )
        self.take_over(state)
        return state

    def save(self, mode: EffectiveMode, *, again: bool) -> None:
        """Write the agent's checkpoint if ``mode`` has changed, or in any case with ``again``.

        Raises OSError if this fails.
        """
        if again or mode != self._saved:
            self.store.save(mode)
            self._saved = mode

    def take_over(self, state: AllocationState) -> None:
        """Read the files that the previous agent wrote until it released the node.

        The kubelet's checkpoint may not contain that agent's last responses yet.
        """
        state.records, state.started = self.store.records(), self.store.started()
        state.answered = state.records.keys() - state.started
        self._saved = self.store.load()
        state.saved_mode = self._saved or state.saved_mode

    def read(self, state: AllocationState, now_ns: int) -> None:
        """Read the kubelet's checkpoint if it has changed, and derive the device table."""
        try:
            stat = self._kubelets.stat()
            version = stat.st_ino, stat.st_mtime_ns, stat.st_size  # the kubelet replaces the file
            if version != self._version:
                text = read_whole(self._kubelets, _MOST_BYTES)
                state.written, state.of_other_plugins = read_checkpoint(text)
                self._version, state.unread = version, ""
        except FileNotFoundError:
            self._version, state.unread, state.written, state.of_other_plugins = None, "", (), {}
        except (ConversionError, OSError) as error:
            if state.unread != str(error):
                log.error(
                    "init containers with GPUs wait, as the kubelet's checkpoint cannot be read: "
                    "%s",
                    error,
                )
            self._version, state.unread = None, str(error)
            state.written = listed_entries(state)
        derive(state, now_ns)


def published_before(node: Node, unit_mib: int) -> EffectiveMode | None:
    """Return the mode in the inventory of ``node``, or None if it has no valid inventory.

    ``unit_mib`` is used as the memory unit if the inventory has none.
    """
    try:
        inventory = decode_inventory(node.metadata.annotations[INVENTORY_ANNOTATION])
        sharing = Sharing.TIME_SLICING if inventory.replicas else Sharing.NONE
        return EffectiveMode(
            Mode(inventory.mode),
            inventory.unit_mib or unit_mib,
            Sharing.MIG if inventory.mig else sharing,
            inventory.replicas or 1,
            inventory.claims,
            inventory.shared_mib,
        )
    except (KeyError, ValueError):
        return None
