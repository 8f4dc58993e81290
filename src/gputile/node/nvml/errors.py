"""Words what can go wrong with NVML, with the remedy."""

from dataclasses import dataclass
from enum import IntEnum

from gputile.api.reasons import ConditionReason


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


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the machine's GPUs are not, or not all, there: a condition's reason and message."""

    reason: ConditionReason
    message: str


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


class NvmlError(Exception):
    """NVML as a whole cannot be used; ``problem`` says why and what to do."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class CallError(Exception):
    """One call of NVML failed; ``code`` is its answer (an nvmlReturn_t), ``function`` its name."""

    def __init__(self, code: int, function: str) -> None:
        super().__init__(f"{function}: {problem_of(code, function).message}")
        self.code = code
        self.function = function

    @property
    def problem(self) -> Problem:
        return problem_of(self.code, self.function)
