"""Serves HTTP for the services that answer on their event loop."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gputile.support.connections import STANDARD_LIMITS, ConnectionLimits, OpenConnections
from gputile.support.http_protocol import BoundedProtocol
from gputile.support.ports import bind_port

log = logging.getLogger(__name__)

_PAUSE_S = 0.1  # after a connection could not be accepted, as where the process has too many open files
ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - the kubelet and Prometheus ask at the pod's address


class Server(uvicorn.Server):
    """uvicorn without its own signal handlers, ours end more than one server, and on a port that is held before.

    ``option`` is what asked for the port. Connections are open within ``limits``.
    """

    def __init__(
        self,
        app: ASGIApp,
        option: str,
        host: str,
        port: int,
        limits: ConnectionLimits = STANDARD_LIMITS,
        **options: Any,
    ) -> None:
        settings = {
            "http": BoundedProtocol,
            "log_config": None,
            "access_log": False,
            "lifespan": "off",
            "server_header": False,
            **options,
        }
        # a client is who connected, not whom its headers name
        super().__init__(
            uvicorn.Config(self._counted, host=host, port=port, proxy_headers=False, interface="asgi3", **settings)
        )
        self.option = option
        self.held: list[socket.socket] = []
        self.connections = OpenConnections(limits)
        self._app = app
        self._work: set[asyncio.Task[None]] = set()
        self._accepted: set[socket.socket] = set()  # and not attended yet

    def listen(self) -> None:
        """Let clients connect to the port that is held; they wait for ``answer``."""
        for each in self.held:
            each.listen(self.config.backlog)

    async def answer(self) -> None:
        """Answer on the port that is held, until ``stop``; where this is cancelled, connections end at once."""
        try:
            await self.serve([])
        finally:
            self._end_connections()

    def _end_connections(self) -> None:
        for task in (*self._work, *self.server_state.tasks):
            task.cancel()
        for each in self.server_state.connections:
            if each.transport is not None:
                each.transport.abort()
        for connection in self._accepted:
            connection.close()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections: here, as uvicorn does not count those whose handshake is not over."""
        await super().startup(sockets)
        self.listen()
        for each in self.held:
            each.setblocking(False)
            self._begin(self._accept(each))
        self._begin(self._close_idle())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing more, and end the connections that there are."""
        for task in self._work:
            task.cancel()
        for each in self.held:
            each.close()
        await super().shutdown(sockets)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listening)
            except OSError as error:
                log.warning("a connection was not accepted: %s", error)
                await asyncio.sleep(_PAUSE_S)
                continue
            self._accepted.add(connection)
            self.connections.accepted(connection, address[:2])
            self._begin(self._attend(connection))

    async def _attend(self, connection: socket.socket) -> None:
        """Shake hands, and let uvicorn read what is asked."""
        self._accepted.discard(connection)
        loop, tls = asyncio.get_running_loop(), self.config.ssl
        wait = self.connections.limits.first_seconds if tls else None
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.connect_accepted_socket(self._protocol, connection, ssl=tls, ssl_handshake_timeout=wait)
        except OSError as error:
            connection.close()
            log.debug("a connection came to nothing: %s", error)

    def use_tls(self, context: ssl.SSLContext) -> None:
        """Speak TLS with these settings on new connections, those before it begins to answer included."""
        self.config.ssl_context_factory = lambda *_: context
        self.config.ssl = context

    def _protocol(self) -> asyncio.Protocol:
        kind: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = kind(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(self.connections.limits.first_seconds / 4)
            self.connections.close_idle()

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.connections.asked(scope.get("client")):
            await self._app(scope, receive, send)

    def stop(self) -> None:
        """Take no new connection, answer what is asked, and return from ``answer``."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave SIGTERM and SIGINT alone."""
        yield


def closing(app: ASGIApp, ends: Callable[[], bool]) -> ASGIApp:
    """Return ``app``, which lets each client go after an answer while the server ``ends``.

    A client that keeps its connection may send a request just when the server closes it, and has no answer then.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start" and ends():
                message = {**message, "headers": [*message.get("headers", []), (b"connection", b"close")]}
            await send(message)

        await app(scope, receive, send_last)

    return answer


@contextlib.contextmanager
def holding(*servers: Server) -> Iterator[None]:
    """Hold the ports of all these servers, whether they answer already or not.

    Raises:
        PortError: one of the ports cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        for server in servers:
            held = bind_port(server.option, server.config.host, server.config.port)
            server.held = [stack.enter_context(held)]
        yield
