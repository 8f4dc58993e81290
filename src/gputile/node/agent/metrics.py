"""Exports the agent's metrics: its calls and corrections, the node's GPUs, and their containers.

The node's metrics are computed at each scrape, on a separate thread, from data that other threads replace as a whole.
Only containers that the agent knows at that moment have series, so the series of a pod end with the pod.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gputile.api.quantity import MIB
from gputile.node.agent.files.usage_files import UsageFiles
from gputile.node.agent.time_shares import policy_of
from gputile.node.agent.usage import (
    NOT_BOOKED,
    GpuHoldings,
    GpuTimes,
    Snapshots,
    bookings_of,
    containers_of,
)
from gputile.node.isolation.usage_file_reader import read_usage
from gputile.node.nvml.gpu_monitor import GpuMonitor, Observation
from gputile.node.nvml.probe import GpuReading, ProbedMachine
from gputile.support.telemetry import MetricsRegistry
from gputile.version import VERSION

_SHARE_DIGITS: Final = 6  # the sixteen digits of 1/3 would cost kilobytes in each scrape
_MOST_COUNTED: Final = 1 << 53  # above it a float64 cannot represent every integer
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0)


class AgentMetrics:
    """The metrics of one agent, in their own registry."""

    def __init__(self) -> None:
        self.registry = MetricsRegistry()
        self.seconds = Histogram(
            "gputile_agent_call_seconds",
            "Time to answer a call of the kubelet, seconds",
            ("call",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.corrections = Counter(
            "gputile_agent_allocations_corrected",
            "Allocation annotations corrected because the kubelet allocated other GPUs",
            registry=self.registry,
        )
        self.placed = Counter(
            "gputile_agent_allocations_recorded",
            "Allocation annotations written for pods that were bound without one",
            registry=self.registry,
        )
        self.contradictions = Counter(
            "gputile_agent_kubelet_calls_refused",
            "Calls of the kubelet refused because a container would have got a GPU or an amount that is not its own",
            registry=self.registry,
        )
        self.unidentified = Counter(
            "gputile_agent_unidentified_allocations",
            "Allocate calls that were answered before the agent could identify the pod",
            registry=self.registry,
        )
        self.agents_started = 0
        self.registry.counter(
            "gputile_agent_starts",
            "Agents that the gateway has started, including this one",
            lambda: self.agents_started,
        )
        self.gpu_times = GpuTimes()
        self.registry.register(self.gpu_times)
        self.pods_with_devices = Gauge(
            "gputile_agent_pods", "Pods of this node that hold device IDs", registry=self.registry
        )


class NodeMetrics(Collector):
    """The metrics of the node. ``usage`` are the files in which the isolation libraries count memory."""

    def __init__(self, snapshots: Snapshots, monitor: GpuMonitor, usage: UsageFiles) -> None:
        self._snapshots = snapshots
        self._monitor = monitor
        self._usage = usage

    def describe(self) -> Iterator[Metric]:
        """Yield nothing, so that registering does not run a whole ``collect`` to learn the names."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        readings, seen = self._monitor.readings, self._monitor.seen
        indices = _indices(seen.machine)
        yield self._node()
        yield from self._gpus(seen)
        yield from _measured(readings, indices)
        yield from self._xids(indices)
        yield from self._containers()

    def _node(self) -> Metric:
        state = self._snapshots.latest
        mode, labels, configured = state.node_config.effective_mode, state.labels, state.configuration.gpu_time
        policy = policy_of(mode.mode, labels, configured).value
        found = GaugeMetricFamily(
            "gputile_agent_node_info",
            "1, with mode, sharing, memory unit and policy of GPU time in force, and the agent's version",
            labels=("mode", "sharing", "unit_mib", "gpu_time_policy", "version"),
        )
        found.add_metric((mode.mode.value, mode.sharing.value, str(mode.unit_mib), policy, VERSION), 1)
        return found

    def _gpus(self, seen: Observation) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "gputile_agent_gpu_info", "1, with the GPU's UUID and model", labels=("gpu", "uuid", "model")
        )
        total = GaugeMetricFamily("gputile_agent_gpu_memory_bytes", "Memory of the GPU, bytes", labels=("gpu",))
        booked = GaugeMetricFamily(
            "gputile_agent_gpu_memory_booked_bytes",
            "Memory of the GPU that is allocated to pods, by the kubelet's device IDs, bytes",
            labels=("gpu",),
        )
        compute = GaugeMetricFamily(
            "gputile_agent_gpu_compute_booked_ratio",
            "Part of the GPU's compute that is allocated to pods, by the kubelet's device IDs, from 0 to 1; 0 in modes "
            "that do not allocate compute",
            labels=("gpu",),
        )
        pods = GaugeMetricFamily("gputile_agent_gpu_pods", "Pods that have device IDs of the GPU", labels=("gpu",))
        healthy = GaugeMetricFamily(
            "gputile_agent_gpu_healthy", "1 while new pods may use the GPU, 0 while it is unhealthy", labels=("gpu",)
        )
        bookings = bookings_of(self._snapshots.latest)
        for gpu in seen.machine.gpus:
            held, index = bookings.gpus.get(gpu.index, NOT_BOOKED), str(gpu.index)
            info.add_metric((index, gpu.uuid, gpu.model), 1)
            total.add_metric((index,), gpu.mib * MIB)
            booked.add_metric((index,), held.memory)
            compute.add_metric((index,), held.percent / 100)
            pods.add_metric((index,), held.pods)
            healthy.add_metric((index,), seen.health.healthy(gpu.uuid))
        yield from (info, total, booked, compute, pods, healthy)
        yield from _instances(seen.machine, bookings)
        yield _of_namespaces(bookings)

    def _xids(self, indices: Mapping[str, str]) -> Iterator[Metric]:
        found = CounterMetricFamily(
            "gputile_agent_gpu_xids",
            "XID errors that the driver reported since the agent's start, by code and the UUID of GPU or MIG instance",
            labels=("gpu", "uuid", "xid"),
        )
        for (uuid, code), number in self._monitor.xids.items():
            # A deleted MIG instance has no GPU, but its errors still count.
            found.add_metric((indices.get(uuid, ""), uuid, str(code)), number)
        yield found

    def _containers(self) -> Iterator[Metric]:
        limit = GaugeMetricFamily(
            "gputile_agent_container_memory_limit_bytes",
            "Memory of the GPU that the container may use, bytes; mode share does not enforce it",
            labels=("namespace", "pod", "container", "gpu"),
        )
        used = GaugeMetricFamily(
            "gputile_agent_container_memory_used_bytes",
            "Memory of the GPU that the container uses, bytes; isolated containers only",
            labels=("namespace", "pod", "container", "gpu"),
        )
        peak = GaugeMetricFamily(
            "gputile_agent_container_memory_peak_bytes",
            "Peak of the GPU memory that the container has used since its start, bytes; isolated containers only",
            labels=("namespace", "pod", "container", "gpu"),
        )
        refused = CounterMetricFamily(
            "gputile_agent_container_allocations_refused",
            "Requests for GPU memory above the limit since the container started; isolated containers only",
            labels=("namespace", "pod", "container", "gpu"),
        )
        share = GaugeMetricFamily(
            "gputile_agent_gpu_time_share_ratio",
            "Part of the GPU's time that the container is guaranteed, from 0 to 1",
            labels=("namespace", "pod", "container", "gpu"),
        )
        for container in containers_of(self._snapshots.latest):
            counted = (
                read_usage(self._usage.file(container.directory), len(container.gpus)) if container.directory else None
            )
            _, *names = container.container
            for place, part in enumerate(container.gpus):
                labels = (*names, str(part.index))
                limit.add_metric(labels, part.limit)
                if part.time_share is not None:
                    share.add_metric(labels, round(part.time_share, _SHARE_DIGITS))
                if counted is None:
                    continue
                usage = counted[place]
                # The container can write anything into the file, so values are limited to what is possible: the GPU's
                # memory, and the largest integer that Prometheus counts exactly.
                used.add_metric(labels, min(usage.used, part.total))
                peak.add_metric(labels, min(usage.peak, part.total))
                refused.add_metric(labels, min(usage.refused, _MOST_COUNTED))
        yield from (limit, used, peak, refused, share)


