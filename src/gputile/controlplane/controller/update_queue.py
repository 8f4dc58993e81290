"""News of the cluster on their way to the view: in the order in which they came, and never while somebody looks at it.

A round of planning takes many slices of the event loop, and a list of the whole cluster does too. News that come
meanwhile wait: as many as the watches deliver in that time.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NoReturn

from gputile.controlplane.controller.slices import sliced
from gputile.core.placement.steps import Steps


class UpdateQueue:
    """Takes one piece of news after the other; each is the steps that tell it to the view."""

    def __init__(self) -> None:
        self._waiting: deque[Steps[None]] = deque()
        self._filled = asyncio.Event()
        self._busy = asyncio.Lock()
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, news: Steps[None]) -> None:
        """Have news taken soon."""
        self._waiting.append(news)
        self._empty.clear()
        self._filled.set()

    async def run(self) -> NoReturn:
        """Take news until cancelled."""
        while True:
            await self._filled.wait()
            async with self._busy:
                await sliced(self._all())
            self._filled.clear()
            self._empty.set()

    async def settle(self) -> None:
        """Wait until all news that have come are taken."""
        await self._empty.wait()

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """Keep news waiting for as long as the context lasts."""
        async with self._busy:
            yield

    def _all(self) -> Steps[None]:
        while self._waiting:
            yield from self._waiting[0]
            self._waiting.popleft()
            yield
