"""Orders the controller's work: updates of the cluster state, and nodes to be written.

A list of the whole cluster takes many slices of the event loop. Updates that come meanwhile wait, and so does whoever
needs the state as it is between two updates.
"""

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import NoReturn

from gputile.controlplane.event_loop import for_each, taking_turns
from gputile.kube.errors import KubeError
from gputile.kube.timing import Backoff


class UpdateQueue:
    """Applies one update after the other."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], Awaitable[None]]] = deque()
        self._filled = asyncio.Event()
        self._busy = asyncio.Lock()
        self._empty = asyncio.Event()
        self._empty.set()

    def put(self, update: Callable[[], Awaitable[None]]) -> None:
        self._waiting.append(update)
        self._empty.clear()
        self._filled.set()

    async def run(self) -> NoReturn:
        while True:
            await self._filled.wait()
            async for update in taking_turns(self._all()):
                async with self._busy:
                    await update()
            self._filled.clear()
            self._empty.set()

    async def drained(self) -> None:
        await self._empty.wait()

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Keep updates waiting for as long as the context lasts."""
        async with self._busy:
            yield

    def _all(self) -> Iterator[Callable[[], Awaitable[None]]]:
        while self._waiting:
            yield self._waiting.popleft()


log = logging.getLogger(__name__)

_BACKOFF = Backoff(first=0.2, longest=60.0)


class WorkQueue:
    """Calls ``work`` with every key that is added; a key added while it is worked on is worked on once more.

    After a ``KubeError`` another attempt may succeed, whatever it was: a conflict, a time-out, an API server
    that is overloaded or gone.
    """

    def __init__(self, work: Callable[[str], Awaitable[None]], *, backoff: Backoff = _BACKOFF) -> None:
        self.failures = 0
        self._work = work
        self._backoff = backoff
        self._due: dict[str, float] = {}  # by key, on the event loop's clock
        self._added = asyncio.Event()
        self._failed: dict[str, int] = {}

    def add(self, key: str) -> None:
        self.add_later(key, 0.0)

    def add_later(self, key: str, seconds: float) -> None:
        """Have ``key`` worked on after a while; sooner, where that was asked for."""
        when = asyncio.get_running_loop().time() + seconds
        if when < self._due.get(key, math.inf):
            self._due[key] = when
            self._added.set()

    async def run(self) -> NoReturn:
        loop = asyncio.get_running_loop()
        while True:
            self._added.clear()
            now = loop.time()
            due = [key for key, when in self._due.items() if when <= now]
            for key in due:
                del self._due[key]
            await for_each(self._try, due)
            next_s = min(self._due.values(), default=math.inf) - loop.time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(next_s if next_s < math.inf else None):
                    await self._added.wait()

    async def _try(self, key: str) -> None:
        try:
            await self._work(key)
            self._failed.pop(key, None)
        except KubeError as error:
            self.failures += 1
            failed = self._failed.get(key, 0)
            self._failed[key] = failed + 1
            pause = max(self._backoff.delay(failed), error.retry_after)
            log.log(logging.WARNING if failed else logging.INFO, "%s: trying again in %.1f s: %s", key, pause, error)
            self.add_later(key, pause)
