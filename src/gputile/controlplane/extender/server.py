"""Assembles and runs the extender: watches, Lease, HTTP servers, shutdown."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

from aiohttp import web

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod
from gputile.api.resource_claims import RESOURCE_CLAIMS_PATH, ResourceClaim
from gputile.api.well_known import EXTENDER_LEASE, EventReason
from gputile.api.workloads import PodDisruptionBudget
from gputile.controlplane.config_reload import ConfigReloader, background
from gputile.controlplane.evictable_pods import EvictablePods
from gputile.controlplane.extender.app import create_app
from gputile.controlplane.extender.binder import BIND_SECONDS, Binder, PodApi
from gputile.controlplane.extender.fence import fence_off
from gputile.controlplane.extender.handlers import ExtenderHandlers, PodEvent
from gputile.controlplane.extender.informer import Informer, PodRequeuer
from gputile.controlplane.extender.metrics import CapacityWatch, ExtenderMetrics, PendingPods
from gputile.controlplane.leader_election import LeaderElection, LeaderGate, NoLease, NotReady
from gputile.core.ledger.ledger import Ledger
from gputile.core.placement.free_memory import overallocated_gpus
from gputile.core.placement.packing_scores import build
from gputile.core.placement.prices import prices
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.kube.client import SYSTEM_CLOCK, Clock, Connection
from gputile.kube.config import Access
from gputile.kube.events import EventRecorder
from gputile.kube.lease import LeaseHolder, LeaseState
from gputile.kube.reflector import Reflector, export_reflectors
from gputile.kube.writes import reference_to
from gputile.support.http_server import ANY_ADDRESS, Server, ServerLimits, bound_ports
from gputile.support.listening import TlsFiles, TlsReloader
from gputile.support.telemetry import LoopLag

log = logging.getLogger(__name__)

RESOLVE_EVERY_S = 5.0
FOLLOW_TLS_EVERY_S = 10.0
PRICES_LAST_S = 60.0  # older prices are recomputed, because scarcity may have changed


@dataclass(frozen=True, slots=True)
class ExtenderSettings:
    """The settings of an extender process."""

    host: str = "127.0.0.1"
    port: int = 8888
    tls: TlsFiles | None = None
    identity: str = ""
    lease_namespace: str = ""
    lease_seconds: float = 15.0  # 0 if there is only one replica, which needs no Lease
    events: bool = True
    config: Path | None = None  # reloaded when the file changes
    health_port: int = 0  # for probes and metrics on all addresses; 0 disables the port


class Extender:
    """An extender that runs with one configuration."""

    def __init__(
        self,
        connection: Connection,
        configuration: Configuration,
        settings: ExtenderSettings,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self.ledger = Ledger(configuration)
        self.metrics = ExtenderMetrics()
        self._lag = LoopLag("extender")
        self.metrics.registry.register(self._lag.seconds)
        self._settings = settings
        self._events = EventRecorder(connection, settings.identity) if settings.events else None
        self._requeuer = PodRequeuer(connection, clock.monotonic)
        evictable = EvictablePods(lambda uid: self.ledger.booking(uid) is not None)
        self._pending = PendingPods(
            configuration.unit_mib, configuration.trust_group, lambda: clock.now().timestamp()
        )
        self._capacity = CapacityWatch(self.ledger)
        informer = Informer(self.ledger, self._requeuer.record_freed, (evictable, self._pending))
        self._pods = Reflector(
            connection, "/api/v1/pods", Pod, informer.pods, on_list=informer.listed_pods
        )
        self._nodes = Reflector(
            connection, "/api/v1/nodes", Node, informer.nodes, on_list=informer.listed_nodes
        )
        path = "/apis/policy/v1/poddisruptionbudgets"
        self._budgets = Reflector(connection, path, PodDisruptionBudget, evictable.budget_event)
        self._claims: dict[str, Reflector[ResourceClaim]] = {}
        if configuration.features.claims:
            claims = Reflector(connection, RESOURCE_CLAIMS_PATH, ResourceClaim, informer.claims)
            self._claims["resourceclaims"] = claims
        self._election = self._elect(connection)
        self._gate = LeaderGate(self._election, clock.monotonic)
        self._pod_api = PodApi(connection, self._election.leads)
        engine = PlacementEngine(self.ledger, prices_later=True)
        self._price_learning = PriceLearning(engine)
        self.binder = Binder(engine, self._pod_api, clock.monotonic, clock.unix_ns)
        self.app = create_app(
            ExtenderHandlers(
                engine,
                self.binder,
                self._record,
                self._requeuer.record_refusal,
                clock.unix_ns,
                evictable=evictable,
            ),
            self.metrics,
            self._admit,
            self.not_ready,
        )
        self._describe()

    def _elect(self, connection: Connection) -> LeaderElection:
        settings, seconds = self._settings, self._settings.lease_seconds
        if not seconds:
            return LeaderElection(NoLease(), self._catch_up)
        state = LeaseState(settings.identity, seconds, seconds / 3)
        namespace = settings.lease_namespace or connection.namespace
        within = max(1.0, seconds / 3)
        lease = LeaseHolder(
            connection, namespace, EXTENDER_LEASE, state, within=within, clock=self._clock
        )
        return LeaderElection(lease, self._catch_up)

    def not_ready(self) -> str | None:
        missing = [
            name for name, r in (("pods", self._pods), ("nodes", self._nodes)) if not r.synced
        ]
        return f"the {' and '.join(missing)} are not listed yet" if missing else None

    async def _admit(self) -> None:
        why = self.not_ready()
        if why is not None:
            raise NotReady(why)
        await self._gate.admit()

    async def _catch_up(self, fence: bool) -> None:
        if fence:
            await fence_off(self._pod_api, self._clock.monotonic, self._clock.sleep)
        await asyncio.gather(self._pods.relist(), self._nodes.relist())

    def _record(self, event: PodEvent) -> None:
        self._pending.event_recorded(event.pod.metadata.uid, event.reason)
        if event.reason is EventReason.GPU_ASSIGNED:
            self.metrics.waited(event.pod, self._clock.now())
        if self._events is not None:
            kind: Literal["Normal", "Warning"] = "Warning" if event.warning else "Normal"
            self._events.record(
                reference_to(event.pod), event.reason, event.message, kind, latest=event.latest
            )

    def _describe(self) -> None:
        registry, ledger = self.metrics.registry, self.ledger
        gauge = registry.gauge
        reflectors: dict[str, Reflector[Any]] = {"pods": self._pods, "nodes": self._nodes}
        reflectors["poddisruptionbudgets"] = self._budgets
        reflectors |= self._claims
        export_reflectors(registry, "extender", reflectors)
        gauge(
            "gputile_extender_active",
            "1 while this replica holds the Lease and decides.",
            self._election.leads,
        )
        gauge(
            "gputile_ledger_bookings",
            "Pods with booked GPUs.",
            lambda: sum(1 for _ in ledger.bookings()),
        )
        self._capacity.export(registry)
        registry.labelled(
            "gputile_extender_pending_pods",
            "Pending GPU pods by reason.",
            "reason",
            self._pending.counts,
        )
        registry.labelled(
            "gputile_extender_pending_since_timestamp_seconds",
            "Start of the longest wait of a pending GPU pod, by reason, Unix time; 0 if none is "
            "pending.",
            "reason",
            self._pending.since,
        )
        gauge(
            "gputile_ledger_unconfirmed_bindings",
            "Bindings that the watch has not confirmed yet.",
            lambda: len(ledger.overdue(self._clock.monotonic(), 0)),
        )
        gauge(
            "gputile_ledger_overallocated_gpus",
            "GPUs with more booked than they have. This happens only if something else writes "
            "allocations.",
            lambda: overallocated_gpus(ledger),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch the cluster, renew the Lease and resolve Bindings while the context lasts."""
        work = [self._pods.run(), self._nodes.run(), self._budgets.run(), self._resolve()]
        work += [each.run() for each in self._claims.values()]
        work += [
            self._requeuer.run(),
            self._price_learning.run(),
            self._lag.run(),
            self._capacity.run(),
        ]
        if self._settings.lease_seconds:
            work.append(
                self._election.keep_renewing(
                    self._settings.lease_seconds / 3, self._gate.wants_lease
                )
            )
        if self._events is not None:
            work.append(self._events.run())
        async with background(work):
            try:
                yield
            finally:
                all_confirmed = await self.binder.conclude()
        await self._election.resign(release=all_confirmed)

    async def _resolve(self) -> None:
        while True:
            await asyncio.sleep(RESOLVE_EVERY_S)
            position = self.ledger.changes.position
            await self.binder.resolve_unconfirmed()
            if self.ledger.changes.position != position and self.ledger.row_of:
                self._requeuer.record_freed(next(iter(self.ledger.row_of)))


