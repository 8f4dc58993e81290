"""Reads the GPUs of a machine through NVIDIA's Python binding of NVML.

The bandwidth between two GPUs is in GB/s per direction. With NVLink it is the sum of the active
links of the pair. A GPU can use all its links to an NVSwitch to reach any other GPU, so all of
them count. Without NVLink it is the PCIe bandwidth of the slower GPU, multiplied by a factor for
the topology between the two GPUs. This factor is an estimate, because only the order of the values
on one machine matters (T2).
"""

import ctypes
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import pynvml  # type: ignore[import-untyped]

from gputile.api.quantity import MIB
from gputile.node.nvml.binding import ABSENT, CERTAIN, DOWN, CallError, Handle, nvml, optional
from gputile.node.nvml.gpu_health import Examined, Sign, XidSeen
from gputile.node.nvml.probe import (
    GpuReading,
    Mig,
    MigInstance,
    NvmlError,
    ProbedGpu,
    ProbedMachine,
    Problem,
)

_NO_INSTANCE: Final = 0xFFFFFFFF  # the instance ID in an event of the whole GPU
_MOST_EVENTS: Final = 64  # the most events in one call of ``watch_health``
_FAILED_WAIT_S: Final = 0.5  # pause after a failed wait, because the next one may fail at once

Listed = tuple[Handle, ProbedGpu]


def open_real() -> "RealProbe":
    """Open a session. Raises NvmlError if the driver is missing or does not work."""
    _machine_wide(nvml.nvmlInit)
    return RealProbe()


