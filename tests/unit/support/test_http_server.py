"""Real connections to a real server: what no client can exceed, and how it ends."""

import asyncio
import gc
import socket
import ssl
import struct
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import pytest
from aiohttp import web

from gputile.controlplane.webhook.certificates import self_signed
from gputile.support import http_server
from gputile.support.http_requests import BodyReader, BodyRefused, routed
from gputile.support.http_server import LARGEST_HEAD, STANDARD_LIMITS, Server, ServerLimits, bound_ports
from gputile.support.listening import TlsFiles
from tests.conftest import HANGS_S
from tests.fakes.apiserver import until
from tests.fakes.http import client_of, sent

pytestmark = pytest.mark.anyio

HEADERS = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"
LINE, PIECE = b"POST / HTTP/1.1\r\nHost: x\r\n", 16 * 1024
CHUNKED = LINE + b"Transfer-Encoding: chunked\r\n\r\n"
FEW, SMALL = b"A: " + b"b" * 1000 + b"\r\n", b"A: b\r\n"


class App:
    """It answers a request at once; one that has a body, once that is there."""

    def __init__(self, body: bytes = b"well") -> None:
        self.asked = 0
        self.body = body

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked += 1
        await request.read()
        return web.Response(body=self.body)


async def endless(request: web.BaseRequest) -> web.StreamResponse:
    """Answer with headers at once and with a body that never ends."""
    answer = web.StreamResponse()
    await answer.prepare(request)
    await answer.write(b"first")
    await asyncio.Event().wait()
    return answer


@asynccontextmanager
async def serving(
    limits: ServerLimits = STANDARD_LIMITS, app: App | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Server, App, int]]:
    app = App() if app is None else app
    server = Server(app, "--port", "127.0.0.1", 0, limits)
    if tls is not None:
        server.use_tls(tls)
    with bound_ports(server):
        server.listen()
        task = asyncio.create_task(server.answer())
        try:
            yield server, app, server.port
        finally:
            server.stop()
            await task


@asynccontextmanager
async def answering() -> AsyncIterator[tuple[Server, asyncio.Task[None]]]:
    server = Server(endless, "--port", "127.0.0.1", 0)
    with bound_ports(server):
        server.listen()
        task = asyncio.create_task(server.answer())
        yield server, task
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


Silent = Callable[..., Awaitable[list[socket.socket]]]


@pytest.fixture
def silent() -> Iterator[Silent]:
    """Open connections on which ``say`` is all that is ever sent."""
    opened: list[socket.socket] = []

    async def silent(port: int, count: int, say: bytes = b"", host: str = "") -> list[socket.socket]:
        for _ in range(count):
            connection = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", port), 60, (host, 0))
            opened.append(connection)
            connection.sendall(say)
            connection.setblocking(False)
        return opened[-count:]

    yield silent
    for each in opened:
        each.close()


def ended(connections: list[socket.socket]) -> int:
    """Return how many of them the server has closed."""
    count = 0
    for each in connections:
        try:
            count += not each.recv(1 << 16)
        except BlockingIOError:
            pass
        except OSError:
            count += 1
    return count


async def has_ended(reader: asyncio.StreamReader) -> bool:
    """Return whether the server has ended the connection."""
    try:
        async with asyncio.timeout(HANGS_S):
            await reader.read()
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


async def send(writer: asyncio.StreamWriter, more: bytes, most: int) -> None:
    """Send ``most`` bytes, unless the other end closes the connection before."""
    for _ in range(0, most, len(more)):
        writer.write(more)
        await writer.drain()
        await asyncio.sleep(0.01)


