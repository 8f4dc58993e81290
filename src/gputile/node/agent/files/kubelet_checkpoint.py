"""Reads the kubelet's own checkpoint: which container has which devices, and what it mounts.

``kubelet_internal_checkpoint`` in the device plugin directory names the pod's UID, the container, the IDs and the
answer of every allocation, init containers included (``pkg/kubelet/cm/devicemanager/checkpoint``). It is the kubelet's
private file: where it cannot be read, PodResources tells of the containers of running pods.
"""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from gputile.node.agent.answers import CONTAINER_DIRECTORY
from gputile.node.agent.pod_devices import KubeletEntry, directory_name
from gputile.node.gateway.protocols import deviceplugin_v1beta1_pb2 as pb

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


class _CheckpointFile(msgspec.Struct, rename="pascal"):
    data: _Data
    checksum: Any = None


def entries_in(text: bytes) -> tuple[KubeletEntry, ...] | None:
    """Return what the kubelet's checkpoint has of every container, None where it cannot be read."""
    try:
        written = msgspec.json.decode(text, type=_CheckpointFile).data.pod_device_entries or []
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    found = []
    for each in written:
        mounts = _mounts(each.alloc_resp)
        directory = _directory(mounts) or directory_name(each.pod_uid, each.container_name)
        found.append(KubeletEntry(each.pod_uid, each.container_name, each.resource_name, each.ids, directory, mounts))
    return tuple(found)


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