class PriceLearning:
    """Recomputes the prices of a placement engine while pods arrive.

    Another process computes the prices, so that no decision waits for them. It solves a
    cutting-stock problem (``placement.prices``), and scores all nodes by the prices
    (``placement.packing_scores``). If the process fails, the previous prices stay in force. Until
    the first prices are known, the engine prefers full nodes.
    """

    def __init__(self, engine: PlacementEngine, *, look_every: float = 1.0) -> None:
        self._engine = engine
        self._look_every = look_every

    async def run(self) -> None:
        """Recompute the prices when they are old, or when enough pods have arrived."""
        demand, ledger, loop = self._engine.demand, self._engine.ledger, asyncio.get_running_loop()
        if demand is None:
            return
        while not ledger.row_of:  # noqa: ASYNC110 - the ledger signals no change
            await asyncio.sleep(self._look_every)
        for _ in demand.catch_up():
            await asyncio.sleep(0)
        pool: ProcessPoolExecutor | None = None
        learnt_at = float("-inf")
        try:
            while True:
                if not ledger.row_of or not (
                    demand.due() or loop.time() - learnt_at > PRICES_LAST_S
                ):
                    await asyncio.sleep(self._look_every)
                    continue
                learnt_at = loop.time()
                try:
                    pool = pool or ProcessPoolExecutor(1, mp_context=get_context("spawn"))
                    found = await loop.run_in_executor(pool, prices, demand.demand())
                    arrays = ledger.node_arrays.copy()
                    self._engine.packing_state = await loop.run_in_executor(
                        pool, build, arrays, found
                    )
                except (BrokenProcessPool, OSError) as error:
                    log.warning("the prices of GPUs are not updated: %s", error)
                    pool = None
        finally:
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)


