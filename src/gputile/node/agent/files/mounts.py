"""Lists the mounts that this process sees, makes one (mount(2)), and tells which are ``nosuid``.

On a file system that is mounted ``nosuid`` the host runs no program as root that a container left there. The agent sees
a directory of the host through a mount of its container's own, which need not have the host's flags: runc of 1.2 and
later gives it those that the pod asks for, and a pod can ask for none. So a file system that gputile has mounted
itself, which is never done without the flag, is known by its source.
"""

import ctypes
import os
from pathlib import Path
from typing import Final, NamedTuple

NOSUID: Final = 2  # linux/mount.h
NODEV: Final = 4
NOEXEC: Final = 8
REMOUNT: Final = 32
BIND: Final = 4096
SOURCE: Final = "gputile-usage"
_OURS: Final = ["tmpfs", SOURCE]


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


def is_nosuid(directory: Path) -> bool:
    """Return whether the file system of ``directory`` is mounted ``nosuid``, here or as far as the host is concerned.

    Raises:
        OSError: it cannot be looked at.
    """
    if os.statvfs(directory).f_flag & os.ST_NOSUID:
        return True
    number = directory.stat().st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    return any(each.device == device and each.kind == _OURS for each in mounts())


def is_ours(directory: Path) -> bool:
    return str(directory) in mount_points()


def mount_points() -> frozenset[str]:
    return frozenset(place for place, kind in {each.place: each.kind for each in mounts()}.items() if kind == _OURS)
