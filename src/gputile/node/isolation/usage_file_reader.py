"""What the library of a container has counted, read from the file that all processes of the container write.

Every byte of it is the container's own and may be anything. The file's lock is the container's too, so nobody waits for
it: what is read while a process changes it can be of two moments.
"""

import fcntl
import os
import stat
import struct
from pathlib import Path
from typing import Final, NamedTuple

from gputile.node.native_layouts import (
    MOST_GPUS,
    USAGE,
    USAGE_COUNTS,
    USAGE_LOCK_SLOTS,
    USAGE_MAGIC,
    USAGE_SLOTS,
    USAGE_VERSION,
)

_HEADER: Final = struct.Struct("<IIII")  # magic, version, top, counts
_FLOCK: Final = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux
_WORD: Final = 8
_USED, _PEAK = USAGE.offsets["used"], USAGE.offsets["peak"]
TO_THE_END: Final = 0  # fcntl(2): a length of 0 reaches to the end, wherever that is


class GpuUsage(NamedTuple):
    """What a container holds of one of its GPUs, and the most that it ever held, in bytes.

    ``refused`` is how many requests for memory its limit has refused. ``peak`` and ``refused`` are None where the
    container runs a library that does not count them.
    """

    used: int
    peak: int | None
    refused: int | None


def read_usage(path: Path, gpus: int) -> tuple[GpuUsage, ...] | None:
    """Return what a container has counted of its first ``gpus`` GPUs, in the order of its limits; None if unreadable.

    Only processes that live are counted: the others' slots are not locked any more.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return _read(file, min(gpus, MOST_GPUS)) if stat.S_ISREG(os.fstat(file).st_mode) else None
    except (OSError, struct.error):
        return None
    finally:
        os.close(file)


def slots_locked(file: int, first: int = 0, count: int = 1) -> bool:
    """Return whether a process has locked one of ``count`` slots from ``first`` on, in an open usage file.

    Raises:
        OSError: the file system has no locks.
    """
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, USAGE_LOCK_SLOTS + first, count, 0)
    return bool(_FLOCK.unpack(fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked))[0] != fcntl.F_UNLCK)


def _read(file: int, gpus: int) -> tuple[GpuUsage, ...] | None:
    magic, version, top, counts = _HEADER.unpack(os.pread(file, _HEADER.size, 0))
    if not magic:  # no process has used a GPU yet
        return (GpuUsage(0, 0, 0),) * gpus
    if (magic, version) != (USAGE_MAGIC, USAGE_VERSION):
        return None
    top = min(top, USAGE_SLOTS)
    live = _live(file, top)
    counted = counts >= USAGE_COUNTS
    counters = _words(file, _PEAK, 2 * MOST_GPUS)  # peak, and refused behind it
    found = []
    for gpu in range(gpus):
        held = _words(file, _USED + gpu * USAGE_SLOTS * _WORD, top)
        used = sum(held[slot] for slot in live)
        found.append(GpuUsage(used, counters[gpu] if counted else None, counters[MOST_GPUS + gpu] if counted else None))
    return tuple(found)


def _live(file: int, top: int) -> list[int]:
    if top > 1 and not slots_locked(file, 0, top):
        return []
    return [slot for slot in range(top) if slots_locked(file, slot)]


def _words(file: int, offset: int, count: int) -> tuple[int, ...]:
    return struct.unpack(f"<{count}Q", os.pread(file, count * _WORD, offset))
