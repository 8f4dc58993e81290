"""Works by key: one worker at a time for each key, and again after a failure, with growing pauses."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

from gputile.kube.errors import KubeError
from gputile.kube.timing import Backoff

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
        """Have ``key`` worked on."""
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
        """Work until cancelled."""
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
