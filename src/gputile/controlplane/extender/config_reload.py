"""One extender after another: a changed configuration is taken in by a new one, built from the API server alone.

What a pod asks, who may share a card and how many pods it takes all hang on the configuration, so nothing that was
computed under the old one is kept. While one follows the other, kube-scheduler is told to try again, and no Binding is
under way: the new one lists the cluster with everything that the old one wrote.
"""

import asyncio
import contextlib
import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from gputile.api.config.v1alpha1 import Configuration


class ExtenderInstance(Protocol):
    """What serves for as long as one configuration is in force."""

    app: Starlette

    def running(self) -> AbstractAsyncContextManager[None]:
        """Do everything that goes on beside answering."""


class ConfigReloader:
    """The ASGI application of whoever is in office; ``build`` makes the next one."""

    def __init__(self, build: Callable[[Configuration], ExtenderInstance], configuration: Configuration) -> None:
        self._build = build
        self._configuration = configuration
        self._current: ExtenderInstance | None = None
        self._asked = 0
        self._nobody_asks = asyncio.Event()
        self._nobody_asks.set()
        self._change = asyncio.Event()
        self._stopping = False

    def take(self, configuration: Configuration) -> None:
        """Let one with this configuration follow the one in office."""
        self._configuration = configuration
        self._change.set()

    def stop(self) -> None:
        """Let ``run`` return when what is under way has ended."""
        self._stopping = True
        self._change.set()

    async def run(self) -> None:
        """Keep somebody in office until ``stop``."""
        while not self._stopping:
            self._change.clear()
            current = self._build(self._configuration)
            async with current.running():
                self._current = current
                await self._change.wait()
                self._current = None
                await self._nobody_asks.wait()
            # What it has seen of the cluster goes with it: it was frozen, and its parts refer to each other.
            del current
            gc.unfreeze()
            gc.collect()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        current = self._current
        if current is None:
            alive = scope.get("path") == "/healthz"  # the kubelet would end what only waits
            await PlainTextResponse("one configuration follows another", 200 if alive else 503)(scope, receive, send)
            return
        with self._asking():
            await current.app(scope, receive, send)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        self._asked += 1
        self._nobody_asks.clear()
        try:
            yield
        finally:
            self._asked -= 1
            if not self._asked:
                self._nobody_asks.set()
