"""Builds and runs the server of the web page, on loopback or inside the cluster."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod
from gputile.api.resource_claims import ResourceClaim
from gputile.kube.client import Connection
from gputile.kube.config import Access
from gputile.support.http_requests import monitoring_routes, routed
from gputile.support.http_server import ANY_ADDRESS, Server, bound_ports
from gputile.support.listening import TlsFiles, TlsReloader
from gputile.support.telemetry import MetricsRegistry
from gputile.tools.web.agent_usage import CreationTimes, UsageReader, created_of
from gputile.tools.web.app import PageApp
from gputile.tools.web.feed import Feed
from gputile.tools.web.guard import Guard, LoginGuard
from gputile.tools.web.questions import ClusterSnapshot
from gputile.tools.web.state import page_state
from gputile.tools.web.usage import UsageFeed
from gputile.tools.web.viewers import Viewers

LOOPBACK: Final = "127.0.0.1"
_TOKEN_BYTES: Final = 24
_FOLLOW_TLS_EVERY_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class LoginSettings:
    """The settings of a page in the cluster, where viewers log in."""

    tls_dir: Path  # the directory of tls.crt and tls.key
    health_port: int  # for probes and metrics


@dataclass(frozen=True, slots=True)
class WebSettings:
    port: int  # 0 means any free port
    ready: Callable[[str], None]  # is called with the page's address when the page is served
    # Reads the objects that questions need in addition to nodes, pods and claims.
    complete: Callable[[Connection, ClusterSnapshot], Awaitable[ClusterSnapshot]]
    installed_in: str  # the namespace of the agents from which usage is read
    login: LoginSettings | None = None  # None serves the page on loopback, without a login


async def serve(
    access: Access,
    configuration: Configuration,
    nodes: Sequence[Node],
    pods: Sequence[Pod],
    settings: WebSettings,
    claims: Sequence[ResourceClaim] | None = None,
) -> None:
    """Serve the page of a cluster until cancelled.

    The page first shows the given objects, and then follows the cluster. ``claims`` is None if
    ResourceClaims cannot be listed. The page then does not watch ResourceClaims.

    Raises:
        PortError: a port cannot be opened.
        UnusableTls: there is no usable certificate.
    """
    state = page_state(configuration, nodes, pods, claims or (), time.time_ns())

    def created(node: str) -> CreationTimes:
        tile = state.tile(node)
        return created_of(tile) if tile is not None else {}

    async with Connection(access) as connection, AsyncExitStack() as ending:
        feed = Feed(connection, state, claims=claims is not None)
        usage = UsageFeed(UsageReader(connection, settings.installed_in), created)
        viewers = (
            Viewers(connection, lambda: state.namespaces) if settings.login is not None else None
        )
        if viewers is not None:
            ending.push_async_callback(viewers.close)

        async def snapshot() -> ClusterSnapshot:
            now = ClusterSnapshot(
                state.nodes,
                state.pods,
                configuration,
                namespace=connection.namespace,
                claims=state.claims,
            )
            return await settings.complete(connection, now)

        page = PageApp(feed, usage, connection, snapshot, viewers, access.server)
        page.prepare()
        if viewers is None or settings.login is None:
            token = secrets.token_urlsafe(_TOKEN_BYTES)
            server = Server(Guard(page.app(), token), "--port", LOOPBACK, settings.port)
            others, work = [], list[Coroutine[Any, Any, None]]()
            url = f"http://{LOOPBACK}:{{port}}/?token={token}"
        else:
            server = Server(LoginGuard(page.app(), viewers), "--port", ANY_ADDRESS, settings.port)
            directory = settings.login.tls_dir
            # The file names are the keys of a Secret of type kubernetes.io/tls.
            files = TlsFiles(directory / "tls.crt", directory / "tls.key")
            work = [TlsReloader(files, server.use_tls).run(_FOLLOW_TLS_EVERY_S)]
            probes = routed(monitoring_routes(MetricsRegistry(), lambda: None))
            others = [Server(probes, "--health-port", ANY_ADDRESS, settings.login.health_port)]
            url = f"https://{LOOPBACK}:{{port}}/"
        with bound_ports(server, *others):
            server.listen()
            settings.ready(url.format(port=server.port))
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(each) for each in (feed.run(), usage.run(), *work)]
                tasks += [group.create_task(each.answer()) for each in others]
                await server.answer()
                for each in tasks:
                    each.cancel()
