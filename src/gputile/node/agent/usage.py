"""Computes how much of the node's GPUs pods and containers have, and the GPU time that they have used.

The threads that serve metrics read a copy of the state, which is replaced as a whole.
"""

import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from gputile.api.core import ended_containers
from gputile.api.quantity import MIB
from gputile.api.well_known import GPU_MEMORY, MIG_PREFIX
from gputile.core.devices.request import Phase
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.device_table import EMPTY, PodContainer, PodDevices, PreparedClaim
from gputile.node.agent.node_config import LIBRARY_MODES, MigDevice, NodeConfig
from gputile.node.agent.time_shares import TimeUsed, time_shares
from gputile.node.native_layouts import SHARE_WHOLE


@dataclass(frozen=True, slots=True)
class GpuHolding:
    """The part of a GPU that pods hold by their device IDs: memory in bytes, percent of compute, number of pods."""

    memory: int = 0
    percent: int = 0
    pods: int = 0


NOT_BOOKED: Final = GpuHolding()


@dataclass(slots=True)
class GpuHoldings:
    """The holdings of all pods: per GPU by index, and the memory in bytes by namespace and GPU index.

    ``instances`` is the number of pods that have each MIG instance, by its UUID.
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
    """Yield the existing MIG instances of a pod, or only those of its ``container``."""
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
    """Return the MiB and the percent of compute that a pod has of each existing GPU, by the GPU's index."""
    taken: dict[int, tuple[int, int]] = {}
    if isinstance(devices, PreparedClaim):
        for share in devices.shares:  # several shares may be MIG instances of one GPU
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
    """A container's part of a GPU: ``limit`` bytes of the GPU's ``total`` bytes. ``index`` is the GPU's on its node.

    ``time_share`` is the guaranteed part of the GPU's time, from 0 to 1; None if GPU time is not shared out.
    """

    index: int
    limit: int
    total: int
    time_share: float | None


@dataclass(frozen=True, slots=True)
class MonitoredContainer:
    """A container with its GPUs, in the order of its limits.

    ``directory`` is the name of the usage file in which its library counts; "" if it has no library.
    """

    container: PodContainer
    directory: str
    gpus: tuple[GpuPart, ...]


class Snapshots:
    """Copies of ``state`` for other threads. They read ``latest``, which is replaced as a whole."""

    def __init__(self, state: AllocationState) -> None:
        self._state = state
        self.refresh()

    def refresh(self) -> None:
        """Copy the state again. Call it on the event loop that owns the state."""
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
            # The IDs of an ended init container belong to the containers after it.
            if each.phase is not Phase.INIT or each.container not in ended
        }
        for container, directory in directories.items():
            parts = tuple(_parts(state, devices, container, guaranteed.get(directory, {})))
            isolated = devices.mode in LIBRARY_MODES
            yield MonitoredContainer(
                PodContainer(devices.pod_uid, devices.namespace, devices.name, container),
                directory if isolated else "",
                parts,
            )


def _parts(
    state: AllocationState, devices: PodDevices, container: str, guaranteed: Mapping[str, int]
) -> Iterator[GpuPart]:
    for share in state.shares(devices, container):
        gpu = state.node_config.gpu(share.uuid)
        if gpu is None:  # a MIG instance, or a GPU that no longer exists
            continue
        part = guaranteed.get(share.uuid)
        time_share = part / SHARE_WHOLE if part is not None else None
        yield GpuPart(share.index, share.mib * MIB, gpu.mib * MIB, time_share)
    split = Counter[int]()
    for instance in instances_of(state.node_config, devices, container):
        split[instance.index] += instance.mib * MIB
    for index, limit in split.items():
        yield GpuPart(index, limit, limit, None)


_SECOND_DIGITS = 3  # more digits are of no use, and would cost kilobytes in each scrape


class GpuTimes(Collector):
    """Exports the GPU time of the existing containers. ``rows`` is replaced as a whole: another thread reads it."""

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
