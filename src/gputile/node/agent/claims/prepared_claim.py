"""Describes a prepared claim: one more holder of GPUs in the device table, and a record on disk.

The kubelet names a claim when it asks to prepare it, so its row needs no device IDs: the amounts stand in it.
"""

from functools import cached_property

import msgspec

from gputile.api.well_known import DRIVER
from gputile.core.devices.allocation import GpuShare
from gputile.core.devices.request import Phase
from gputile.core.devices.versioned_codec import VersionedCodec
from gputile.node.agent.device_table import ContainerDevices, PodDevices

VERSION = 1
DIRECTORY_PREFIX = "claim-"


class ClaimRecordError(ValueError):
    """The text is no record of a prepared claim."""


class PreparedDevice(msgspec.Struct, frozen=True):
    """A device as the kubelet was answered. ``request`` is the claim's own name for it."""

    request: str
    name: str
    cdi: tuple[str, ...] = ()
    share_id: str = ""


class PreparedClaim(PodDevices, frozen=True, dict=True):
    """What a claim holds: ``uid`` and ``claim`` are its own, ``namespace`` and ``name`` those of the pod.

    ``shares`` is what it has of each GPU, in the order of their indices, and all of it where ``whole``; a MIG instance
    has the instance's UUID.
    """

    claim: str = ""
    owner: str = ""
    whole: bool = False
    shares: tuple[GpuShare, ...] = ()
    results: tuple[PreparedDevice, ...] = ()

    @property
    def pod_uid(self) -> str:
        return self.owner

    @property
    def directory(self) -> str:
        """The name of its allocation directory."""
        return f"{DIRECTORY_PREFIX}{self.uid}"

    @cached_property
    def gpus(self) -> frozenset[str]:
        return frozenset(share.uuid for share in self.shares)

    @cached_property
    def container_gpus(self) -> dict[str, frozenset[str]]:
        return {devices.container: self.gpus for devices in self.devices}

    def mib(self, gpu: str) -> int:
        return sum(share.mib for share in self.shares if share.uuid == gpu)

    def percent(self, gpu: str) -> int:
        return sum(share.percent for share in self.shares if share.uuid == gpu)


def row_devices(uid: str, container: str, phase: Phase) -> tuple[ContainerDevices, ...]:
    """Return what ties a claim's row to its allocation directory: no IDs."""
    return (ContainerDevices(container, phase, DRIVER, (), f"{DIRECTORY_PREFIX}{uid}"),)


_CODEC = VersionedCodec(PreparedClaim, VERSION, ClaimRecordError, lambda record: record, most=None)
encode_claim, decode_claim = _CODEC.encode, _CODEC.decode
