"""Keeps the resources registered with the kubelet, even when the kubelet restarts.

A kubelet that starts removes all sockets from its device plugin directory, so each plugin must
create a new socket. The kubelet then creates its own socket, whose inode identifies this kubelet.
A kubelet that has restarted admits pods at once, and permanently fails pods whose resource is not
yet registered. So inotify(7) reports the kubelet's start without delay. A plugin registers again if
the kubelet does not open a ListAndWatch stream. Registration is retried at growing intervals if the
kubelet does not answer.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import grpc

from gputile.api.quantity import MIB
from gputile.node.gateway.link import has_listener
from gputile.node.gateway.plugins import SOCKET_PREFIX, Forward, Plugin

log = logging.getLogger(__name__)

KUBELET_SOCKET = "kubelet.sock"
CLIENT_OPTIONS = (
    # Strict servers reject gRPC's default, which is the percent-encoded path of the socket.
    ("grpc.default_authority", "localhost"),
    # DefaultMaxMsgSize, the kubelet's own limit for PodResources
    ("grpc.max_receive_message_length", 16 * MIB),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),  # connect at once to a kubelet that has restarted
)
RECONCILE_EVERY_S = 1.5
HAND_OVER_TIMEOUT_S = 3.0
HAND_OVER_POLL_S = 0.05
LISTEN_TIMEOUT_S = 5.0  # from registration to the kubelet's ListAndWatch
FIRST_PAUSE_S = 0.05  # the kubelet creates its socket a moment before it accepts connections
LONGEST_PAUSE_S = 30.0


class Registrar:
    """Registers resources with the kubelet of one device plugin directory, and serves them.

    ``advertise`` only records what to serve. ``reconcile`` starts and stops the servers. It
    must be called again after ``pause`` seconds, or when sockets change. ``epoch`` is the time on
    the event loop's clock when the current kubelet was first seen. ``on_change`` is called when
    ``epoch`` or ``listening`` changes.
    """

    def __init__(
        self, directory: Path, forward: Forward, on_change: Callable[[], None] = lambda: None
    ) -> None:
        self.epoch = 0.0
        self._directory = directory
        self._forward = forward
        self._on_change = on_change
        self._plugins: dict[str, Plugin] = {}
        self._withdrawn: list[Plugin] = []
        self._kubelet: tuple[int, int, int] | None = None
        self._pause = 0.0  # the pause after a failed registration, or 0 after a success
        self._next_try = 0.0

    @property
    def registered(self) -> bool:
        """Whether the kubelet has registered all resources. False if there are no resources."""
        return bool(self._plugins) and all(
            plugin.registered_at is not None for plugin in self._plugins.values()
        )

    @property
    def listening(self) -> bool:
        """Whether the kubelet has an open ListAndWatch stream for each resource."""
        return bool(self._plugins) and all(plugin.streams for plugin in self._plugins.values())

    @property
    def pause(self) -> float:
        left = self._next_try - asyncio.get_running_loop().time()
        return left if 0 < left < RECONCILE_EVERY_S else RECONCILE_EVERY_S

    def has_others(self) -> bool:
        """Return whether another gateway serves the kubelet."""
        own = {plugin.path for plugin in self._plugins.values()}
        found = self._directory.glob(f"{SOCKET_PREFIX}*.sock")
        return any(path not in own and has_listener(path) for path in found)

    async def sweep(self) -> None:
        """Remove the sockets of ended gateways. Wait until older gateways remove their sockets."""
        for _ in range(int(HAND_OVER_TIMEOUT_S / HAND_OVER_POLL_S)):
            left = list(self._directory.glob(f"{SOCKET_PREFIX}*.sock"))
            for path in left:
                if not has_listener(path):
                    path.unlink(missing_ok=True)
            if not any(path.exists() for path in left):
                return
            await asyncio.sleep(HAND_OVER_POLL_S)

    def advertise(self, resources: Sequence[str], changed: Mapping[str, bytes]) -> None:
        """Serve exactly ``resources`` from the next ``reconcile`` on.

        ``changed`` is the new ListAndWatchResponse of each resource whose devices have changed.
        """
        self._withdrawn += [
            self._plugins.pop(name) for name in self._plugins.keys() - set(resources)
        ]
        for resource in resources:
            if resource not in self._plugins:
                self._plugins[resource] = Plugin(resource, self._forward, self._on_change)
            if resource in changed:
                self._plugins[resource].announce(changed[resource])

    async def stop(self) -> None:
        """Stop serving all resources until they are advertised again."""
        self.advertise((), {})
        await self._stop_withdrawn()

    async def reconcile(self) -> None:
        await self._stop_withdrawn()
        now = asyncio.get_running_loop().time()
        kubelet = _identity(self._directory / KUBELET_SOCKET)
        if kubelet != self._kubelet:
            self._kubelet, self.epoch = kubelet, now
            for plugin in self._plugins.values():
                plugin.registered_at = None
            self._pause = self._next_try = 0.0
            self._on_change()
        if self._directory.is_dir():
            lost = [plugin for plugin in self._plugins.values() if not plugin.exists]
            await asyncio.gather(*(plugin.start(self._directory) for plugin in lost))
        for plugin in self._plugins.values():
            registered_at = plugin.registered_at
            if (
                registered_at is not None
                and not plugin.streams
                and now - registered_at > LISTEN_TIMEOUT_S
            ):
                log.warning("registering %s again: the kubelet does not watch it", plugin.subject)
                plugin.registered_at = None
        unregistered = [p for p in self._plugins.values() if p.exists and p.registered_at is None]
        if unregistered and kubelet is not None and now >= self._next_try:
            await self._register(unregistered, now)

    async def _stop_withdrawn(self) -> None:
        """Close the sockets of withdrawn resources, so that the kubelet removes their devices."""
        withdrawn, self._withdrawn = self._withdrawn, []
        await asyncio.gather(*(plugin.stop() for plugin in withdrawn))

    async def _register(self, plugins: Sequence[Plugin], now: float) -> None:
        target = f"unix:{self._directory / KUBELET_SOCKET}"
        async with grpc.aio.insecure_channel(target, options=CLIENT_OPTIONS) as channel:
            problems = await asyncio.gather(*(plugin.register(channel) for plugin in plugins))
        results = zip(plugins, problems, strict=True)
        failed = [(plugin.subject, problem) for plugin, problem in results if problem]
        if not failed:
            self._pause = 0.0
            return
        self._pause = min(2 * self._pause or FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._next_try = now + self._pause
        resource, problem = failed[0]
        log.warning(
            "the kubelet does not register %s: %s. The next attempt is in %s s",
            resource,
            problem,
            self._pause,
        )


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_ctime_ns


_IN_MOVED_TO, _IN_CREATE, _IN_DELETE, _IN_ONLYDIR = 0x80, 0x100, 0x200, 0x01000000
_WATCHED = _IN_MOVED_TO | _IN_CREATE | _IN_DELETE | _IN_ONLYDIR


class SocketWatch:
    """Watches a directory for created and removed sockets.

    If the directory cannot be watched, ``changed`` always waits until its timeout.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._changed = asyncio.Event()
        self.libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = -1

    async def changed(self, within: float) -> None:
        """Wait for a change or a call of ``wake``, for at most ``within`` seconds."""
        self._watch()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._changed.wait()
        self._changed.clear()

    def wake(self) -> None:
        self._changed.set()

    def close(self) -> None:
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _watch(self) -> None:
        if self._descriptor < 0:
            self._descriptor = self.libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if self._descriptor < 0:
                log.warning("cannot watch %s: %s", self._directory, os.strerror(ctypes.get_errno()))
                return
            asyncio.get_running_loop().add_reader(self._descriptor, self._read)
        # Adding the watch again has an effect only if the directory was recreated.
        self.libc.inotify_add_watch(self._descriptor, os.fsencode(self._directory), _WATCHED)

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            os.read(self._descriptor, 64 * 1024)
        self._changed.set()
