"""Formats the files of an allocation that the library reads and writes: limits and usage.

The limits are lines, since the library has no JSON parser and needs none; native/accounting/limits.h says what they
mean. They are written by the agent and mounted read-only. What is held is a file of fixed size that all processes of
the container map (native/accounting/shared_usage.c); an empty one is all zeros.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gputile.node import native_layouts

VERSION: Final = native_layouts.LIMITS_VERSION
LIMITS: Final = "limits"
USAGE: Final = "usage"
USAGE_BYTES: Final = native_layouts.USAGE_BYTES
MOST_GPUS: Final = native_layouts.MOST_GPUS
_WORD = re.compile(rf"[!-~]{{1,{native_layouts.UUID_SIZE - 1}}}")


@dataclass(frozen=True, slots=True)
class GpuLimit:
    """What a container may have of one GPU: MiB of memory, percent of time (0: no share of its own)."""

    uuid: str
    mib: int
    percent: int = 0


def encode_limits(gpus: Iterable[GpuLimit], turn: str = "", overhead_mib: int | None = None) -> bytes:
    """Return the content of a limits file.

    ``turn`` is the socket in the container where GPU time is handed out, "" for none. ``overhead_mib`` is the most
    that contexts and modules are charged to a process on a GPU where that is not known exactly; None leaves it to the
    library.

    Raises:
        ValueError: there are no GPUs, or too many, or one has no UUID.
    """
    known = tuple(gpus)
    if not 0 < len(known) <= MOST_GPUS or any(not _WORD.fullmatch(gpu.uuid) for gpu in known):
        raise ValueError(f"limits are of 1 to {MOST_GPUS} GPUs with a UUID each: {known}")
    lines = [f"{native_layouts.LIMITS_NAME} {native_layouts.LIMITS_VERSION}"]
    if overhead_mib is not None:
        lines.append(f"{native_layouts.LIMITS_OVERHEAD} {overhead_mib}")
    if turn:
        lines.append(f"{native_layouts.LIMITS_SOCKET} {turn}")
    lines += (f"{native_layouts.LIMITS_GPU} {gpu.uuid} {gpu.mib} {gpu.percent}" for gpu in known)
    return "\n".join([*lines, native_layouts.LIMITS_END, ""]).encode()
