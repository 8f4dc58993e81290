"""Advertises the node's devices, and changes the node's mode when no more pods can arrive."""

import asyncio
import logging
from collections.abc import Container
from dataclasses import dataclass, replace

from gputile.api.core import node_condition
from gputile.api.well_known import (
    INVENTORY_ANNOTATION,
    WHOLE_GPU,
    ConditionReason,
    ConditionType,
    Mode,
)
from gputile.core.devices.inventory import encode_inventory
from gputile.kube.errors import KubeError
from gputile.node.agent.allocation_state import AllocationState, ModeDecision
from gputile.node.agent.api_server import NodeApi, Wakeups
from gputile.node.agent.device_lists import devices, expected_memory
from gputile.node.agent.device_table import Listing
from gputile.node.agent.files.allocation_files import Records, published_before
from gputile.node.agent.known_pods import answered_pod
from gputile.node.agent.kubelet import KubeletLink
from gputile.node.agent.mode import SOCKET_PATTERNS, decide_effective_mode, find_other_plugin
from gputile.node.agent.mps import GpuUuids, MpsDaemons
from gputile.node.agent.node_config import (
    MODE_RESOURCES,
    NodeConfig,
    closed,
    is_served,
    node_config_of,
)
from gputile.node.agent.settings import HostPaths
from gputile.node.gateway.link import has_listener
from gputile.node.nvml.gpu_health import Health, HealthState
from gputile.node.nvml.gpu_monitor import GpuMonitor, Observation
from gputile.node.nvml.probe import inventory_of

log = logging.getLogger(__name__)

# After this time, pods that were scheduled before the node was closed are bound or refused.
CLOSED_FOR_S = 2.0


@dataclass(frozen=True)
class Host:
    """The machine as the agent sees it: GPUs, other device plugins and MPS."""

    node_name: str
    paths: HostPaths
    monitor: GpuMonitor
    mps: MpsDaemons

    def machine(self) -> Observation:
        """Return the latest observation of the GPUs.

        A GPU whose MPS control daemon does not run counts as unhealthy, because no pod can use it.
        """
        seen = self.monitor.seen
        idle = {
            uuid: HealthState(healthy=False, reason=f"its MPS control daemon does not run: {why}")
            for uuid, why in self.mps.without_daemon.items()
            if seen.health.healthy(uuid)
        }
        health = Health({**seen.health.conditions, **idle}) if idle else seen.health
        return Observation(seen.machine, health)

    def other_plugins(self) -> list[str]:
        """Return the names of the sockets on which other device plugins listen."""
        directory = self.paths.device_plugins
        found = (path for pattern in SOCKET_PATTERNS for path in directory.glob(pattern))
        return [path.name for path in found if has_listener(path)]

    def mps_problem(self, mode: Mode) -> str | None:
        return self.mps.problem if mode is Mode.MPS else None


