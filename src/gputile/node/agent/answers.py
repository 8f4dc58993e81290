"""Builds what a container gets from ``Allocate``: environment, mount, CDI devices and limits.

The GPUs are always those of the device IDs that the kubelet gave, so that what a container can see and what the
kubelet has assigned cannot differ. Both resources of a core_mem container get the same answer: the kubelet merges the
two. A client of NVIDIA's MPS is also told which control daemon serves it, and its limits (NVIDIA's "Multi-Process
Service", chapters "Environment Variables" and "Device Memory Limit").
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from gputile.api.well_known import Mode
from gputile.core.devices.allocation import GpuShare
from gputile.core.devices.request import Phase
from gputile.node.agent.node_config import NodeConfig

PIPE_ENV: Final = "CUDA_MPS_PIPE_DIRECTORY"
LIMIT_ENV: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREADS_ENV: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
CONTAINER_PIPES: Final = "/tmp/nvidia-mps"  # noqa: S108 - where CUDA looks unless it is told otherwise
SINGLE: Final = "GPU-"  # what NVIDIA begins a GPU's UUID with
SEVERAL: Final = "cards-"

GpuUuids = tuple[str, ...]
"""The UUIDs of the GPUs that one daemon serves, in the order of their indices."""


def daemon_name(gpus: GpuUuids) -> str:
    return gpus[0] if len(gpus) == 1 else f"{SEVERAL}{hashlib.sha256(' '.join(gpus).encode()).hexdigest()[:32]}"


LIMITS_VERSION = 1
LIMITS_FILE = "limits.json"
CONTAINER_DIRECTORY = "/etc/gputile/allocation"

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"  # NVIDIA container toolkit
LIMITS_ENV = "GPUTILE_LIMITS"
# gpushare's device plugin sets these; existing programs read them (B9).
_CONTAINER, _POD, _DEVICE = "ALIYUN_COM_GPU_MEM_CONTAINER", "ALIYUN_COM_GPU_MEM_POD", "ALIYUN_COM_GPU_MEM_DEV"
_INDEX, _UNIT = "ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_UNIT"


@dataclass(frozen=True, slots=True)
class AllocateAnswer:
    """The answer to ``Allocate``. ``directory`` is the name of the allocation's directory on the host."""

    environment: Mapping[str, str]
    directory: str
    uuids: tuple[str, ...]


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one allocation directory says: who was answered what at ``since_ns``, and the limits once it was let start.

    ``devices`` are the container's IDs by resource; a claim has none. ``pod``, ``uid`` and ``container`` are those of
    who was taken for the caller, "" where nobody was, until a start says whose they are. ``gpus`` are empty until then.
    """

    namespace: str
    pod: str
    uid: str
    container: str
    mode: str
    unit_mib: int
    gpus: tuple[GpuShare, ...] = msgspec.field(name="cards", default=())
    devices: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    phase: Phase = Phase.APP
    since_ns: int = 0
    version: int = LIMITS_VERSION

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.pod}" if self.pod else ""

    def encode(self) -> bytes:
        return msgspec.json.encode({"version": self.version, **msgspec.to_builtins(self)})


def environment(
    node_config: NodeConfig,
    uuids: tuple[str, ...],
    shares: tuple[GpuShare, ...],
    unit_mib: int,
    pod_mib: int,
    threads: int = 0,
) -> dict[str, str]:
    """Return the environment of a container with ``shares`` of GPUs; ``pod_mib`` is what its pod has of each GPU.

    ``threads`` is the percentage of a GPU's threads that it asks for in mode mps, 0 if it asks for none.
    """
    result = {VISIBLE_DEVICES: ",".join(uuids)}
    if not node_config.mode.shared:
        return result
    result[LIMITS_ENV] = f"{CONTAINER_DIRECTORY}/{LIMITS_FILE}"
    first = node_config.gpu(shares[0].uuid) if shares else None
    if first is not None:
        result |= {
            _DEVICE: str(first.mib // unit_mib),
            _INDEX: ",".join(str(share.index) for share in shares),
            _UNIT: f"{unit_mib}MiB",
        }
        if mib := sum(share.mib for share in shares):  # of compute, nobody knows for whom, there is none to tell
            result |= {_CONTAINER: str(mib // unit_mib), _POD: str(pod_mib * len(shares) // unit_mib)}
    if node_config.mode is Mode.MPS:
        # CUDA numbers the visible devices from 0 (MPS documentation, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT).
        limits = (f"{position}={share.mib}M" for position, share in enumerate(shares))
        result[LIMIT_ENV] = ",".join(limits)
        result[PIPE_ENV] = CONTAINER_PIPES
        if threads:
            result[THREADS_ENV] = str(threads)
    return result
