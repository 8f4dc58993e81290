"""Finds which container a process belongs to, by the names of its cgroups.

The kubelet names a pod's cgroup by its UID, and container runtimes that of a container by its ID
(kubernetes/pkg/kubelet/cm, cgroup-v2). A container that may make cgroups names those below its own, so the first names
decide.
"""

import re
from collections.abc import Container
from pathlib import Path
from typing import Final

_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])")
_CONTAINER = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_MOST_BYTES: Final = 64 * 1024
PROC: Final = Path("/proc")


def owner_in(cgroups: str, pods: Container[str]) -> tuple[str, str] | None:
    """Return the UID of the pod among ``pods`` and the ID of the container that /proc/PID/cgroup names.

    The ID is "" where none is named; None is returned where none of the pods is.
    """
    for line in cgroups.splitlines():
        path = line.split(":", 2)[-1]
        for found in _POD.finditer(path):
            uid = found[1].replace("_", "-")
            if uid in pods:
                container = _CONTAINER.search(path, found.end())
                return uid, container[0] if container else ""
    return None


def owner_of(pid: int, pods: Container[str], proc: Path = PROC) -> tuple[str, str] | None:
    """Return the pod and the container of a process, see ``owner_in``; None where that cannot be read."""
    try:
        with (proc / str(pid) / "cgroup").open("rb") as file:
            return owner_in(file.read(_MOST_BYTES).decode(errors="replace"), pods)
    except OSError:  # it has ended, or is in no PID namespace that the agent sees
        return None
