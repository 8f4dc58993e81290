"""Serves HTTP/1.1 with aiohttp, within bounds that no client can exceed.

aiohttp bounds a request's line and each header, the number of headers, the requests that wait on a connection, and the
time that a connection may be idle or leave a head unfinished. What it leaves open is bounded here: the size of a whole
head and of what is sent ahead, the time and the memory of bodies, the time of sending an answer, and the number of
connections, which count from the moment they are accepted, before any handshake.
"""

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, cast

from aiohttp import StreamReader, web
from prometheus_client import CollectorRegistry, generate_latest

from gputile.api.quantity import MIB
from gputile.support.listening import bind_port

log = logging.getLogger(__name__)

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

ANY_ADDRESS: Final = ""  # the kubelet and Prometheus ask at the pod's address
LARGEST_HEAD: Final = 64 * 1024  # of a head, of what follows a body's last piece, or of what is sent ahead
MOST_BODY_BYTES: Final = 64 * MIB  # of all bodies that one reader reads at the same time
BODY_SECONDS: Final = 5.0
SEND_SECONDS: Final = 30.0  # for a client to take an answer
_READ_AHEAD: Final = 64 * 1024  # of a body, before reading from the connection pauses
_LINGER_SECONDS: Final = 1.0  # for a client to read why its body was refused, before the connection ends
_PAUSE_SECONDS: Final = 0.1  # after a connection could not be accepted, as when the process has too many open files
_HEAD_END: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The number of open connections, and seconds: of an idle one, of a TLS handshake, and of the answers at the end.

    Go's HTTP client closes an idle connection after 90 s; the server must not close it before.
    """

    connections: int = 512
    idle_seconds: float = 120.0
    handshake_seconds: float = 10.0
    answer_seconds: float = 1.0


STANDARD_LIMITS: Final = ServerLimits()


class ServerConnection(web.RequestHandler):
    """An accepted connection, whose handshake may not have begun yet."""

    def __init__(self, server: "Server", requests: web.Server, accepted: socket.socket, host: str) -> None:
        self.loop = asyncio.get_running_loop()
        super().__init__(
            requests,
            loop=self.loop,
            keepalive_timeout=server.limits.idle_seconds,
            access_log=None,  # type: ignore[arg-type]  # as documented, None for none
            lingering_time=_LINGER_SECONDS,
            read_bufsize=_READ_AHEAD,
            auto_decompress=False,  # a small body would become a large one
        )
        self.server = server
        self.accepted = accepted
        self.host = host
        self.opening: asyncio.Task[None] | None = None
        self.answering: asyncio.Task[object] | None = None
        self.since = self.loop.time()  # when it was accepted, or its last request began or ended
        self.has_asked = False
        self._content: StreamReader | None = None  # the body of the last request that a handler has begun to answer
        self._content_read = 0
        self._unread = 0  # bytes that have come since a request began or its body went on
        self._head_ended = False  # the next request's, whose handler has not begun
        self._last = b""

    def connection_lost(self, exc: BaseException | None) -> None:
        """Make room for another connection."""
        super().connection_lost(exc)
        self.server.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        """Parse what has come; end the connection if it is too much that is no body."""
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
            log.debug("%s sends more than a request may have", self.host)
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
        """Answer what is no HTTP without an entry in the log: clients could fill it."""
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
        else:  # so a handshake fails: uvloop leaves the socket open if it is cancelled
            with contextlib.suppress(OSError):
                self.accepted.shutdown(socket.SHUT_RDWR)


class Server:
    """Answers with ``handler`` on a port that is bound before it begins; ``option`` is what asked for the port."""

    def __init__(
        self, handler: Handler, option: str, host: str, port: int, limits: ServerLimits = STANDARD_LIMITS
    ) -> None:
        self._handler = handler
        self._option, self._host, self._port = option, host, port
        self.limits = limits
        self._held: socket.socket  # while ``holding``
        self._tls: ssl.SSLContext | None = None
        self._stopping = asyncio.Event()
        self.connections: set[ServerConnection] = set()

    @property
    def port(self) -> int:
        """The port that is held, also where any free one was asked for."""
        port: int = self._held.getsockname()[1]
        return port

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Hold the port, whether anybody answers already or not.

        Raises:
            PortError: it cannot be opened.
        """
        with bind_port(self._option, self._host, self._port) as self._held:
            yield

    def listen(self) -> None:
        """Let clients connect to the port that is held; they wait for ``answer``."""
        self._held.listen(2048)

    def use_tls(self, context: ssl.SSLContext) -> None:
        self._tls = context

    def stop(self) -> None:
        """Take no new connection, finish the answers that have begun, and return from ``answer``."""
        self._stopping.set()

    async def answer(self) -> None:
        """Answer on the port that is held, until ``stop``; if cancelled, end all connections at once."""
        self.listen()
        self._held.setblocking(False)
        requests = web.Server(self._respond)
        accepting = asyncio.create_task(self._accept(self._held, requests))
        try:
            await self._stopping.wait()
            accepting.cancel()
            self._held.close()
            async with asyncio.timeout(self.limits.answer_seconds):
                # Only then: a connection that aiohttp shuts down reads no further, also if half a body is there.
                begun = [each.answering for each in self.connections if each.answering is not None]
                await asyncio.gather(*begun, return_exceptions=True)
                for each in requests.connections:
                    each.close()
                await requests.shutdown()
        except TimeoutError:
            log.warning("answers were not finished within %g s", self.limits.answer_seconds)
        finally:
            accepting.cancel()
            for connection in list(self.connections):
                connection.end()

    async def _accept(self, held: socket.socket, requests: web.Server) -> None:
        """Accept connections: asyncio's own server would not count those whose handshake is not over."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(held)
            except OSError as error:
                log.warning("a connection was not accepted: %s", error)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            self._admit(ServerConnection(self, requests, accepted, address[0]))

    def _admit(self, new: ServerConnection) -> None:
        """Begin with a connection. If there are too many, close that of the busiest host that is missed least.

        So neither connections on which nothing is asked nor a client that asks on very many keep out others.
        """
        new.opening = asyncio.create_task(self._open(new))
        new.opening.add_done_callback(functools.partial(self._opened, new))
        if len(self.connections) >= self.limits.connections:
            hosts = Counter(each.host for each in self.connections)
            least = min(
                self.connections,
                key=lambda each: (-hosts[each.host], each.answering is not None, each.has_asked, each.since),
            )
            self.connections.discard(least)
            least.end()
        self.connections.add(new)

    async def _open(self, connection: ServerConnection) -> None:
        """Shake hands; from then on aiohttp reads requests."""
        loop, tls = asyncio.get_running_loop(), self._tls
        wait = self.limits.handshake_seconds if tls else None
        try:
            await loop.connect_accepted_socket(
                lambda: connection, connection.accepted, ssl=tls, ssl_handshake_timeout=wait
            )
        except OSError as error:
            log.debug("a connection came to nothing: %s", error)

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
                answer.headers["Server"] = "gputile"  # rather than the versions of Python and aiohttp
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
def holding(*servers: Server) -> Iterator[None]:
    """Hold the ports of all these servers.

    Raises:
        PortError: one of the ports cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.enter_context(server.holding())
        yield


