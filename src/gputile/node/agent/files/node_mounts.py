"""Makes the mounts of the agent's init container.

``python -m gputile.node.agent.files.node_mounts MIB USAGE STATE [PIPES]``

The chart runs it as an init container of the agent, the only thing of the agent that may mount. The mounts are made
in directories of the host whose mounts are shared, and stay there when the container ends.

The file of each container has a file system of its own, a place: what a container makes its file longer by, and the
extended attributes that it gives it, are limited there alone (tmpfs(5): ``size`` and ``nr_inodes``, which counts these
attributes too). Nobody could take either back, since root of a container may give its file to another user.

On a file system that is mounted ``nosuid`` the host runs no program as root that a container left there. The agent sees
a directory of the host through a mount of its container's own, which need not have the host's flags: runc of 1.2 and
later gives it those that the pod asks for, and a pod can ask for none. So a file system that gputile has mounted
itself, which is never done without the flag, is known by its source.
"""

import ctypes
import os
import sys
from pathlib import Path
from typing import Final, NamedTuple

from gputile.node.isolation.library import USAGE
from gputile.node.native_layouts import USAGE_BYTES

NOSUID: Final = 2  # linux/mount.h
NODEV: Final = 4
NOEXEC: Final = 8
REMOUNT: Final = 32
BIND: Final = 4096
SOURCE: Final = "gputile-usage"
LIBRARY_DIRECTORY: Final = "library"  # below the agent's own
PLACES: Final = "containers"  # the directory of the places, beside that of the files
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


PLACE_BYTES: Final = 2 * USAGE_BYTES  # while the file of a container that has ended is still mounted there is a second
_PLACE_INODES: Final = 4  # the directory, the two files, and one for the time in which such a file is replaced
_INODES_A_MIB: Final = 64  # of a file system that containers share; each, and 1 KiB of attributes, counts as one
SEVERAL: Final = "cards-"  # what the directory of the MPS daemon of several GPUs begins with
_OWN: Final = (USAGE, PLACES, "GPU-", SEVERAL)  # what an agent leaves there where nothing is mounted


def mount_usage(directory: Path, mib: int) -> None:
    """Mount places for the files of as many containers as ``mib`` MiB are enough for below ``directory``.

    Raises:
        OSError: as for ``mount_small``.
    """
    mount_small(directory, mib)
    mount_places(directory, (mib << 20) // PLACE_BYTES)


def mount_places(directory: Path, count: int) -> None:
    """Have ``count`` places below ``directory`` at least; those that are there stay as they are.

    Raises:
        OSError: this process may not mount.
    """
    there = mount_points()
    for number in range(count):
        place = directory / PLACES / f"{number:03}"
        if str(place) not in there:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            _mount(place, f"size={PLACE_BYTES},nr_inodes={_PLACE_INODES},mode=0700")


def mount_small(directory: Path, mib: int) -> None:
    """Mount a file system of ``mib`` MiB in memory at ``directory``, or give the one that is there this size.

    Raises:
        OSError: this process may not mount, more is in use there than ``mib``, or others' files would be hidden.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if is_ours(directory):
        _mount(directory, f"size={mib}m,mode=0700", REMOUNT)
        return
    if others := [path for path in directory.iterdir() if not path.name.startswith(_OWN)]:
        raise OSError(f"{directory} is not gputile's alone, there is {others[0].name}: name a directory of its own")
    _mount(directory, f"size={mib}m,nr_inodes={_INODES_A_MIB * mib},mode=0700")


def _mount(directory: Path, options: str, flags: int = 0) -> None:
    mount(SOURCE, directory, "tmpfs", flags | NOSUID | NODEV | NOEXEC, options)


def mount_library(state: Path) -> None:
    """Mount the library's directory of the agent's directory ``state`` onto itself.

    A host may have that file system mounted ``noexec``, and a container's mount of the library then has the flag too,
    always so in a user namespace: the loader runs programs without the library. runc of 1.2 and later gives the mounts
    of a pod's volumes the flags that the pod asks for, and so the agent could not know. A mount below such a volume
    begins with the volume's flags and is left alone afterwards: the host, its containers and the agent see the
    same. Either none of them has the flag, or the agent sees it and starts no container (``must_be_loadable``).

    Raises:
        OSError: this process may not mount, or the directory cannot be made.
    """
    directory = state / LIBRARY_DIRECTORY
    directory.mkdir(parents=True, exist_ok=True)
    if str(directory) not in (each.place for each in mounts()):
        mount(directory, directory, "none", BIND)


if __name__ == "__main__":
    try:
        mount_usage(Path(sys.argv[2]), int(sys.argv[1]))
        mount_library(Path(sys.argv[3]))
        for each in sys.argv[4:]:
            mount_small(Path(each), int(sys.argv[1]))
    except OSError as error:
        sys.exit(f"error: {error}")
