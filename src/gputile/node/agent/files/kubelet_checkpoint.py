"""Reads the kubelet's own checkpoint, for an agent that lost its own and for what ``List`` omits.

``kubelet_internal_checkpoint`` in the device plugin directory names the pod's UID, the container, the IDs and the
answer of every allocation, init containers included (``pkg/kubelet/cm/devicemanager/checkpoint``). It is the kubelet's
private file, so nothing depends on it: what cannot be read there is taken over from PodResources later.
"""

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from gputile.core.devices.request import Phase
from gputile.node.agent.answers import CONTAINER_DIRECTORY
from gputile.node.agent.device_ids import DeviceIdError
from gputile.node.agent.known_pods import KnownPod
from gputile.node.agent.node_config import NodeConfig, is_served
from gputile.node.agent.pod_devices import (
    ContainerDevices,
    DeviceOwner,
    PodDevices,
    directory_name,
    pod_devices_for,
    with_devices,
)
from gputile.node.gateway.protocols import deviceplugin_v1beta1_pb2 as pb

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


class _CheckpointFile(msgspec.Struct, rename="pascal"):
    data: _Data
    checksum: Any = None


def recover(text: bytes, pods: dict[str, KnownPod], node_config: NodeConfig, now_ns: int) -> list[PodDevices]:
    """Return the devices of ``pods`` that the kubelet's checkpoint tells; none where it cannot be read.

    ``pods`` are by the UID that the kubelet knows.
    """
    found: dict[str, PodDevices] = {}
    for entry in _entries(text) or ():
        pod = pods.get(entry.pod_uid)
        if pod is None or not pod.alive or not is_served(entry.resource_name):
            continue
        ids = tuple(sorted(entry.ids))
        asked = pod.container_request(entry.container_name)
        phase = asked.phase if asked else Phase.APP
        mounts = _mounts(entry.alloc_resp)
        directory = _directory(mounts) or directory_name(pod.uid, entry.container_name)
        pod_devices = found.get(pod.uid) or pod_devices_for(pod.uid, pod, pod.key, node_config, pod.trust_group, now_ns)
        try:
            found[pod.uid] = with_devices(
                pod_devices,
                ContainerDevices(entry.container_name, phase, entry.resource_name, ids, directory, mounts),
                node_config,
            )
        except DeviceIdError:
            continue
    return list(found.values())


def owners_in(text: bytes, resource: str, ids: Iterable[str]) -> frozenset[DeviceOwner] | None:
    """Return the containers to which the kubelet's checkpoint gives just ``ids``.

    An init container and the one that takes over its IDs are two. None where the checkpoint cannot be read.
    """
    wanted, entries = frozenset(ids), _entries(text)
    if entries is None:
        return None
    return frozenset(
        DeviceOwner(entry.pod_uid, entry.container_name, _directory(_mounts(entry.alloc_resp)))
        for entry in entries
        if entry.resource_name == resource and entry.ids == wanted
    )


def mounts_of(mounts: Iterable[pb.Mount]) -> tuple[tuple[str, str], ...]:
    return tuple((mount.container_path, mount.host_path) for mount in mounts)


def _entries(text: bytes) -> list[_CheckpointEntry] | None:
    """Return what the kubelet's checkpoint has; None where it cannot be read."""
    try:
        return msgspec.json.decode(text, type=_CheckpointFile).data.pod_device_entries or []
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _directory(mounts: Iterable[tuple[str, str]] | None) -> str:
    """Return the name of the allocation directory among what a container mounts, "" where there is none."""
    return PurePosixPath(dict(mounts or ()).get(CONTAINER_DIRECTORY, "")).name


def _mounts(answer: bytes | None) -> tuple[tuple[str, str], ...] | None:
    """Return what an answer has the container mount, whoever it was thought to be for; None if it cannot be read."""
    try:
        mounts = pb.ContainerAllocateResponse.FromString(answer).mounts if answer else None
    except DecodeError:
        return None
    return mounts_of(mounts) if mounts is not None else None
