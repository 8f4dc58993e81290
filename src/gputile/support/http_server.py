"""Serves HTTP/1.1 with aiohttp, with limits that no client can exceed.

aiohttp limits the request line, the size and the number of headers, and the pipelined requests of a
connection. It also limits the time for which a connection may be idle or send headers. This module
limits what aiohttp does not: the total size of headers and of pipelined data, the time to send a
response, and the number of connections. A connection counts from its acceptance, before its TLS
handshake. ``http_requests`` limits the time and memory for request bodies.
"""

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final, cast

from aiohttp import StreamReader, web

from gputile.support.listening import bind_port

log = logging.getLogger(__name__)

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

ANY_ADDRESS: Final = ""  # the kubelet and Prometheus connect to the pod's address
LARGEST_HEAD: Final = 64 * 1024  # bytes of the headers, of trailers, or of pipelined data
SEND_SECONDS: Final = 30.0  # to send a response
# bytes of a body that are buffered before reading from the connection pauses
_READ_AHEAD: Final = 64 * 1024
# the time for a client to read why its body was refused, before the connection is closed
_LINGER_SECONDS: Final = 1.0
# the pause after a connection could not be accepted, for example for lack of file descriptors
_PAUSE_SECONDS: Final = 0.1
_HEAD_END: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits of a server.

    Go's HTTP client closes an idle connection after 90 s. The server keeps idle connections
    longer, so that it does not close one while the client sends a request.
    """

    connections: int = 512  # open at the same time
    idle_seconds: float = 120.0  # until an idle connection is closed
    handshake_seconds: float = 10.0  # for a TLS handshake
    answer_seconds: float = 1.0  # for the requests in progress when the server stops


STANDARD_LIMITS: Final = ServerLimits()


class ServerConnection(web.RequestHandler):
    """An accepted connection, possibly before its TLS handshake."""

    def __init__(
        self, server: "Server", requests: web.Server, accepted: socket.socket, host: str
    ) -> None:
        self.loop = asyncio.get_running_loop()
        super().__init__(
            requests,
            loop=self.loop,
            keepalive_timeout=server.limits.idle_seconds,
            access_log=None,  # type: ignore[arg-type]  # None disables it, as documented
            lingering_time=_LINGER_SECONDS,
            read_bufsize=_READ_AHEAD,
            auto_decompress=False,  # a small body could become very large
        )
        self.server = server
        self.accepted = accepted
        self.host = host
        self.opening: asyncio.Task[None] | None = None
        self.answering: asyncio.Task[object] | None = None
        self.since = self.loop.time()  # time of acceptance, or of the last request's start or end
        self.has_asked = False
        # the body of the latest request that a handler has received
        self._content: StreamReader | None = None
        self._content_read = 0
        self._unread = 0  # bytes received since the request began, or since its body last grew
        self._head_ended = False  # whether the headers of the next request are complete
        self._last = b""

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self.server.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        """Parse received data. Abort the connection if headers or pipelined data are too large."""
        self._unread += len(data)
        content = self._content
        if content is None or content.is_eof():
            self._head_ended = self._head_ended or _HEAD_END in self._last + data
            self._last = data[-3:]
        super().data_received(data)
        if content is not None and content.total_bytes > self._content_read:
            self._content_read, self._unread = content.total_bytes, 0
        is_body = self._head_ended and self.answering is None
        if self._unread > LARGEST_HEAD and not is_body and self.transport is not None:
            log.debug("%s sends too large headers or too much pipelined data", self.host)
            self.transport.abort()

    def request_begins(self, request: web.BaseRequest) -> None:
        self.answering, self.has_asked, self.since = asyncio.current_task(), True, self.loop.time()
        self._content, self._content_read = request.content, request.content.total_bytes
        self._unread, self._head_ended = 0, False

    def request_ends(self) -> None:
        self.answering, self.since = None, self.loop.time()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a malformed request without a log entry, so that clients cannot fill the log."""
        if status != 400:
            return super().handle_error(request, status, exc, message)
        answer = web.Response(status=400, text=f"{message}\n", headers={"Server": "gputile"})
        answer.force_close()
        return answer

    def end(self) -> None:
        if self.answering is not None:
            self.answering.cancel()
        if self.transport is not None:
            self.transport.abort()
        else:  # Fail the handshake. After a cancellation, uvloop would leave the socket open.
            with contextlib.suppress(OSError):
                self.accepted.shutdown(socket.SHUT_RDWR)


