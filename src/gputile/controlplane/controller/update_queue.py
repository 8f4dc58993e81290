"""Applies updates of the cluster state in the order in which they came.

None is applied while somebody reads the state.

A round of planning takes many slices of the event loop, and a list of the whole cluster does too. Updates that come
meanwhile wait: as many as the watches deliver in that time.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NoReturn

from gputile.controlplane.event_loop_slices import in_slices
from gputile.core.placement.steps import Steps


class UpdateQueue:
    """Applies one update after the other; each is a generator of the steps that apply it."""

    def __init__(self) -> None:
        self._waiting: deque[Steps[None]] = deque()
        self._filled = asyncio.Event()
        self._busy = asyncio.Lock()
        self._empty = asyncio.Event()
        self._empty.set()

    def put(self, update: Steps[None]) -> None:
        """Have an update applied soon."""
        self._waiting.append(update)
        self._empty.clear()
        self._filled.set()

    async def run(self) -> NoReturn:
        """Apply updates until cancelled."""
        while True:
            await self._filled.wait()
            async with self._busy:
                await in_slices(self._all())
            self._filled.clear()
            self._empty.set()

    async def drained(self) -> None:
        """Wait until all updates that have come are applied."""
        await self._empty.wait()

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Keep updates waiting for as long as the context lasts."""
        async with self._busy:
            yield

    def _all(self) -> Steps[None]:
        while self._waiting:
            yield from self._waiting[0]
            self._waiting.popleft()
            yield
