"""The metrics of the node's GPUs and of the containers on them, read when Prometheus asks.

They are made on a thread of their own, from what other threads replace as a whole. The series of a pod end with it:
they are those of the containers that the agent knows at the moment.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gputile.node.agent.allocate.usage_files import UsageFiles
from gputile.node.agent.host import GpuMonitor
from gputile.node.agent.status.node_snapshot import NOT_BOOKED, MonitoredContainer, Snapshots
from gputile.node.agent.status.process_owners import PROC, owner_of
from gputile.node.isolation.usage_file_reader import GpuUsage, read_usage
from gputile.node.nvml.probe import GpuReading
from gputile.version import VERSION

_MIB: Final = 1 << 20
_BY_PROCESS = Mapping[tuple[str, str, str], int]


class NodeMetrics(Collector):
    """The metrics of a node: ``proc`` is where processes are looked up that NVML names."""

    def __init__(self, snapshots: Snapshots, monitor: GpuMonitor, usage: UsageFiles, proc: Path = PROC) -> None:
        self._snapshots = snapshots
        self._monitor = monitor
        self._usage = usage
        self._proc = proc

    def describe(self) -> Iterator[Metric]:
        """Yield nothing: the names are those of ``collect``, and reading them all to know them would take time."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the node, of its GPUs and of its containers."""
        readings = self._monitor.readings
        yield self._node()
        yield from self._gpus(readings)
        yield from self._xids()
        yield from self._containers(readings)

    def _node(self) -> Metric:
        latest = self._snapshots.latest
        found = GaugeMetricFamily(
            "gputile_agent_node_info",
            "1, with the mode and the way of sharing in force, the memory unit, the policy of GPU time and the version",
            labels=("mode", "sharing", "unit_mib", "gpu_time_policy", "version"),
        )
        found.add_metric((latest.mode, latest.sharing, str(latest.unit_mib), latest.gpu_time_policy, VERSION), 1)
        return found

    def _gpus(self, readings: tuple[GpuReading, ...]) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "gputile_agent_gpu_info", "1, with the GPU's index and model", labels=("gpu", "index", "model")
        )
        total = GaugeMetricFamily("gputile_agent_gpu_memory_bytes", "Memory of the GPU, bytes", labels=("gpu",))
        booked = GaugeMetricFamily(
            "gputile_agent_gpu_memory_booked_bytes",
            "Memory of the GPU that pods have by the kubelet's device IDs, bytes",
            labels=("gpu",),
        )
        compute = GaugeMetricFamily(
            "gputile_agent_gpu_compute_booked_ratio",
            "Part of the GPU's compute that pods have by the kubelet's device IDs, from 0 to 1; 0 in modes that share "
            "compute without amounts",
            labels=("gpu",),
        )
        pods = GaugeMetricFamily("gputile_agent_gpu_pods", "Pods that have device IDs of the GPU", labels=("gpu",))
        healthy = GaugeMetricFamily(
            "gputile_agent_gpu_healthy", "1 while new pods may use the GPU, 0 while it is unhealthy", labels=("gpu",)
        )
        seen, latest = self._monitor.seen, self._snapshots.latest
        for gpu in seen.machine.gpus:
            held = latest.booked.get(gpu.uuid, NOT_BOOKED)
            info.add_metric((gpu.uuid, str(gpu.index), gpu.model), 1)
            total.add_metric((gpu.uuid,), gpu.mib * _MIB)
            booked.add_metric((gpu.uuid,), held.memory)
            compute.add_metric((gpu.uuid,), held.percent / 100)
            pods.add_metric((gpu.uuid,), held.pods)
            healthy.add_metric((gpu.uuid,), seen.health.healthy(gpu.uuid))
        yield from (info, total, booked, compute, pods, healthy)
        yield from _measured(readings)

    def _xids(self) -> Iterator[Metric]:
        found = CounterMetricFamily(
            "gputile_agent_gpu_xids",
            "XID errors that the driver reported for the GPU or MIG instance since the agent's start, by code",
            labels=("gpu", "xid"),
        )
        for (uuid, code), number in self._monitor.xids.items():
            found.add_metric((uuid, str(code)), number)
        yield found

    def _containers(self, readings: tuple[GpuReading, ...]) -> Iterator[Metric]:
        limit = GaugeMetricFamily(
            "gputile_agent_container_memory_limit_bytes",
            "Memory of the GPU that the container may use, bytes; mode share does not enforce it",
            labels=("namespace", "pod", "container", "gpu"),
        )
        used = GaugeMetricFamily(
            "gputile_agent_container_memory_used_bytes",
            "Memory of the GPU that the container uses, bytes: by its library, or as NVML tells of its processes",
            labels=("namespace", "pod", "container", "gpu"),
        )
        peak = GaugeMetricFamily(
            "gputile_agent_container_memory_peak_bytes",
            "The most memory of the GPU that the container has used since its start, bytes; isolated containers only",
            labels=("namespace", "pod", "container", "gpu"),
        )
        refused = CounterMetricFamily(
            "gputile_agent_container_allocations_refused",
            "Requests for memory of the GPU that the limit refused since the container started; isolated ones only",
            labels=("namespace", "pod", "container", "gpu"),
        )
        share = GaugeMetricFamily(
            "gputile_agent_gpu_time_share_ratio",
            "Part of the GPU's time that the container is guaranteed, from 0 to 1",
            labels=("namespace", "pod", "container", "gpu"),
        )
        containers = self._snapshots.latest.containers
        by_process = self._by_process(containers, readings)
        for container in containers:
            names = container.namespace, container.pod, container.container
            counted = self._counted(container, by_process)
            for part, usage in zip(container.gpus, counted, strict=True):
                labels = (*names, part.uuid)
                limit.add_metric(labels, part.limit)
                if part.time_share is not None:
                    share.add_metric(labels, part.time_share)
                if usage is None:
                    continue
                # A container may write anything there: it has no more of a GPU than there is.
                used.add_metric(labels, min(usage.used, part.total))
                if usage.peak is not None and usage.refused is not None:
                    peak.add_metric(labels, min(usage.peak, part.total))
                    refused.add_metric(labels, usage.refused)
        yield from (limit, used, peak, refused, share)

    def _counted(self, container: MonitoredContainer, by_process: _BY_PROCESS) -> list[GpuUsage | None]:
        """Return what is known of the container's use of each of its GPUs."""
        if container.directory:
            found = read_usage(self._usage.path(container.directory), len(container.gpus))
            return [None] * len(container.gpus) if found is None else list(found)
        if not by_process:
            return [None] * len(container.gpus)
        ids = [container.container_id] if container.container_id else []
        if container.alone:
            ids = [key for uid, key, _ in by_process if uid == container.uid]
        used = (
            sum(by_process.get((container.uid, each, part.uuid), 0) for each in set(ids)) for part in container.gpus
        )
        return [GpuUsage(each, None, None) for each in used]

    def _by_process(
        self, containers: tuple[MonitoredContainer, ...], readings: tuple[GpuReading, ...]
    ) -> dict[tuple[str, str, str], int]:
        """Return the bytes that processes use, by the UID of the pod, the ID of the container and the GPU's UUID."""
        pods = {container.uid for container in containers if not container.directory}
        found: dict[tuple[str, str, str], int] = {}
        for process in (each for reading in readings for each in reading.processes) if pods else ():
            owner = owner_of(process.pid, pods, self._proc)
            if owner is not None:
                key = (*owner, process.uuid)
                found[key] = found.get(key, 0) + process.used
        return found


