"""What the metrics say of the node and its pods: taken on the event loop, for the thread that answers Prometheus."""

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from gputile.api.core import container_ids
from gputile.api.well_known import GPU_MEMORY
from gputile.core.devices.allocation import GpuShare
from gputile.node.agent.allocate.allocation_state import AllocationState
from gputile.node.agent.allocate.answer import shares_of
from gputile.node.agent.allocate.isolation_mounts import ISOLATED
from gputile.node.agent.allocate.known_pods import KnownPod
from gputile.node.agent.allocate.pod_devices import EMPTY, PodDevices, stand_in
from gputile.node.agent.gpu_time.time_shares import policy_of, time_shares
from gputile.node.native_layouts import SHARE_WHOLE

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class GpuPart:
    """A container's part of a GPU: ``limit`` in bytes of the GPU's ``total``.

    ``time_share`` is the part of the GPU's time that it is guaranteed, from 0 to 1; None where nobody hands out time.
    """

    uuid: str
    limit: int
    total: int
    time_share: float | None


@dataclass(frozen=True, slots=True)
class MonitoredContainer:
    """A container with GPUs, in the order of its limits.

    ``container_id`` is the container runtime's, "" where it is not known; ``alone`` is set where no other container of
    the pod has GPUs. ``directory`` names the file in which its library counts, "" where it has no library.
    """

    namespace: str
    pod: str
    uid: str
    container: str
    container_id: str
    alone: bool
    directory: str
    gpus: tuple[GpuPart, ...]


@dataclass(frozen=True, slots=True)
class GpuBooking:
    """What pods have of a GPU by the kubelet's device IDs: memory in bytes, percent of compute, and how many pods."""

    memory: int = 0
    percent: int = 0
    pods: int = 0


NOT_BOOKED: Final = GpuBooking()


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """The node at a moment. ``booked`` is by the UUID of the GPU."""

    mode: str = ""
    sharing: str = ""
    unit_mib: int = 0
    gpu_time_policy: str = ""
    withheld: str = ""
    containers: tuple[MonitoredContainer, ...] = ()
    booked: Mapping[str, GpuBooking] = field(default_factory=lambda: MappingProxyType({}))


class Snapshots:
    """The latest snapshot of ``state``; other threads read ``latest``, which is replaced as a whole."""

    def __init__(self, state: AllocationState) -> None:
        self._state = state
        self._taken_of: tuple[object, ...] = ()
        self.latest = NodeSnapshot()

    def refresh(self) -> None:
        """Take another one, if there is news. Call it on the event loop that owns the state."""
        state = self._state
        of = (state.node_config, state.configuration, state.labels, *state.device_table, *state.pods.values())
        if len(of) != len(self._taken_of) or not all(map(operator.is_, of, self._taken_of)):
            self._taken_of, self.latest = of, snapshot_of(state)


def snapshot_of(state: AllocationState) -> NodeSnapshot:
    """Return what the metrics say of the state."""
    config = state.node_config
    guaranteed = time_shares(state, "").guaranteed if config.mode in ISOLATED else {}
    return NodeSnapshot(
        mode=config.mode.value,
        sharing=config.effective_mode.sharing.value,
        unit_mib=config.effective_mode.unit_mib,
        gpu_time_policy=policy_of(config.mode, state.labels, state.configuration.gpu_time).value,
        withheld=config.withheld,
        containers=tuple(_containers(state, guaranteed)),
        booked=_booked(state),
    )


def _containers(state: AllocationState, guaranteed: Mapping[str, Mapping[str, int]]) -> Iterator[MonitoredContainer]:
    for devices in state.device_table:
        if stand_in(devices.uid):
            continue
        pod = state.pod_of(devices)
        directories = {each.container: each.directory for each in devices.devices}
        ids = container_ids(pod.pod) if pod is not None else {}
        for container, directory in directories.items():
            parts = tuple(_parts(state, devices, container, pod, guaranteed.get(directory, {})))
            isolated = devices.mode in ISOLATED
            yield MonitoredContainer(
                devices.namespace,
                devices.name,
                devices.uid,
                container,
                ids.get(container, ""),
                len(directories) == 1,
                directory if isolated else "",
                parts,
            )


def _parts(
    state: AllocationState, devices: PodDevices, container: str, pod: KnownPod | None, guaranteed: Mapping[str, int]
) -> Iterator[GpuPart]:
    request = pod.container_request(container) if pod is not None else None
    shares: tuple[GpuShare, ...] = shares_of(
        state.node_config, devices, container, request, state.gpus(devices, container, pod)
    )
    for share in shares:
        gpu = state.node_config.gpu(share.index)
        part = guaranteed.get(share.uuid)
        total = (gpu.mib if gpu is not None else share.mib) * _MIB
        yield GpuPart(share.uuid, share.mib * _MIB, total, part / SHARE_WHOLE if part is not None else None)


def _booked(state: AllocationState) -> dict[str, GpuBooking]:
    found: dict[str, GpuBooking] = {}
    replicas = max(1, state.node_config.effective_mode.replicas) if state.node_config.replicated else 1
    for devices in state.device_table:
        for index in devices.indices:
            gpu = state.node_config.gpu(index)
            if gpu is None:
                continue
            before = found.get(gpu.uuid, NOT_BOOKED)
            shared = index in devices.slots.get(GPU_MEMORY, EMPTY)
            mib, percent = (
                (devices.mib(index), devices.percent(index)) if shared else (gpu.mib // replicas, 100 // replicas)
            )
            found[gpu.uuid] = GpuBooking(before.memory + mib * _MIB, before.percent + percent, before.pods + 1)
    return found
