"""Reads one GPU from NVML: its properties, MIG instances, connections and measurements.

A measurement that a GPU does not have, such as its utilization in MIG mode, is None.

The bandwidth between two GPUs is in GB/s per direction. With NVLink it is the sum of the active links of the pair.
Links to an NVSwitch all count, since a GPU can use all of them to reach any other GPU. Without NVLink it is the PCIe
bandwidth of the slower GPU, scaled by the topology between the two. The scale is an estimate: only the order of the
values on one machine matters (T2).
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pynvml  # type: ignore[import-untyped]

from gputile.api.quantity import MIB
from gputile.node.nvml.binding import ABSENT, CallError, Calls, Handle, optional
from gputile.node.nvml.probe import GpuProcess, GpuReading, Mig, MigInstance, ProbedGpu

# GB/s per direction of one link, by nvmlNvlinkVersion_t (NVIDIA's data sheets: P100 20, V100 to H100 25, B200 50).
_NVLINK_GB_S: Final = {1: 20.0, 2: 25.0, 3: 25.0, 4: 25.0, 5: 25.0, 6: 25.0, 7: 50.0, 8: 50.0}
_NVLINK_UNKNOWN_GB_S: Final = 25.0
# GB/s per direction of one lane, by PCIe generation, after encoding (PCI-SIG: 2.5, 5, 8, 16, 32, 64 GT/s).
_PCIE_LANE_GB_S: Final = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
_PCIE_UNKNOWN_GB_S: Final = 16 * _PCIE_LANE_GB_S[3]
# The part of the PCIe bandwidth that is available between two GPUs, by nvmlGpuTopologyLevel_t.
_SCALE: Final = (
    (0, 1.0),  # on one board
    (10, 1.0),  # below one PCIe switch
    (20, 0.9),  # below several PCIe switches of one host bridge
    (30, 0.8),  # at one host bridge
    (40, 0.7),  # at several host bridges of one NUMA node
    (50, 0.5),  # across NUMA nodes
)


@dataclass(frozen=True, slots=True)
class Wiring:
    """A GPU's connections in GB/s: PCIe, and NVLink by the bus ID of the GPU at the other end ("" for an NVSwitch)."""

    bus_id: str
    pcie: float = _PCIE_UNKNOWN_GB_S
    nvlink: Mapping[str, float] = field(default_factory=dict)


def bandwidth_matrix(gpus: Sequence[Wiring], level: Callable[[int, int], int]) -> tuple[tuple[float, ...], ...]:
    """Return the matrix in GB/s; ``level(i, j)`` returns the nvmlGpuTopologyLevel_t of the i-th and the j-th GPU."""
    rows = [[0.0] * len(gpus) for _ in gpus]
    for i, one in enumerate(gpus):
        for j, other in enumerate(gpus[:i]):
            speed = _nvlink(one, other) or min(one.pcie, other.pcie) * _scale(level(j, i))
            rows[i][j] = rows[j][i] = round(speed, 1)
    return tuple(tuple(row) for row in rows)


def _nvlink(one: Wiring, other: Wiring) -> float:
    direct = min(one.nvlink.get(other.bus_id, 0.0), other.nvlink.get(one.bus_id, 0.0))
    return direct + min(one.nvlink.get("", 0.0), other.nvlink.get("", 0.0))


def _scale(level: int) -> float:
    return next((scale for known, scale in _SCALE if level <= known), _SCALE[-1][1])


_NODE_WORDS: Final = 16  # 64 NUMA nodes each
_RECOVERIES: Final = {
    1: "reset it (`nvidia-smi --gpu-reset`)",
    2: "reboot the node",
    3: "end the work that uses its peers",
    4: "drain the node and reset the GPU",
}
_PROFILE = re.compile(r"MIG (?P<profile>\S+)$")
_GIB: Final = 1 << 30


def read_gpu(nvml: Calls, handle: Handle, index: int) -> ProbedGpu:
    """Read the properties of a GPU.

    Raises:
        CallError: a call fails that every GPU supports.
    """
    memory = optional(None, nvml.nvmlDeviceGetMemoryInfo, handle)
    own = memory.total if memory is not None else 0
    total = own if own >= MIB else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    current, _ = optional((-1, -1), nvml.nvmlDeviceGetMigMode, handle)
    mig = Mig.INCAPABLE if current < 0 else Mig.ON if current == pynvml.NVML_DEVICE_MIG_ENABLE else Mig.OFF
    return ProbedGpu(
        index=index,
        uuid=nvml.nvmlDeviceGetUUID(handle),
        model=nvml.nvmlDeviceGetName(handle),
        mib=total // MIB,
        bus_id=nvml.nvmlDeviceGetPciInfo(handle).busId.upper(),
        numa=_numa_node(nvml, handle),
        minor=optional(-1, nvml.nvmlDeviceGetMinorNumber, handle),
        mig=mig,
        instances=tuple(_instances(nvml, handle, total)) if mig is Mig.ON else (),
        unified=own < MIB,
    )


def read_wiring(nvml: Calls, handle: Handle, gpu: ProbedGpu) -> Wiring:
    """Raises CallError if the GPU does not answer."""
    generation = optional(0, nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)
    width = optional(0, nvml.nvmlDeviceGetMaxPcieLinkWidth, handle)
    lane = _PCIE_LANE_GB_S.get(generation, max(_PCIE_LANE_GB_S.values()))
    nvlink: dict[str, float] = {}
    for speed, peer in _links(nvml, handle):
        nvlink[peer] = nvlink.get(peer, 0.0) + speed
    return Wiring(gpu.bus_id, width * lane if generation and width else _PCIE_UNKNOWN_GB_S, nvlink)


