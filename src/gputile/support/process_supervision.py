"""Keeps processes running: it restarts them after growing pauses, and ends them within a time."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from typing import NoReturn, Protocol

log = logging.getLogger(__name__)


class Restarts:
    """The pauses between one run of a process and the next: ``first`` doubled each time, up to ``longest``, in seconds.

    A run of more than ``steady_after`` seconds was a good one, after which the pause is ``first`` again. ``name`` is
    what the log calls the process.
    """

    def __init__(self, name: str, *, first: float, longest: float, steady_after: float) -> None:
        self._name = name
        self._first = first
        self._longest = longest
        self._steady_after = steady_after
        self._pause = first
        self._started = 0.0

    async def keep(self, run: Callable[[], Awaitable[str]]) -> NoReturn:
        """Run a process again whenever it ends; ``run`` returns how it ended."""
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
        """Wait before the next run; ``ended`` says how this one ended."""
        steady = asyncio.get_running_loop().time() - self._started > self._steady_after
        self._pause = self._first if steady else min(2 * self._pause, self._longest)
        log.error("%s %s; again in %s s", self._name, ended, self._pause)
        await asyncio.sleep(self._pause)


class RunningProcess(Protocol):
    """A process that can be waited for, whoever started it."""

    async def wait(self) -> object:
        """Return when it has ended."""

    def kill(self) -> None:
        """End it by force."""


async def end(process: RunningProcess, ask: Callable[[], None], within: float) -> None:
    """``ask`` a process to end, end it by force after so many seconds, and return when it has ended."""
    ask()
    try:
        async with asyncio.timeout(within):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def reap_orphans() -> None:
    """Reap every child that has ended: in a container, orphans of what process 1 started are children of process 1.

    To be called while nobody waits for the exit status of a child.
    """
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
