"""Takes a snapshot of the node and its pods on the event loop, for the thread that serves metrics."""

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gputile.api.core import container_ids, ended_containers
from gputile.api.units import MIB
from gputile.core.devices.allocation import GpuShare
from gputile.core.devices.request import Phase
from gputile.node.agent.decisions.answers.allocate import shares_of
from gputile.node.agent.decisions.publishing.time_shares import policy_of, time_shares
from gputile.node.agent.state.allocation_state import AllocationState
from gputile.node.agent.state.known_pods import KnownPod
from gputile.node.agent.state.node_config import LIBRARY_MODES, MigDevice
from gputile.node.agent.state.pod_container import PodContainer
from gputile.node.agent.state.pod_devices import PodDevices
from gputile.node.agent.state.stand_in_uids import stand_in
from gputile.node.agent.status.gpu_bookings import NO_BOOKINGS, GpuHoldings, bookings_of, instances_of
from gputile.node.native_layouts import SHARE_WHOLE


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


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """The node at a moment."""

    mode: str = ""
    sharing: str = ""
    unit_mib: int = 0
    gpu_time_policy: str = ""
    containers: tuple[MonitoredContainer, ...] = ()
    bookings: GpuHoldings = NO_BOOKINGS


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
    guaranteed = time_shares(state, "").guaranteed if config.mode in LIBRARY_MODES else {}
    return NodeSnapshot(
        mode=config.mode.value,
        sharing=config.effective_mode.sharing.value,
        unit_mib=config.effective_mode.unit_mib,
        gpu_time_policy=policy_of(config.mode, state.labels, state.configuration.gpu_time).value,
        containers=tuple(_containers(state, guaranteed)),
        bookings=bookings_of(state),
    )


def _containers(state: AllocationState, guaranteed: Mapping[str, Mapping[str, int]]) -> Iterator[MonitoredContainer]:
    for devices in state.named_devices():
        if stand_in(devices.uid):
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
            parts = tuple(_parts(state, devices, container, pod, guaranteed.get(directory, {})))
            isolated = devices.mode in LIBRARY_MODES
            yield MonitoredContainer(
                PodContainer(devices.uid, devices.namespace, devices.name, container),
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
        total = (gpu.mib if gpu is not None else share.mib) * MIB
        time_share = part / SHARE_WHOLE if part is not None else None
        yield GpuPart(share.index, (share.uuid,), share.mib * MIB, total, time_share)
    split: dict[int, list[MigDevice]] = {}
    for instance in instances_of(state.node_config, devices, container):
        split.setdefault(instance.index, []).append(instance)
    for index, instances in split.items():
        limit = sum(each.mib for each in instances) * MIB
        yield GpuPart(index, tuple(each.uuid for each in instances), limit, limit, None)
