"""Whether the host runs no program as root that a container has left in a directory (mount(8), ``nosuid``).

The agent sees a directory of the host through a mount of its container's own, which need not have the host's flags:
runc of 1.2 and later gives it those that the pod asks for, and a pod can ask for none. So a file system that gputile
has mounted itself, which is never done without the flag, is known by its source.
"""

import os
from pathlib import Path
from typing import Final

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
    return any(seen == device and kind == _OURS for _, seen, kind in _mounts())


def is_ours(directory: Path) -> bool:
    """Return whether what is mounted at ``directory`` is a file system that gputile has mounted."""
    kinds = [kind for place, _, kind in _mounts() if place == str(directory)]
    return kinds[-1:] == [_OURS]


def _mounts() -> list[tuple[str, str, list[str]]]:
    """Return where each file system is mounted, its device, and its type with its source (proc(5), ``mountinfo``)."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place, _, kind = line.partition(" - ")
        fields = place.split(" ")
        found.append((fields[4], fields[2], kind.split(" ")[:2]))
    return found
