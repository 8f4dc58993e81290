"""Replaces a component's instance when its configuration changes.

The next one is built from the API server alone.

What a pod asks, who may share a GPU and how many pods it takes all depend on the configuration, so nothing that was
computed under the old one is kept. Between two instances callers are told to try again, and no request is
under way: the new instance lists the cluster with everything that the old one wrote.
"""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from gputile.api.config.v1alpha1 import Configuration
from gputile.support.config_file import ConfigFile
from gputile.support.monitoring import MONITORING_PATHS


class Instance(Protocol):
    """A component's parts for as long as one configuration is in force."""

    @property
    def app(self) -> Starlette:
        """Answers requests."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """Do everything that goes on beside answering."""


class ConfigReloader:
    """The ASGI application of the current instance.

    ``build`` makes an instance; ``path`` is the file that its configuration is from, which is followed, None for none.
    """

    def __init__(
        self, build: Callable[[Configuration], Instance], configuration: Configuration, path: Path | None = None
    ) -> None:
        self._build = build
        self._configuration = configuration
        self._file = ConfigFile(path, configuration, self.take)
        self._current: Instance | None = None
        self._requests = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._change = asyncio.Event()
        self._stopping = False

    def take(self, configuration: Configuration) -> None:
        """Replace the current instance by one with this configuration."""
        self._configuration = configuration
        self._change.set()

    def stop(self) -> None:
        """Let ``run`` return when what is under way has ended."""
        self._stopping = True
        self._change.set()

    async def run(self) -> None:
        """Run one instance after another until ``stop``."""
        async with background([self._file.run()]):
            while not self._stopping:
                self._change.clear()
                instance = self._build(self._configuration)
                async with instance.running():
                    self._current = instance
                    await self._change.wait()
                    self._current = None
                    await self._idle.wait()
                # What it has seen of the cluster goes with it: it was frozen, and its parts refer to each other.
                del instance
                await asyncio.sleep(0)  # the event loop lets go of its tasks
                gc.unfreeze()
                gc.collect()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        instance, path = self._current, scope.get("path")
        if instance is None:
            alive = path == "/healthz"  # the kubelet would end what only waits
            await PlainTextResponse("one configuration follows another", 200 if alive else 503)(scope, receive, send)
        elif path in MONITORING_PATHS:  # whoever reads these slowly, or not at all, must not hold up the next instance
            await instance.app(scope, receive, send)
        else:
            with self._counted():
                await instance.app(scope, receive, send)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self._requests += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests:
                self._idle.set()


@contextlib.asynccontextmanager
async def background(work: Iterable[Coroutine[Any, Any, Any]]) -> AsyncIterator[None]:
    """Do all this for as long as the context lasts; an error in any of it ends the context and all the others."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in work]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
