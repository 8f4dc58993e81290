"""Reads the GPUs of a machine through NVIDIA's Python binding of NVML.

The bandwidth between two GPUs is in GB/s per direction. If NVLink connects the GPUs, the bandwidth
is the sum of the active links of the pair. All links to an NVSwitch are counted, because a GPU can
use all of these links to reach any other GPU. Without NVLink, the bandwidth is the PCIe bandwidth
of the slower GPU, multiplied by a factor for the topology between the two GPUs. This factor is an
estimate, because only the order of the values on one machine matters (T2).
"""

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NewType, cast

import pynvml  # type: ignore[import-untyped]

from gputile.api.quantity import MIB
from gputile.node.nvml.errors import ABSENT, CERTAIN, DOWN, optional, problem_of
from gputile.node.nvml.gpu_health import Examined, Sign, XidSeen
from gputile.node.nvml.probe import (
    GpuReading,
    Mig,
    MigInstance,
    ProbedGpu,
    ProbedMachine,
    Problem,
)

_NO_INSTANCE: Final = 0xFFFFFFFF  # the instance ID in an event of the whole GPU
_MOST_EVENTS: Final = 64  # the most events in one call of ``watch_health``
_FAILED_WAIT_S: Final = 0.5  # pause after a failed wait, because the next one may fail at once

Handle = NewType("Handle", object)  # nvmlDevice_t of a GPU or a MIG device
Listed = tuple[Handle, ProbedGpu]


