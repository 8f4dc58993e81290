"""The files in which containers count what they hold: the only thing of the node that they can write.

Whoever is root in a container may change the mode of such a file, and so could leave a program there that runs as root
for every user of the node. So the files are on a file system that is mounted ``nosuid`` (mount(8)), below directories
that are closed to the node's other users. They are in memory and full from the start: making one longer takes room of
that file system and of the container's own memory (cgroup-v2, "Memory Ownership"), none of the node's disk.
"""

import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gputile.node.agent.nosuid import is_nosuid
from gputile.node.isolation.library import remove_placeholder
from gputile.node.isolation.usage_file_reader import TO_THE_END, slots_locked
from gputile.node.native_layouts import USAGE_BYTES
from gputile.support.files import write_whole

log = logging.getLogger(__name__)

CLOSED: Final = 0o700  # what is mounted are the files themselves, so containers need no way through the directories
_OPEN: Final = 0o666  # the container's user can be anybody


def close_to_others(directory: Path, mode: int = CLOSED) -> None:
    """Make a directory where there is none, and give the node's other users no more than ``mode`` says.

    Raises:
        OSError: it cannot be made, is no directory, or is another user's.
    """
    directory.mkdir(mode=mode, parents=True, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"{directory} is no directory of the agent's own user")
    if stat.S_IMODE(found.st_mode) != mode:
        directory.chmod(mode)


class UsageFiles:
    """The files of all containers on the node, by the names of their allocations' directories.

    ``directory`` has the same path on the host: the answers to ``Allocate`` name it. Nobody else has files there, since
    those that are no container's are removed.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, name: str) -> Path:
        """Return where the file of an allocation is."""
        return self.directory / name

    def problem(self) -> str:
        """Return why no container may be given a file here, "" if one may."""
        try:
            close_to_others(self.directory)
            safe = is_nosuid(self.directory)
        except OSError as error:
            return f"the directory for what containers write cannot be used: {error}"
        if safe:
            return ""
        return (
            f"the file system of {self.directory} is not mounted nosuid, so a container could leave a program there "
            "that runs as root for any user of the node: name a directory on one that is, such as /run/gputile "
            "(--usage-dir), or have one mounted there (agent.usageMiB in the chart)"
        )

    def make(self, path: Path) -> None:
        """Make the file of a container that is about to be created: one that says that nothing is held.

        Raises:
            OSError: it cannot be made.
        """
        self.cut_back()
        if path.parent == self.directory:
            close_to_others(self.directory)
        remove_placeholder(path)
        write_whole(path, bytes(USAGE_BYTES), _OPEN)

    def cut_back(self) -> None:
        """Take back what containers have made their files longer by."""
        for path in self._files():
            try:
                if path.lstat().st_size > USAGE_BYTES:
                    os.truncate(path, USAGE_BYTES)
                    log.warning("%s had been made longer, and is cut back: its container gains nothing by that", path)
            except OSError as error:
                log.error("%s cannot be cut back: %s", path, error)

    def names(self) -> list[str]:
        """Return the names of all files."""
        return [path.name for path in self._files()]

    def is_held(self, name: str) -> bool:
        """Return whether a process of the container uses a GPU.

        It has then locked its slot in the file, as long as it holds the driver's files too
        (native/accounting/shared_usage.c).
        """
        try:
            file = os.open(self.path(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            return slots_locked(file, 0, TO_THE_END)
        except OSError:
            return False
        finally:
            os.close(file)

    def keep_only(self, names: Iterable[str]) -> None:
        """Remove the files of allocations that are gone."""
        kept = set(names)
        for path in self._files():
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        try:
            return [path for path in self.directory.iterdir() if path.is_file() and not path.is_symlink()]
        except OSError:
            return []