def _of_namespaces(bookings: GpuHoldings) -> Metric:
    found = GaugeMetricFamily(
        "gputile_agent_namespace_memory_booked_bytes",
        "Memory of the GPU that is allocated to the namespace's pods, by the kubelet's device IDs, bytes",
        labels=("namespace", "gpu"),
    )
    for (namespace, index), memory in bookings.namespaces.items():
        found.add_metric((namespace, str(index)), memory)
    return found


def _instances(machine: ProbedMachine, bookings: GpuHoldings) -> Iterator[Metric]:
    info = GaugeMetricFamily(
        "gputile_agent_mig_instance_info",
        "1, with the profile and UUID of a MIG instance, and the index of its GPU",
        labels=("gpu", "uuid", "profile"),
    )
    memory = GaugeMetricFamily(
        "gputile_agent_mig_instance_memory_bytes", "Memory of the MIG instance, bytes", labels=("gpu", "uuid")
    )
    pods = GaugeMetricFamily(
        "gputile_agent_mig_instance_pods", "Pods that have the MIG instance: 0 or 1", labels=("gpu", "uuid")
    )
    for gpu in machine.gpus:
        for each in gpu.instances:
            labels = str(gpu.index), each.uuid
            info.add_metric((*labels, each.profile), 1)
            memory.add_metric(labels, each.mib * MIB)
            pods.add_metric(labels, bookings.instances.get(each.uuid, 0))
    yield from (info, memory, pods)


