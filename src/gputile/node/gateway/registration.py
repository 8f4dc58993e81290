"""Keeps every resource registered with the kubelet through its restarts and the loss of sockets.

A kubelet that starts removes all sockets of its device plugin directory and makes its own anew, so its socket's inode
tells a new kubelet, and a plugin whose socket is gone serves on a new one. That is seen at once: the kubelet admits
its pods right afterwards, and fails for good those whose devices are not registered by then. A plugin that the kubelet
does not listen to although it registered does so again. A kubelet that never answers is asked at growing intervals.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import grpc

from gputile.node.gateway.plugin import OPTIONS, SOCKET_PREFIX, Carry, Plugin
from gputile.node.gateway.pod_resources import CLIENT_OPTIONS
from gputile.node.gateway.protocols import deviceplugin_v1beta1_pb2 as pb
from gputile.node.gateway.sockets import DirectoryWatch, answers

log = logging.getLogger(__name__)

VERSION = "v1beta1"
REGISTER = f"/{VERSION}.Registration/Register"
KUBELET_SOCKET = "kubelet.sock"
LOOK_EVERY_S = 1.5
ANSWER_WITHIN_S = 5.0
HAND_OVER_WITHIN_S = 3.0
LOOK_FOR_OLDER_EVERY_S = 0.05
LISTEN_WITHIN_S = 5.0  # from registration to the kubelet's ListAndWatch
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 30.0  # the kubelet's socket is there a moment before anybody listens

Identity = tuple[int, int, int]


class Registrar:
    """Registers resources with the kubelet of one device plugin directory, and has them served.

    ``registered`` says whether the kubelet has taken all of them, ``epoch`` when a new kubelet was last seen, on the
    event loop's clock; ``changed`` is called when either is another. When it is no longer ``in_charge`` it lets go of
    the kubelet, and has ``stood_down``.
    """

    def __init__(
        self,
        directory: Path,
        carry: Carry,
        in_charge: Callable[[], bool] = lambda: True,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.registered = False
        self.epoch = 0.0
        self.stood_down = False
        self._directory = directory
        self._carry = carry
        self._in_charge = in_charge
        self._changed = changed
        self._plugins: dict[str, Plugin] = {}
        self._kubelet: Identity | None = None
        self._since: dict[str, float] = {}  # when each plugin registered with the present kubelet
        self._listened_to: set[str] = set()  # those that the kubelet listens to
        self._failures = 0
        self._next_try = 0.0
        self._watch = DirectoryWatch(directory, _is_socket)

    async def sweep(self) -> None:
        """Wait until an older gateway has let go of the kubelet, and remove the sockets of one that has died."""
        for _ in range(int(HAND_OVER_WITHIN_S / LOOK_FOR_OLDER_EVERY_S)):
            left = list(self._directory.glob(f"{SOCKET_PREFIX}*.sock"))
            for path in left:
                if not answers(path):
                    path.unlink(missing_ok=True)
            if not any(path.exists() for path in left):
                return
            await asyncio.sleep(LOOK_FOR_OLDER_EVERY_S)

    @property
    def listening(self) -> bool:
        return bool(self._plugins) and all(plugin.streams for plugin in self._plugins.values())

    def others(self) -> bool:
        own = {plugin.endpoint for plugin in self._plugins.values()}
        found = self._directory.glob(f"{SOCKET_PREFIX}*.sock")
        return any(path.name not in own and answers(path) for path in found)

    async def run(self) -> None:
        try:
            while True:
                await self.look()
                pause = self._next_try - asyncio.get_running_loop().time()
                await self._watch.changed(pause if 0 < pause < LOOK_EVERY_S else LOOK_EVERY_S)
        finally:
            self._watch.close()
            await self._stop(list(self._plugins))

    async def advertise(self, resources: Sequence[str], changed: Mapping[str, bytes]) -> None:
        """Serve just these ``resources``, those that ``changed`` with this ListAndWatchResponse."""
        # Without its socket the kubelet counts a resource as gone.
        await self._stop([resource for resource in self._plugins if resource not in resources])
        for resource in resources:
            devices = changed.get(resource)
            if resource not in self._plugins:
                self._plugins[resource] = Plugin(resource, self._directory, devices or b"", self._carry, self._changed)
                self._watch.wake()
            elif devices is not None:
                self._plugins[resource].announce(devices)

    async def let_go(self) -> None:
        """Serve nothing any more, until something is offered anew."""
        self.registered = False
        await self._stop(list(self._plugins))

    async def look(self) -> None:
        if not self._in_charge():
            if not self.stood_down:
                log.warning("a younger gateway has taken over; this one serves no more")
                self.stood_down = True
                await asyncio.gather(*(plugin.stop() for plugin in self._plugins.values()))
            return
        now, identity = asyncio.get_running_loop().time(), _identity(self._directory / KUBELET_SOCKET)
        if identity != self._kubelet:
            self._kubelet, self.epoch = identity, now
            self._since.clear()
            self._failures, self._next_try = 0, 0.0
            self._changed()
        await asyncio.gather(*(self._serve(p) for p in tuple(self._plugins.values()) if not p.there))
        for plugin in self._plugins.values():
            self._listen(plugin, now)
        if identity is None or now < self._next_try:
            return
        waiting = [p for p in self._plugins.values() if p.there and p.resource not in self._since]
        if waiting:
            await self._register(waiting, now)
        registered = bool(self._plugins) and len(self._since) == len(self._plugins)
        if registered and not self.registered:
            self.registered = True
            self._changed()

    def _listen(self, plugin: Plugin, now: float) -> None:
        if plugin.streams:
            self._listened_to.add(plugin.resource)
        elif plugin.resource in self._listened_to or now - self._since.get(plugin.resource, now) > LISTEN_WITHIN_S:
            log.warning("the kubelet does not listen to %s; registering again", plugin.resource)
            self._since.pop(plugin.resource, None)
            self._listened_to.discard(plugin.resource)

    async def _serve(self, plugin: Plugin) -> None:
        self._since.pop(plugin.resource, None)
        self._listened_to.discard(plugin.resource)
        if not self._directory.is_dir():
            return
        try:
            await plugin.start()
        except (OSError, RuntimeError) as error:  # gRPC's word for a socket that cannot be made
            log.error("cannot serve %s: %s", plugin.resource, error)
            await plugin.stop()
        if self._plugins.get(plugin.resource) is not plugin:
            await plugin.stop()  # it is offered no more since

    async def _stop(self, resources: Sequence[str]) -> None:
        gone = [self._plugins.pop(resource) for resource in resources]
        for resource in resources:
            self._since.pop(resource, None)
            self._listened_to.discard(resource)
        await asyncio.gather(*(plugin.stop() for plugin in gone))

    async def _register(self, plugins: Sequence[Plugin], now: float) -> None:
        target = f"unix:{self._directory / KUBELET_SOCKET}"
        async with grpc.aio.insecure_channel(target, options=CLIENT_OPTIONS) as channel:
            problems = await asyncio.gather(*(self._register_one(channel, plugin) for plugin in plugins))
        failed = {p.resource: problem for p, problem in zip(plugins, problems, strict=True) if problem is not None}
        if not failed:
            self._failures = 0
            return
        self._failures += 1
        pause = pause_after(self._failures)
        self._next_try = now + pause
        resource, problem = next(iter(failed.items()))
        log.warning("the kubelet does not take %s: %s; again in %s s", resource, problem, pause)

    async def _register_one(self, channel: grpc.aio.Channel, plugin: Plugin) -> str | None:
        """Register one plugin; return why that failed, None if it did not."""
        request = pb.RegisterRequest(
            version=VERSION, endpoint=plugin.endpoint, resource_name=plugin.resource, options=OPTIONS
        )
        register: grpc.aio.UnaryUnaryMultiCallable[pb.RegisterRequest, pb.Empty]
        register = channel.unary_unary(REGISTER, pb.RegisterRequest.SerializeToString, pb.Empty.FromString)
        try:
            await register(request, timeout=ANSWER_WITHIN_S)
        except grpc.aio.AioRpcError as error:
            return error.details() or error.code().name
        if self._plugins.get(plugin.resource) is plugin:
            self._since[plugin.resource] = asyncio.get_running_loop().time()
            log.info("registered %s", plugin.resource)
        return None


def pause_after(failures: int) -> float:
    """Return for how many seconds to wait after so many failures in a row, which may go on for days."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 30))


def _is_socket(name: str) -> bool:
    return name == KUBELET_SOCKET or name.startswith(SOCKET_PREFIX)


def _identity(path: Path) -> Identity | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_ctime_ns
