"""Types the calls of NVIDIA's binding that gputile makes, and words what can go wrong with them.

nvidia-ml-py has no types. The names are the binding's own; what each call does is in NVIDIA's "NVML API Reference".
Here every call raises ``CallError`` instead of the binding's own error.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import NewType, ParamSpec, Protocol, TypeVar

from gputile.api.reasons import ConditionReason
from gputile.node.nvml.probe import Problem

T = TypeVar("T")
P = ParamSpec("P")
Handle = NewType("Handle", object)  # nvmlDevice_t of a GPU or a MIG device
EventSet = NewType("EventSet", object)  # nvmlEventSet_t


class Code(IntEnum):
    """The nvmlReturn_t values that gputile tells apart (nvml.h)."""

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    UNKNOWN = 999


# What a driver answers about a fact that the GPU, or the driver's own age, does not have.
ABSENT = frozenset((Code.INVALID_ARGUMENT, Code.NOT_SUPPORTED, Code.NOT_FOUND, Code.FUNCTION_NOT_FOUND))
# What only happens to an unhealthy GPU; other errors of one call may pass.
CERTAIN = frozenset((Code.GPU_IS_LOST, Code.RESET_REQUIRED))
# What says that no GPU can be reached at all.
DOWN = frozenset((Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED, Code.LIBRARY_NOT_FOUND, Code.LIB_RM_VERSION_MISMATCH))


_PROBLEMS: dict[int, Problem] = {
    Code.LIBRARY_NOT_FOUND: Problem(
        ConditionReason.DRIVER_MISSING,
        "libnvidia-ml.so.1 is not found: install the NVIDIA driver on this node, "
        "and let the agent see it (the NVIDIA container runtime with NVIDIA_DRIVER_CAPABILITIES=utility)",
    ),
    Code.DRIVER_NOT_LOADED: Problem(
        ConditionReason.DRIVER_NOT_LOADED,
        "the NVIDIA driver is installed and its kernel module is not loaded: run `modprobe nvidia` "
        "and look for its error in the kernel's log",
    ),
    Code.LIB_RM_VERSION_MISMATCH: Problem(
        ConditionReason.DRIVER_VERSION_MISMATCH,
        "libnvidia-ml.so.1 and the loaded kernel module are of different driver versions: "
        "reload the module, or reboot the node, after the driver's upgrade",
    ),
    Code.NO_PERMISSION: Problem(
        ConditionReason.DRIVER_NO_PERMISSION,
        "the NVIDIA driver refuses this process: let the agent open /dev/nvidiactl and /dev/nvidia*",
    ),
    Code.GPU_IS_LOST: Problem(
        ConditionReason.CARD_LOST,
        "the GPU has fallen off the bus: look for its XID in the kernel's log, reset it (`nvidia-smi --gpu-reset`) "
        "or reboot the node; replace it if it happens again",
    ),
    Code.RESET_REQUIRED: Problem(
        ConditionReason.CARD_NEEDS_RESET, "the GPU must be reset before use: drain it and run `nvidia-smi --gpu-reset`"
    ),
}


def problem_of(code: int, doing: str = "") -> Problem:
    """Return the problem that NVML's answer ``code`` is. ``doing`` names the call that failed, for unusual codes."""
    if code in _PROBLEMS:
        return _PROBLEMS[code]
    name = next((known.name for known in Code if known == code), "an unknown error")
    where = f" to {doing}" if doing else ""
    return Problem(
        ConditionReason.DRIVER_ERROR,
        f"NVML answered {name} ({code}){where}: see the kernel's log for messages of NVRM and XIDs",
    )


class CallError(Exception):
    """One call of NVML failed; ``code`` is its answer (an nvmlReturn_t), ``function`` its name."""

    def __init__(self, code: int, function: str) -> None:
        super().__init__(f"{function}: {problem_of(code, function).message}")
        self.code = code
        self.function = function

    @property
    def problem(self) -> Problem:
        return problem_of(self.code, self.function)


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
