"""Restarts processes with an exponential back-off, and stops them within a time limit."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from typing import NoReturn, Protocol

log = logging.getLogger(__name__)


class Restarts:
    """Restarts a process after a pause.

    After a run of more than ``steady_after`` seconds, the pause is ``first`` seconds. After a
    shorter run, the previous pause is doubled, up to ``longest`` seconds. ``name`` names the
    process in the log.
    """

    def __init__(self, name: str, *, first: float, longest: float, steady_after: float) -> None:
        self._name = name
        self._first = first
        self._longest = longest
        self._steady_after = steady_after
        self._pause = first
        self._started = 0.0

    async def supervise(self, run: Callable[[], Awaitable[str]]) -> NoReturn:
        """Restart ``run`` whenever it ends. ``run`` returns how it ended, as a text for the log."""
        while True:
            self.start()
            try:
                ended = await run()
            except OSError as error:
                ended = f"cannot be started: {error}"
            await self.wait(ended)

    def start(self) -> None:
        self._started = asyncio.get_running_loop().time()

    async def wait(self, ended: str) -> None:
        """Sleep before the next run. ``ended`` says how the previous run ended, for the log."""
        steady = asyncio.get_running_loop().time() - self._started > self._steady_after
        self._pause = self._first if steady else min(2 * self._pause, self._longest)
        log.error("%s %s; restarting in %s s", self._name, ended, self._pause)
        await asyncio.sleep(self._pause)


class RunningProcess(Protocol):
    """A process that can be waited for and killed."""

    async def wait(self) -> object: ...

    def kill(self) -> None: ...


async def end(process: RunningProcess, request_end: Callable[[], None], within: float) -> None:
    """Call ``request_end``. Kill the process if it has not ended within ``within`` seconds."""
    request_end()
    try:
        async with asyncio.timeout(within):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def reap_orphans() -> None:
    """Reap all ended children. In a container, orphans become children of process 1.

    During the call, no task may wait for the exit status of a child.
    """
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
