"""Measures what containers have and use of their GPUs: memory, time, and both over the last hour.

Memory is as a container's library counts it, or as NVML tells of its processes. Which container a process belongs to is
told by the names of its cgroups. The kubelet names a pod's cgroup by its UID, and container runtimes that of a
container by its ID (kubernetes/pkg/kubelet/cm, cgroup-v2). A container that may make cgroups names those below its own,
so the first names decide. Threads that answer read a copy of the state, which is replaced as a whole.
"""

import copy
import re
from array import array
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from gputile.api.core import container_ids, ended_containers
from gputile.api.gpu_time import MOST_SAMPLES, HourLine, HourSample, PodHour
from gputile.api.quantity import MIB
from gputile.api.well_known import GPU_MEMORY, MIG_PREFIX
from gputile.core.devices.request import Phase
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.device_table import EMPTY, PodContainer, PodDevices, PreparedClaim
from gputile.node.agent.files.usage_files import UsageFiles
from gputile.node.agent.node_config import LIBRARY_MODES, MigDevice, NodeConfig
from gputile.node.agent.time_shares import TimeUsed, time_shares
from gputile.node.isolation.usage_file_reader import GpuUsage, read_usage
from gputile.node.native_layouts import SHARE_WHOLE
from gputile.node.nvml.gpu_monitor import GpuMonitor
from gputile.node.nvml.probe import GpuReading


@dataclass(frozen=True, slots=True)
class GpuHolding:
    """What pods have of a GPU by the kubelet's device IDs: memory in bytes, percent of compute, and how many pods."""

    memory: int = 0
    percent: int = 0
    pods: int = 0


NOT_BOOKED: Final = GpuHolding()


@dataclass(slots=True)
class GpuHoldings:
    """What is booked of each GPU by its index, and the memory of it in bytes by namespace and index.

    ``instances`` is how many pods have each MIG instance, by its UUID.
    """

    gpus: dict[int, GpuHolding] = field(default_factory=dict)
    namespaces: Counter[tuple[str, int]] = field(default_factory=Counter)
    instances: Counter[str] = field(default_factory=Counter)


def bookings_of(state: AllocationState) -> GpuHoldings:
    found = GpuHoldings()
    for devices in state.device_table:
        for index, (mib, percent) in _taken(state.node_config, devices).items():
            before = found.gpus.get(index, NOT_BOOKED)
            found.gpus[index] = GpuHolding(before.memory + mib * MIB, before.percent + percent, before.pods + 1)
            if devices.identified:
                found.namespaces[devices.namespace, index] += mib * MIB
        found.instances.update(each.uuid for each in instances_of(state.node_config, devices))
    return found


def instances_of(node_config: NodeConfig, devices: PodDevices, container: str = "") -> Iterator[MigDevice]:
    """Yield the MIG instances that a pod has, as far as they are there; with ``container`` that one's alone."""
    if isinstance(devices, PreparedClaim):
        return (each for each in node_config.instances if each.uuid in devices.gpus)
    ids = {
        (each.resource, device_id)
        for each in devices.devices
        if each.resource.startswith(MIG_PREFIX) and container in ("", each.container)
        for device_id in each.ids
    }
    found = (node_config.instance(*each) for each in sorted(ids))
    return (each for each in found if each is not None)


def _taken(node_config: NodeConfig, devices: PodDevices) -> dict[int, tuple[int, int]]:
    """Return the MiB and the percent of compute that a pod has of each GPU that is there, by its index."""
    taken: dict[int, tuple[int, int]] = {}
    if isinstance(devices, PreparedClaim):
        for share in devices.shares:  # several are instances of one GPU
            mib, percent = taken.get(share.index, (0, 0))
            taken[share.index] = mib + share.mib, min(100, percent + share.percent)
        return taken
    replicas = max(1, node_config.effective_mode.replicas) if node_config.replicated else 1
    for gpu in node_config.gpus(devices.gpus):
        if gpu.uuid in devices.ids_by_gpu.get(GPU_MEMORY, EMPTY):
            taken[gpu.index] = devices.mib(gpu.uuid), devices.percent(gpu.uuid)
        else:
            taken[gpu.index] = gpu.mib // replicas, 100 // replicas
    for instance in instances_of(node_config, devices):
        taken[instance.index] = taken.get(instance.index, (0, 0))[0] + instance.mib, 0
    return taken