def _indices(machine: ProbedMachine) -> dict[str, str]:
    found = {gpu.uuid: str(gpu.index) for gpu in machine.gpus}
    return found | {each.uuid: str(gpu.index) for gpu in machine.gpus for each in gpu.instances}


def _measured(readings: tuple[GpuReading, ...], indices: Mapping[str, str]) -> Iterator[Metric]:
    used = GaugeMetricFamily(
        "gputile_agent_gpu_memory_used_bytes",
        "Memory of the GPU that is in use by any process, as NVML reports it, bytes",
        labels=("gpu",),
    )
    busy = GaugeMetricFamily(
        "gputile_agent_gpu_utilization_ratio",
        "Part of the driver's last sample period in which a kernel ran on the GPU, from 0 to 1",
        labels=("gpu",),
    )
    celsius = GaugeMetricFamily("gputile_agent_gpu_temperature_celsius", "Temperature of the GPU", labels=("gpu",))
    watts = GaugeMetricFamily("gputile_agent_gpu_power_watts", "Power that the GPU draws", labels=("gpu",))
    ecc = CounterMetricFamily(
        "gputile_agent_gpu_ecc_errors",
        "ECC errors of the GPU's memory over its lifetime, by kind: corrected or uncorrected",
        labels=("gpu", "kind"),
    )
    for reading in readings:
        index = indices[reading.uuid]
        for family, value in (
            (used, reading.used),
            (busy, None if reading.busy_percent is None else reading.busy_percent / 100),
            (celsius, reading.celsius),
            (watts, reading.watts),
        ):
            if value is not None:
                family.add_metric((index,), value)
        for kind, errors in (("corrected", reading.ecc_corrected), ("uncorrected", reading.ecc_uncorrected)):
            if errors is not None:
                ecc.add_metric((index, kind), errors)
    yield from (used, busy, celsius, watts, ecc)
