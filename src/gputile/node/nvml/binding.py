"""Calls NVIDIA's Python binding of NVML, and describes failed calls.

The binding, nvidia-ml-py, has no type annotations, so results of calls have the type ``Any``.
NVIDIA's "NVML API Reference" describes the calls.
"""

from collections.abc import Callable
from typing import Any, Final, NewType, TypeVar

import pynvml  # type: ignore[import-untyped]

from gputile.api.well_known import ConditionReason
from gputile.node.nvml.probe import Problem

T = TypeVar("T")
Handle = NewType("Handle", object)  # nvmlDevice_t of a GPU or a MIG device

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


def problem_of(code: int, function: str = "") -> Problem:
    """Return the problem for NVML's error ``code``.

    The message for an unknown code names the failed ``function``.
    """
    if code in _PROBLEMS:
        return _PROBLEMS[code]
    where = f" to {function}" if function else ""
    return Problem(
        ConditionReason.DRIVER_ERROR,
        f"NVML answered {pynvml.NVMLError(code)} ({code}){where}: look in the kernel's log for "
        f"messages with NVRM or XID",
    )


class CallError(Exception):
    """A call of NVML failed. ``code`` is the result of the call, an nvmlReturn_t."""

    def __init__(self, code: int, function: str) -> None:
        super().__init__(f"{function}: {problem_of(code, function).message}")
        self.code = code
        self.function = function

    @property
    def problem(self) -> Problem:
        return problem_of(self.code, self.function)


class Calls:
    """The functions of the binding. They raise ``CallError`` instead of the binding's errors."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(pynvml, name)

        def call(*args: object) -> Any:
            try:
                return function(*args)
            except pynvml.NVMLError as error:
                raise CallError(error.value, name) from error
            except UnicodeDecodeError as error:  # an unhealthy GPU may return garbage
                raise CallError(pynvml.NVML_ERROR_UNKNOWN, name) from error

        setattr(self, name, call)
        return call


nvml: Final = Calls()


def optional(default: T, function: Callable[..., Any], *args: object) -> Any | T:
    """Call ``function``, or return ``default`` if the GPU or the driver lacks the property.

    Raises CallError if the call fails for another reason.
    """
    try:
        return function(*args)
    except CallError as error:
        if error.code in ABSENT:
            return default
        raise
