"""Puts the page's server together and runs it, on loopback or for all of a cluster."""

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
from gputile.api.other_groups import PodDisruptionBudget
from gputile.api.resource_claims import ResourceClaim
from gputile.kube.client import Connection
from gputile.kube.config import Access
from gputile.support.http_server import ANY_ADDRESS, Handler, Server, holding, monitoring_routes, routed
from gputile.support.listening import TlsFiles, TlsReloader
from gputile.support.metrics import MetricsRegistry
from gputile.tools.simulator.gangs import PodGroups
from gputile.tools.web.app import PageApp, PageSources
from gputile.tools.web.feed import Feed
from gputile.tools.web.guard import Guard, LoginGuard
from gputile.tools.web.questions import Moment
from gputile.tools.web.state import page_state
from gputile.tools.web.usage import Made, UsageReader, made_of
from gputile.tools.web.usage_feed import UsageFeed
from gputile.tools.web.viewers import Viewers

LOOPBACK: Final = "127.0.0.1"
_TOKEN_BYTES: Final = 24
_FOLLOW_TLS_EVERY_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Beside:
    """What the simulator needs to know of a cluster beside nodes and pods; ``budgets`` are None if nobody says them."""

    groups: PodGroups
    unsafe: frozenset[str]
    budgets: Sequence[PodDisruptionBudget] | None = None


@dataclass(frozen=True, slots=True)
class LoginSettings:
    """How the page serves in the cluster: with the certificate in ``tls_dir``, and probes on ``health_port``."""

    tls_dir: Path
    health_port: int


@dataclass(frozen=True, slots=True)
class WebSettings:
    """How the page is served: on ``port``, 0 for any that is free; on loopback, unless viewers log in.

    ``ready`` is told the page's address. ``beside`` reads what the simulator needs to know beside nodes and pods.
    The agents that say what is used are those of the release in the namespace ``installed_in``.
    """

    port: int
    ready: Callable[[str], None]
    beside: Callable[[Connection], Awaitable[Beside]]
    installed_in: str
    login: LoginSettings | None = None


async def serve(
    access: Access,
    configuration: Configuration,
    nodes: Sequence[Node],
    pods: Sequence[Pod],
    settings: WebSettings,
    claims: Sequence[ResourceClaim] | None = None,
) -> None:
    """Serve the page of a cluster that had these objects a moment ago, until cancelled.

    ``claims`` are None where they cannot be listed, so not watched either.

    Raises:
        PortError: a port cannot be opened.
        UnusableTls: there is no certificate to serve with.
    """
    state = page_state(configuration, nodes, pods, claims or (), time.time_ns())

    def made(node: str) -> Made:
        tile = state.tile(node)
        return made_of(tile) if tile is not None else {}

    async with Connection(access) as connection, AsyncExitStack() as ending:
        feed = Feed(connection, state, claims=claims is not None)
        usage = UsageFeed(UsageReader(connection, settings.installed_in), made)
        viewers = Viewers(connection, lambda: state.namespaces) if settings.login is not None else None
        if viewers is not None:
            ending.push_async_callback(viewers.close)

        async def moment() -> Moment:
            beside = await settings.beside(connection)
            return Moment(
                state.nodes,
                state.pods,
                configuration,
                beside.groups,
                beside.unsafe,
                connection.namespace,
                beside.budgets,
                state.claims,
            )

        sources = PageSources(feed, usage, connection, moment, viewers)
        page = PageApp(sources, secrets.token_hex(8), access.server)
        page.prepare()
        served = _served(page.app(), viewers, settings)
        with holding(*served.servers):
            served.page.listen()
            settings.ready(served.address())
            async with asyncio.TaskGroup() as group:
                work = [feed.run(), usage.run(), *served.work]
                beside = [group.create_task(each) for each in work]
                beside += [group.create_task(each.answer()) for each in served.servers[1:]]
                await served.page.answer()
                for each in beside:
                    each.cancel()


@dataclass(frozen=True, slots=True)
class _Served:
    """The servers of the page, its own first; where it is; and what goes on beside."""

    servers: tuple[Server, ...]
    url: str  # with a place for the port
    work: tuple[Coroutine[Any, Any, None], ...] = ()

    @property
    def page(self) -> Server:
        return self.servers[0]

    def address(self) -> str:
        return self.url.format(port=self.page.port)


def _served(app: Handler, viewers: Viewers | None, settings: WebSettings) -> _Served:
    if viewers is None or settings.login is None:
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        server = Server(Guard(app, token), "--port", LOOPBACK, settings.port)
        return _Served((server,), f"http://{LOOPBACK}:{{port}}/?token={token}")
    server = Server(LoginGuard(app, viewers), "--port", ANY_ADDRESS, settings.port)
    directory = settings.login.tls_dir
    files = TlsFiles(directory / "tls.crt", directory / "tls.key")  # as kubernetes.io/tls has
    tls = TlsReloader(files, server.use_tls)
    probes = routed(monitoring_routes(MetricsRegistry(), lambda: None))
    health = Server(probes, "--health-port", ANY_ADDRESS, settings.login.health_port)
    return _Served((server, health), f"https://{ANY_ADDRESS}:{{port}}/", (tls.run(_FOLLOW_TLS_EVERY_S),))
