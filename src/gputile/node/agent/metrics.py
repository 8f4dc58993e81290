"""Exports the metrics of the agent, of the node's GPUs, and of containers on these GPUs.

Each scrape computes the node's metrics in a separate thread. So other threads must replace the data
that this thread reads, and never change it in place. Only containers of existing pods have series.
"""

import copy
from collections import Counter as Amounts
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gputile.api.quantity import MIB
from gputile.api.well_known import GPU_MEMORY, MIG_PREFIX
from gputile.api.workloads import ended_containers
from gputile.core.devices.request import Phase
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.device_table import EMPTY, PodDevices, PreparedClaim
from gputile.node.agent.files.usage_files import UsageFiles
from gputile.node.agent.node_config import LIBRARY_MODES, MigDevice, NodeConfig
from gputile.node.agent.time_shares import policy_of, time_shares
from gputile.node.arbiter.messages import Spent
from gputile.node.isolation.usage_file_reader import read_usage
from gputile.node.native_layouts import SHARE_WHOLE
from gputile.node.nvml.gpu_monitor import GpuMonitor, Observation
from gputile.node.nvml.probe import GpuReading
from gputile.support.telemetry import MetricsRegistry
from gputile.version import VERSION

_SHARE_DIGITS: Final = 6  # all sixteen digits of 1/3 would add kilobytes to each scrape
_SECOND_DIGITS: Final = 3
_MOST_COUNTED: Final = 1 << 53  # a float64 cannot represent every integer above this number
_CALL_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0)

_gpu_gauge = partial(GaugeMetricFamily, labels=("gpu",))
_container_gauge = partial(GaugeMetricFamily, labels=("namespace", "pod", "container", "gpu"))
_container_counter = partial(CounterMetricFamily, labels=("namespace", "pod", "container", "gpu"))


class AgentMetrics:
    """The metrics of one agent, in their own registry."""

    def __init__(self) -> None:
        self.registry = MetricsRegistry()
        counter = partial(Counter, registry=self.registry)
        self.seconds = Histogram(
            "gputile_agent_call_seconds",
            "Time to answer a call of the kubelet, in seconds",
            ("call",),
            buckets=_CALL_SECONDS,
            registry=self.registry,
        )
        self.corrections = counter(
            "gputile_agent_allocations_corrected",
            "Allocation annotations corrected because the kubelet allocated other GPUs",
        )
        self.placed = counter(
            "gputile_agent_allocations_recorded",
            "Allocation annotations written for pods that were bound without one",
        )
        self.contradictions = counter(
            "gputile_agent_kubelet_calls_refused",
            "Calls of the kubelet refused because their device IDs cannot be served",
        )
        self.agents_started = 0
        self.registry.counter(
            "gputile_agent_starts",
            "Agents that the gateway has started, including this one",
            lambda: self.agents_started,
        )
        self.pods_with_devices = Gauge(
            "gputile_agent_pods", "Pods of this node that have device IDs", registry=self.registry
        )