def routed(routes: Mapping[str, tuple[str, Handler]]) -> Handler:
    """Return a handler that answers each path by a method and a handler; HEAD is answered like GET."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        found = routes.get(request.path)
        if found is None:
            return web.Response(status=404, text="there is nothing here")
        method, handler = found
        if request.method == method or (request.method == "HEAD" and method == "GET"):
            return await handler(request)
        return web.Response(status=405, text=f"{request.path} is asked by {method}", headers={"Allow": method})

    return answer


def monitoring_routes(
    registry: CollectorRegistry, not_ready: Callable[[], str | None]
) -> dict[str, tuple[str, Handler]]:
    """Return the routes of probes and metrics; ``not_ready`` returns why the component is not ready, None if it is."""

    async def healthz(_: web.BaseRequest) -> web.Response:
        return web.Response(text="ok")

    async def readyz(_: web.BaseRequest) -> web.Response:
        why = not_ready()
        return web.Response(text="ok") if why is None else web.Response(status=503, text=why)

    async def metrics(_: web.BaseRequest) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=generate_latest(registry), headers=headers)

    return {"/healthz": ("GET", healthz), "/readyz": ("GET", readyz), "/metrics": ("GET", metrics)}


class BodyRefused(Exception):
    """The body is not read on; ``status`` is the HTTP status that says so."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class BodyReader:
    """Counts the bytes of all bodies that are being read. If they are too many, the largest is given up.

    So large bodies that come slowly cannot keep out the small ones of others. ``largest`` is how many bytes one may
    have, ``most`` how many all together, ``seconds`` how long one may take to come.
    """

    def __init__(self, largest: int, *, most: int = MOST_BODY_BYTES, seconds: float = BODY_SECONDS) -> None:
        self._largest = largest
        self._most = most
        self._seconds = seconds
        self._sizes: dict[asyncio.Timeout, int] = {}  # of each body, by what ends its reading
        self._given_up: set[asyncio.Timeout] = set()
        self.held = 0

    async def body(self, request: web.BaseRequest) -> bytes:
        """Return the body.

        Raises:
            BodyRefused: it is too large, too slow, too much with the others, or the client went away.
        """
        parts: list[bytes] = []
        limit = asyncio.timeout(self._seconds)
        self._sizes[limit] = 0
        try:
            async with limit:
                async for part in request.content.iter_any():
                    self._sizes[limit] += len(part)
                    self.held += len(part)
                    if self._sizes[limit] > self._largest:
                        raise BodyRefused(413, f"the body has more than {self._largest} bytes")
                    if self.held > self._most:
                        self._make_room()
                    if limit in self._given_up:
                        raise _too_much()
                    parts.append(part)
        except TimeoutError:
            if limit in self._given_up:
                raise _too_much() from None
            raise BodyRefused(408, f"the body did not come within {self._seconds:g} s") from None
        except (OSError, web.RequestPayloadError) as error:
            raise BodyRefused(400, "the body was cut off") from error
        finally:
            self.held -= self._sizes.pop(limit)
            self._given_up.discard(limit)
        return b"".join(parts)

    def _make_room(self) -> None:
        """Give up the largest bodies until the others are not too much."""
        going = [limit for limit in self._sizes if limit not in self._given_up]
        left = sum(self._sizes[limit] for limit in going)
        going.sort(key=self._sizes.__getitem__)
        while left > self._most:
            worst = going.pop()  # of equal ones the latest
            left -= self._sizes[worst]
            self._given_up.add(worst)
            if not worst.expired():
                worst.reschedule(asyncio.get_running_loop().time())


def _too_much() -> BodyRefused:
    return BodyRefused(503, "too much is being read at the same time; try again")