class NvmlSession:
    """A session with NVML for one thread.

    Opening a session raises ``pynvml.NVMLError`` if the driver is missing or does not work. The
    methods raise this error if the driver as a whole fails.
    """

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self._listed: tuple[Listed, ...] = ()
        self._bandwidth: tuple[tuple[float, ...], ...] = ()
        self._groups: tuple[int, ...] = ()  # the ``nvlink_group`` of each listed GPU
        self._events: Any = None

    def inventory(self) -> ProbedMachine:
        """Read the machine's GPUs. If the set of GPUs has changed, also read the bandwidths.

        A GPU that cannot be read is missing from ``gpus``, and ``problems`` contains the reason.
        """
        listed: list[Listed] = []
        problems: list[Problem] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                listed.append((handle, _read_gpu(handle, index)))
            except (pynvml.NVMLError, UnicodeDecodeError) as error:
                # An unhealthy GPU may return bytes that are not valid text.
                code = getattr(error, "value", pynvml.NVML_ERROR_UNKNOWN)
                if code in DOWN:
                    raise
                problem = problem_of(code)
                problems.append(replace(problem, message=f"GPU {index}: {problem.message}"))
        before, self._listed = [gpu.uuid for _, gpu in self._listed], tuple(listed)
        if before != [gpu.uuid for _, gpu in listed]:
            self._bandwidth = self._read_bandwidth()
            self._listen()
        cuda = optional(0, pynvml.nvmlSystemGetCudaDriverVersion)
        return ProbedMachine(
            gpus=tuple(
                replace(gpu, nvlink_group=group)
                for (_, gpu), group in zip(self._listed, self._groups, strict=True)
            ),
            bandwidth=self._bandwidth,
            driver=optional("", pynvml.nvmlSystemGetDriverVersion),
            cuda=(cuda // 1000, cuda % 1000 // 10),
            problems=tuple(problems),
        )

    def watch_health(self, seconds: float) -> tuple[Sign, ...]:
        """Wait at most ``seconds`` for XID events. If the wait fails, examine all GPUs instead."""
        if self._events is None:
            time.sleep(seconds)
            return ()
        signs: list[Sign] = []
        left_ms = round(seconds * 1000)
        while len(signs) < _MOST_EVENTS:
            try:
                signs += self._signs_of(pynvml.nvmlEventSetWait(self._events, left_ms))
            except pynvml.NVMLError as error:
                if error.value == pynvml.NVML_ERROR_TIMEOUT:
                    break
                time.sleep(min(seconds, _FAILED_WAIT_S))
                examined = self.examine()
                self._listen()
                return (*signs, *examined)
            left_ms = 0
        return tuple(signs)

    def examine(self) -> tuple[Examined, ...]:
        """Examine each GPU and MIG instance that the last inventory listed."""
        signs: list[Examined] = []
        for handle, gpu in self._listed:
            suspected = False
            try:
                fault = _fault_of(handle)
            except pynvml.NVMLError as error:
                if error.value in DOWN:
                    raise
                fault = problem_of(error.value).message
                suspected = error.value not in CERTAIN
            signs += (Examined(uuid, fault, suspected) for uuid in gpu.uuids)
        return tuple(signs)

    def readings(self) -> tuple[GpuReading, ...]:
        """Return the measurements of all listed GPUs that answer."""
        found = []
        for handle, gpu in self._listed:
            with suppress(pynvml.NVMLError):  # ``examine`` reports the reason
                found.append(_read_measurements(handle, gpu))
        return tuple(found)

    def close(self) -> None:
        self._stop_listening()
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def _read_bandwidth(self) -> tuple[tuple[float, ...], ...]:
        """Return the bandwidth of all pairs of GPUs, and store the groups that NVLink connects."""
        size = len(self._listed)
        pcie = [_PCIE_UNKNOWN_GB_S] * size
        nvlink: list[dict[str, float]] = [{}] * size
        for i, (handle, _) in enumerate(self._listed):
            with suppress(pynvml.NVMLError):  # ``examine`` reports the reason
                pcie[i], nvlink[i] = _pcie_bandwidth(handle), _nvlink_bandwidth(handle)
        rows = [[0.0] * size for _ in range(size)]
        groups = [-1] * size
        for i, (handle, gpu) in enumerate(self._listed):
            for j, (peer, other) in enumerate(self._listed[:i]):
                links = min(nvlink[i].get(other.bus_id, 0.0), nvlink[j].get(gpu.bus_id, 0.0))
                links += min(nvlink[i].get(_SWITCH, 0.0), nvlink[j].get(_SWITCH, 0.0))
                speed = links or min(pcie[i], pcie[j]) * _topology_factor(handle, peer)
                rows[i][j] = rows[j][i] = round(speed, 1)
                if links:
                    joined = {groups[i], groups[j]} - {-1}
                    lowest = min({other.index} | joined)
                    groups = [lowest if each in joined else each for each in groups]
                    groups[i] = groups[j] = lowest
        self._groups = tuple(groups)
        return tuple(tuple(row) for row in rows)

    def _listen(self) -> None:
        """Subscribe to the XIDs of all GPUs that answer and support XIDs."""
        self._stop_listening()
        try:
            self._events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError:
            return
        registered = False
        for handle, _ in self._listed:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlDeviceRegisterEvents(
                    handle, pynvml.nvmlEventTypeXidCriticalError, self._events
                )
                registered = True
        if not registered:
            self._stop_listening()

    def _stop_listening(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(events)

    def _signs_of(self, event: Any) -> Iterator[XidSeen]:
        """Yield a sign for each MIG instance that the event names, or one for the whole GPU."""
        if event.eventType != pynvml.nvmlEventTypeXidCriticalError:
            return
        # Handles are compared, because a GPU that has fallen off the bus does not return its UUID.
        where = _address(event.device)
        gpu = next((gpu for handle, gpu in self._listed if _address(handle) == where), None)
        if gpu is None:
            return
        code = event.eventData
        named = [
            instance
            for instance in gpu.instances
            if instance.gi == event.gpuInstanceId
            and event.computeInstanceId in (instance.ci, _NO_INSTANCE)
        ]
        for uuid in [instance.uuid for instance in named] or [gpu.uuid]:
            yield XidSeen(uuid, code)


def _address(handle: Handle) -> int | None:
    return ctypes.cast(cast(Any, handle), ctypes.c_void_p).value


# GB/s per direction of one NVLink, by nvmlNvlinkVersion_t (NVIDIA's data sheets: P100 20, V100 to
# H100 25, B200 50)
_NVLINK_GB_S: Final = {1: 20.0, 7: 50.0, 8: 50.0}
_NVLINK_OTHER_GB_S: Final = 25.0
_SWITCH: Final = ""  # stands for the bus ID of an NVSwitch
# GB/s per direction of one lane of PCIe 3 after encoding. Each generation doubles it (PCI-SIG).
_PCIE_3_LANE_GB_S: Final = 0.985
_PCIE_UNKNOWN_GB_S: Final = 16 * _PCIE_3_LANE_GB_S
# The part of the PCIe bandwidth that is available between two GPUs, by nvmlGpuTopologyLevel_t
_TOPOLOGY_FACTORS: Final = {
    0: 1.0,  # on one board
    10: 1.0,  # below one PCIe switch
    20: 0.9,  # below several PCIe switches of one host bridge
    30: 0.8,  # at one host bridge
    40: 0.7,  # at several host bridges of one NUMA node
}
_FACTOR_ACROSS_NUMA_NODES: Final = 0.5


def _pcie_bandwidth(handle: Handle) -> float:
    generation = optional(0, pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)
    width = optional(0, pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle)
    if not generation or not width:
        return _PCIE_UNKNOWN_GB_S
    return float(width * _PCIE_3_LANE_GB_S * 2.0 ** (generation - 3))


def _nvlink_bandwidth(handle: Handle) -> dict[str, float]:
    """Return the bandwidth of a GPU's active NVLinks in GB/s, by the bus ID of the peer."""
    found: dict[str, float] = {}
    for number in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            active = pynvml.nvmlDeviceGetNvLinkState(handle, number)
        except pynvml.NVMLError as error:
            if error.value in ABSENT:
                break  # the GPU has no link with this number or a higher number
            raise
        if not active:
            continue
        kind = optional(None, pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, number)
        peer = _SWITCH
        if kind != pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            pci = optional(None, pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, number)
            if pci is None:
                continue
            peer = pci.busId.upper()
        version = optional(0, pynvml.nvmlDeviceGetNvLinkVersion, handle, number)
        found[peer] = found.get(peer, 0.0) + _NVLINK_GB_S.get(version, _NVLINK_OTHER_GB_S)
    return found


def _topology_factor(one: Handle, other: Handle) -> float:
    try:
        level = pynvml.nvmlDeviceGetTopologyCommonAncestor(one, other)
    except pynvml.NVMLError:
        return _FACTOR_ACROSS_NUMA_NODES
    return _TOPOLOGY_FACTORS.get(level, _FACTOR_ACROSS_NUMA_NODES)


_NODE_WORDS: Final = 16  # each word is a mask of 64 NUMA nodes
_RECOVERIES: Final = {
    1: "reset it (`nvidia-smi --gpu-reset`)",
    2: "reboot the node",
    3: "end the processes that use its peer GPUs",
    4: "drain the node and reset the GPU",
}
_ARCHITECTURES: Final = dict(  # by nvmlDeviceArchitecture_t
    enumerate(("Pascal", "Volta", "Turing", "Ampere", "Ada Lovelace", "Hopper", "Blackwell"), 4)
)


def _read_gpu(handle: Handle, index: int) -> ProbedGpu:
    """Read a GPU's properties. Raises an error if a call that every GPU supports fails."""
    memory = optional(None, pynvml.nvmlDeviceGetMemoryInfo, handle)
    own = memory.total if memory is not None else 0
    total = own if own >= MIB else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    current, _ = optional((-1, -1), pynvml.nvmlDeviceGetMigMode, handle)
    mig = (
        Mig.INCAPABLE
        if current < 0
        else Mig.ON
        if current == pynvml.NVML_DEVICE_MIG_ENABLE
        else Mig.OFF
    )
    return ProbedGpu(
        index=index,
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        model=pynvml.nvmlDeviceGetName(handle),
        mib=total // MIB,
        bus_id=pynvml.nvmlDeviceGetPciInfo(handle).busId.upper(),
        numa=_numa_node(handle),
        mig=mig,
        instances=tuple(_instances(handle)) if mig is Mig.ON else (),
        unified=own < MIB,
        architecture=_ARCHITECTURES.get(optional(0, pynvml.nvmlDeviceGetArchitecture, handle), ""),
    )


def _fault_of(handle: Handle) -> str | None:
    """Return the fault of a GPU, or None for a healthy GPU. Raises an error if a call fails."""
    optional(None, pynvml.nvmlDeviceGetMemoryInfo, handle)
    _, _, pending, failed = optional((0, 0, 0, 0), pynvml.nvmlDeviceGetRemappedRows, handle)
    if failed:
        return "a faulty memory row cannot be remapped: replace the GPU"
    if pending or optional(0, pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle):
        return (
            "faulty memory will be remapped at the next reset: reset the GPU (`nvidia-smi "
            "--gpu-reset`)"
        )
    action_field = [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
    field = next(iter(optional((), pynvml.nvmlDeviceGetFieldValues, handle, action_field)), None)
    if field is not None and field.nvmlReturn == 0 and field.value.uiVal:
        action = field.value.uiVal
        return f"the driver requests: {_RECOVERIES.get(action, f'recovery action {action}')}"
    return None


def _numa_node(handle: Handle) -> int:
    """Return the GPU's NUMA node, or -1 if the driver reports no node or several nodes."""
    words = optional(
        (), pynvml.nvmlDeviceGetMemoryAffinity, handle, _NODE_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE
    )
    mask = sum(word << 64 * i for i, word in enumerate(words))
    return mask.bit_length() - 1 if mask.bit_count() == 1 else -1


def _instances(handle: Handle) -> Iterator[MigInstance]:
    for number in range(optional(0, pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)):
        instance = optional(None, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
        if instance is None:
            continue
        _, named, profile = pynvml.nvmlDeviceGetName(instance).rpartition("MIG ")
        if not named:
            continue
        yield MigInstance(
            uuid=pynvml.nvmlDeviceGetUUID(instance),
            profile=profile,
            mib=pynvml.nvmlDeviceGetMemoryInfo(instance).total // MIB,
            gi=pynvml.nvmlDeviceGetGpuInstanceId(instance),
            ci=pynvml.nvmlDeviceGetComputeInstanceId(instance),
        )


def _read_measurements(handle: Handle, gpu: ProbedGpu) -> GpuReading:
    """Read a GPU's measurements. Raises an error if the GPU does not answer."""
    memory = optional(None, pynvml.nvmlDeviceGetMemoryInfo, handle)
    rates = optional(None, pynvml.nvmlDeviceGetUtilizationRates, handle)
    milliwatts = optional(None, pynvml.nvmlDeviceGetPowerUsage, handle)
    return GpuReading(
        uuid=gpu.uuid,
        used=memory.used if memory is not None else None,
        busy_percent=rates.gpu if rates is not None else None,
        celsius=optional(
            None, pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU
        ),
        watts=milliwatts / 1000 if milliwatts is not None else None,
        ecc_corrected=_ecc_errors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        ecc_uncorrected=_ecc_errors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    )


def _ecc_errors(handle: Handle, kind: int) -> Any:
    return optional(
        None, pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, pynvml.NVML_AGGREGATE_ECC
    )
