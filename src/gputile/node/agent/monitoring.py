"""Serves the agent's metrics and probes on a thread that answers even if the event loop hangs."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from gputile.support.http_server import ANY_ADDRESS, Server, monitoring_routes, routed

OPTION: Final = "--health-port"

NodeProblem = Callable[[], str | None]
"""Returns what is wrong, None if nothing is."""


@contextlib.contextmanager
def monitoring(
    port: int, registry: CollectorRegistry, not_healthy: NodeProblem, not_ready: NodeProblem
) -> Iterator[int]:
    """Serve within the context on ``port``, and yield the port; 0 is any free one.

    A failed probe has status 503, and the problem as its text.

    Raises:
        PortError: the port cannot be opened.
    """

    async def metrics(_: web.BaseRequest) -> web.Response:
        # Scrapes read the files of all containers; probes do not wait for them.
        page = await asyncio.to_thread(generate_latest, registry)
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST})

    _, healthy = monitoring_routes(registry, not_healthy)["/readyz"]
    routes = monitoring_routes(registry, not_ready)
    routes |= {"/healthz": ("GET", healthy), "/metrics": ("GET", metrics)}
    server = Server(routed(routes), OPTION, ANY_ADDRESS, port)
    runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)

    def serve() -> None:
        with runner:
            runner.run(server.answer())

    with server.bound():
        server.listen()
        thread = threading.Thread(target=serve, name="monitoring", daemon=True)
        loop = runner.get_loop()
        thread.start()
        try:
            yield server.port
        finally:
            loop.call_soon_threadsafe(server.stop)
            thread.join()