class RealProbe:
    """A session with NVML for one thread. All methods raise NvmlError if the driver fails."""

    def __init__(self) -> None:
        self._listed: tuple[Listed, ...] = ()
        self._bandwidth: tuple[tuple[float, ...], ...] = ()
        self._groups: tuple[int, ...] = ()  # the ``nvlink_group`` of each listed GPU
        self._events: Any = None
        self._open = True

    def inventory(self) -> ProbedMachine:
        """Read the machine's GPUs. If the set of GPUs has changed, also read their bandwidth.

        A GPU that cannot be read is not in ``gpus`` but in ``problems``.
        """
        listed: list[Listed] = []
        problems: list[Problem] = []
        for index in range(_machine_wide(nvml.nvmlDeviceGetCount)):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                listed.append((handle, _read_gpu(handle, index)))
            except CallError as error:
                _raise_if_down(error)
                problems.append(
                    Problem(error.problem.reason, f"GPU {index}: {error.problem.message}")
                )
        before, self._listed = self._listed, tuple(listed)
        if _uuids(before) != _uuids(self._listed):
            self._bandwidth = self._read_bandwidth()
            self._listen(self._listed)
        cuda = _machine_wide(optional, 0, nvml.nvmlSystemGetCudaDriverVersion)
        return ProbedMachine(
            gpus=tuple(
                replace(gpu, nvlink_group=group)
                for (_, gpu), group in zip(self._listed, self._groups, strict=True)
            ),
            bandwidth=self._bandwidth,
            driver=_machine_wide(optional, "", nvml.nvmlSystemGetDriverVersion),
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
                signs += self._signs_of(nvml.nvmlEventSetWait(self._events, left_ms))
            except CallError as error:
                if error.code == pynvml.NVML_ERROR_TIMEOUT:
                    break
                time.sleep(min(seconds, _FAILED_WAIT_S))
                examined = self.examine()
                healthy = {sign.uuid for sign in examined if sign.trouble is None}
                self._listen(
                    tuple((handle, gpu) for handle, gpu in self._listed if gpu.uuid in healthy)
                )
                return (*signs, *examined)
            left_ms = 0
        return tuple(signs)

    def examine(self) -> tuple[Examined, ...]:
        """Examine each GPU and MIG instance that the last inventory listed."""
        signs: list[Examined] = []
        for handle, gpu in self._listed:
            doubtful = False
            try:
                trouble = _trouble_of(handle)
            except CallError as error:
                _raise_if_down(error)
                trouble = error.problem.message
                doubtful = error.code not in CERTAIN
            signs += (Examined(uuid, trouble, doubtful) for uuid in gpu.uuids)
        return tuple(signs)

    def readings(self) -> tuple[GpuReading, ...]:
        """Return the measurements of all listed GPUs that answer."""
        found = []
        for handle, gpu in self._listed:
            with suppress(CallError):  # ``examine`` reports the reason
                found.append(_read_measurements(handle, gpu))
        return tuple(found)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._stop_listening()
            with suppress(CallError):
                nvml.nvmlShutdown()

    def _read_bandwidth(self) -> tuple[tuple[float, ...], ...]:
        wirings = []
        for handle, gpu in self._listed:
            try:
                wirings.append(_read_wiring(handle, gpu))
            except CallError:  # ``examine`` reports the reason
                wirings.append(Wiring(handle, gpu.bus_id))
        rows = [[0.0] * len(wirings) for _ in wirings]
        groups = [-1] * len(wirings)
        for i, one in enumerate(wirings):
            for j, other in enumerate(wirings[:i]):
                nvlink = _nvlink_speed(one, other)
                rows[i][j] = rows[j][i] = round(nvlink or _pcie_speed(other, one), 1)
                if nvlink:
                    joined = {groups[i], groups[j]} - {-1}
                    lowest = min({self._listed[j][1].index} | joined)
                    groups = [lowest if each in joined else each for each in groups]
                    groups[i] = groups[j] = lowest
        self._groups = tuple(groups)
        return tuple(tuple(row) for row in rows)

    def _listen(self, listed: tuple[Listed, ...]) -> None:
        """Subscribe to the XIDs of these GPUs. Some GPUs have no XID events, which is no error."""
        self._stop_listening()
        if not listed:
            return
        try:
            events = nvml.nvmlEventSetCreate()
        except CallError:
            return
        registered = 0
        for handle, _ in listed:
            with suppress(CallError):
                nvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
                registered += 1
        self._events = events
        if not registered:
            self._stop_listening()

    def _stop_listening(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            with suppress(CallError):
                nvml.nvmlEventSetFree(events)

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


def _machine_wide(function: Callable[..., Any], *args: object) -> Any:
    """Call a function that fails only if the driver does not work. Raises NvmlError if it fails."""
    try:
        return function(*args)
    except CallError as error:
        raise NvmlError(error.problem) from error


def _raise_if_down(error: CallError) -> None:
    if error.code in DOWN:
        raise NvmlError(error.problem) from error


def _uuids(listed: tuple[Listed, ...]) -> list[str]:
    return [gpu.uuid for _, gpu in listed]


def _address(handle: Handle) -> int | None:
    return ctypes.cast(cast(Any, handle), ctypes.c_void_p).value


# GB/s per direction of one NVLink, by nvmlNvlinkVersion_t (NVIDIA's data sheets: P100 20, V100 to
# H100 25, B200 50)
_NVLINK_GB_S: Final = {1: 20.0, 2: 25.0, 3: 25.0, 4: 25.0, 5: 25.0, 6: 25.0, 7: 50.0, 8: 50.0}
_NVLINK_UNKNOWN_GB_S: Final = 25.0
# GB/s per direction of one PCIe lane after encoding, by PCIe generation (PCI-SIG: 2.5, 5, 8, 16,
# 32, 64 GT/s)
_PCIE_LANE_GB_S: Final = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
_PCIE_UNKNOWN_GB_S: Final = 16 * _PCIE_LANE_GB_S[3]
# The part of the PCIe bandwidth that is available between two GPUs, by nvmlGpuTopologyLevel_t
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
    """The bandwidth of a GPU's connections in GB/s.

    ``nvlink`` maps the bus ID of each peer to a bandwidth. The bus ID of an NVSwitch is "".
    """

    handle: Handle
    bus_id: str
    pcie: float = _PCIE_UNKNOWN_GB_S
    nvlink: Mapping[str, float] = field(default_factory=dict)


def _read_wiring(handle: Handle, gpu: ProbedGpu) -> Wiring:
    """Read a GPU's connections. Raises CallError if the GPU does not answer."""
    generation = optional(0, nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)
    width = optional(0, nvml.nvmlDeviceGetMaxPcieLinkWidth, handle)
    lane = _PCIE_LANE_GB_S.get(generation, max(_PCIE_LANE_GB_S.values()))
    pcie = width * lane if generation and width else _PCIE_UNKNOWN_GB_S
    return Wiring(handle, gpu.bus_id, pcie, _nvlinks(handle))


def _nvlinks(handle: Handle) -> dict[str, float]:
    """Return the bandwidth of a GPU's active NVLinks in GB/s, as in ``Wiring.nvlink``."""
    found: dict[str, float] = {}
    for number in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            active = nvml.nvmlDeviceGetNvLinkState(handle, number)
        except CallError as error:
            if error.code in ABSENT:
                break  # the GPU has no link with this number or a higher number
            raise
        if not active:
            continue
        kind = optional(
            pynvml.NVML_NVLINK_DEVICE_TYPE_GPU,
            nvml.nvmlDeviceGetNvLinkRemoteDeviceType,
            handle,
            number,
        )
        if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            peer = ""
        elif kind == pynvml.NVML_NVLINK_DEVICE_TYPE_GPU:
            pci = optional(None, nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, number)
            if pci is None:
                continue
            peer = pci.busId.upper()
        else:
            continue
        version = optional(0, nvml.nvmlDeviceGetNvLinkVersion, handle, number)
        found[peer] = found.get(peer, 0.0) + _NVLINK_GB_S.get(version, _NVLINK_UNKNOWN_GB_S)
    return found


def _nvlink_speed(one: Wiring, other: Wiring) -> float:
    direct = min(one.nvlink.get(other.bus_id, 0.0), other.nvlink.get(one.bus_id, 0.0))
    return direct + min(one.nvlink.get("", 0.0), other.nvlink.get("", 0.0))


def _pcie_speed(one: Wiring, other: Wiring) -> float:
    try:
        level = int(nvml.nvmlDeviceGetTopologyCommonAncestor(one.handle, other.handle))
    except CallError:
        level = pynvml.NVML_TOPOLOGY_SYSTEM
    scale = next((scale for known, scale in _SCALE if level <= known), _SCALE[-1][1])
    return min(one.pcie, other.pcie) * scale


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
_PROFILE = re.compile(r"MIG (?P<profile>\S+)$")
_GIB: Final = 1 << 30


def _read_gpu(handle: Handle, index: int) -> ProbedGpu:
    """Read the properties of a GPU. Raises CallError if a call fails that every GPU supports."""
    memory = optional(None, nvml.nvmlDeviceGetMemoryInfo, handle)
    own = memory.total if memory is not None else 0
    total = own if own >= MIB else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    current, _ = optional((-1, -1), nvml.nvmlDeviceGetMigMode, handle)
    mig = (
        Mig.INCAPABLE
        if current < 0
        else Mig.ON
        if current == pynvml.NVML_DEVICE_MIG_ENABLE
        else Mig.OFF
    )
    return ProbedGpu(
        index=index,
        uuid=nvml.nvmlDeviceGetUUID(handle),
        model=nvml.nvmlDeviceGetName(handle),
        mib=total // MIB,
        bus_id=nvml.nvmlDeviceGetPciInfo(handle).busId.upper(),
        numa=_numa_node(handle),
        minor=optional(-1, nvml.nvmlDeviceGetMinorNumber, handle),
        mig=mig,
        instances=tuple(_instances(handle, total)) if mig is Mig.ON else (),
        unified=own < MIB,
        architecture=_ARCHITECTURES.get(optional(0, nvml.nvmlDeviceGetArchitecture, handle), ""),
    )


def _trouble_of(handle: Handle) -> str | None:
    """Return the fault of a GPU, or None for a healthy GPU. Raises CallError if a call fails."""
    optional(None, nvml.nvmlDeviceGetMemoryInfo, handle)
    _, _, pending, failed = optional((0, 0, 0, 0), nvml.nvmlDeviceGetRemappedRows, handle)
    if failed:
        return "a faulty memory row cannot be remapped: replace the GPU"
    if pending or optional(0, nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle):
        return (
            "faulty memory will be remapped at the next reset: reset the GPU (`nvidia-smi "
            "--gpu-reset`)"
        )
    action_field = [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
    field = next(iter(optional((), nvml.nvmlDeviceGetFieldValues, handle, action_field)), None)
    if field is not None and field.nvmlReturn == 0 and field.value.uiVal:
        action = field.value.uiVal
        return f"the driver requests: {_RECOVERIES.get(action, f'recovery action {action}')}"
    return None


def _numa_node(handle: Handle) -> int:
    """Return the GPU's NUMA node, or -1 if the driver reports no node or several nodes."""
    words = optional(
        (), nvml.nvmlDeviceGetMemoryAffinity, handle, _NODE_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE
    )
    mask = sum(word << 64 * i for i, word in enumerate(words))
    return mask.bit_length() - 1 if mask.bit_count() == 1 else -1


def _instances(handle: Handle, gpu_bytes: int) -> Iterator[MigInstance]:
    for number in range(optional(0, nvml.nvmlDeviceGetMaxMigDeviceCount, handle)):
        instance = optional(None, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
        if instance is None:
            continue
        yield MigInstance(
            uuid=nvml.nvmlDeviceGetUUID(instance),
            profile=_profile(instance, gpu_bytes),
            mib=nvml.nvmlDeviceGetMemoryInfo(instance).total // MIB,
            gi=nvml.nvmlDeviceGetGpuInstanceId(instance),
            ci=nvml.nvmlDeviceGetComputeInstanceId(instance),
        )


def _profile(instance: Handle, gpu_bytes: int) -> str:
    """Return NVIDIA's name of the instance's size, such as ``1g.10gb``.

    The instance's name usually ends with the size. Otherwise the size is computed from slices and
    memory as in NVIDIA's go-nvlib, which rounds the memory to eighths of the GPU's memory.
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


def _read_measurements(handle: Handle, gpu: ProbedGpu) -> GpuReading:
    """Read a GPU's measurements. Raises CallError if the GPU does not answer."""
    memory = optional(None, nvml.nvmlDeviceGetMemoryInfo, handle)
    rates = optional(None, nvml.nvmlDeviceGetUtilizationRates, handle)
    milliwatts = optional(None, nvml.nvmlDeviceGetPowerUsage, handle)
    lifetime = pynvml.NVML_AGGREGATE_ECC
    corrected = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
    uncorrected = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    return GpuReading(
        uuid=gpu.uuid,
        used=memory.used if memory is not None else None,
        busy_percent=rates.gpu if rates is not None else None,
        celsius=optional(None, nvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        watts=milliwatts / 1000 if milliwatts is not None else None,
        ecc_corrected=optional(None, nvml.nvmlDeviceGetTotalEccErrors, handle, corrected, lifetime),
        ecc_uncorrected=optional(
            None, nvml.nvmlDeviceGetTotalEccErrors, handle, uncorrected, lifetime
        ),
    )