def _measured(readings: tuple[GpuReading, ...]) -> Iterator[Metric]:
    """Yield what the GPUs measure of themselves."""
    used = GaugeMetricFamily(
        "gputile_agent_gpu_memory_used_bytes",
        "Memory of the GPU that is in use as NVML tells, by whomever and for whatever, bytes",
        labels=("gpu",),
    )
    busy = GaugeMetricFamily(
        "gputile_agent_gpu_utilization_ratio",
        "Part of the last moments in which something ran on the GPU, from 0 to 1",
        labels=("gpu",),
    )
    celsius = GaugeMetricFamily("gputile_agent_gpu_temperature_celsius", "Temperature of the GPU", labels=("gpu",))
    watts = GaugeMetricFamily("gputile_agent_gpu_power_watts", "Power that the GPU draws", labels=("gpu",))
    ecc = CounterMetricFamily(
        "gputile_agent_gpu_ecc_errors",
        "ECC errors of the GPU's memory over its life, by whether they were corrected",
        labels=("gpu", "kind"),
    )
    for reading in readings:
        for family, value in (
            (used, reading.used),
            (busy, None if reading.busy_percent is None else reading.busy_percent / 100),
            (celsius, reading.celsius),
            (watts, reading.watts),
        ):
            if value is not None:
                family.add_metric((reading.uuid,), value)
        for kind, errors in (("corrected", reading.ecc_corrected), ("uncorrected", reading.ecc_uncorrected)):
            if errors is not None:
                ecc.add_metric((reading.uuid, kind), errors)
    yield from (used, busy, celsius, watts, ecc)
