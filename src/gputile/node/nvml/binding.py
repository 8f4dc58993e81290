"""Types the calls of NVIDIA's binding that gputile makes, since nvidia-ml-py has no types.

The names are the binding's own; what each call does is in NVIDIA's "NVML API Reference". Here every call raises
``CallError`` instead of the binding's own error.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NewType, ParamSpec, Protocol, TypeVar

from gputile.node.nvml.errors import ABSENT, CallError

T = TypeVar("T")
P = ParamSpec("P")
Handle = NewType("Handle", object)  # nvmlDevice_t of a GPU or a MIG device
EventSet = NewType("EventSet", object)  # nvmlEventSet_t


class Memory(Protocol):
    """nvmlMemory_t, in bytes."""

    total: int
    used: int


class Utilization(Protocol):
    """nvmlUtilization_t, in percent."""

    gpu: int


class ProcessInfo(Protocol):
    """nvmlProcessInfo_t; ``usedGpuMemory`` in bytes, None where the driver does not know it."""

    pid: int
    usedGpuMemory: int | None
    gpuInstanceId: int
    computeInstanceId: int


class PciInfo(Protocol):
    """nvmlPciInfo_t."""

    busId: str


class Attributes(Protocol):
    """nvmlDeviceAttributes_t of a MIG device."""

    gpuInstanceSliceCount: int
    computeInstanceSliceCount: int
    memorySizeMB: int


class NvmlEvent(Protocol):
    """nvmlEventData_t. ``eventData`` is the XID of an event of that type."""

    device: Handle
    eventType: int
    eventData: int
    gpuInstanceId: int
    computeInstanceId: int


class FieldNumber(Protocol):
    """nvmlValue_t."""

    uiVal: int


class FieldValue(Protocol):
    """nvmlFieldValue_t."""

    nvmlReturn: int
    value: FieldNumber


class NvmlBinding(Protocol):
    """The module ``pynvml``."""

    nvmlInit: Callable[[], None]
    nvmlShutdown: Callable[[], None]
    nvmlSystemGetDriverVersion: Callable[[], str]
    nvmlSystemGetCudaDriverVersion: Callable[[], int]
    nvmlDeviceGetCount: Callable[[], int]
    nvmlDeviceGetHandleByIndex: Callable[[int], Handle]
    nvmlDeviceGetUUID: Callable[[Handle], str]
    nvmlDeviceGetName: Callable[[Handle], str]
    nvmlDeviceGetMemoryInfo: Callable[[Handle], Memory]
    nvmlDeviceGetMinorNumber: Callable[[Handle], int]
    nvmlDeviceGetPciInfo: Callable[[Handle], PciInfo]
    nvmlDeviceGetMemoryAffinity: Callable[[Handle, int, int], Iterable[int]]
    nvmlDeviceGetMaxPcieLinkGeneration: Callable[[Handle], int]
    nvmlDeviceGetMaxPcieLinkWidth: Callable[[Handle], int]
    nvmlDeviceGetTopologyCommonAncestor: Callable[[Handle, Handle], int]
    nvmlDeviceGetNvLinkState: Callable[[Handle, int], int]
    nvmlDeviceGetNvLinkVersion: Callable[[Handle, int], int]
    nvmlDeviceGetNvLinkRemoteDeviceType: Callable[[Handle, int], int]
    nvmlDeviceGetNvLinkRemotePciInfo: Callable[[Handle, int], PciInfo]
    nvmlDeviceGetMigMode: Callable[[Handle], Sequence[int]]
    nvmlDeviceGetMaxMigDeviceCount: Callable[[Handle], int]
    nvmlDeviceGetMigDeviceHandleByIndex: Callable[[Handle, int], Handle]
    nvmlDeviceGetGpuInstanceId: Callable[[Handle], int]
    nvmlDeviceGetComputeInstanceId: Callable[[Handle], int]
    nvmlDeviceGetAttributes: Callable[[Handle], Attributes]
    nvmlDeviceGetRemappedRows: Callable[[Handle], tuple[int, int, int, int]]
    nvmlDeviceGetRetiredPagesPendingStatus: Callable[[Handle], int]
    nvmlDeviceGetFieldValues: Callable[[Handle, Sequence[int]], Sequence[FieldValue]]
    nvmlDeviceGetUtilizationRates: Callable[[Handle], Utilization]
    nvmlDeviceGetTemperature: Callable[[Handle, int], int]
    nvmlDeviceGetPowerUsage: Callable[[Handle], int]
    nvmlDeviceGetTotalEccErrors: Callable[[Handle, int, int], int]
    nvmlDeviceGetComputeRunningProcesses: Callable[[Handle], Sequence[ProcessInfo]]
    nvmlDeviceGetMPSComputeRunningProcesses: Callable[[Handle], Sequence[ProcessInfo]]
    nvmlEventSetCreate: Callable[[], EventSet]
    nvmlDeviceRegisterEvents: Callable[[Handle, int, EventSet], None]
    nvmlEventSetWait: Callable[[EventSet, int], NvmlEvent]
    nvmlEventSetFree: Callable[[EventSet], None]


def optional(default: T, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the answer of ``function``, or ``default`` where the GPU or the driver does not know of such a thing.

    Raises:
        CallError: any other failure.
    """
    try:
        return function(*args, **kwargs)
    except CallError as error:
        if error.code in ABSENT:
            return default
        raise
