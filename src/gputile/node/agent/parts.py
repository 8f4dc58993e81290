"""Puts the parts of one node's agent together; ``agent`` runs them."""

from collections.abc import Mapping
from dataclasses import dataclass

from gputile.api.config.v1alpha1 import Configuration
from gputile.node.agent.advertise.advertised_state import AdvertisedState, starting_node_config
from gputile.node.agent.advertise.mode_change import ModeChange, Wakeups
from gputile.node.agent.allocate.allocation_state import AllocationState
from gputile.node.agent.allocate.cdi_files import CdiFiles
from gputile.node.agent.allocate.container_preparation import ContainerPreparation
from gputile.node.agent.allocate.device_table import DeviceTable
from gputile.node.agent.allocate.handler import AllocationHandler
from gputile.node.agent.allocate.lookup import Lookup
from gputile.node.agent.allocate.usage_files import UsageFiles
from gputile.node.agent.api_server import NodeApi
from gputile.node.agent.checkpoint.node_files import NodeFiles
from gputile.node.agent.checkpoint.records import Records
from gputile.node.agent.gpu_time.arbiter_process import ArbiterProcess
from gputile.node.agent.gpu_time.time_shares import TimeShares, gpu_times, time_shares
from gputile.node.agent.hand_over import HandOver
from gputile.node.agent.host import Host
from gputile.node.agent.kubelet_link import KubeletLink
from gputile.node.agent.reconcile.corrections import CorrectionWriter
from gputile.node.agent.reconcile.drift_check import DriftCheck
from gputile.node.agent.status.metrics import AgentMetrics
from gputile.node.agent.status.node_metrics import NodeMetrics
from gputile.node.agent.status.node_snapshot import Snapshots
from gputile.node.arbiter.usage_message import Spent
from gputile.node.gateway.messages import FromGateway, MessageChannel
from gputile.node.gateway.node_lock import NodeLock
from gputile.node.isolation.limits_format import USAGE

CLOSED_FOR_S = 2.0  # what the scheduler decided before it saw the node closed has been bound or refused by then


@dataclass(frozen=True, slots=True)
class AgentParts:
    """The parts of one agent, each wired to those that it uses."""

    host: Host
    cluster: NodeApi
    kubelet: KubeletLink
    store: NodeFiles
    records: Records
    allocation_state: AllocationState
    advertised: AdvertisedState
    arbiter: ArbiterProcess
    handler: AllocationHandler
    hand_over: HandOver
    mode: ModeChange
    drift: DriftCheck
    wakeups: Wakeups
    metrics: AgentMetrics
    snapshots: Snapshots


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
    store = NodeFiles(paths.state, node_lock, UsageFiles(paths.usage / USAGE))
    records = Records(store, paths.device_plugins)
    state = _starting_state(host, configuration, store, records)
    cdi = CdiFiles(paths.cdi, paths.root) if paths.cdi is not None else None
    advertised = AdvertisedState(state, records, kubelet, host.mps, cdi, paths.device_plugins)
    arbiter = _arbiter(store, state, metrics)
    lookup = Lookup(state, kubelet, cluster, host.node_name)
    preparation = ContainerPreparation(store, paths, host.mps, cdi, arbiter)
    mode = ModeChange(advertised, host.monitor, cluster, wakeups, closed_for)
    writer = CorrectionWriter(cluster, metrics, state)
    snapshots = Snapshots(state)
    metrics.registry.register(NodeMetrics(snapshots, host.monitor, store.usage))
    return AgentParts(
        host=host,
        cluster=cluster,
        kubelet=kubelet,
        store=store,
        records=records,
        allocation_state=state,
        advertised=advertised,
        arbiter=arbiter,
        handler=AllocationHandler(state, lookup, preparation, advertised, wakeups.compare, metrics),
        hand_over=HandOver(cluster, kubelet, state, closed_for),
        mode=mode,
        drift=DriftCheck(state, kubelet, records, writer, mode, arbiter),
        wakeups=wakeups,
        metrics=metrics,
        snapshots=snapshots,
    )


def _starting_state(host: Host, configuration: Configuration, store: NodeFiles, records: Records) -> AllocationState:
    """Return what the agent before this one has left."""
    node_config = starting_node_config(host.monitor.seen, records.effective_mode, configuration.unit_mib)
    return AllocationState(configuration, node_config, DeviceTable(records.saved.pods, store.started()))


def _arbiter(store: NodeFiles, state: AllocationState, metrics: AgentMetrics) -> ArbiterProcess:
    """Return the arbiter's process: the state gives it the shares, and the metrics show the time that it counts."""

    def shares(beside: str) -> TimeShares:
        return time_shares(state, str(store.allocations), beside)

    def show(used: Mapping[tuple[str, str], Spent]) -> None:
        metrics.gpu_times.rows = tuple(gpu_times(state, used))

    return ArbiterProcess(store, shares, show)
