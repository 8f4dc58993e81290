"""Reads a container's memory usage from the file in which the library records it.

The container may write anything into the file, and may keep the file locked forever. So the reader
must trust no value, and must not lock the file. Values that are read during an update may be
inconsistent.
"""

import fcntl
import os
import stat
import struct
from itertools import compress, islice
from pathlib import Path
from typing import Final, NamedTuple

from gputile.node.native_layouts import (
    MOST_GPUS,
    USAGE_LOCK_SLOTS,
    USAGE_MAGIC,
    USAGE_SLOTS,
    USAGE_VERSION,
)

_HEADER: Final = struct.Struct("<IIII")  # magic, version, top, counts
_FLOCK: Final = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux
_WORD: Final = 8
_SLOT_BYTES: Final = 16  # the PID and the start time of a process
_USED: Final = _HEADER.size + USAGE_SLOTS * _SLOT_BYTES
# The peaks follow the used memory of all slots and one more word for each GPU.
_PEAK: Final = _USED + MOST_GPUS * (USAGE_SLOTS + 1) * _WORD
_MOST_LOCKS: Final = 64
_KERNEL_LOCKS: Final = Path("/proc/locks")  # proc_locks(5)
_MOST_LISTED: Final = 10_000  # lines of /proc/locks. A container can create more locks than that.
TO_THE_END: Final = 0  # fcntl(2): a length of 0 extends to the end of the file


class GpuUsage(NamedTuple):
    """The memory that a container uses on one GPU, and the peak of this memory, both in bytes.

    ``refused`` is the number of allocations that failed because of the memory limit.
    """

    used: int
    peak: int
    refused: int


def read_usage(path: Path, gpus: int) -> tuple[GpuUsage, ...] | None:
    """Return a container's usage of its first ``gpus`` GPUs, in the order of the limits file.

    The result is None if the file cannot be read or has another version. A process that uses GPUs
    keeps a slot locked while it runs. Unlocked slots do not count.
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
    """Return whether a process has locked one of the ``count`` slots from ``first`` on.

    Raises OSError if the file system does not support locks.
    """
    return _lock_in(file, USAGE_LOCK_SLOTS + first, count) is not None


def slots_listed(path: Path) -> bool:
    """Return whether /proc/locks lists a lock on a slot of a usage file that cannot be opened.

    The kernel shows the list of all locks to every process. If the list is too long to read, the
    result is True, because the unread part may contain such a lock. Raises OSError if the file or
    /proc/locks does not exist.
    """
    found = path.lstat()
    inode = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    with _KERNEL_LOCKS.open() as listed:
        for line in islice(listed, _MOST_LISTED):
            *_, where, _, last = line.split()
            if where == inode and (last == "EOF" or int(last) >= USAGE_LOCK_SLOTS):
                return True
        return next(listed, None) is not None


def _read(file: int, gpus: int) -> tuple[GpuUsage, ...] | None:
    magic, version, top, _ = _HEADER.unpack(os.pread(file, _HEADER.size, 0))
    if not magic:  # no process has used a GPU yet
        return (GpuUsage(0, 0, 0),) * gpus
    if (magic, version) != (USAGE_MAGIC, USAGE_VERSION):
        return None
    top = min(top, USAGE_SLOTS)
    counters = _words(file, _PEAK, 2 * MOST_GPUS)  # all peaks, and then all refused counts
    held = [_words(file, _USED + gpu * USAGE_SLOTS * _WORD, top) for gpu in range(gpus)]
    live = _locked(file, top) if any(map(any, held)) else bytes(top)
    return tuple(
        GpuUsage(sum(compress(held[gpu], live)), counters[gpu], counters[MOST_GPUS + gpu])
        for gpu in range(gpus)
    )


def _locked(file: int, slots: int) -> bytes:
    """Return one byte for each of the first ``slots`` slots. It is 1 if the slot is locked.

    A system call reports only one lock in a range, and is slow if the file has many locks. A
    container may create hundreds of locks. So after ``_MOST_LOCKS`` calls, all slots that have not
    been checked count as locked.
    """
    found = bytearray(slots)
    left = [(0, slots)]
    for _ in range(_MOST_LOCKS):
        if not left:
            break
        first, end = left.pop()
        lock = _lock_in(file, USAGE_LOCK_SLOTS + first, end - first)
        if lock is None:
            continue
        start = max(first, lock[0] - USAGE_LOCK_SLOTS)
        after = min(end, lock[1] - USAGE_LOCK_SLOTS) if lock[1] else end
        found[start:after] = b"\1" * (after - start)
        left += [each for each in ((first, start), (after, end)) if each[0] < each[1]]
    for first, end in left:
        found[first:end] = b"\1" * (end - first)
    return bytes(found)


def _lock_in(file: int, start: int, length: int) -> tuple[int, int] | None:
    """Return start and end of a lock on these bytes, or None. End 0 means the end of the file."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    kind, _, begin, long, _ = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else (begin, begin + long if long else 0)


def _words(file: int, offset: int, count: int) -> tuple[int, ...]:
    return struct.unpack(f"<{count}Q", os.pread(file, count * _WORD, offset))
