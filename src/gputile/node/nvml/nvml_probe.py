"""Reads the GPUs of a machine through NVIDIA's Python binding of NVML."""

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, cast

import pynvml  # type: ignore[import-untyped]

from gputile.node.nvml.binding import CERTAIN, DOWN, CallError, Calls, Handle, optional
from gputile.node.nvml.gpu_health import Examined, Sign, XidSeen
from gputile.node.nvml.gpus import Wiring, bandwidth_matrix, read_gpu, read_gpu_values, read_wiring, trouble_of
from gputile.node.nvml.probe import GpuReading, NvmlError, ProbedGpu, ProbedMachine, Problem

_NO_INSTANCE: Final = 0xFFFFFFFF  # an event of the GPU, not of a MIG instance
_MOST_EVENTS: Final = 64  # at most, in one call of ``watch_health``
_FAILED_WAIT_S: Final = 0.5  # pause after a failed wait, which may fail at once

Listed = tuple[Handle, ProbedGpu]


def open_real() -> "RealProbe":
    """Raises NvmlError if there is no driver, or it does not work."""
    nvml = Calls()
    _machine_wide(nvml.nvmlInit)
    return RealProbe(nvml)


class RealProbe:
    """A session with NVML, for one thread. All methods raise NvmlError if the driver goes away."""

    def __init__(self, nvml: Calls) -> None:
        self._nvml = nvml
        self._listed: tuple[Listed, ...] = ()
        self._bandwidth: tuple[tuple[float, ...], ...] = ()
        self._events: Any = None
        self._open = True

    def inventory(self) -> ProbedMachine:
        """Read the machine's GPUs, and their bandwidth if the set of GPUs has changed.

        A GPU that cannot be read is omitted and reported in ``problems``.
        """
        nvml = self._nvml
        listed: list[Listed] = []
        problems: list[Problem] = []
        for index in range(_machine_wide(nvml.nvmlDeviceGetCount)):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                listed.append((handle, read_gpu(nvml, handle, index)))
            except CallError as error:
                _raise_if_down(error)
                problems.append(Problem(error.problem.reason, f"GPU {index}: {error.problem.message}"))
        before, self._listed = self._listed, tuple(listed)
        if _uuids(before) != _uuids(self._listed):
            self._bandwidth = self._read_bandwidth()
            self._listen(self._listed)
        cuda = _machine_wide(optional, 0, nvml.nvmlSystemGetCudaDriverVersion)
        return ProbedMachine(
            gpus=tuple(gpu for _, gpu in self._listed),
            bandwidth=self._bandwidth,
            driver=_machine_wide(optional, "", nvml.nvmlSystemGetDriverVersion),
            cuda=(cuda // 1000, cuda % 1000 // 10),
            problems=tuple(problems),
        )

    def watch_health(self, seconds: float) -> tuple[Sign, ...]:
        """Wait for XID events; if the wait fails, for example because a GPU is lost, examine the GPUs instead."""
        if self._events is None:
            time.sleep(seconds)
            return ()
        signs: list[Sign] = []
        left_ms = round(seconds * 1000)
        while len(signs) < _MOST_EVENTS:
            try:
                signs += self._signs_of(self._nvml.nvmlEventSetWait(self._events, left_ms))
            except CallError as error:
                if error.code == pynvml.NVML_ERROR_TIMEOUT:
                    break
                time.sleep(min(seconds, _FAILED_WAIT_S))
                examined = self.examine()
                healthy = {sign.uuid for sign in examined if sign.trouble is None}
                self._listen(tuple((handle, gpu) for handle, gpu in self._listed if gpu.uuid in healthy))
                return (*signs, *examined)
            left_ms = 0
        return tuple(signs)

    def examine(self) -> tuple[Examined, ...]:
        """Return a sign for each GPU and MIG instance that the last inventory listed."""
        return tuple(sign for handle, gpu in self._listed for sign in self._examined(handle, gpu))

    def readings(self) -> tuple[GpuReading, ...]:
        """Return the measurements of those listed GPUs that answer."""
        found = []
        for handle, gpu in self._listed:
            with suppress(CallError):  # ``examine`` reports the reason
                found.append(read_gpu_values(self._nvml, handle, gpu))
        return tuple(found)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._stop_listening()
            with suppress(CallError):
                self._nvml.nvmlShutdown()

    def _read_bandwidth(self) -> tuple[tuple[float, ...], ...]:
        handles = [handle for handle, _ in self._listed]
        wirings = []
        for handle, gpu in self._listed:
            try:
                wirings.append(read_wiring(self._nvml, handle, gpu))
            except CallError:  # ``examine`` reports the reason
                wirings.append(Wiring(gpu.bus_id))

        def level(i: int, j: int) -> int:
            try:
                return int(self._nvml.nvmlDeviceGetTopologyCommonAncestor(handles[i], handles[j]))
            except CallError:
                return int(pynvml.NVML_TOPOLOGY_SYSTEM)

        return bandwidth_matrix(wirings, level)

    def _listen(self, listed: tuple[Listed, ...]) -> None:
        """Subscribe to the XIDs of these GPUs; a GPU without XID events is only examined."""
        self._stop_listening()
        if not listed:
            return
        try:
            events = self._nvml.nvmlEventSetCreate()
        except CallError:
            return
        registered = 0
        for handle, _ in listed:
            with suppress(CallError):
                self._nvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
                registered += 1
        self._events = events
        if not registered:
            self._stop_listening()

    def _stop_listening(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            with suppress(CallError):
                self._nvml.nvmlEventSetFree(events)

    def _signs_of(self, event: Any) -> Iterator[XidSeen]:
        """Yield the signs of an XID event: for the MIG instances that it names, or else for the GPU."""
        if event.eventType != pynvml.nvmlEventTypeXidCriticalError:
            return
        # Compare the handles: a GPU that just fell off the bus does not answer with its UUID.
        where = _address(event.device)
        gpu = next((gpu for handle, gpu in self._listed if _address(handle) == where), None)
        if gpu is None:
            return
        code = event.eventData
        named = [
            instance
            for instance in gpu.instances
            if instance.gi == event.gpuInstanceId and event.computeInstanceId in (instance.ci, _NO_INSTANCE)
        ]
        for uuid in [instance.uuid for instance in named] or [gpu.uuid]:
            yield XidSeen(uuid, code)

    def _examined(self, handle: Handle, gpu: ProbedGpu) -> Iterator[Examined]:
        doubtful = False
        try:
            trouble = trouble_of(self._nvml, handle)
        except CallError as error:
            _raise_if_down(error)
            trouble = error.problem.message
            doubtful = error.code not in CERTAIN
        for uuid in gpu.uuids:
            yield Examined(uuid, trouble, doubtful)


def _machine_wide(function: Callable[..., Any], *args: object) -> Any:
    """Call a function that fails only if the driver does not work.

    Raises:
        NvmlError: the call fails.
    """
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