@dataclass
class Advertiser:
    """Advertises the node's devices to the kubelet, and starts the MPS daemons that they need.

    Before the mode changes, the node is closed to new pods for ``closed_for`` seconds.
    """

    state: AllocationState
    host: Host
    kubelet: KubeletLink
    records: Records
    cluster: NodeApi
    wakeups: Wakeups
    closed_for: float = CLOSED_FOR_S

    async def renew(self, listing: Listing | None = None) -> None:
        """Update what is advertised, and change the mode if the node was closed for long enough.

        The mode does not change if the kubelet's ``listing`` is None, or contains devices of a pod
        that the API server does not have. A larger memory unit takes effect after the bound pods
        were read, so that the pods' device IDs stay advertised. Raises KubeError if the bound pods
        cannot be read from the API server.
        """
        keep_unit = False
        if self.state.configuration.unit_mib > self.state.node_config.effective_mode.unit_mib:
            try:
                await self._read_bound_pods()
            except KubeError as error:
                log.warning(
                    "the larger memory unit waits until the pods on this node can be read: %s",
                    error,
                )
                keep_unit = True
        self.renew_now(keep_unit=keep_unit)
        if await self._emptied(listing):
            self.renew_now(free=True)
        self.wakeups.publish.wish()

    def renew_now(self, *, free: bool = False, keep_unit: bool = False) -> None:
        """Decide on the mode in force (``decide_effective_mode``), and advertise its devices.

        The kubelet may allocate devices as soon as they are advertised. So the MPS daemons are
        started first.
        """
        host, seen = self.host, self.host.machine()
        gpus = inventory_of(seen.machine, seen.health).gpus
        state, node, before = self.state, self.state.node, self.state.node_config
        if state.saved_mode is None and node is not None:
            state.saved_mode = published_before(node, state.configuration.unit_mib)
        decided = decide_effective_mode(state, gpus, free=free, keep_unit=keep_unit)
        if node is not None:
            state.decided = self._written(decided)
            state.saved_mode = state.decided.effective_mode
        state.other_plugin = find_other_plugin(state, host.other_plugins(), seen.machine)
        mode = state.decided.effective_mode
        problem = host.mps_problem(mode.mode)
        config = node_config_of(seen.machine, seen.health, mode, state.other_plugin, problem)
        host.mps.want(_daemons(state, config, host.mps.without_daemon))
        if node is None and state.saved_mode is None:
            config = replace(config, withheld="the labels of the node are not known yet")
        state.node_config, state.labels = config, dict(node.metadata.labels) if node else {}
        changed, resources = config != before, _resources(state)
        if changed or resources != state.resources or expected_memory(state) != state.expected:
            state.resources = resources
            self.advertise()

    def _written(self, decided: ModeDecision) -> ModeDecision:
        """Write the agent's checkpoint, and return the decision that is in force then.

        If the checkpoint cannot be written, the previous mode stays in force, because the next
        agent would read it. The node is then not closed for a change of the mode either.
        """
        before, mode = self.state.saved_mode, decided.effective_mode
        try:
            self.records.save(mode, again=decided.closing)
        except OSError as error:
            text = f"the mode stays as it is until the agent can write its checkpoint: {error}"
            log.error("%s", text)
            if before is None or (before == mode and not decided.closing):
                return decided
            kind, reason = ConditionType.MODE_PENDING, ConditionReason.CHECKPOINT_NOT_WRITTEN
            others = [each for each in decided.conditions if each.type != kind]
            told = node_condition(kind, "True", reason, text)
            return ModeDecision(before, (told, *others))
        return decided

    def allocated(self) -> None:
        """Advertise again after an allocation, if pods have different memory units.

        With a single unit, an allocation does not change the list of devices.
        """
        state, unit = self.state, self.state.node_config.effective_mode.unit_mib
        if state.expected or any(held.unit_mib != unit for held in state.device_table):
            self.advertise()

    def advertise(self) -> None:
        state = self.state
        state.expected = expected_memory(state)
        config, table = state.node_config, state.device_table
        self.kubelet.advertise(
            {each: devices(config, table, state.expected, each) for each in state.resources}
        )

    async def _emptied(self, listing: Listing | None) -> bool:
        """Return whether all pods of a closing node are known, and no more pods can arrive."""
        loop = asyncio.get_running_loop()
        left = empty_in(self.state, loop.time(), self.closed_for)
        if left is None:
            return False
        if left > 0:
            loop.call_later(left, self.wakeups.compare.wish)
            return False
        if listing is None:
            return False
        await self._read_bound_pods()
        unknown = (listed for key, listed in listing.items() if key not in self.state.pods)
        return not any(
            ids and is_served(resource) for listed in unknown for _, resource, ids in listed.parts()
        )

    async def _read_bound_pods(self) -> None:
        """Read the pods that are bound to this node, because the watch may be late.

        Raises KubeError if the pods cannot be read.
        """
        for pod in await self.cluster.bound_pods():
            answered_pod(self.state.pods, pod, self.state.configuration)


def inventory_for_scheduler(state: AllocationState) -> str | None:
    """Return the encoded inventory for scheduling, or None if another plugin serves the node."""
    config = state.node_config
    if state.other_plugin is not None:
        return None
    is_closed = state.decided.closing or config.withheld is not None
    return encode_inventory(closed(config) if is_closed else config.inventory)


def empty_in(state: AllocationState, now: float, closed_for: float) -> float | None:
    """Return the number of seconds until no more pods can arrive at a closing node.

    The result is None if the node is open. ``now`` is on the monotonic clock. The last pod arrives
    at most ``closed_for`` seconds after the node was first seen closed.
    """
    node = state.node
    if (
        node is None
        or not state.decided.closing
        or node.metadata.annotations.get(INVENTORY_ANNOTATION) != inventory_for_scheduler(state)
    ):
        state.closed_since = None
        return None
    if state.closed_since is None:
        state.closed_since = now
    return max(0.0, state.closed_since + closed_for - now)


def _daemons(state: AllocationState, config: NodeConfig, without: Container[str]) -> set[GpuUuids]:
    """Return the sets of GPUs that need an MPS control daemon.

    There is a set for each usable GPU, and a set for each pod with several GPUs. The GPUs in
    ``without`` are unhealthy only because their daemon does not run, so they count as usable. A GPU
    that pods have keeps its daemon in any case, because the pods' processes would end with it.
    """
    if config.mode is not Mode.MPS:
        return set()
    used = {uuid for pod_devices in state.device_table for uuid in pod_devices.gpus}
    offers = state.other_plugin is None
    single = {
        (gpu.uuid,)
        for gpu in config.inventory.gpus
        if gpu.uuid in used or (offers and (gpu.healthy or gpu.uuid in without))
    }
    together = (config.gpus(pod_devices.gpus) for pod_devices in state.device_table)
    return single | {tuple(gpu.uuid for gpu in gpus) for gpus in together if len(gpus) > 1}


def _resources(state: AllocationState) -> tuple[str, ...]:
    """Return the resources to register with the kubelet, including resources without devices."""
    wanted = {*MODE_RESOURCES, *(instance.resource for instance in state.node_config.instances)}
    if state.other_plugin is not None:
        wanted.discard(WHOLE_GPU)
    return tuple(sorted(wanted))