async def first_line(port: int, request: bytes) -> bytes:
    """Return the first line of the answer to a request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    line = await reader.readline()
    writer.close()
    return line.strip()


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """The services run on uvloop, which has transports of its own."""
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    certificate = self_signed(["localhost"], datetime.now(UTC))
    files = TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key")
    files.certificate.write_bytes(certificate.certificate)
    files.key.write_bytes(certificate.key)
    return files.context()


async def test_connections_that_ask_nothing_keep_out_nobody(silent: Silent) -> None:
    async with serving(ServerLimits(connections=8)) as (server, app, port), httpx2.AsyncClient() as kept:
        assert (await kept.get(f"http://127.0.0.1:{port}/")).text == "well"
        idle = await silent(port, 30)
        await until(lambda: len(server.connections) == 8)
        await until(lambda: ended(idle) == 23)
        async with httpx2.AsyncClient() as new:
            assert (await new.get(f"http://127.0.0.1:{port}/")).text == "well"
        assert (await kept.get(f"http://127.0.0.1:{port}/")).text == "well"
        assert app.asked == 3


async def test_one_that_is_being_answered_is_closed_last(silent: Silent) -> None:
    async with serving(ServerLimits(connections=4)) as (server, app, port):
        (asking,) = await silent(port, 1, HEADERS)
        await until(lambda: app.asked == 1)
        idle = await silent(port, 20)
        await until(lambda: ended(idle) == 17)
        assert ended([asking]) == 0
        others = list[socket.socket]()
        for asked in range(2, 6):
            others += await silent(port, 1, HEADERS)
            await until(lambda: app.asked == asked)  # noqa: B023 - awaited at once
        await until(lambda: ended([asking]) == 1)
        assert len(server.connections) == 4


async def test_a_host_that_asks_on_all_its_connections_keeps_out_no_other(silent: Silent) -> None:
    async with serving(ServerLimits(connections=4)) as (server, app, port):
        asking = list[socket.socket]()
        for asked in range(1, 5):
            asking += await silent(port, 1, HEADERS)
            await until(lambda: app.asked == asked)  # noqa: B023 - awaited at once
        (slow,) = await silent(port, 1, host="127.0.0.2")
        asking += await silent(port, 5)
        await until(lambda: ended(asking) == 6)
        assert ended([slow]) == 0
        slow.sendall(HEADERS)
        await until(lambda: app.asked == 5)
        assert len(server.connections) == 4


@pytest.mark.parametrize(
    ("said", "asked"),
    [(b"", 0), (b"GET / HTTP/1.1\r\nHost:", 0), (HEADERS + b"0123456789GET / HTTP/1.1\r\nHost:", 1)],
    ids=["nothing", "half a header", "half a header after a request"],
)
async def test_a_connection_that_asks_nothing_ends(silent: Silent, said: bytes, asked: int) -> None:
    async with serving(ServerLimits(idle_seconds=0.3)) as (server, app, port):
        idle = await silent(port, 3, said)
        await until(lambda: ended(idle) == 3)
        assert (len(server.connections), app.asked) == (0, 3 * asked)


async def test_a_handshake_that_does_not_come_ends_too(silent: Silent, tls: ssl.SSLContext) -> None:
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    async with serving(ServerLimits(connections=4, handshake_seconds=1.0), tls=tls) as (server, app, port):
        idle = await silent(port, 12)
        async with httpx2.AsyncClient(verify=trusting) as client:
            assert (await client.get(f"https://127.0.0.1:{port}/")).text == "well"
            await until(lambda: ended(idle) == 12)
            await until(lambda: len(server.connections) == 1)
            assert app.asked == 1


ENDLESS = {
    "address": (b"POST /", b"a" * PIECE),
    "header": (LINE + b"A: ", b"a" * PIECE),
    "large headers": (LINE, FEW),
    "many headers": (LINE, SMALL * 128),
    "trailer": (CHUNKED + b"0\r\nA: ", b"a" * PIECE),
    "large trailers": (CHUNKED + b"0\r\n", FEW * 16),
    "many trailers": (CHUNKED + b"0\r\n", SMALL * 128),
    "extension of a chunk": (CHUNKED + b"1;", b"a" * PIECE),
    "bodies ahead": (HEADERS + b"0123456789", LINE + b"Content-Length: 8192\r\n\r\n" + bytes(8192)),
}


class Slow(App):
    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        answer = await super().__call__(request)
        await asyncio.sleep(3600)
        return answer


@pytest.mark.parametrize("endless", ENDLESS)
async def test_what_does_not_end_is_refused(endless: str) -> None:
    begin, more = ENDLESS[endless]
    app = Slow() if endless == "bodies ahead" else App()
    async with serving(app=app) as (server, _, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(begin)
        with pytest.raises((ConnectionError, RuntimeError)):  # that one from uvloop, once it has seen the end
            await send(writer, more, 64 * LARGEST_HEAD)
        writer.close()
        assert not server.connections
        if not isinstance(app, Slow):
            assert await first_line(port, HEADERS + b"0123456789") == b"HTTP/1.1 200 OK", "others are served"


async def test_many_small_requests_ahead_are_not_read(silent: Silent) -> None:
    async with serving(app=Slow()) as (server, _, port):
        await silent(port, 1, (HEADERS + b"0123456789") * 100)
        await until(lambda: bool(server.connections))
        (connection,) = server.connections
        await until(lambda: connection.transport is not None and not connection.transport.is_reading())


@pytest.mark.parametrize("size", [1, 3, 7, 64 * 1024])
async def test_requests_may_be_sent_ahead_and_large_ones_one_after_the_other(size: int) -> None:
    """The bounds are a request's, not a connection's, and it does not matter how its bytes are cut."""
    async with serving() as (_, app, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write((HEADERS + b"0123456789") * 8)
        for _ in range(8):
            await reader.readuntil(b"well")
        for _ in range(3):
            head = LINE + FEW * 50 + b"Content-Length: 200000\r\n\r\n"
            writer.write(head[:-size])
            await writer.drain()
            await asyncio.sleep(0.01)
            writer.write(head[-size:] + bytes(200_000))
            await reader.readuntil(b"well")
        pieces = b"".join(b"1;%s\r\nx\r\n" % (b"y" * 60) for _ in range(10_000))
        writer.write(CHUNKED + pieces + b"0\r\n\r\n")
        await reader.readuntil(b"well")
        assert app.asked == 8 + 3 + 1
        writer.close()


async def test_a_body_that_is_packed_stays_so() -> None:
    """Unpacked it could be a thousand times as large."""

    async def size(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text=str(len(await request.read())))

    async with client_of(size) as client:
        answer = await client.post("/", content=b"\x1f\x8b\x08", headers={"Content-Encoding": "gzip"})
        assert answer.text == "3"


async def test_a_client_that_does_not_read_its_answer_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "SEND_SECONDS", 0.5)
    async with serving(app=App(bytes(64 << 20))) as (server, app, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(HEADERS + b"0123456789")
        await until(lambda: app.asked == 1)
        await until(lambda: not server.connections)
        writer.close()


async def test_a_connection_that_its_client_resets_leaves_nothing() -> None:
    """With TLS each would keep 256 KiB, as long as an idle connection may be kept."""
    async with serving(ServerLimits(idle_seconds=600)) as (server, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEADERS + b"0123456789")
        await reader.readuntil(b"well")
        protocol = weakref.ref(next(iter(server.connections)))
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        await until(lambda: gc.collect() >= 0 and protocol() is None)


async def test_what_is_no_http_is_told_so_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as (_, _, port):
        assert await first_line(port, b"\x16\x03\x01\x02\x00\r\n\r\n") == b"HTTP/1.0 400 Bad Request"
    assert not [each for each in caplog.records if each.levelname != "DEBUG"]


async def test_head_is_answered_where_get_is() -> None:
    async def hello(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text="hello")

    async with client_of(routed({"/get": ("GET", hello)})) as client:
        head, unknown = await client.request("HEAD", "/get"), await client.get("/")
    assert (head.status_code, head.text, head.headers["content-length"]) == (200, "", "5")
    assert (unknown.status_code, unknown.headers["server"]) == (404, "gputile")


@pytest.mark.parametrize("asked", [True, False], ids=["in the middle of an answer", "before a request"])
async def test_a_cancelled_server_ends_its_connections(asked: bool) -> None:
    async with answering() as (server, task):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        if asked:
            writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            async with asyncio.timeout(HANGS_S):
                await reader.readuntil(b"first")
        else:
            await until(lambda: len(server.connections) == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await has_ended(reader)
        writer.close()


async def test_a_server_that_stops_finishes_what_was_asked_and_closes_the_others(silent: Silent) -> None:
    async with serving(ServerLimits(answer_seconds=600)) as (server, app, port):
        await silent(port, 1)
        await silent(port, 1, HEADERS + b"0123456789")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEADERS)
        await until(lambda: app.asked == 2)
        server.stop()
        await asyncio.sleep(0.1)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"0123456789")
        assert (await reader.read()).endswith(b"well")
        await until(lambda: not server.connections)
        writer.close()


async def test_an_answer_that_does_not_end_holds_up_no_end(silent: Silent) -> None:
    async with serving(ServerLimits(answer_seconds=0.1)) as (server, app, port):
        asking = await silent(port, 1, HEADERS)
        await until(lambda: app.asked == 1)
        server.stop()
        await until(lambda: ended(asking) == 1)


async def refused(reader: BodyReader, request: web.BaseRequest) -> int:
    with pytest.raises(BodyRefused) as error:
        await reader.body(request)
    return error.value.status


async def test_a_body_has_a_largest_size_and_a_longest_time() -> None:
    reader = BodyReader(100, seconds=0.05)
    assert await refused(reader, sent("/", b"x" * 40, b"x" * 61)) == 413
    assert await refused(reader, sent("/", b"x" * 40, ends=False)) == 408
    assert reader.total == 0


async def test_all_together_have_a_most_and_the_largest_is_given_up() -> None:
    reader = BodyReader(100, most=150, seconds=60)
    slow = asyncio.create_task(refused(reader, sent("/", b"x" * 90, ends=False)))
    await until(lambda: reader.total == 90)
    assert await reader.body(sent("/", b"x" * 80)) == b"x" * 80
    assert await slow == 503
    assert reader.total == 0


async def test_a_client_that_goes_in_the_middle_of_a_body_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    reader, ends = BodyReader(100, seconds=60), list[int]()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        ends.append(await refused(reader, request))
        return web.Response()

    async with client_of(answer) as client:
        _, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        writer.write(HEADERS + b"01234")
        await until(lambda: reader.total == 5)
        writer.close()
        await until(lambda: bool(ends))
    assert (ends, reader.total) == ([400], 0)
    assert not [each for each in caplog.records if each.levelname != "DEBUG"]
