"""Manages the files in which containers count their GPU memory.

These are the only files of the node that containers can write. Root in a container may change the
mode of its file, and store a program in it that would run as root for every user of the node. So
the files are on a file system that is mounted ``nosuid`` (mount(8)), in directories that other
users of the node cannot enter. The files are in memory, and have their full size from the start. A
container that extends its file uses space of this file system and its own memory (cgroup-v2,
"Memory Ownership"), but not the node's disk.

The node may have a separate file system for each file, which is called a place (``node_mounts``).
Then each file is in its own place, and the directory contains a symbolic link to the file.
"""

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from gputile.node.agent.files.node_mounts import PLACES, is_nosuid, mount_points
from gputile.node.isolation.library import USAGE, remove_placeholder
from gputile.node.isolation.usage_file_reader import TO_THE_END, slots_listed, slots_locked
from gputile.node.native_layouts import USAGE_BYTES
from gputile.support.files import write_whole

log = logging.getLogger(__name__)

# Containers mount the files themselves, and so need no access to the directories.
CLOSED: Final = 0o700
_OPEN: Final = 0o666  # the container may run as any user


def close_to_others(directory: Path, mode: int = CLOSED) -> None:
    """Create the directory if it is missing, and set its ``mode``.

    Raises OSError if this fails, or if the directory belongs to another user.
    """
    if not directory.is_dir():
        directory.mkdir(mode=mode, parents=True, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"{directory} is no directory of the agent's own user")
    if stat.S_IMODE(found.st_mode) != mode:
        directory.chmod(mode)


def unsafe_for_containers(directory: Path, mode: int, remedy: str) -> str | None:
    """Return why containers must not write in ``directory``, or None if they may.

    The directory is created with ``mode`` if it is missing.
    """
    try:
        close_to_others(directory, mode)
        if is_nosuid(directory):
            return None
    except OSError as error:
        return f"the directory for the files that containers write cannot be used: {error}"
    return (
        f"the file system of {directory} is not mounted nosuid, so a container could store a "
        f"program there that runs as root for any user of the node: {remedy}"
    )


class UsageFiles:
    """The usage files of all containers on the node, by the names of their allocation directories.

    ``directory`` must have the same path on the host, because Allocate responses contain the path.
    It must contain no other files, because they would be removed.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, name: str) -> Path:
        return self.directory / name

    def file(self, name: str) -> Path:
        path = self.path(name)
        try:
            return self.directory / path.readlink()
        except OSError:
            return path

    def problem(self) -> str | None:
        """Return why the directory cannot be used for files of containers, or None if it can."""
        remedy = (
            "set a directory on a file system with nosuid, such as /run/gputile (--usage-dir), or "
            "mount one there (agent.usageMiB in the chart)"
        )
        return unsafe_for_containers(self.directory, CLOSED, remedy)

    def make(self, path: Path) -> None:
        """Create the file of a container that is about to be created, filled with zeros.

        Raises OSError if the file cannot be created.
        """
        self.cut_back()
        remove_placeholder(path)
        close_to_others(self.directory)
        place = self._place(path)
        if place is None:
            write_whole(path, bytes(USAGE_BYTES), _OPEN)
            return
        file = place / USAGE
        file.unlink(missing_ok=True)
        write_whole(file, bytes(USAGE_BYTES), _OPEN)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        beside.unlink(missing_ok=True)
        beside.symlink_to(self._target(place))
        beside.replace(path)

    def _place(self, path: Path) -> Path | None:
        """Return the place of a container's file, or a free place, or None if there are no places.

        Raises OSError if all places are in use.
        """
        places = self._places()
        if not places:
            return None
        own = next((place for place, link in places.items() if link == path.name), None)
        if own is not None:
            return own
        for place in self._unused(places):
            inodes = os.statvfs(place)
            # A free place has only its directory. A deleted file counts while it is still in use.
            if inodes.f_files - inodes.f_ffree == 1:
                return place
        raise OSError(
            errno.ENOSPC,
            f"all {len(places)} places for the files of containers are in use: mount more places "
            "(agent.usageMiB)",
        )

    def _places(self) -> dict[Path, str | None]:
        """Return the places, each with the name of its container's file, or None if unused."""
        above = f"{self.directory.parent / PLACES}/"
        places = sorted(each for each in mount_points() if each.startswith(above))
        if not places:
            return {}
        links = {
            str(self.path(each.name).readlink()): each.name
            for each in self._files()
            if each.is_symlink()
        }
        return {Path(each): links.get(self._target(Path(each))) for each in places}

    def _target(self, place: Path) -> str:
        """Return the target of the symbolic link to the file in a place."""
        return f"../{PLACES}/{place.name}/{USAGE}"

    @staticmethod
    def _unused(places: Mapping[Path, str | None]) -> Iterator[Path]:
        """Yield the unused places, after removing the files of earlier containers."""
        for place, link in places.items():
            if link is None:
                for left in place.iterdir():
                    left.unlink()
                yield place

    def cut_back(self) -> None:
        """Truncate the files that containers have extended beyond their fixed size."""
        for each in self._files():
            if each.is_symlink():
                continue
            try:
                if each.stat(follow_symlinks=False).st_size > USAGE_BYTES:
                    os.truncate(each, USAGE_BYTES)
                    log.warning(
                        "truncated %s, which its container had extended without any benefit",
                        each.path,
                    )
            except OSError as error:
                log.error("%s cannot be truncated: %s", each.path, error)

    def names(self) -> list[str]:
        return [each.name for each in self._files()]

    def is_held(self, name: str) -> bool:
        """Return whether a process of the container uses a GPU.

        Such a process locks its slot in the file while it has the driver's files open
        (native/accounting/shared_usage.c). Root in the container can make the file unreadable for
        the agent, so the agent also looks for the lock in the kernel's list.
        """
        path = self.file(name)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                return slots_locked(file, 0, TO_THE_END)
            finally:
                os.close(file)
        except PermissionError:
            with contextlib.suppress(OSError):
                return slots_listed(path)
        except OSError:
            pass
        return False

    def remove_except(self, names: Iterable[str]) -> None:
        kept = set(names)
        for each in self._files():
            if each.name not in kept:
                self.path(each.name).unlink(missing_ok=True)
        for _ in self._unused(self._places()):
            pass

    def _files(self) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.directory) as found:
                return [each for each in found if each.is_symlink() or each.is_file()]
        except OSError:
            return []