def trouble_of(nvml: Calls, handle: Handle) -> str | None:
    """Return the problem of a GPU that answers; None if it is healthy.

    Raises:
        CallError: the GPU does not answer.
    """
    optional(None, nvml.nvmlDeviceGetMemoryInfo, handle)
    _, _, pending, failed = optional((0, 0, 0, 0), nvml.nvmlDeviceGetRemappedRows, handle)
    if failed:
        return "a broken memory row could not be remapped: replace the GPU"
    if pending or optional(0, nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle):
        return "broken memory waits to be mapped out: reset the GPU (`nvidia-smi --gpu-reset`)"
    action_field = [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
    field = next(iter(optional((), nvml.nvmlDeviceGetFieldValues, handle, action_field)), None)
    if field is not None and field.nvmlReturn == 0 and field.value.uiVal:
        action = field.value.uiVal
        return f"the driver asks: {_RECOVERIES.get(action, f'recovery action {action}')}"
    return None


def _numa_node(nvml: Calls, handle: Handle) -> int:
    """Return the NUMA node whose memory is local to the GPU; -1 if there are none or several, as in some VMs."""
    words = optional((), nvml.nvmlDeviceGetMemoryAffinity, handle, _NODE_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE)
    mask = sum(word << 64 * i for i, word in enumerate(words))
    return mask.bit_length() - 1 if mask.bit_count() == 1 else -1


def _links(nvml: Calls, handle: Handle) -> Iterator[tuple[float, str]]:
    """Yield each active NVLink: its GB/s, and the bus ID of the GPU at its other end ("" for an NVSwitch)."""
    for number in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            active = nvml.nvmlDeviceGetNvLinkState(handle, number)
        except CallError as error:
            if error.code in ABSENT:
                return  # the GPU has no link of this or a higher number
            raise
        if not active:
            continue
        version = optional(0, nvml.nvmlDeviceGetNvLinkVersion, handle, number)
        speed = _NVLINK_GB_S.get(version, _NVLINK_UNKNOWN_GB_S)
        kind = optional(pynvml.NVML_NVLINK_DEVICE_TYPE_GPU, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, number)
        if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            yield speed, ""
        elif kind == pynvml.NVML_NVLINK_DEVICE_TYPE_GPU:
            peer = optional(None, nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, number)
            if peer is not None:
                yield speed, peer.busId.upper()


def _instances(nvml: Calls, handle: Handle, gpu_bytes: int) -> Iterator[MigInstance]:
    for number in range(optional(0, nvml.nvmlDeviceGetMaxMigDeviceCount, handle)):
        instance = optional(None, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
        if instance is None:
            continue
        yield MigInstance(
            uuid=nvml.nvmlDeviceGetUUID(instance),
            profile=_profile(nvml, instance, gpu_bytes),
            mib=nvml.nvmlDeviceGetMemoryInfo(instance).total // MIB,
            gi=nvml.nvmlDeviceGetGpuInstanceId(instance),
            ci=nvml.nvmlDeviceGetComputeInstanceId(instance),
        )


def _profile(nvml: Calls, instance: Handle, gpu_bytes: int) -> str:
    """Return NVIDIA's name of the instance's size, such as ``1g.10gb``.

    It is the end of the instance's name, or else computed from its slices and memory. The computed memory is that of
    the instance in eighths of the GPU's memory, converted to GB, as in NVIDIA's go-nvlib.
    """
    named = _PROFILE.search(nvml.nvmlDeviceGetName(instance))
    if named:
        return named["profile"]
    facts = nvml.nvmlDeviceGetAttributes(instance)
    eighths = -(-facts.memorySizeMB * MIB * 8 // gpu_bytes)
    memory = f"{facts.gpuInstanceSliceCount}g.{round(eighths * -(-gpu_bytes // _GIB) / 8)}gb"
    if facts.computeInstanceSliceCount == facts.gpuInstanceSliceCount:
        return memory
    return f"{facts.computeInstanceSliceCount}c.{memory}"


def read_gpu_values(nvml: Calls, handle: Handle, gpu: ProbedGpu) -> GpuReading:
    """Raises CallError if the GPU does not answer."""
    memory = optional(None, nvml.nvmlDeviceGetMemoryInfo, handle)
    rates = optional(None, nvml.nvmlDeviceGetUtilizationRates, handle)
    milliwatts = optional(None, nvml.nvmlDeviceGetPowerUsage, handle)
    lifetime = pynvml.NVML_AGGREGATE_ECC
    corrected, uncorrected = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    return GpuReading(
        uuid=gpu.uuid,
        used=memory.used if memory is not None else None,
        busy_percent=rates.gpu if rates is not None else None,
        celsius=optional(None, nvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        watts=milliwatts / 1000 if milliwatts is not None else None,
        ecc_corrected=optional(None, nvml.nvmlDeviceGetTotalEccErrors, handle, corrected, lifetime),
        ecc_uncorrected=optional(None, nvml.nvmlDeviceGetTotalEccErrors, handle, uncorrected, lifetime),
        processes=_processes(nvml, handle, gpu),
    )


def _processes(nvml: Calls, handle: Handle, gpu: ProbedGpu) -> tuple[GpuProcess, ...]:
    """Return each process once. NVML lists MPS clients separately, and may list a process in both lists."""
    instances = {(instance.gi, instance.ci): instance.uuid for instance in gpu.instances}
    found: dict[int, GpuProcess] = {}
    for list_processes in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetMPSComputeRunningProcesses):
        for process in optional((), list_processes, handle):
            uuid = instances.get((process.gpuInstanceId, process.computeInstanceId), gpu.uuid)
            known = found.get(process.pid, GpuProcess(process.pid, uuid, 0))
            found[process.pid] = replace(known, used=max(known.used, process.usedGpuMemory or 0))
    return tuple(found.values())
