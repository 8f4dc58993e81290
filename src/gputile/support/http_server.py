"""The HTTP server of the services that answer on their event loop."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from gputile.support.ports import bind_port

ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - the kubelet and Prometheus ask at the pod's address


class Server(uvicorn.Server):
    """uvicorn without its own signal handlers, ours end more than one server, and on a port that is held before.

    ``option`` is what asked for the port.
    """

    def __init__(self, app: ASGIApp, option: str, host: str, port: int, **options: Any) -> None:
        settings = {"log_config": None, "access_log": False, "lifespan": "off", "server_header": False, **options}
        super().__init__(uvicorn.Config(app, host=host, port=port, **settings))
        self.option = option
        self.held: list[socket.socket] = []

    async def answer(self) -> None:
        """Answer on the port that is held, until ``stop``."""
        await self.serve(self.held)

    def stop(self) -> None:
        """Take no new connection, answer what is asked, and return from ``answer``."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave SIGTERM and SIGINT alone."""
        yield


@contextlib.contextmanager
def holding(*servers: Server) -> Iterator[None]:
    """Hold the ports of all these servers, whether they answer already or not.

    Raises:
        PortError: one cannot be had.
    """
    with contextlib.ExitStack() as stack:
        for server in servers:
            held = bind_port(server.option, server.config.host, server.config.port)
            server.held = [stack.enter_context(held)]
        yield