@dataclass(frozen=True, slots=True)
class GpuPart:
    """A container's part of a GPU: ``limit`` in bytes of the GPU's ``total``. ``index`` is the GPU's on its node.

    ``uuids`` are those by which NVML names its processes: the GPU's, or those of the container's MIG instances on it.
    ``time_share`` is the part of the GPU's time that it is guaranteed, from 0 to 1; None where nobody hands out time.
    """

    index: int
    uuids: tuple[str, ...]
    limit: int
    total: int
    time_share: float | None


@dataclass(frozen=True, slots=True)
class MonitoredContainer:
    """A container with GPUs, in the order of its limits.

    ``container_id`` is the container runtime's, "" where it is not known; ``alone`` is set where no other container of
    the pod has GPUs. ``directory`` names the file in which its library counts, "" where it has no library.
    """

    container: PodContainer
    container_id: str
    alone: bool
    directory: str
    gpus: tuple[GpuPart, ...]


class Snapshots:
    """A copy of ``state`` for other threads, who read ``latest``: it is replaced as a whole."""

    def __init__(self, state: AllocationState) -> None:
        self._state = state
        self.refresh()

    def refresh(self) -> None:
        """Take another one. Call it on the event loop that owns the state."""
        latest = copy.copy(self._state)
        latest.pods = copy.copy(self._state.pods)
        self.latest = latest


def containers_of(state: AllocationState) -> Iterator[MonitoredContainer]:
    """Yield the containers with GPUs whose pods are known."""
    guaranteed = time_shares(state, "").guaranteed
    for devices in state.named_devices():
        if not devices.known:
            continue
        pod = state.pod_of(devices)
        ended = ended_containers(pod.pod) if pod is not None else frozenset()
        directories = {
            each.container: each.directory
            for each in devices.devices
            # The kubelet gives an init container's IDs to those after it.
            if each.phase is not Phase.INIT or each.container not in ended
        }
        ids = container_ids(pod.pod) if pod is not None else {}
        for container, directory in directories.items():
            parts = tuple(_parts(state, devices, container, guaranteed.get(directory, {})))
            isolated = devices.mode in LIBRARY_MODES
            yield MonitoredContainer(
                PodContainer(devices.pod_uid, devices.namespace, devices.name, container),
                ids.get(container, ""),
                len(directories) == 1,
                directory if isolated else "",
                parts,
            )


def _parts(
    state: AllocationState, devices: PodDevices, container: str, guaranteed: Mapping[str, int]
) -> Iterator[GpuPart]:
    for share in state.shares(devices, container):
        gpu = state.node_config.gpu(share.uuid)
        if gpu is None:  # an instance, or not there any more
            continue
        part = guaranteed.get(share.uuid)
        time_share = part / SHARE_WHOLE if part is not None else None
        yield GpuPart(share.index, (share.uuid,), share.mib * MIB, gpu.mib * MIB, time_share)
    split: dict[int, list[MigDevice]] = {}
    for instance in instances_of(state.node_config, devices, container):
        split.setdefault(instance.index, []).append(instance)
    for index, instances in split.items():
        limit = sum(each.mib for each in instances) * MIB
        yield GpuPart(index, tuple(each.uuid for each in instances), limit, limit, None)


_SECOND_DIGITS = 3  # nobody reads more, and more of each container are kilobytes of a scrape
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


