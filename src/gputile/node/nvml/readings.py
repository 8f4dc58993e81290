"""Reads what a GPU measures of itself: memory, work, temperature, power, ECC errors and processes.

A GPU that does not know one of these, as one in MIG mode does not know how busy it is, leaves out just that.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gputile.node.nvml.binding import Handle, NvmlBinding, optional
from gputile.node.nvml.errors import CallError
from gputile.node.nvml.probe import GpuProcess, GpuReading, ProbedGpu

_GPU_SENSOR: Final = 0  # NVML_TEMPERATURE_GPU
_CORRECTED, _UNCORRECTED = 0, 1  # nvmlMemoryErrorType_t
_AGGREGATE: Final = 1  # NVML_AGGREGATE_ECC: over the GPU's life


def read_gpu_values(nvml: NvmlBinding, handle: Handle, gpu: ProbedGpu) -> GpuReading:
    """Return what the GPU measures now.

    Raises:
        CallError: the GPU does not answer any more.
    """
    memory = optional(None, nvml.nvmlDeviceGetMemoryInfo, handle)
    rates = optional(None, nvml.nvmlDeviceGetUtilizationRates, handle)
    milliwatts = optional(None, nvml.nvmlDeviceGetPowerUsage, handle)
    return GpuReading(
        uuid=gpu.uuid,
        used=memory.used if memory is not None else None,
        busy_percent=rates.gpu if rates is not None else None,
        celsius=optional(None, nvml.nvmlDeviceGetTemperature, handle, _GPU_SENSOR),
        watts=milliwatts / 1000 if milliwatts is not None else None,
        ecc_corrected=optional(None, nvml.nvmlDeviceGetTotalEccErrors, handle, _CORRECTED, _AGGREGATE),
        ecc_uncorrected=optional(None, nvml.nvmlDeviceGetTotalEccErrors, handle, _UNCORRECTED, _AGGREGATE),
        processes=tuple(_processes(nvml, handle, gpu)),
    )


@dataclass(slots=True)
class _UsedMemory:
    used: int
    uuid: str


def _processes(nvml: NvmlBinding, handle: Handle, gpu: ProbedGpu) -> Iterator[GpuProcess]:
    """Yield each process once. NVML lists clients of MPS apart, and may list one process in both lists."""
    instances = {(instance.gi, instance.ci): instance.uuid for instance in gpu.instances}
    found: dict[int, _UsedMemory] = {}
    for ask in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetMPSComputeRunningProcesses):
        for process in optional((), ask, handle):
            uuid = instances.get((process.gpuInstanceId, process.computeInstanceId), gpu.uuid)
            known = found.setdefault(process.pid, _UsedMemory(0, uuid))
            known.used = max(known.used, process.usedGpuMemory or 0)
    for pid, each in found.items():
        yield GpuProcess(pid, each.uuid, each.used)


def read_all(nvml: NvmlBinding, listed: tuple[tuple[Handle, ProbedGpu], ...]) -> tuple[GpuReading, ...]:
    """Return what the listed GPUs measure; one that does not answer is left out: its examination says why."""
    found = []
    for handle, gpu in listed:
        try:
            found.append(read_gpu_values(nvml, handle, gpu))
        except CallError:
            continue
    return tuple(found)
