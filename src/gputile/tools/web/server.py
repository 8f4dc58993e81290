"""Puts the page's server together and runs it, on loopback, until the process ends."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod
from gputile.kube.connection import Connection
from gputile.kube.kubeconfig import Access
from gputile.support.connections import Address, ConnectionLimits
from gputile.support.http_server import Server, holding
from gputile.tools.simulator.gangs import PodGroups
from gputile.tools.web.app import PageApp, PageSources
from gputile.tools.web.feed import Feed
from gputile.tools.web.guard import Guard
from gputile.tools.web.page_state import PageState
from gputile.tools.web.questions import Moment
from gputile.tools.web.usage_feed import UsageFeed
from gputile.tools.web.usage_reader import UsageReader

LOOPBACK: Final = "127.0.0.1"
_LIMITS: Final = ConnectionLimits(most=256)
_TOKEN_BYTES: Final = 24


@dataclass(frozen=True, slots=True)
class Beside:
    """What the simulator needs to know of a cluster beside nodes and pods: PodGroups, and unsafe namespaces."""

    groups: PodGroups
    unsafe: frozenset[str]


@dataclass(frozen=True, slots=True)
class WebSettings:
    """How the page is served: on ``port`` of loopback, 0 for any that is free.

    ``ready`` is told the page's address. ``beside`` reads what the simulator needs to know beside nodes and pods.
    The agents that say what is used are those of the release in the namespace ``installed_in``.
    """

    port: int
    ready: Callable[[str], None]
    beside: Callable[[Connection], Awaitable[Beside]]
    installed_in: str


async def serve(
    access: Access, configuration: Configuration, nodes: Sequence[Node], pods: Sequence[Pod], settings: WebSettings
) -> None:
    """Serve the page of a cluster that had these nodes and pods a moment ago, until cancelled.

    Raises:
        PortError: the port cannot be opened.
    """
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    state = PageState(configuration)
    state.time_passed(time.time_ns())
    state.nodes_replaced(nodes)
    state.pods_replaced(pods)
    state.difference()
    async with Connection(access) as connection:
        feed = Feed(connection, state)
        usage = UsageFeed(UsageReader(connection, settings.installed_in))

        async def moment() -> Moment:
            beside = await settings.beside(connection)
            return Moment(state.nodes, state.pods, configuration, beside.groups, beside.unsafe, connection.namespace)

        def drop(client: Address) -> None:
            server.connections.close(client)

        page = PageApp(PageSources(feed, usage, connection, moment), secrets.token_hex(8), access.server)
        page.prepare()
        server = Server(Guard(page.app(drop), token), "--port", LOOPBACK, settings.port, _LIMITS)
        with holding(server):
            port = server.held[0].getsockname()[1]
            settings.ready(f"http://{LOOPBACK}:{port}/?token={token}")
            async with asyncio.TaskGroup() as group:
                watching = [group.create_task(work) for work in (feed.run(), usage.run())]
                await server.answer()
                for each in watching:
                    each.cancel()
