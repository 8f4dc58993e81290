"""Makes the mounts of the agent's init container.

``python -m gputile.node.agent.files.node_mounts MIB USAGE STATE [PIPES]``

The chart runs it as an init container of the agent, the only thing of the agent that may mount. The mounts are made
in directories of the host whose mounts are shared, and stay there when the container ends.

The file of each container has a file system of its own, a place: what a container makes its file longer by, and the
extended attributes that it gives it, are limited there alone (tmpfs(5): ``size`` and ``nr_inodes``, which counts these
attributes too). Nobody could take either back, since root of a container may give its file to another user.
"""

import sys
from pathlib import Path
from typing import Final

from gputile.node.agent.answers import SEVERAL, SINGLE
from gputile.node.agent.files.isolation_mounts import LIBRARY_DIRECTORY
from gputile.node.agent.files.mounts import (
    BIND,
    NODEV,
    NOEXEC,
    NOSUID,
    REMOUNT,
    SOURCE,
    is_ours,
    mount,
    mount_points,
    mounts,
)
from gputile.node.agent.files.usage_files import PLACES
from gputile.node.isolation.library import USAGE
from gputile.node.native_layouts import USAGE_BYTES

PLACE_BYTES: Final = 2 * USAGE_BYTES  # while the file of a container that has ended is still mounted there is a second
_PLACE_INODES: Final = 4  # the directory, the two files, and one for the time in which such a file is replaced
_INODES_A_MIB: Final = 64  # of a file system that containers share; each, and 1 KiB of attributes, counts as one
_OWN: Final = (USAGE, PLACES, SINGLE, SEVERAL)  # what an agent leaves there where nothing is mounted


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