async def serve(access: Access, configuration: Configuration, settings: ExtenderSettings) -> None:
    """Run the extender until SIGTERM or SIGINT, and finish Bindings in progress.

    Raises:
        PortError: a port cannot be opened.
    """
    async with Connection(access) as connection:
        reloader = ConfigReloader(
            lambda each: Extender(connection, each, settings), configuration, settings.config
        )
        limits = ServerLimits(answer_seconds=BIND_SECONDS)
        servers = [Server(reloader, "--port", settings.host, settings.port, limits)]
        if settings.health_port:
            servers.append(_health_server(reloader, settings))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, servers[0].stop)
        with bound_ports(*servers):
            address = f"{settings.host}:{settings.port}"
            log.info("extender starts", extra={"address": address, "identity": settings.identity})
            tls = TlsReloader(settings.tls, servers[0].use_tls) if settings.tls else None
            async with asyncio.TaskGroup() as group:
                group.create_task(reloader.run())
                following = group.create_task(tls.run(FOLLOW_TLS_EVERY_S)) if tls else None
                for server in servers[1:]:
                    group.create_task(server.answer())
                await servers[0].answer()
                reloader.stop()
                if following is not None:
                    following.cancel()
                for server in servers[1:]:
                    server.stop()
        log.info("extender stops")


def _health_server(reloader: ConfigReloader, settings: ExtenderSettings) -> Server:
    """Return a server for probes and metrics on all addresses of the pod.

    The server allows only GET and HEAD. So other pods cannot call the extender's verbs, which use
    POST.
    """

    async def read(request: web.BaseRequest) -> web.StreamResponse:
        if request.method in ("GET", "HEAD"):
            return await reloader(request)
        return web.Response(
            status=405, text="only GET and HEAD are allowed", headers={"Allow": "GET, HEAD"}
        )

    return Server(read, "--health-port", ANY_ADDRESS, settings.health_port)
