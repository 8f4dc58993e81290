"""Assembles and runs the controller: watches, Lease, nodes, gangs, shutdown."""

import asyncio
import logging
import secrets
import signal
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod
from gputile.api.workloads import POD_GROUPS_PATH, PodDisruptionBudget, PodGroup
from gputile.controlplane.config_reload import ConfigReloader, background
from gputile.controlplane.controller.api_server import ApiServerWriter
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.gang_planner import GangPlanner
from gputile.controlplane.controller.gang_round import STATES
from gputile.controlplane.controller.gang_writer import GangWriter
from gputile.controlplane.controller.node_reconciler import NodeReconciler, SilentNodes
from gputile.controlplane.controller.node_request_planner import NodeRequestPlanner
from gputile.controlplane.controller.placeholders import Placeholders
from gputile.controlplane.controller.rounds import Rounds
from gputile.controlplane.event_loop import yielding_to_loop
from gputile.controlplane.leader_election import LeaderElection
from gputile.kube.client import Connection
from gputile.kube.config import Access
from gputile.kube.events import EventRecorder
from gputile.kube.lease import LeaseHolder, LeaseState
from gputile.kube.objects import Applied, Deleted, Replaced, WatchEvent
from gputile.kube.reflector import Reflector, ReflectorSettings, export_reflectors
from gputile.support.http_requests import monitoring_routes, routed
from gputile.support.http_server import ANY_ADDRESS, Server, bound_ports
from gputile.support.telemetry import LoopLag, MetricsRegistry

log = logging.getLogger(__name__)

_POD_GROUPS = ReflectorSettings(absent_seconds=30.0)


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """The settings of a controller process."""

    namespace: str
    lease: str
    identity: str
    lease_seconds: float = 15.0
    health_port: int = 8082  # for probes and metrics; 0 opens no port
    config: Path | None = None  # reloaded when the file changes


