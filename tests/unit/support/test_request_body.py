"""Bodies of requests: bounded one by one, all together, and in time."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request

from gputile.support.request_body import BodyReader, BodyRefused
from tests.fakes.apiserver import until

pytestmark = pytest.mark.anyio


def sending(parts: AsyncIterator[bytes]) -> Request:
    async def receive() -> dict[str, Any]:
        async for part in parts:
            return {"type": "http.request", "body": part, "more_body": True}
        return {"type": "http.request", "body": b"", "more_body": False}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


async def parts(*sizes: int, then: asyncio.Event | None = None) -> AsyncIterator[bytes]:
    for size in sizes:
        yield b"x" * size
    if then is not None:
        await then.wait()


async def refused(reader: BodyReader, request: Request) -> int:
    with pytest.raises(BodyRefused) as error:
        await reader.body(request)
    return error.value.status


async def test_a_body_is_put_together() -> None:
    reader = BodyReader(100)
    assert await reader.body(sending(parts(40, 60))) == b"x" * 100
    assert reader.held == 0


async def test_a_body_has_a_largest_size_and_a_longest_time() -> None:
    reader = BodyReader(100, seconds=0.05)
    assert await refused(reader, sending(parts(40, 61))) == 413
    assert await refused(reader, sending(parts(40, then=asyncio.Event()))) == 408
    assert reader.held == 0


async def test_all_together_have_a_most_and_the_largest_is_given_up() -> None:
    reader, never = BodyReader(100, most=150, seconds=60), asyncio.Event()
    slow = asyncio.create_task(refused(reader, sending(parts(90, then=never))))
    await until(lambda: reader.held == 90)
    assert await reader.body(sending(parts(80))) == b"x" * 80
    assert await slow == 503
    assert reader.held == 0
