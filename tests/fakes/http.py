"""Asks the handlers of servers: in the process, or over a socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest import mock

import httpx2 as httpx
from aiohttp import StreamReader, web
from aiohttp.test_utils import make_mocked_request

from gputile.support.http_server import Handler, Server, bound_ports


def sent(path: str, *parts: bytes, method: str = "POST", ends: bool = True) -> web.BaseRequest:
    """Return a request whose body has come in these parts, and goes on for ever unless it ``ends``."""
    body = StreamReader(mock.Mock(), 1 << 16, loop=asyncio.get_running_loop())
    for part in parts:
        body.feed_data(part)
    if ends:
        body.feed_eof()
    return make_mocked_request(method, path, payload=body)


async def ask(handler: Handler, request: web.BaseRequest) -> tuple[int, bytes]:
    """Return the status and the body of an answer."""
    answer = await handler(request)
    assert isinstance(answer, web.Response)
    assert isinstance(answer.body, bytes)
    return answer.status, answer.body


@asynccontextmanager
async def client_of(handler: Handler) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a handler, and yield a client for it."""
    server = Server(handler, "--port", "127.0.0.1", 0)
    with bound_ports(server):
        server.listen()
        base = f"http://127.0.0.1:{server.port}"
        answering = asyncio.create_task(server.answer())
        async with httpx.AsyncClient(trust_env=False, base_url=base, timeout=120) as client:
            yield client
        server.stop()
        await answering
