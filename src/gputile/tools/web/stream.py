"""Streams changes of the page to browsers; disconnects one that stops reading, so it delays no other."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from gputile.api.quantity import MIB
from gputile.tools.web.guard import BOUND
from gputile.tools.web.records import Difference

MOST_CHANGES: Final = 512
MOST_BYTES: Final = 16 * MIB
STALLED_S: Final = 30.0  # who has not read a piece for so long does not read
HEARTBEAT_S: Final = 15.0  # the page, and a proxy before it, see that the server is there
_PIECE: Final = 256 * 1024
RELOAD: Final = b"event: reload\ndata: {}\n\n"
_HEARTBEAT: Final = b"event: beat\ndata: {}\n\n"  # an event, since browsers tell a page of no comments


@dataclass(frozen=True, slots=True)
class Change:
    """A change and its number, encoded for who sees everything; ``difference`` is None where it is about no pods."""

    revision: int
    encoded: bytes
    difference: Difference | None = None


class ChangeLog:
    """The latest changes by their numbers, encoded once, bounded in number and in bytes.

    A viewer holds a number and nothing else, so one that stops reading costs nothing; one that fell behind further than
    the log reaches takes the whole page anew.
    """

    def __init__(self, most: int = MOST_CHANGES, most_bytes: int = MOST_BYTES) -> None:
        self.revision = 0
        self._most = most
        self._most_bytes = most_bytes
        self._kept: deque[Change] = deque()
        self._bytes = 0
        self._news = asyncio.Event()

    def append(self, encoded: bytes, difference: Difference | None = None) -> None:
        """Add a change, and wake those who wait for it."""
        self.revision += 1
        self._kept.append(Change(self.revision, encoded, difference))
        self._bytes += len(encoded)
        while len(self._kept) > self._most or self._bytes > self._most_bytes:
            self._bytes -= len(self._kept.popleft().encoded)
        self._news.set()
        self._news = asyncio.Event()

    def since(self, revision: int) -> list[Change] | None:
        """Return the changes after ``revision``, None where the log does not reach back so far, or not ahead."""
        behind = self.revision - revision
        if behind < 0 or behind > len(self._kept):
            return None
        return [self._kept[number] for number in range(len(self._kept) - behind, len(self._kept))]

    async def news(self, revision: int) -> None:
        """Return as soon as there is a change after ``revision``."""
        while self.revision <= revision:
            await self._news.wait()


@dataclass(frozen=True, slots=True)
class Sight:
    """How a viewer sees changes: ``shown`` encodes one for it, ``lasts`` returns whether it still sees the same."""

    shown: Callable[[Change], bytes]
    lasts: Callable[[], Awaitable[bool]]


class Viewer:
    """A browser that reads a long answer."""

    def __init__(self, request: web.BaseRequest, media_type: str) -> None:
        self._request = request
        bound = request[BOUND]
        self.answer = web.StreamResponse(headers={**bound, "Content-Type": media_type})

    async def begin(self) -> None:
        """Send the head of the answer."""
        await self.answer.prepare(self._request)

    async def write(self, body: bytes) -> bool:
        """Send a part of the body; return whether the browser still reads."""
        for start in range(0, len(body), _PIECE):
            try:
                async with asyncio.timeout(STALLED_S):
                    await self.answer.write(memoryview(body)[start : start + _PIECE])
            except TimeoutError:
                if self._request.transport is not None:
                    self._request.transport.abort()
                return False
            except ConnectionError:
                return False
        return True

    async def follow(self, log: ChangeLog, revision: int, sight: Sight) -> None:
        """Send the changes after ``revision`` as they come, until the browser goes or has to load the page anew."""
        while True:
            found = log.since(revision) if await sight.lasts() else None
            if found is None:
                await self.write(RELOAD)
                return
            revision += len(found)
            if not await self.write(b"".join(map(sight.shown, found)) if found else _HEARTBEAT):
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await log.news(revision)
