"""Lists the mounts that this process sees, and makes one (mount(2))."""

import ctypes
import os
from pathlib import Path
from typing import Final, NamedTuple

NOSUID: Final = 2  # linux/mount.h
NODEV: Final = 4
NOEXEC: Final = 8
REMOUNT: Final = 32
BIND: Final = 4096


class Mount(NamedTuple):
    """Where something is mounted, the number of its device, and its type with its source."""

    place: str
    device: str
    kind: list[str]


def mounts() -> list[Mount]:
    """Return all mounts in their order: of those at one place the last one is seen (proc(5), ``mountinfo``)."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place, _, kind = line.partition(" - ")
        fields = place.split(" ")
        found.append(Mount(fields[4], fields[2], kind.split(" ")[:2]))
    return found


def mount(source: str | Path, target: Path, kind: str, flags: int, options: str = "") -> None:
    """Mount something.

    Raises:
        OSError: it cannot be mounted, or this process may not mount.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(source), os.fsencode(target), kind.encode()
    if libc.mount(*names, ctypes.c_ulong(flags), options.encode()):
        number = ctypes.get_errno()
        raise OSError(number, f"mounting {target}: {os.strerror(number)}")
