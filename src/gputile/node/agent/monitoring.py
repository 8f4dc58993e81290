"""Serves the agent's metrics and probes in a separate thread, even while the event loop hangs."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from gputile.support.http_requests import monitoring_routes, routed
from gputile.support.http_server import ANY_ADDRESS, Server

OPTION: Final = "--health-port"

NodeProblem = Callable[[], str | None]
"""Returns a description of the problem, or None without a problem."""


@contextlib.contextmanager
def monitoring(
    port: int, registry: CollectorRegistry, not_healthy: NodeProblem, not_ready: NodeProblem
) -> Iterator[int]:
    """Serve on ``port`` within the context, and yield the port. With 0, a free port is chosen.

    A failed probe has status 503, and the problem as its text. Raises PortError if the port cannot
    be opened.
    """

    async def metrics(_: web.BaseRequest) -> web.Response:
        # A scrape reads the files of all containers. Probes do not wait for it.
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
