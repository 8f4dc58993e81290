"""Puts the parts of one node's agent together; ``agent`` runs them."""

from collections.abc import Mapping
from dataclasses import dataclass

from gputile.api.config.v1alpha1 import Configuration
from gputile.node.agent.arbiter_process import ArbiterProcess
from gputile.node.agent.cluster.api_server import NodeApi
from gputile.node.agent.cluster.informer import Wakeups
from gputile.node.agent.decisions.publishing.time_shares import TimeShares, gpu_times, time_shares
from gputile.node.agent.files.allocation_files import NodeFiles
from gputile.node.agent.files.cdi_files import CdiFiles
from gputile.node.agent.files.records import Records
from gputile.node.agent.files.usage_files import UsageFiles
from gputile.node.agent.kubelet import KubeletLink
from gputile.node.agent.mps import MpsDaemons
from gputile.node.agent.settings import HostPaths
from gputile.node.agent.shell.container_preparation import ContainerPreparation
from gputile.node.agent.shell.executor import Executor
from gputile.node.agent.shell.hand_over import HandOver
from gputile.node.agent.shell.handler import AllocationHandler
from gputile.node.agent.shell.lookup import Lookup
from gputile.node.agent.shell.mode_change import ModeChange, Surroundings
from gputile.node.agent.shell.reconciler import CorrectionWriter, Reconciler
from gputile.node.agent.state.allocation_state import AllocationState
from gputile.node.agent.status.call_metrics import AgentMetrics
from gputile.node.agent.status.container_use import ContainerUse
from gputile.node.agent.status.node_metrics import NodeMetrics
from gputile.node.agent.status.node_snapshot import Snapshots
from gputile.node.agent.status.usage_hour import UsageHour
from gputile.node.arbiter.agent_messages import Spent
from gputile.node.gateway.messages import FromGateway, MessageChannel
from gputile.node.gateway.node_lock import NodeLock
from gputile.node.isolation.library import USAGE
from gputile.node.nvml.gpu_monitor import GpuMonitor

CLOSED_FOR_S = 2.0  # what the scheduler decided before it saw the node closed has been bound or refused by then


@dataclass(frozen=True, slots=True)
class Host:
    """The machine that an agent runs on: the node's name, where things are, and what watches its GPUs."""

    node_name: str
    paths: HostPaths
    monitor: GpuMonitor
    mps: MpsDaemons


@dataclass(frozen=True, slots=True)
class Links:
    """What an agent looks at, talks to, and keeps."""

    surroundings: Surroundings
    kubelet: KubeletLink
    cluster: NodeApi
    records: Records
    arbiter: ArbiterProcess


@dataclass(frozen=True, slots=True)
class AgentSteps:
    """What an agent does: it answers the kubelet, takes the node over, renews what it advertises and compares."""

    handler: AllocationHandler
    hand_over: HandOver
    mode: ModeChange
    reconciler: Reconciler


@dataclass(frozen=True, slots=True)
class Monitoring:
    """What an agent tells of itself, its node and the use of GPUs."""

    metrics: AgentMetrics
    snapshots: Snapshots
    usage_hour: UsageHour


@dataclass(frozen=True, slots=True)
class AgentParts:
    """The parts of one agent, each wired to those that it uses."""

    host: Host
    allocation_state: AllocationState
    links: Links
    steps: AgentSteps
    wakeups: Wakeups
    monitoring: Monitoring


def assemble(
    host: Host,
    cluster: NodeApi,
    configuration: Configuration,
    gateway: MessageChannel[FromGateway],
    node_lock: NodeLock,
    closed_for: float = CLOSED_FOR_S,
) -> AgentParts:
    """Return the parts of an agent behind ``gateway``, which start from what the agent before this one has left.

    ``closed_for`` is how many seconds a node takes no pods before its mode changes.
    """
    paths, metrics, wakeups, kubelet = host.paths, AgentMetrics(), Wakeups(), KubeletLink(gateway)
    records = Records(NodeFiles(paths.state, node_lock, UsageFiles(paths.usage / USAGE)), paths.device_plugins)
    surroundings = Surroundings(host.monitor, host.mps, paths.device_plugins)
    state = records.starting_state(surroundings.machine(), configuration)
    cdi = CdiFiles(paths.cdi, paths.root) if paths.cdi is not None else None
    arbiter = _arbiter(records.store, state, metrics)
    executor = Executor(state, records, kubelet, host.mps, arbiter, cdi)
    mode = ModeChange(state, surroundings, executor, cluster, wakeups, closed_for)
    lookup = Lookup(state, kubelet, records, cluster, host.node_name)
    preparation = ContainerPreparation(records.store, paths, host.mps, cdi, arbiter)
    writer = CorrectionWriter(cluster, metrics, state)
    steps = AgentSteps(
        handler=AllocationHandler(state, lookup, preparation, executor, wakeups.compare, metrics),
        hand_over=HandOver(cluster, kubelet, state, closed_for),
        mode=mode,
        reconciler=Reconciler(state, kubelet, records, writer, mode, executor),
    )
    links = Links(surroundings, kubelet, cluster, records, arbiter)
    return AgentParts(host, state, links, steps, wakeups, _monitoring(host, records.store, state, metrics))


def _monitoring(host: Host, store: NodeFiles, state: AllocationState, metrics: AgentMetrics) -> Monitoring:
    snapshots = Snapshots(state)
    metrics.registry.register(NodeMetrics(snapshots, host.monitor, store.usage))
    hour = UsageHour(snapshots, host.monitor, metrics.gpu_times, ContainerUse(store.usage))
    return Monitoring(metrics, snapshots, hour)


def _arbiter(store: NodeFiles, state: AllocationState, metrics: AgentMetrics) -> ArbiterProcess:
    """Return the arbiter's process: the state gives it the shares, and the metrics show the time that it counts."""

    def shares(beside: str) -> TimeShares:
        return time_shares(state, str(store.allocations), beside)

    def show(used: Mapping[tuple[str, str], Spent]) -> None:
        metrics.gpu_times.rows = tuple(gpu_times(state, used))

    return ArbiterProcess(store, shares, show)
