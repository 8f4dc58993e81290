"""A server that is cancelled leaves no connection behind, and one that listens turns nobody away."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.types import Receive, Scope, Send

from gputile.support.connections import Address, OpenConnections
from gputile.support.http_server import Server, holding
from tests.fakes.apiserver import until

pytestmark = pytest.mark.anyio

HANG_S = 20


async def endless(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with headers at once and with a body that never ends."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"first", "more_body": True})
    await asyncio.Event().wait()


@asynccontextmanager
async def answering() -> AsyncIterator[tuple[Server, asyncio.Task[None]]]:
    server = Server(endless, "--port", "127.0.0.1", 0)
    with holding(server):
        task = asyncio.create_task(server.answer())
        await until(lambda: server.started)
        yield server, task
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def ended(reader: asyncio.StreamReader) -> bool:
    """Return whether the server has ended the connection."""
    try:
        async with asyncio.timeout(HANG_S):
            await reader.read()
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("asked", [True, False], ids=["in the middle of an answer", "before a request"])
async def test_a_cancelled_server_ends_its_connections(asked: bool) -> None:
    async with answering() as (server, task):
        reader, writer = await asyncio.open_connection(*server.held[0].getsockname())
        if asked:
            writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            async with asyncio.timeout(HANG_S):
                await reader.readuntil(b"first")
        else:
            await until(lambda: len(server.connections) == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await ended(reader)
        writer.close()


async def test_a_connection_that_was_just_accepted_is_closed_too() -> None:
    async with answering() as (server, task):

        class Last(OpenConnections):
            def accepted(self, connection: socket.socket, address: Address) -> None:
                super().accepted(connection, address)
                task.cancel()

        server.connections = Last()
        reader, writer = await asyncio.open_connection(*server.held[0].getsockname())
        await asyncio.gather(task, return_exceptions=True)
        assert await ended(reader)
        writer.close()


async def test_who_comes_before_the_server_answers_waits_once_it_listens() -> None:
    server = Server(endless, "--port", "127.0.0.1", 0)
    with holding(server):
        address = server.held[0].getsockname()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        server.listen()
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        task = asyncio.create_task(server.answer())
        async with asyncio.timeout(HANG_S):
            await reader.readuntil(b"first")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        writer.close()
