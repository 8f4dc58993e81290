"""Real connections to a real server: those on which nothing is asked keep out nobody, and end."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from gputile.controlplane.webhook.certificates import Pair, next_material
from gputile.support.connections import ConnectionLimits
from gputile.support.http_server import Server, holding
from tests.fakes.apiserver import until

pytestmark = pytest.mark.anyio

HEADERS = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"


class App:
    """It answers at once; a request that has a body, once that is there."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked += 1
        while (await receive()).get("more_body"):
            pass
        await PlainTextResponse("well")(scope, receive, send)


@asynccontextmanager
async def serving(limits: ConnectionLimits, **options: Any) -> AsyncIterator[tuple[Server, App, int]]:
    app = App()
    server = Server(app, "--port", "127.0.0.1", 0, limits, timeout_graceful_shutdown=1, **options)
    with holding(server):
        port = server.held[0].getsockname()[1]
        task = asyncio.create_task(server.answer())
        await until(lambda: server.started)
        try:
            yield server, app, port
        finally:
            server.stop()
            await task


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


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """The services run on uvloop, which has transports of its own."""
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
def certificate(tmp_path: Path) -> Pair:
    return next_material(None, ["localhost"], datetime.now(UTC)).current


async def test_connections_that_ask_nothing_keep_out_nobody(silent: Silent) -> None:
    limits = ConnectionLimits(most=8, first_seconds=600)
    async with serving(limits) as (server, app, port), httpx2.AsyncClient() as kept:
        assert (await kept.get(f"http://127.0.0.1:{port}/")).text == "well"
        idle = await silent(port, 30)
        await until(lambda: len(server.connections) == 8)
        await until(lambda: ended(idle) == 23)
        async with httpx2.AsyncClient() as new:
            assert (await new.get(f"http://127.0.0.1:{port}/")).text == "well"
        assert (await kept.get(f"http://127.0.0.1:{port}/")).text == "well"
        assert app.asked == 3


async def test_one_that_is_being_answered_is_closed_last(silent: Silent) -> None:
    async with serving(ConnectionLimits(most=4, first_seconds=600)) as (server, app, port):
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
    async with serving(ConnectionLimits(most=4, first_seconds=600)) as (server, app, port):
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


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost:"], ids=["nothing", "half a header"])
async def test_a_connection_that_asks_nothing_ends(silent: Silent, said: bytes) -> None:
    async with serving(ConnectionLimits(first_seconds=0.2)) as (server, app, port):
        idle = await silent(port, 3, said)
        await until(lambda: ended(idle) == 3)
        assert (len(server.connections), app.asked) == (0, 0)


async def test_one_that_has_asked_ends_when_it_asks_nothing_more(silent: Silent) -> None:
    """Half a header ends the time that the HTTP server itself gives to an idle connection."""
    async with serving(ConnectionLimits(first_seconds=0.2, idle_seconds=0.4)) as (server, app, port):
        (connection,) = await silent(port, 1, HEADERS + b"0123456789GET / HTTP/1.1\r\nHost:")
        await until(lambda: app.asked == 1)
        await until(lambda: ended([connection]) == 1)
        assert not len(server.connections)


async def test_a_handshake_that_does_not_come_ends_too(silent: Silent, tmp_path: Path, certificate: Pair) -> None:
    (tmp_path / "tls.crt").write_bytes(certificate.certificate)
    (tmp_path / "tls.key").write_bytes(certificate.key)
    files = {"ssl_certfile": tmp_path / "tls.crt", "ssl_keyfile": tmp_path / "tls.key"}
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    async with serving(ConnectionLimits(most=4, first_seconds=1.0), **files) as (server, app, port):
        idle = await silent(port, 12)
        async with httpx2.AsyncClient(verify=trusting) as client:
            assert (await client.get(f"https://127.0.0.1:{port}/")).text == "well"
            await until(lambda: ended(idle) == 12)
            assert app.asked == 1
            assert len(server.connections) == 1


async def test_one_that_is_to_go_ends_though_it_is_being_answered(silent: Silent) -> None:
    async with serving(ConnectionLimits(first_seconds=600)) as (server, app, port):
        going, staying = await silent(port, 2, HEADERS)
        await until(lambda: app.asked == 2)
        server.connections.close(going.getsockname())
        server.connections.close(going.getsockname())  # it is gone already
        await until(lambda: ended([going]) == 1)
        assert ended([staying]) == 0