class Server:
    """Serves ``handler`` on a port. ``option`` is the command-line option that sets the port."""

    def __init__(
        self,
        handler: Handler,
        option: str,
        host: str,
        port: int,
        limits: ServerLimits = STANDARD_LIMITS,
    ) -> None:
        self._handler = handler
        self._option, self._host, self._port = option, host, port
        self.limits = limits
        self._socket: socket.socket  # set within ``bound``
        self._tls: ssl.SSLContext | None = None
        self._stopping = asyncio.Event()
        self.connections: set[ServerConnection] = set()

    @property
    def port(self) -> int:
        """The bound port. If port 0 was requested, the kernel has chosen the port."""
        port: int = self._socket.getsockname()[1]
        return port

    @contextlib.contextmanager
    def bound(self) -> Iterator[None]:
        """Bind the port within the context.

        Raises:
            PortError: the port cannot be bound.
        """
        with bind_port(self._option, self._host, self._port) as self._socket:
            yield

    def listen(self) -> None:
        """Let clients connect. Their requests wait until ``answer`` runs."""
        self._socket.listen(2048)

    def use_tls(self, context: ssl.SSLContext) -> None:
        self._tls = context

    def stop(self) -> None:
        """Accept no more connections. ``answer`` finishes the requests in progress and returns."""
        self._stopping.set()

    async def answer(self) -> None:
        """Serve requests until ``stop`` is called. A cancellation aborts all connections."""
        self.listen()
        self._socket.setblocking(False)
        requests = web.Server(self._respond)
        accepting = asyncio.create_task(self._accept(self._socket, requests))
        try:
            await self._stopping.wait()
            accepting.cancel()
            self._socket.close()
            async with asyncio.timeout(self.limits.answer_seconds):
                # These requests finish before the shutdown. After it, aiohttp would not read the
                # rest of their bodies.
                begun = [each.answering for each in self.connections if each.answering is not None]
                await asyncio.gather(*begun, return_exceptions=True)
                for each in requests.connections:
                    each.close()
                await requests.shutdown()
        except TimeoutError:
            log.warning(
                "aborted the requests that took longer than %g s to finish",
                self.limits.answer_seconds,
            )
        finally:
            accepting.cancel()
            for connection in list(self.connections):
                connection.end()

    async def _accept(self, listener: socket.socket, requests: web.Server) -> None:
        """Accept connections. asyncio's own server would not count connections in a handshake."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listener)
            except OSError as error:
                log.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            self._admit(ServerConnection(self, requests, accepted, address[0]))

    def _admit(self, new: ServerConnection) -> None:
        """Start a connection. If there are too many connections, close another one first.

        The closed connection belongs to the host with the most connections. Of these connections,
        one without a request in progress is preferred, then one that never sent a request, then the
        one that has been idle longest. So neither idle connections nor a client with very many
        connections can lock out other clients.
        """
        new.opening = asyncio.create_task(self._open(new))
        new.opening.add_done_callback(functools.partial(self._opened, new))
        if len(self.connections) >= self.limits.connections:
            hosts = Counter(each.host for each in self.connections)
            least = min(
                self.connections,
                key=lambda each: (
                    -hosts[each.host],
                    each.answering is not None,
                    each.has_asked,
                    each.since,
                ),
            )
            self.connections.discard(least)
            least.end()
        self.connections.add(new)

    async def _open(self, connection: ServerConnection) -> None:
        """Perform the TLS handshake. Afterwards, aiohttp reads requests."""
        loop, tls = asyncio.get_running_loop(), self._tls
        wait = self.limits.handshake_seconds if tls else None
        try:
            await loop.connect_accepted_socket(
                lambda: connection, connection.accepted, ssl=tls, ssl_handshake_timeout=wait
            )
        except OSError as error:
            log.debug("a connection failed: %s", error)

    def _opened(self, connection: ServerConnection, _: object) -> None:
        if connection.transport is None:
            connection.accepted.close()
            self.connections.discard(connection)
        connection.opening = None

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = cast(ServerConnection, request.protocol)
        connection.request_begins(request)
        try:
            answer = await self._handler(request)
            if not answer.prepared:
                # aiohttp would name the versions of Python and aiohttp.
                answer.headers["Server"] = "gputile"
            try:
                async with asyncio.timeout(SEND_SECONDS):
                    await answer.prepare(request)
                    await answer.write_eof()
            except (TimeoutError, ConnectionError):
                connection.end()
            return answer
        finally:
            connection.request_ends()


@contextlib.contextmanager
def bound_ports(*servers: Server) -> Iterator[None]:
    """Bind the ports of all servers within the context.

    Raises:
        PortError: one of the ports cannot be bound.
    """
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.enter_context(server.bound())
        yield