class NodeMetrics(Collector):
    """The metrics of the node, computed from a copy of its ``state``.

    ``usage`` are the files in which the isolation libraries count memory. ``spent`` returns the
    arbiter's last report (``ArbiterProcess.spent``).
    """

    def __init__(
        self,
        state: AllocationState,
        monitor: GpuMonitor,
        usage: UsageFiles,
        spent: Callable[[], Mapping[tuple[str, str], Spent]],
    ) -> None:
        self._monitor = monitor
        self._usage = usage
        self._spent = spent
        self.refresh(state)

    def refresh(self, state: AllocationState) -> None:
        """Copy the state again. To be called on the event loop that owns the state."""
        latest = copy.copy(state)
        latest.pods = copy.copy(state.pods)
        self._latest = latest

    def describe(self) -> Iterator[Metric]:
        """Yield nothing. Otherwise the registry would run ``collect`` only to get the names."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        state, seen = self._latest, self._monitor.seen
        indices = {
            uuid: str(gpu.index)
            for gpu in seen.machine.gpus
            for uuid in (gpu.uuid, *(each.uuid for each in gpu.instances))
        }
        yield _node(state)
        yield from _gpus(seen, state)
        yield from _measured(self._monitor.readings, indices)
        yield from self._containers(state)
        xids = CounterMetricFamily(
            "gputile_agent_gpu_xids",
            "XID errors that the driver has reported since the agent's start, by code and by the "
            "UUID of the GPU or MIG instance",
            labels=("gpu", "uuid", "xid"),
        )
        for (uuid, code), number in self._monitor.xids.items():
            # The errors of a MIG instance count even after its deletion, when its GPU is unknown.
            xids.add_metric((indices.get(uuid, ""), uuid, str(code)), number)
        yield xids

    def _containers(self, state: AllocationState) -> Iterator[Metric]:
        limit = _container_gauge(
            "gputile_agent_container_memory_limit_bytes",
            "Memory of the GPU that the container may use, in bytes. Not enforced in mode share",
        )
        used = _container_gauge(
            "gputile_agent_container_memory_used_bytes",
            "Memory of the GPU that the container uses, in bytes. Only isolated containers have it",
        )
        peak = _container_gauge(
            "gputile_agent_container_memory_peak_bytes",
            "Peak of the GPU memory that the container has used since its start, in bytes. Only "
            "isolated containers have it",
        )
        refused = _container_counter(
            "gputile_agent_container_allocations_refused",
            "Requests for GPU memory that the limit has refused since the container's start. Only "
            "isolated containers have it",
        )
        share = _container_gauge(
            "gputile_agent_gpu_time_share_ratio",
            "Part of the GPU's time that the container is guaranteed, from 0 to 1",
        )
        held = _container_counter(
            "gputile_agent_gpu_time_seconds",
            "Time for which the container had turns on the GPU, in seconds",
        )
        waited = _container_counter(
            "gputile_agent_gpu_wait_seconds",
            "Time for which the container waited for a turn on the GPU, in seconds",
        )
        by_directory, guaranteed = self._spent(), time_shares(state, "").guaranteed
        for names, directory, parts in containers_of(state):
            counted = read_usage(self._usage.file(directory), len(parts)) if directory else None
            for place, (uuid, index, part, total) in enumerate(parts):
                labels = (*names, index)
                limit.add_metric(labels, part)
                time_share = guaranteed.get(directory, {}).get(uuid)
                if time_share is not None:
                    share.add_metric(labels, round(time_share / SHARE_WHOLE, _SHARE_DIGITS))
                spent = by_directory.get((directory, uuid))
                if spent is not None:
                    held.add_metric(labels, round(spent.used / 1e9, _SECOND_DIGITS))
                    waited.add_metric(labels, round(spent.waited / 1e9, _SECOND_DIGITS))
                if counted is not None:
                    # The container can write any value into the file. So values are limited to the
                    # GPU's memory, and to the largest integer that Prometheus represents exactly.
                    used.add_metric(labels, min(counted[place].used, total))
                    peak.add_metric(labels, min(counted[place].peak, total))
                    refused.add_metric(labels, min(counted[place].refused, _MOST_COUNTED))
        yield from (limit, used, peak, refused, share, held, waited)


def _node(state: AllocationState) -> Metric:
    mode = state.node_config.effective_mode
    policy = policy_of(mode.mode, state.labels, state.configuration.gpu_time)
    found = GaugeMetricFamily(
        "gputile_agent_node_info",
        "Always 1. The labels are the mode, sharing, memory unit and policy of GPU time in force, "
        "and the agent's version",
        labels=("mode", "sharing", "unit_mib", "gpu_time_policy", "version"),
    )
    found.add_metric((mode.mode, mode.sharing, str(mode.unit_mib), policy, VERSION), 1)
    return found


def _gpus(seen: Observation, state: AllocationState) -> Iterator[Metric]:
    info = GaugeMetricFamily(
        "gputile_agent_gpu_info",
        "Always 1. The labels are the GPU's UUID and model",
        labels=("gpu", "uuid", "model"),
    )
    total = _gpu_gauge("gputile_agent_gpu_memory_bytes", "Memory of the GPU, in bytes")
    booked = _gpu_gauge(
        "gputile_agent_gpu_memory_booked_bytes",
        "Memory of the GPU that the kubelet has allocated to pods, in bytes",
    )
    compute = _gpu_gauge(
        "gputile_agent_gpu_compute_booked_ratio",
        "Part of the GPU's compute that the kubelet has allocated to pods, from 0 to 1. It is 0 in "
        "modes that do not allocate compute",
    )
    pods = _gpu_gauge("gputile_agent_gpu_pods", "Pods that have device IDs of the GPU")
    healthy = _gpu_gauge(
        "gputile_agent_gpu_healthy", "1 while new pods may use the GPU, 0 while it is unhealthy"
    )
    instances = GaugeMetricFamily(
        "gputile_agent_mig_instance_pods",
        "Number of pods that have the MIG instance, 0 or 1",
        labels=("gpu", "uuid", "profile"),
    )
    namespaces = GaugeMetricFamily(
        "gputile_agent_namespace_memory_booked_bytes",
        "Memory of the GPU that the kubelet has allocated to the namespace's pods, in bytes",
        labels=("namespace", "gpu"),
    )
    config, pods_of_instance = state.node_config, Amounts[str]()
    of_gpu, of_namespace = Amounts[tuple[str, int]](), Amounts[tuple[str, int]]()
    for held in state.device_table:
        pods_of_instance.update(each.uuid for each in instances_of_pod(config, held))
        for number, (mib, percent) in memory_and_compute(config, held).items():
            of_gpu.update({("mib", number): mib, ("percent", number): percent, ("pods", number): 1})
            if held.identified:
                of_namespace[held.namespace, number] += mib
    for gpu in seen.machine.gpus:
        index = str(gpu.index)
        info.add_metric((index, gpu.uuid, gpu.model), 1)
        total.add_metric((index,), gpu.mib * MIB)
        booked.add_metric((index,), of_gpu["mib", gpu.index] * MIB)
        compute.add_metric((index,), of_gpu["percent", gpu.index] / 100)
        pods.add_metric((index,), of_gpu["pods", gpu.index])
        healthy.add_metric((index,), seen.health.healthy(gpu.uuid))
        for each in gpu.instances:
            instances.add_metric((index, each.uuid, each.profile), pods_of_instance[each.uuid])
    for (namespace, number), mib in of_namespace.items():
        namespaces.add_metric((namespace, str(number)), mib * MIB)
    yield from (info, total, booked, compute, pods, healthy, instances, namespaces)


def _measured(readings: tuple[GpuReading, ...], indices: Mapping[str, str]) -> Iterator[Metric]:
    used = _gpu_gauge(
        "gputile_agent_gpu_memory_used_bytes",
        "Memory of the GPU that all processes use, as NVML reports it, in bytes",
    )
    busy = _gpu_gauge(
        "gputile_agent_gpu_utilization_ratio",
        "Part of the driver's last sample period in which a kernel ran on the GPU, from 0 to 1",
    )
    celsius = _gpu_gauge("gputile_agent_gpu_temperature_celsius", "Temperature of the GPU, in °C")
    watts = _gpu_gauge("gputile_agent_gpu_power_watts", "Power that the GPU uses, in watts")
    ecc = CounterMetricFamily(
        "gputile_agent_gpu_ecc_errors",
        "ECC errors of the GPU's memory over its lifetime. The kind is corrected or uncorrected",
        labels=("gpu", "kind"),
    )
    for reading in readings:
        index = indices[reading.uuid]
        ratio = None if reading.busy_percent is None else reading.busy_percent / 100
        for family, labels, value in (
            (used, (index,), reading.used),
            (busy, (index,), ratio),
            (celsius, (index,), reading.celsius),
            (watts, (index,), reading.watts),
            (ecc, (index, "corrected"), reading.ecc_corrected),
            (ecc, (index, "uncorrected"), reading.ecc_uncorrected),
        ):
            if value is not None:
                family.add_metric(labels, value)
    yield from (used, busy, celsius, watts, ecc)


def instances_of_pod(
    node_config: NodeConfig, held: PodDevices, container: str = ""
) -> list[MigDevice]:
    """Return the existing MIG instances of a pod, or only the instances of ``container``."""
    ids = {
        device_id
        for each in held.devices
        if each.resource.startswith(MIG_PREFIX) and container in ("", each.container)
        for device_id in each.ids
    }
    uuids = held.gpus if isinstance(held, PreparedClaim) else ids
    return [each for each in node_config.instances if each.uuid in uuids]


def memory_and_compute(node_config: NodeConfig, held: PodDevices) -> dict[int, tuple[int, int]]:
    """Return a pod's MiB and percent of compute on each existing GPU, by the GPU's index."""
    found: dict[int, tuple[int, int]] = {}
    if isinstance(held, PreparedClaim):
        for share in held.shares:  # several shares may be MIG instances of the same GPU
            mib, percent = found.get(share.index, (0, 0))
            found[share.index] = mib + share.mib, min(100, percent + share.percent)
        return found
    replicas = max(1, node_config.effective_mode.replicas) if node_config.replicated else 1
    for gpu in node_config.gpus(held.gpus):
        if gpu.uuid in held.ids_by_gpu.get(GPU_MEMORY, EMPTY):
            found[gpu.index] = held.mib(gpu.uuid), held.percent(gpu.uuid)
        else:
            slices = held.slices(gpu.uuid)
            found[gpu.index] = slices * (gpu.mib // replicas), slices * (100 // replicas)
    for instance in instances_of_pod(node_config, held):
        found[instance.index] = found.get(instance.index, (0, 0))[0] + instance.mib, 0
    return found


def containers_of(
    state: AllocationState,
) -> Iterator[tuple[tuple[str, str, str], str, list[tuple[str, str, int, int]]]]:
    """Yield each container with GPUs: its names, its usage file, and its parts of GPUs.

    The names are namespace, pod and container. The usage file is "" for a container without the
    isolation library. A part has the GPU's UUID and index, the container's memory limit, and the
    GPU's memory in bytes. The parts are in the order of the limits file.
    """
    for held in state.device_table:
        if (pod := state.pod_of(held)) is None:  # it is gone, or a new pod has its name
            continue
        ended = ended_containers(pod.pod)
        directories = {
            each.container: each.directory
            for each in held.devices
            # The containers after an ended init container inherit its IDs.
            if each.phase is not Phase.INIT or each.container not in ended
        }
        for container, directory in directories.items():
            parts = [
                (share.uuid, str(share.index), share.mib * MIB, gpu.mib * MIB)
                for share in state.shares(held, container)
                # None is a MIG instance, or a GPU that no longer exists.
                if (gpu := state.node_config.gpu(share.uuid)) is not None
            ]
            split = Amounts[int]()
            for instance in instances_of_pod(state.node_config, held, container):
                split[instance.index] += instance.mib * MIB
            parts += [("", str(index), limit, limit) for index, limit in split.items()]
            isolated = held.mode in LIBRARY_MODES
            yield (held.namespace, held.name, container), directory if isolated else "", parts
