"""Replaces a component's instance when its configuration changes.

The GPU requests of pods, trust groups and the number of pods per GPU depend on the configuration.
So nothing that was computed with the old configuration is reused, and the new instance lists the
cluster. The old instance answers its pending HTTP requests before the new instance starts. So the
new instance sees everything that the old one wrote. In between, new requests are answered with 503.
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
    """A component that runs with one configuration."""

    @property
    def app(self) -> Handler:
        """The handler of HTTP requests."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """Run the background work of the instance."""


class ConfigReloader:
    """Passes requests to the current instance, and replaces it when the configuration changes.

    ``build`` creates an instance. ``path`` is the configuration file to watch, or None.
    """

    def __init__(
        self,
        build: Callable[[Configuration], Instance],
        configuration: Configuration,
        path: Path | None = None,
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
                # Free the instance's objects, which have reference cycles and were excluded from
                # garbage collection.
                del instance
                await asyncio.sleep(0)  # lets the event loop drop the instance's tasks
                gc.unfreeze()
                gc.collect()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Pass a request to the current instance, or answer 503 between two instances.

        A request counts as finished once its response is ready. So a client that reads the response
        slowly does not delay the next instance.
        """
        instance = self._current
        if instance is None:
            # After a failed liveness probe, the kubelet would restart the container.
            status = 200 if request.path == "/healthz" else 503
            return web.Response(status=status, text="the configuration is being reloaded")
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
    """Run coroutines during a ``with`` block. If one fails, cancel the others and the block."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in work]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
