"""Tells whether the host runs no program as root that a container left in a directory (``nosuid``).

The agent sees a directory of the host through a mount of its container's own, which need not have the host's flags:
runc of 1.2 and later gives it those that the pod asks for, and a pod can ask for none. So a file system that gputile
has mounted itself, which is never done without the flag, is known by its source.
"""

import os
from pathlib import Path
from typing import Final

from gputile.node.agent.files.mounts import mounts

SOURCE: Final = "gputile-usage"
_OURS: Final = ["tmpfs", SOURCE]


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
    """Return whether what is mounted at ``directory`` is a file system that gputile has mounted."""
    return str(directory) in mount_points()


def mount_points() -> frozenset[str]:
    """Return the directories at which a file system is mounted that gputile has mounted."""
    return frozenset(place for place, kind in {each.place: each.kind for each in mounts()}.items() if kind == _OURS)
