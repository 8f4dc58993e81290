"""Streams long answers to browsers: one that stops reading delays nobody, and is let go after a while."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from starlette.types import Receive, Scope, Send

from gputile.support.connections import Address
from gputile.tools.web.page.change_log import Change, ChangeLog

STALLED_S: Final = 30.0  # who has not read a piece for so long does not read
HEARTBEAT_S: Final = 15.0  # the page, and a proxy before it, see that the server is there
_PIECE: Final = 256 * 1024
RELOAD: Final = b"event: reload\ndata: {}\n\n"
_HEARTBEAT: Final = b"event: beat\ndata: {}\n\n"  # an event, since browsers tell a page of no comments


@dataclass(frozen=True, slots=True)
class Sight:
    """How a viewer sees changes: ``shown`` encodes one for it, ``lasts`` returns whether it still sees the same."""

    shown: Callable[[Change], bytes]
    lasts: Callable[[], Awaitable[bool]]


class Viewer:
    """The connection of one browser. ``drop`` ends a connection by its client's address."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, drop: Callable[[Address], None]) -> None:
        self._client: Address | None = scope.get("client")
        self._send = send
        self._drop = drop
        self._gone = asyncio.ensure_future(_until_gone(receive))

    def close(self) -> None:
        """Listen no longer whether the browser goes."""
        self._gone.cancel()

    async def begin(self, media_type: str) -> None:
        """Send the head of the answer."""
        headers = [(b"content-type", media_type.encode())]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, body: bytes) -> bool:
        """Send a part of the body; return whether the browser still reads."""
        for start in range(0, len(body), _PIECE):
            piece = body[start : start + _PIECE]
            try:
                async with asyncio.timeout(STALLED_S):
                    await self._send({"type": "http.response.body", "body": piece, "more_body": True})
            except TimeoutError:
                if self._client is not None:
                    self._drop(self._client)
                await self._gone
            if self._gone.done():
                return False
        return True

    async def end(self) -> None:
        """End the answer."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def follow(self, log: ChangeLog, revision: int, sight: Sight) -> None:
        """Send the changes after ``revision`` as they come, until the browser goes or has to load the page anew."""
        while True:
            found = log.since(revision) if await sight.lasts() else None
            if found is None:
                await self.write(RELOAD)
                break
            revision += len(found)
            if not await self.write(b"".join(map(sight.shown, found)) if found else _HEARTBEAT):
                return
            if not await self._news(log, revision):
                return
        await self.end()

    async def _news(self, log: ChangeLog, revision: int) -> bool:
        """Wait for a change, or for the time of a heartbeat; return whether the browser is still there."""
        news = asyncio.ensure_future(log.news(revision))
        await asyncio.wait({news, self._gone}, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
        news.cancel()
        return not self._gone.done()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
