"""Reads the usage counted by the library, from a file that every process of a container writes.

The container may write anything into the file. It may also hold the file's lock forever, so the
reader does not lock the file: values that are read during an update may be inconsistent.
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
_SLOT_BYTES: Final = 16  # of a process: its PID and its start
_USED: Final = _HEADER.size + USAGE_SLOTS * _SLOT_BYTES
# Behind ``used`` and a word for each GPU.
_PEAK: Final = _USED + MOST_GPUS * (USAGE_SLOTS + 1) * _WORD
_MOST_LOCKS: Final = 64
_KERNEL_LOCKS: Final = Path("/proc/locks")  # proc_locks(5)
_MOST_LISTED: Final = 10_000  # locks of the whole machine; any container can create more
TO_THE_END: Final = 0  # fcntl(2): a length of 0 extends to the end of the file


class GpuUsage(NamedTuple):
    """A container's memory on one of its GPUs, and its peak, in bytes.

    ``refused`` is the number of requests for memory that its limit has refused.
    """

    used: int
    peak: int
    refused: int


def read_usage(path: Path, gpus: int) -> tuple[GpuUsage, ...] | None:
    """Return a container's usage of its first ``gpus`` GPUs in limits order; None if unreadable.

    Only running processes count: the slots of others are no longer locked.
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
    """Return whether a process has locked one of ``count`` slots from ``first`` in a usage file.

    Raises:
        OSError: the file system has no locks.
    """
    return _lock_in(file, USAGE_LOCK_SLOTS + first, count) is not None


def slots_listed(path: Path) -> bool:
    """Return whether /proc/locks lists a lock on a slot of a usage file that cannot be opened.

    The kernel lists locks to every process. If there are too many to read, one of them may be on
    the file.

    Raises:
        OSError: there is no such file, or no /proc/locks.
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
    counters = _words(file, _PEAK, 2 * MOST_GPUS)  # peak, and refused behind it
    held = [_words(file, _USED + gpu * USAGE_SLOTS * _WORD, top) for gpu in range(gpus)]
    live = _locked(file, top) if any(map(any, held)) else bytes(top)
    return tuple(
        GpuUsage(sum(compress(held[gpu], live)), counters[gpu], counters[MOST_GPUS + gpu])
        for gpu in range(gpus)
    )


def _locked(file: int, slots: int) -> bytes:
    """Return 1 for each of the first ``slots`` slots that a process has locked, 0 for others.

    A call of the kernel reports only one lock in a range, and takes longer the more locks exist. A
    container may hold hundreds, so after ``_MOST_LOCKS`` calls the remaining slots count as locked.
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
    """Return start and end (0: end of file) of a lock on these bytes; None if there is none."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    kind, _, begin, long, _ = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else (begin, begin + long if long else 0)


def _words(file: int, offset: int, count: int) -> tuple[int, ...]:
    return struct.unpack(f"<{count}Q", os.pread(file, count * _WORD, offset))
