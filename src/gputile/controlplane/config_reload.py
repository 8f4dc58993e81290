"""Replaces a component's instance when its configuration changes.

The next one is built from the API server alone.

What a pod asks, who may share a GPU and how many pods it takes all depend on the configuration, so nothing that was
computed under the old one is kept. Between two instances callers are told to try again, and no request is
under way: the new instance lists the cluster with everything that the old one wrote.
"""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from gputile.api.config.v1alpha1 import Configuration
from gputile.support.config_file import ConfigFile
from gputile.support.http_server import Handler


class Instance(Protocol):
    """A component's parts for as long as one configuration is in force."""

    @property
    def app(self) -> Handler:
        """Answers requests."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """Do everything that goes on beside answering."""


class ConfigReloader:
    """Answers requests by the current instance.

    ``build`` makes an instance; ``path`` is the file that its configuration is from, which is followed, None for none.
    """

    def __init__(
        self, build: Callable[[Configuration], Instance], configuration: Configuration, path: Path | None = None
    ) -> None:
        self._build = build
        self._configuration = configuration
        self._file = ConfigFile(path, configuration, self.configure)
        self._current: Instance | None = None
        self._requests = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._change = asyncio.Event()
        self._stopping = False

    def configure(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._change.set()

    def stop(self) -> None:
        self._stopping = True
        self._change.set()

    async def run(self) -> None:
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

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request. Sending the answer is not waited for: a client may take it slowly, or not at all."""
        instance = self._current
        if instance is None:
            status = 200 if request.path == "/healthz" else 503  # the kubelet would end what only waits
            return web.Response(status=status, text="one configuration follows another")
        self._requests += 1
        self._idle.clear()
        try:
            return await instance.app(request)
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