class Controller:
    """A controller that runs with one configuration."""

    def __init__(
        self, connection: Connection, configuration: Configuration, settings: ControllerSettings
    ) -> None:
        self._settings = settings
        self._configuration = configuration
        self._connection = connection
        self._events = EventRecorder(connection, settings.identity)
        writer = ApiServerWriter(connection, self._events, settings.namespace)
        self.cluster_state = ClusterState(configuration, self._wake, settings.namespace)
        self._silent_nodes = SilentNodes(self.cluster_state.nodes, time.time)
        seconds = settings.lease_seconds
        state = LeaseState(settings.identity, seconds, seconds / 3)
        lease = LeaseHolder(
            connection, settings.namespace, settings.lease, state, within=max(1.0, seconds / 3)
        )
        self._planner = GangPlanner(configuration, _new_name)
        self.election = LeaderElection(lease, self._catch_up, self._reconsider_all)
        active = self.election.leads
        self.nodes = NodeReconciler(
            writer, configuration, self.cluster_state.nodes.get, active, time.monotonic
        )
        self.gangs = GangWriter(self.cluster_state, self._planner, writer, active, self._wake)
        self._placeholders = Placeholders(
            writer,
            lambda: self.cluster_state.waiting.placeholders,
            configuration.autoscaling.wait_seconds,
            _new_name,
        )
        self._requests = NodeRequestPlanner(configuration, self._planner, self._placeholders)
        self._scales = configuration.autoscaling.enabled
        plans = configuration.admission.gangs or configuration.preemption.enabled
        self.rounds = Rounds(
            self.cluster_state,
            (self._planner, self.gangs) if plans else None,
            (self._requests, self._placeholders) if self._scales else None,
            active,
            time.time_ns,
        )
        self._node_watch = Reflector(
            connection, "/api/v1/nodes", Node, self._node_changed, on_list=self._nodes_listed
        )
        self._pod_watch = Reflector(
            connection, "/api/v1/pods", Pod, self._pod_changed, on_list=self.cluster_state.pod_event
        )
        # Readiness does not wait for this watch. No pod is evicted before budgets are listed.
        self._budget_watch = Reflector(
            connection,
            "/apis/policy/v1/poddisruptionbudgets",
            PodDisruptionBudget,
            self.cluster_state.budget_event,
        )
        self._lag = LoopLag("controller")
        self._watches: dict[str, Reflector[Node] | Reflector[Pod]] = {"nodes": self._node_watch}
        if plans or self._scales:
            self._watches["pods"] = self._pod_watch
        self.app = routed(monitoring_routes(self._registry(), self.not_ready))

    def not_ready(self) -> str | None:
        synced = all(watch.synced for watch in self._watches.values())
        return None if synced else "the cluster is not listed yet"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch the cluster and act on it within the context. Release the Lease at the end."""
        work: list[Coroutine[Any, Any, Any]] = [
            self._lag.run(),
            self._events.run(),
            self._node_watch.run(),
            self.nodes.queue.run(),
            self.election.run(self._settings.lease_seconds / 3),
        ]
        if "pods" in self._watches:
            work.append(self._pod_watch.run())
            work.append(self.rounds.run())
        if self._configuration.admission.gangs:
            on_event = self.cluster_state.group_event
            groups = Reflector(
                self._connection, POD_GROUPS_PATH, PodGroup, on_event, settings=_POD_GROUPS
            )
            work.append(groups.run())
        if self._configuration.preemption.enabled:
            work.append(self._budget_watch.run())
        try:
            async with background(work):
                yield
        finally:
            await asyncio.shield(self.election.resign(release=True))

    def _registry(self) -> MetricsRegistry:
        registry = MetricsRegistry()
        registry.register(self._lag.seconds)
        export_reflectors(registry, "controller", self._watches)
        gauge = registry.gauge
        gauge(
            "gputile_controller_active",
            "1 while this replica holds the Lease and acts.",
            self.election.leads,
        )
        registry.counter(
            "gputile_controller_failed_writes",
            "Failed writes to the API server since the start; each is retried.",
            lambda: self.nodes.queue.failures + self.gangs.failures + self._placeholders.failures,
        )
        self._export_gangs(registry)
        self._export_nodes(registry)
        return registry

    def _export_gangs(self, registry: MetricsRegistry) -> None:
        gauge, reports, leads = registry.gauge, self._planner.reports, self.election.leads
        registry.labelled(
            "gputile_controller_gangs",
            "Gangs with unbound pods, by the reason of the gang's latest event.",
            "state",
            lambda: [(state, reports.states()[state] if leads() else 0) for state in STATES],
        )
        gauge(
            "gputile_controller_gangs_waiting_since_timestamp_seconds",
            "Start of the longest wait of a gang without GPUs, Unix time; 0 if no gang waits.",
            lambda: reports.waiting_since() if leads() else 0.0,
        )
        evictions = self._planner.evictions
        registry.counter(
            "gputile_controller_evictions",
            "Pods evicted for pods and gangs of higher priority since the start.",
            lambda: evictions.accepted,
        )
        gauge(
            "gputile_controller_reserved_pods",
            "Unbound pods with a reservation.",
            lambda: sum(booking.reserved for booking in self.cluster_state.ledger.bookings()),
        )

    def _export_nodes(self, registry: MetricsRegistry) -> None:
        gauge, silent = registry.gauge, self._silent_nodes
        gauge(
            "gputile_controller_nodes_requested",
            "Nodes that are requested from the autoscaler by placeholder pods.",
            lambda: self._requests.requested if self.election.leads() else 0,
        )
        gauge(
            "gputile_controller_pods_without_node_type",
            "Pending pods that fit no node type, in the last round.",
            lambda: self._requests.refused if self.election.leads() else 0,
        )
        gauge(
            "gputile_controller_silent_nodes",
            "GPU nodes with the condition gputile.io/AgentSilent.",
            lambda: len(silent.since()),
        )
        gauge(
            "gputile_controller_silent_since_timestamp_seconds",
            "Start of the oldest condition gputile.io/AgentSilent, Unix time; 0 without one.",
            lambda: min(silent.since(), default=0.0),
        )

    def _pod_changed(self, event: WatchEvent[Pod]) -> None:
        self.cluster_state.pod_changed(event)
        if isinstance(event, Applied) and self._requests.is_covered(event.object.spec.node_name):
            self.rounds.wake(for_requests=True)

    def _node_changed(self, event: WatchEvent[Node]) -> None:
        joins = (
            isinstance(event, Applied)
            and event.object.metadata.name not in self.cluster_state.nodes
        )
        self.cluster_state.node_changed(event)
        if joins:
            self.rounds.wake(for_requests=True)
        if isinstance(event, Applied | Deleted):
            self.nodes.queue.add(event.object.metadata.name)

    async def _nodes_listed(self, event: Replaced[Node]) -> None:
        await self.cluster_state.node_event(event)
        async for node in yielding_to_loop(event.objects):
            self.nodes.queue.add(node.metadata.name)

    async def _catch_up(self, _: bool) -> None:
        await asyncio.gather(*(watch.relist() for watch in self._watches.values()))

    def _reconsider_all(self) -> None:
        for name in self.cluster_state.nodes:
            self.nodes.queue.add(name)
        self._requests.forget()
        self._wake()

    def _wake(self) -> None:
        self.rounds.wake()


def _new_name() -> str:
    return secrets.token_hex(6)


async def serve(access: Access, configuration: Configuration, settings: ControllerSettings) -> None:
    """Run the controller until SIGTERM or SIGINT.

    When the configuration changes, a new ``Controller`` replaces the old one in this process.

    Raises:
        PortError: ``health_port`` cannot be opened.
    """
    async with Connection(access) as connection:
        reloader = ConfigReloader(
            lambda each: Controller(connection, each, settings), configuration, settings.config
        )
        servers = (
            [Server(reloader, "--health-port", ANY_ADDRESS, port)]
            if (port := settings.health_port)
            else []
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, reloader.stop)
        with bound_ports(*servers):
            log.info(
                "controller starts", extra={"identity": settings.identity, "lease": settings.lease}
            )
            async with asyncio.TaskGroup() as group:
                for server in servers:
                    group.create_task(server.answer())
                await reloader.run()
                for server in servers:
                    server.stop()
    log.info("controller stops")
