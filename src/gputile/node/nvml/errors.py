"""Describes failed calls of NVML.

NVML is called through NVIDIA's Python binding, nvidia-ml-py. The binding has no type annotations,
so results of calls have the type ``Any``. NVIDIA's "NVML API Reference" describes the calls.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import pynvml  # type: ignore[import-untyped]

from gputile.api.well_known import ConditionReason
from gputile.node.nvml.probe import Problem

T = TypeVar("T")

# The errors for a property that this GPU or this version of the driver does not have.
ABSENT = frozenset(
    (
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    )
)
# The errors that only an unhealthy GPU returns. Another error of a single call may be transient.
CERTAIN = frozenset((pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED))
# The errors that affect all GPUs.
DOWN = frozenset(
    (
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    )
)


_PROBLEMS: dict[int, Problem] = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: Problem(
        ConditionReason.DRIVER_MISSING,
        "libnvidia-ml.so.1 is not found: install the NVIDIA driver on this node, and mount it into "
        "the agent (the NVIDIA container runtime with NVIDIA_DRIVER_CAPABILITIES=utility)",
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: Problem(
        ConditionReason.DRIVER_NOT_LOADED,
        "the NVIDIA driver is installed, but its kernel module is not loaded: run `modprobe "
        "nvidia` and look for its error in the kernel's log",
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: Problem(
        ConditionReason.DRIVER_VERSION_MISMATCH,
        "libnvidia-ml.so.1 and the loaded kernel module have different driver versions: "
        "reload the kernel module, or reboot the node",
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: Problem(
        ConditionReason.DRIVER_NO_PERMISSION,
        "the NVIDIA driver denies access: allow the agent to open /dev/nvidiactl and /dev/nvidia*",
    ),
    pynvml.NVML_ERROR_GPU_IS_LOST: Problem(
        ConditionReason.CARD_LOST,
        "the GPU has fallen off the bus: look for its XID in the kernel's log, and reset the GPU "
        "(`nvidia-smi --gpu-reset`) or reboot the node. If this happens again, replace the GPU",
    ),
    pynvml.NVML_ERROR_RESET_REQUIRED: Problem(
        ConditionReason.CARD_NEEDS_RESET,
        "the GPU must be reset: drain the node, and run `nvidia-smi --gpu-reset`",
    ),
}


def problem_of(code: int) -> Problem:
    """Return the problem for NVML's error ``code``."""
    if code in _PROBLEMS:
        return _PROBLEMS[code]
    return Problem(
        ConditionReason.DRIVER_ERROR,
        f"NVML answered {pynvml.NVMLError(code)} ({code}): look in the kernel's log for messages "
        f"with NVRM or XID",
    )


def optional(default: T, function: Callable[..., Any], *args: object) -> Any | T:
    """Call ``function``. Return ``default`` if the GPU or the driver does not support the call.

    Raises ``pynvml.NVMLError`` if the call fails for another reason.
    """
    try:
        return function(*args)
    except pynvml.NVMLError as error:
        if error.value in ABSENT:
            return default
        raise
