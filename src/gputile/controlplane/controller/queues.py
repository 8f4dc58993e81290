"""Orders the controller's work: updates of the cluster state, and nodes to be written.

A list of the whole cluster takes many slices of the event loop. Updates that come meanwhile wait, and so does whoever
needs the state as it is between two updates.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import NoReturn

from gputile.controlplane.event_loop import taking_turns
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
    """Calls ``work`` with every key that is added; a key added while it waits or is worked on is worked on once more.

    After a ``KubeError`` another attempt may succeed, whatever it was: a conflict, a time-out, an API server
    that is overloaded or gone.
    """

    def __init__(
        self,
        work: Callable[[str], Awaitable[None]],
        *,
        backoff: Backoff = _BACKOFF,
    ) -> None:
        self.failures = 0
        self._work = work
        self._backoff = backoff
        self._keys: asyncio.Queue[str] = asyncio.Queue()
        self._waiting: set[str] = set()
        self._busy: set[str] = set()
        self._again: set[str] = set()
        self._failed: dict[str, int] = {}
        self._later: dict[str, asyncio.TimerHandle] = {}

    def add(self, key: str) -> None:
        if key in self._busy:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._keys.put_nowait(key)

    def add_later(self, key: str, seconds: float) -> None:
        """Have ``key`` worked on after a while; sooner, where that was asked for. A key has one timer at most."""
        loop = asyncio.get_running_loop()
        when, timer = loop.time() + seconds, self._later.get(key)
        if timer is not None:
            if timer.when() <= when:
                return
            timer.cancel()
        self._later[key] = loop.call_at(when, self._is_time, key)

    async def run(self, workers: int = 4) -> NoReturn:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self._run_one())
        finally:
            for timer in self._later.values():
                timer.cancel()
        raise AssertionError("workers never end")

    async def _run_one(self) -> NoReturn:
        while True:
            key = await self._keys.get()
            self._waiting.discard(key)
            self._busy.add(key)
            try:
                await self._work(key)
                self._failed.pop(key, None)
            except KubeError as error:
                self._retry(key, error)
            finally:
                self._busy.discard(key)
            if key in self._again:
                self._again.discard(key)
                self.add(key)
            await asyncio.sleep(0)  # there may be thousands, with nothing to wait for

    def _retry(self, key: str, error: KubeError) -> None:
        self.failures += 1
        failed = self._failed.get(key, 0)
        self._failed[key] = failed + 1
        pause = max(self._backoff.delay(failed), error.retry_after)
        log.log(logging.WARNING if failed else logging.INFO, "%s: trying again in %.1f s: %s", key, pause, error)
        self.add_later(key, pause)

    def _is_time(self, key: str) -> None:
        del self._later[key]
        self.add(key)