class GpuTimes(Collector):
    """The GPU time of the containers there are. ``rows`` is replaced as a whole: another thread reads it."""

    def __init__(self) -> None:
        self.rows: tuple[TimeUsed, ...] = ()

    def collect(self) -> Iterator[CounterMetricFamily]:
        used = CounterMetricFamily(
            "gputile_agent_gpu_time_seconds",
            "Time for which the container held the GPU in its turns, seconds",
            labels=("namespace", "pod", "container", "gpu"),
        )
        waited = CounterMetricFamily(
            "gputile_agent_gpu_wait_seconds",
            "Time for which the container had work and waited for its turn on the GPU, seconds",
            labels=("namespace", "pod", "container", "gpu"),
        )
        for (_, *names), gpu, seconds, waiting in self.rows:
            used.add_metric((*names, gpu), round(seconds, _SECOND_DIGITS))
            waited.add_metric((*names, gpu), round(waiting, _SECOND_DIGITS))
        yield used
        yield waited


EVERY_S: Final = 60.0
_UNKNOWN: Final = -1
_FIELDS: Final = 3  # of a sample: Unix time, MiB, percent


class _Line(NamedTuple):
    """``seconds`` of GPU time so far, None where nobody counts; ``samples`` holds the fields one after another."""

    container: str
    gpu: int
    seconds: float | None
    samples: "array[int]"


_LINES = Mapping[str, Mapping[tuple[str, int], _Line]]  # by the pod's UID, then by container and GPU


class UsageHour:
    """The last hour of the containers of ``snapshots`` in memory, one sample a minute.

    A pod is known by its UID, so its samples end with it, and a pod of the same name begins anew. One thread takes the
    samples and replaces them as a whole, for the threads that answer.
    """

    def __init__(self, snapshots: Snapshots, monitor: GpuMonitor, times: GpuTimes, use: ContainerUse) -> None:
        self._snapshots = snapshots
        self._monitor = monitor
        self._times = times
        self._use = use
        self._due_s = self._taken_s = float("-inf")
        self._lines: _LINES = {}

    def sample_if_due(self, at: int, now_s: float) -> None:
        """Take a sample if a minute has passed: ``at`` is Unix time, ``now_s`` that of a clock that only advances."""
        if now_s < self._due_s:
            return
        self._due_s += EVERY_S
        if self._due_s <= now_s:  # it is the first, or the machine has slept
            self._due_s = now_s + EVERY_S
        counted = {(row.container, row.gpu): row.seconds for row in self._times.rows}
        lines: dict[str, dict[tuple[str, int], _Line]] = {}
        for each, usages in self._use.read(tuple(containers_of(self._snapshots.latest)), self._monitor.readings):
            before, of_pod = self._lines.get(each.container.uid, {}), lines.setdefault(each.container.uid, {})
            for part, usage in zip(each.gpus, usages, strict=True):
                key = each.container.name, part.index
                line = before.get(key, _Line(*key, None, array("q")))
                seconds = counted.get((each.container, str(part.index)))
                mib = _UNKNOWN if usage is None else -(-min(usage.used, part.total) // MIB)
                sample = array("q", (at, mib, _percent(line.seconds, seconds, now_s - self._taken_s)))
                of_pod[key] = _Line(*key, seconds, (line.samples + sample)[-MOST_SAMPLES * _FIELDS :])
        self._lines, self._taken_s = lines, now_s

    def of_pod(self, uid: str) -> PodHour:
        return PodHour(
            [HourLine(line.container, line.gpu, _samples(line.samples)) for line in self._lines.get(uid, {}).values()]
        )


def _percent(earlier: float | None, later: float | None, within_s: float) -> int:
    if earlier is None or later is None or later < earlier or within_s <= 0:
        return _UNKNOWN  # it is new, or has started again
    return min(round(100 * (later - earlier) / within_s), 100)


def _samples(fields: "array[int]") -> list[HourSample]:
    return [
        HourSample(fields[i], *(None if each == _UNKNOWN else each for each in fields[i + 1 : i + _FIELDS]))
        for i in range(0, len(fields), _FIELDS)
    ]
