"""Mounts small file systems for what containers write.

The file of each container has a file system of its own, a place: what a container makes its file longer by, and the
extended attributes that it gives it, are limited there alone (tmpfs(5): ``size`` and ``nr_inodes``, which counts these
attributes too). Nobody could take either back, since root of a container may give its file to another user.
"""

from pathlib import Path
from typing import Final

from gputile.node.agent.decisions.answers.mps_clients import SEVERAL, SINGLE
from gputile.node.agent.files.mounts import NODEV, NOEXEC, NOSUID, REMOUNT, mount
from gputile.node.agent.files.nosuid import SOURCE, is_ours, mount_points
from gputile.node.isolation.limits_format import USAGE, USAGE_BYTES

PLACES: Final = "containers"
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
