"""Keeps every resource registered with the kubelet, through restarts of the kubelet and the loss of sockets.

A kubelet that starts removes all sockets of its device plugin directory and makes its own anew, so its socket's inode
tells a new kubelet, and a plugin whose socket is gone serves on a new one. That is seen at once: the kubelet admits
its pods right afterwards, and fails for good those whose devices are not registered by then. A plugin that the kubelet
does not listen to although it registered does so again. A kubelet that never answers is asked at growing intervals.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import grpc

from gputile.gateway.directorywatch import DirectoryWatch
from gputile.agent.plugin import OPTIONS, SOCKET_PREFIX, Plugin
from gputile.agent.podresources import CLIENT_OPTIONS
from gputile.gateway.protocols import deviceplugin_v1beta1_pb2 as pb
from gputile.gateway.protocols import deviceplugin_v1beta1_pb2_grpc as rpc
from gputile.gateway.sockets import answers

log = logging.getLogger(__name__)

VERSION = "v1beta1"
KUBELET_SOCKET = "kubelet.sock"
LOOK_EVERY_S = 0.75
ANSWER_WITHIN_S = 5.0
HAND_OVER_WITHIN_S = 3.0
LOOK_FOR_OLDER_EVERY_S = 0.05
LISTEN_WITHIN_S = 5.0  # from registration to the kubelet's ListAndWatch
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 30.0  # the kubelet's socket is there a moment before anybody listens

Identity = tuple[int, int, int]


class Registrar:
    """Registers plugins with the kubelet of one device plugin directory.

    ``epoch`` is when a new kubelet was last seen, on the event loop's clock. When it is no longer ``in_charge``, what
    is served goes on and nothing is registered any more.
    """

    def __init__(self, directory: Path, in_charge: Callable[[], bool] = lambda: True) -> None:
        self.registered = asyncio.Event()
        self.epoch = 0.0
        self._directory = directory
        self._in_charge = in_charge
        self._stood_down = False
        self._plugins: dict[str, Plugin] = {}
        self._kubelet: Identity | None = None
        self._since: dict[str, float] = {}  # when each plugin registered with the present kubelet
        self._heard: set[str] = set()  # those that the kubelet listens to
        self._failures = 0
        self._next_try = 0.0

    async def sweep(self) -> None:
        """Wait until an older agent has let go of the kubelet, and remove the sockets that one which died has left."""
        for _ in range(int(HAND_OVER_WITHIN_S / LOOK_FOR_OLDER_EVERY_S)):
            left = list(self._directory.glob(f"{SOCKET_PREFIX}*.sock"))
            for path in left:
                if not answers(path):
                    path.unlink(missing_ok=True)
            if not any(path.exists() for path in left):
                return
            await asyncio.sleep(LOOK_FOR_OLDER_EVERY_S)

    async def run(self) -> None:
        """Look after all plugins until cancelled."""
        watch = DirectoryWatch(self._directory, _is_socket)
        try:
            while True:
                await self.look()
                pause = self._next_try - asyncio.get_running_loop().time()
                await watch.changed(pause if 0 < pause < LOOK_EVERY_S else LOOK_EVERY_S)
        finally:
            watch.close()
            await asyncio.gather(*(plugin.stop() for plugin in self._plugins.values()))

    async def add(self, plugin: Plugin) -> None:
        """Take another plugin in."""
        self._plugins[plugin.resource] = plugin

    async def remove(self, resource: str) -> None:
        """Let a plugin go: without its socket the kubelet counts the resource as gone."""
        plugin = self._plugins.pop(resource, None)
        self._since.pop(resource, None)
        if plugin is not None:
            await plugin.stop()

    async def look(self) -> None:
        """Do once whatever has to be done."""
        if not self._in_charge():
            if not self._stood_down:
                log.warning("a younger agent has taken over; this one serves no more")
                self._stood_down = True
                await asyncio.gather(*(plugin.stop() for plugin in self._plugins.values()))
            return
        now, identity = asyncio.get_running_loop().time(), _identity(self._directory / KUBELET_SOCKET)
        if identity != self._kubelet:
            self._kubelet, self.epoch = identity, now
            self._since.clear()
            self._failures, self._next_try = 0, 0.0
        for plugin in tuple(self._plugins.values()):
            if not plugin.there:
                self._since.pop(plugin.resource, None)
                await self._serve(plugin)
                self._heard.discard(plugin.resource)
            elif plugin.streams:
                self._heard.add(plugin.resource)
            elif plugin.resource in self._heard or now - self._since.get(plugin.resource, now) > LISTEN_WITHIN_S:
                log.warning("the kubelet does not listen to %s; registering again", plugin.resource)
                self._since.pop(plugin.resource, None)
                self._heard.discard(plugin.resource)
        if identity is None or now < self._next_try:
            return
        waiting = [p for p in self._plugins.values() if p.there and p.resource not in self._since]
        if waiting:
            await self._register(waiting, now)
        if self._plugins and len(self._since) == len(self._plugins):
            self.registered.set()

    async def _serve(self, plugin: Plugin) -> None:
        if not self._directory.is_dir():
            return
        try:
            await plugin.start()
        except (OSError, RuntimeError) as error:  # gRPC's word for a socket that cannot be made
            log.error("cannot serve %s: %s", plugin.resource, error)
            await plugin.stop()

    async def _register(self, plugins: list[Plugin], now: float) -> None:
        target = f"unix:{self._directory / KUBELET_SOCKET}"
        async with grpc.aio.insecure_channel(target, options=CLIENT_OPTIONS) as channel:
            stub = rpc.RegistrationStub(channel)
            for plugin in plugins:
                request = pb.RegisterRequest(
                    version=VERSION, endpoint=plugin.endpoint, resource_name=plugin.resource, options=OPTIONS
                )
                try:
                    await stub.Register(request, timeout=ANSWER_WITHIN_S)
                except grpc.aio.AioRpcError as error:
                    self._failures += 1
                    pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (self._failures - 1))
                    self._next_try = now + pause
                    details = error.details()
                    log.warning("the kubelet does not take %s: %s; again in %s s", plugin.resource, details, pause)
                    return
                self._since[plugin.resource] = asyncio.get_running_loop().time()
                log.info("registered %s", plugin.resource)
        self._failures = 0


def _is_socket(name: str) -> bool:
    return name == KUBELET_SOCKET or name.startswith(SOCKET_PREFIX)


def _identity(path: Path) -> Identity | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_ctime_ns
