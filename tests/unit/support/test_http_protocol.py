"""What a client sends without end before there is anything to judge is not kept: its connection is closed."""

import asyncio
import gc
import socket
import struct
import weakref

import pytest

from gputile.support.connections import STANDARD_LIMITS
from gputile.support.http_protocol import MOST_AHEAD, MOST_HEAD_BYTES, MOST_HEADERS
from tests.fakes.apiserver import until
from tests.unit.support.test_connections import HEADERS, serving

pytestmark = pytest.mark.anyio

LINE, PIECE = b"POST / HTTP/1.1\r\nHost: x\r\n", 16 * 1024
CHUNKED = LINE + b"Transfer-Encoding: chunked\r\n\r\n"
FEW, SMALL = b"A: " + b"b" * 1000 + b"\r\n", b"A: b\r\n"
ENDLESS = {
    "address": (b"POST /", b"a" * PIECE),
    "header": (LINE + b"A: ", b"a" * PIECE),
    "many headers": (LINE, SMALL * MOST_HEADERS),
    "trailer": (CHUNKED + b"0\r\nA: ", b"a" * PIECE),
    "many trailers": (CHUNKED + b"0\r\n", SMALL * MOST_HEADERS),
    "extension of a chunk": (CHUNKED + b"1;", b"a" * PIECE),
    "requests ahead": (HEADERS, (b"0123456789" + HEADERS) * MOST_AHEAD * 2),
}


@pytest.mark.parametrize("endless", ENDLESS)
async def test_what_does_not_end_is_refused(endless: str) -> None:
    begin, more = ENDLESS[endless]
    async with serving(STANDARD_LIMITS) as (_, _, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(begin)
        with pytest.raises(ConnectionError):
            await send(writer, more, 64 * MOST_HEAD_BYTES)
        writer.close()
        assert await answer(port, HEADERS + b"0123456789") == b"HTTP/1.1 200 OK", "others are served"


@pytest.mark.parametrize(
    "request_", [LINE + FEW * 60 + b"\r\n", LINE + SMALL * (MOST_HEADERS - 1) + b"\r\n"], ids=["large", "many"]
)
async def test_what_is_within_bounds_is_answered(request_: bytes) -> None:
    async with serving(STANDARD_LIMITS) as (_, _, port):
        assert await answer(port, request_) == b"HTTP/1.1 200 OK"


async def test_a_connection_that_its_client_resets_leaves_nothing() -> None:
    """With TLS each would keep 256 KiB, as long as an idle connection may be kept."""
    async with serving(STANDARD_LIMITS, timeout_keep_alive=600) as (server, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEADERS + b"0123456789")
        await reader.readuntil(b"well")
        protocol = weakref.ref(next(iter(server.server_state.connections)))
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        await until(lambda: not server.server_state.connections)
        gc.collect()
        assert protocol() is None


async def test_requests_may_be_sent_ahead_and_large_ones_one_after_the_other() -> None:
    """The bounds are a request's, not a connection's."""
    async with serving(STANDARD_LIMITS) as (_, app, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write((HEADERS + b"0123456789") * MOST_AHEAD)
        for _ in range(MOST_AHEAD):
            await reader.readuntil(b"well")
        for _ in range(3):
            writer.write(LINE + FEW * 50 + b"Content-Length: 200000\r\n\r\n" + bytes(200_000))
            await reader.readuntil(b"well")
        assert app.asked == MOST_AHEAD + 3
        writer.close()


async def send(writer: asyncio.StreamWriter, more: bytes, most: int) -> None:
    """Send ``most`` bytes, unless the other end closes the connection before."""
    for _ in range(0, most, len(more)):
        writer.write(more)
        await writer.drain()
        await asyncio.sleep(0.01)


async def answer(port: int, request: bytes) -> bytes:
    """Return the first line of the answer to a request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    line = await reader.readline()
    writer.close()
    return line.strip()
