"""Mounts the file systems that the agent needs on its node.

``python -m gputile.node.agent.files.node_mounts MIB USAGE STATE [PIPES]``

The chart runs this module as an init container, because the agent itself must not mount. The mounts
are in directories of the host with shared mount propagation, so they remain when the container
ends.

The usage file of each container has its own small file system, which is called a place. The place
limits how far a container can extend its file, and how many extended attributes it can add
(tmpfs(5): ``size`` and ``nr_inodes``, which also counts these attributes). The agent could not undo
such changes, because root in a container may give its file to another user.

On a file system that is mounted ``nosuid``, the host ignores set-user-ID bits. So nobody becomes
root by a program that a container stored there. The agent sees a directory of the host through a
mount in its own container. The flags of the two mounts may differ, because runc 1.2 and later sets
the flags that the pod requests, and a pod cannot request ``nosuid``. So the agent recognizes a file
system of gputile, which is always mounted ``nosuid``, by its source (``SOURCE``).

The file systems for ``PIPES`` are also mounted ``nosymfollow``, so that an MPS daemon, which runs
as root, follows no symbolic link of a container.
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
NOSYMFOLLOW: Final = 256  # ignored before Linux 5.10
BIND: Final = 4096
SOURCE: Final = "gputile-usage"
LIBRARY_DIRECTORY: Final = "library"  # in the agent's state directory
PLACES: Final = "containers"  # the directory of the places, below the directory of the files
_OURS: Final = ["tmpfs", SOURCE]


class Mount(NamedTuple):
    """A mount point, its device number, and its file system type and source."""

    place: str
    device: str
    kind: list[str]


def mounts() -> list[Mount]:
    """Return all mounts in order (proc(5), mountinfo). The last one at a path hides the others."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place, _, kind = line.partition(" - ")
        fields = place.split(" ")
        found.append(Mount(fields[4], fields[2], kind.split(" ")[:2]))
    return found


def mount(source: str | Path, target: Path, kind: str, flags: int, options: str = "") -> None:
    """Call mount(2). Raises OSError if that fails, for example because of missing privileges."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(source), os.fsencode(target), kind.encode()
    if libc.mount(*names, ctypes.c_ulong(flags), options.encode()):
        number = ctypes.get_errno()
        raise OSError(number, f"mounting {target}: {os.strerror(number)}")


def is_nosuid(directory: Path) -> bool:
    """Return whether the file system of ``directory`` is mounted ``nosuid``, here or on the host.

    Raises OSError if the directory cannot be read.
    """
    if os.statvfs(directory).f_flag & os.ST_NOSUID:
        return True
    number = directory.stat().st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    return any(each.device == device and each.kind == _OURS for each in mounts())


def is_ours(directory: Path) -> bool:
    return str(directory) in mount_points()


def mount_points() -> frozenset[str]:
    return frozenset(
        place
        for place, kind in {each.place: each.kind for each in mounts()}.items()
        if kind == _OURS
    )


# A place has room for two files, because the file of an ended container may still be mounted.
PLACE_BYTES: Final = 2 * USAGE_BYTES
# The directory, the two files, and a temporary file that replaces one of them
_PLACE_INODES: Final = 4
# In a shared file system, a file or 1 KiB of attributes uses one inode.
_INODES_A_MIB: Final = 64
SEVERAL: Final = "cards-"  # prefix of the directory of an MPS daemon for several GPUs
# The prefixes of the names that an agent creates in the directory if nothing is mounted there
_OWN: Final = (USAGE, PLACES, "GPU-", SEVERAL)


def mount_usage(directory: Path, mib: int) -> None:
    """Mount places for the files of containers in ``directory``, as many as fit into ``mib`` MiB.

    Raises OSError like ``mount_small``.
    """
    mount_small(directory, mib)
    mount_places(directory, (mib << 20) // PLACE_BYTES)


def mount_places(directory: Path, count: int) -> None:
    """Mount places until ``directory`` has at least ``count``. Existing places do not change.

    Raises OSError if this process may not mount.
    """
    there = mount_points()
    for number in range(count):
        place = directory / PLACES / f"{number:03}"
        if str(place) not in there:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            _mount(place, f"size={PLACE_BYTES},nr_inodes={_PLACE_INODES},mode=0700")


def mount_small(directory: Path, mib: int, flags: int = 0) -> None:
    """Mount a file system of ``mib`` MiB in memory at ``directory``, or resize an existing one.

    Raises OSError if this process may not mount, if more than ``mib`` MiB are in use, or if the
    directory contains files of other programs, which the mount would hide.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if is_ours(directory):
        _mount(directory, f"size={mib}m,mode=0700", REMOUNT | flags)
        return
    if others := [path for path in directory.iterdir() if not path.name.startswith(_OWN)]:
        raise OSError(
            f"{directory} also contains {others[0].name}, which is not gputile's: set a directory "
            f"that only gputile uses"
        )
    _mount(directory, f"size={mib}m,nr_inodes={_INODES_A_MIB * mib},mode=0700", flags)


def _mount(directory: Path, options: str, flags: int = 0) -> None:
    mount(SOURCE, directory, "tmpfs", flags | NOSUID | NODEV | NOEXEC, options)


def mount_library(state: Path) -> None:
    """Bind-mount the library's directory in the agent's ``state`` directory onto itself.

    The host may have mounted the file system ``noexec``. A container's mount of the library may
    then have the flag too, and always has it in a user namespace. With the flag, the dynamic loader
    runs programs without the library. On the mounts of volumes, runc 1.2 and later sets the flags
    that the pod requests, which hides the host's flag from the agent. A bind mount inside a volume
    gets the volume's flags when it is made, and runc does not change them. So host, containers and
    agent see the same flags. With ``noexec``, no container starts (``must_be_loadable``).

    Raises OSError if this process may not mount, or if the directory cannot be created.
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
            mount_small(Path(each), int(sys.argv[1]), NOSYMFOLLOW)
    except OSError as error:
        sys.exit(f"error: {error}")
