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

from gputile.api.well_known import GPU_CORE, GPU_MEMORY, Mode
from gputile.core.devices.allocation import GpuShare
from gputile.core.devices.request import ContainerRequest
from gputile.node.agent.claims.prepared_claim import PreparedClaim
from gputile.node.agent.known_pods import KnownPod
from gputile.node.agent.node_config import NodeConfig
from gputile.node.agent.pod_devices import PodDevices

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
    """What is enforced on a container, as written into its allocation's directory."""

    namespace: str
    pod: str
    uid: str
    container: str
    mode: str
    unit_mib: int
    gpus: tuple[GpuShare, ...] = msgspec.field(name="cards")
    version: int = LIMITS_VERSION

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
    first = node_config.gpu(shares[0].index) if shares else None
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


def shares_of(
    node_config: NodeConfig,
    pod_devices: PodDevices,
    container: str,
    request: ContainerRequest | None,
    indices: tuple[int, ...],
) -> tuple[GpuShare, ...]:
    """Return a container's share of each of the GPUs it is on.

    The amounts are those of the pod's specification. The container's IDs may be incomplete: the kubelet asks for its
    two resources one after the other. Where the specification is not known, the amounts are what the IDs are worth.
    """
    if isinstance(pod_devices, PreparedClaim):
        return pod_devices.shares
    count, shares = max(1, len(indices)), []
    for index in indices:
        gpu = node_config.gpu(index)
        if gpu is None:
            continue
        if not node_config.mode.shared:
            mib, percent = gpu.mib, 100
        elif request is not None:
            mib, percent = request.units * pod_devices.unit_mib // count, request.percent // count
        else:
            memory, core = (
                pod_devices.container_slots(container, each).get(index, ()) for each in (GPU_MEMORY, GPU_CORE)
            )
            mib, percent = len(memory) * pod_devices.unit_mib, len(core)
        shares.append(GpuShare(gpu.uuid, index, mib, percent))
    return tuple(shares)


def pod_mib(pod_devices: PodDevices, pod: KnownPod | None, index: int) -> int:
    """Return what a pod has of each of its GPUs in MiB, at its peak."""
    if pod is not None and pod.request is not None:
        return pod.request.shape.mib
    return pod_devices.mib(index)
