"""Measures each container's GPU memory, as its library counts it or as NVML tells of its processes.

Which container a process belongs to is told by the names of its cgroups. The kubelet names a pod's cgroup by its UID,
and container runtimes that of a container by its ID (kubernetes/pkg/kubelet/cm, cgroup-v2). A container that may make
cgroups names those below its own, so the first names decide.
"""

import re
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Final

from gputile.node.agent.files.usage_files import UsageFiles
from gputile.node.agent.status.node_snapshot import MonitoredContainer
from gputile.node.isolation.usage_file_reader import GpuUsage, read_usage
from gputile.node.nvml.probe import GpuReading

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


_BY_PROCESS = Mapping[tuple[str, str, str], int]


class ContainerUse:
    """Reads the files in which libraries count; ``proc`` is where processes are looked up that NVML names."""

    def __init__(self, usage: UsageFiles, proc: Path = PROC) -> None:
        self._usage = usage
        self._proc = proc

    def read(
        self, containers: tuple[MonitoredContainer, ...], readings: tuple[GpuReading, ...]
    ) -> Iterator[tuple[MonitoredContainer, list[GpuUsage | None]]]:
        """Yield each container with what is known of its use of each of its GPUs.

        A container may write anything to its file, so amounts may be more than there is.
        """
        by_process = self._by_process(containers, readings)
        for container in containers:
            yield container, self._counted(container, by_process)

    def _counted(self, container: MonitoredContainer, by_process: _BY_PROCESS) -> list[GpuUsage | None]:
        if container.directory:
            found = read_usage(self._usage.file(container.directory), len(container.gpus))
            return [None] * len(container.gpus) if found is None else list(found)
        if not by_process:
            return [None] * len(container.gpus)
        ids = [container.container_id] if container.container_id else []
        if container.alone:
            ids = [key for uid, key, _ in by_process if uid == container.container.uid]
        used = (
            sum(by_process.get((container.container.uid, each, uuid), 0) for each in set(ids) for uuid in part.uuids)
            for part in container.gpus
        )
        return [GpuUsage(each, None, None) for each in used]

    def _by_process(
        self, containers: tuple[MonitoredContainer, ...], readings: tuple[GpuReading, ...]
    ) -> dict[tuple[str, str, str], int]:
        """Return the bytes that processes use, by the UID of the pod, the ID of the container and the GPU's UUID."""
        pods = {container.container.uid for container in containers if not container.directory}
        found: dict[tuple[str, str, str], int] = {}
        for process in (each for reading in readings for each in reading.processes) if pods else ():
            owner = owner_of(process.pid, pods, self._proc)
            if owner is not None:
                key = (*owner, process.uuid)
                found[key] = found.get(key, 0) + process.used
        return found
