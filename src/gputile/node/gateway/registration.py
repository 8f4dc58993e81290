"""Keeps every resource registered with the kubelet through its restarts and the loss of sockets.

A kubelet that starts removes all sockets of its device plugin directory and makes its own anew, so its socket's inode
tells a new kubelet, and a plugin whose socket is gone serves on a new one. inotify(7) tells that at once: the kubelet
admits its pods right afterwards, and fails for good those whose devices are not registered by then. A plugin that the
kubelet does not listen to although it registered does so again. A kubelet that never answers is asked at growing
intervals.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import secrets
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path

import grpc

from gputile.api.quantity import MIB
from gputile.node.gateway.link import answers
from gputile.node.gateway.protocols import deviceplugin_v1beta1_pb2 as pb

log = logging.getLogger(__name__)

VERSION = "v1beta1"
SERVICE = f"{VERSION}.DevicePlugin"
REGISTER = f"/{VERSION}.Registration/Register"
RELAYED = ("GetPreferredAllocation", "Allocate", "PreStartContainer")
OPTIONS = pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)
KUBELET_SOCKET = "kubelet.sock"
SOCKET_PREFIX = "gputile-"
CLIENT_OPTIONS = (
    ("grpc.default_authority", "localhost"),  # the socket's path, percent-encoded, is refused by strict servers
    ("grpc.max_receive_message_length", 16 * MIB),  # the kubelet's own limit for PodResources: DefaultMaxMsgSize
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 16 * MIB),  # GetPreferredAllocation can name each device twice
)
LOOK_EVERY_S = 1.5
ANSWER_WITHIN_S = 5.0
LAST_ANSWERS_WITHIN_S = 1.0
HAND_OVER_WITHIN_S = 3.0
LOOK_FOR_OLDER_EVERY_S = 0.05
LISTEN_WITHIN_S = 5.0  # from registration to the kubelet's ListAndWatch
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 30.0  # the kubelet's socket is there a moment before anybody listens

Carry = Callable[[str, str, bytes], Awaitable[bytes]]
"""Carries a call to the agent: method, resource and request in, the answer out; it raises RefusedError."""
Context = grpc.aio.ServicerContext[bytes, bytes]
Identity = tuple[int, int, int]


class RefusedError(Exception):
    """The kubelet's call fails, with a gRPC status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


class Plugin:
    """Serves one resource to the kubelet: a gRPC server on a socket of its own, since no call names the resource.

    The socket's name is never used twice: a server that stops gracefully removes its socket's name, also when another
    server has taken it over by then. What the kubelet says and hears goes through as bytes.

    ``streams`` counts the kubelets that listen: none means that nobody knows this resource. ``on_listen`` is called
    when one begins to. ``registered_at`` is when the present kubelet took this socket, on the event loop's clock.
    """

    def __init__(
        self, resource: str, directory: Path, devices: bytes, carry: Carry, on_listen: Callable[[], None] = lambda: None
    ) -> None:
        self.resource = resource
        self.streams = 0
        self.registered_at: float | None = None
        self._was_heard = False
        self._directory = directory
        self._devices = devices
        self._carry = carry
        self._on_listen = on_listen
        self._changed = asyncio.Event()
        self._stopping = False
        self._server: grpc.aio.Server | None = None
        self._socket: Path | None = None

    @property
    def endpoint(self) -> str:
        return self._socket.name if self._socket else ""

    @property
    def there(self) -> bool:
        """Whether the socket can be found: the kubelet removes all sockets when it starts."""
        return self._socket is not None and self._socket.exists()

    async def start(self) -> None:
        await self.stop()
        name = self.resource.rpartition("/")[2].replace("+", ".")
        self._socket = self._directory / f"{SOCKET_PREFIX}{name}-{secrets.token_hex(3)}.sock"
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        relayed: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            name: grpc.unary_unary_rpc_method_handler(partial(self._relay, name)) for name in RELAYED
        }
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(self._options),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch),
            **relayed,
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        self._server.add_insecure_port(f"unix:{self._socket}")
        await _completed(self._server.start())

    async def stop(self) -> None:
        server, self._server, self._socket = self._server, None, None
        self.registered_at, self._was_heard = None, False
        if server is not None:
            self._stopping = True
            self._wake_streams()
            try:
                await _completed(server.stop(grace=LAST_ANSWERS_WITHIN_S))
            finally:
                self._stopping = False

    def announce(self, devices: bytes) -> None:
        """Tell the kubelet of a new list of devices, a ListAndWatchResponse."""
        self._devices = devices
        self._wake_streams()

    def check_listening(self, now: float) -> None:
        """Register again if the kubelet does not listen any more, or never began to."""
        if self.streams:
            self._was_heard = True
            return
        overdue = self.registered_at is not None and now - self.registered_at > LISTEN_WITHIN_S
        if self._was_heard or overdue:
            log.warning("the kubelet does not listen to %s; registering again", self.resource)
            self.registered_at, self._was_heard = None, False

    async def register(self, kubelet: grpc.aio.Channel) -> str | None:
        """Register with the kubelet; return why that failed, None if it did not."""
        request = pb.RegisterRequest(
            version=VERSION, endpoint=self.endpoint, resource_name=self.resource, options=OPTIONS
        )
        register: grpc.aio.UnaryUnaryMultiCallable[pb.RegisterRequest, pb.Empty]
        register = kubelet.unary_unary(REGISTER, pb.RegisterRequest.SerializeToString, pb.Empty.FromString)
        try:
            await register(request, timeout=ANSWER_WITHIN_S)
        except grpc.aio.AioRpcError as error:
            return error.details() or error.code().name
        if request.endpoint == self.endpoint:  # not stopped meanwhile
            self.registered_at = asyncio.get_running_loop().time()
            log.info("registered %s", self.resource)
        return None

    def _wake_streams(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # -- v1beta1.DevicePlugin

    async def _options(self, request: bytes, context: Context) -> bytes:  # noqa: ARG002 - gRPC's signature, as below
        return OPTIONS.SerializeToString()

    async def _list_and_watch(self, request: bytes, context: Context) -> AsyncIterator[bytes]:  # noqa: ARG002
        sent: bytes | None = None
        self.streams += 1
        self._on_listen()
        try:
            while not self._stopping:
                changed, devices = self._changed, self._devices
                if devices != sent:
                    yield devices
                    sent = devices
                await changed.wait()
        finally:
            self.streams -= 1

    async def _relay(self, method: str, request: bytes, context: Context) -> bytes:
        try:
            return await self._carry(method, self.resource, request)
        except RefusedError as error:
            await context.abort(error.code, str(error))


async def _completed(work: Coroutine[None, None, None]) -> None:
    """Finish what a cancellation must not leave half done: such a server keeps its socket, and cannot be stopped."""
    doing = asyncio.ensure_future(work)
    try:
        await asyncio.shield(doing)
    except asyncio.CancelledError:
        await doing
        raise


class Registrar:
    """Registers resources with the kubelet of one device plugin directory, and serves them.

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
        self._pause = 0.0  # after the last try to register, which failed; 0 if it did not
        self._next_try = 0.0
        self._watch = SocketWatch(directory)

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
        """Return whether another gateway serves the kubelet."""
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
            await self._remove(list(self._plugins))

    async def advertise(self, resources: Sequence[str], changed: Mapping[str, bytes]) -> None:
        """Serve just these ``resources``, those that ``changed`` with this ListAndWatchResponse."""
        # Without its socket the kubelet counts a resource as gone.
        await self._remove([resource for resource in self._plugins if resource not in resources])
        for resource in resources:
            devices = changed.get(resource)
            if resource not in self._plugins:
                self._plugins[resource] = Plugin(resource, self._directory, devices or b"", self._carry, self._changed)
                self._watch.wake()
            elif devices is not None:
                self._plugins[resource].announce(devices)

    async def let_go(self) -> None:
        """Serve nothing any more, until something is advertised anew."""
        self.registered = False
        await self._remove(list(self._plugins))

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
            for plugin in self._plugins.values():
                plugin.registered_at = None
            self._pause = self._next_try = 0.0
            self._changed()
        await asyncio.gather(*(self._serve(p) for p in tuple(self._plugins.values()) if not p.there))
        for plugin in self._plugins.values():
            plugin.check_listening(now)
        if identity is None or now < self._next_try:
            return
        waiting = [p for p in self._plugins.values() if p.there and p.registered_at is None]
        if waiting:
            await self._register(waiting, now)
        plugins = self._plugins.values()
        if plugins and not self.registered and all(p.registered_at is not None for p in plugins):
            self.registered = True
            self._changed()

    async def _serve(self, plugin: Plugin) -> None:
        plugin.registered_at = None
        if not self._directory.is_dir():
            return
        try:
            await plugin.start()
        except (OSError, RuntimeError) as error:  # gRPC's word for a socket that cannot be made
            log.error("cannot serve %s: %s", plugin.resource, error)
            await plugin.stop()
        if self._plugins.get(plugin.resource) is not plugin:
            await plugin.stop()  # no longer advertised

    async def _remove(self, resources: Sequence[str]) -> None:
        await asyncio.gather(*(plugin.stop() for plugin in [self._plugins.pop(name) for name in resources]))

    async def _register(self, plugins: Sequence[Plugin], now: float) -> None:
        target = f"unix:{self._directory / KUBELET_SOCKET}"
        async with grpc.aio.insecure_channel(target, options=CLIENT_OPTIONS) as channel:
            problems = await asyncio.gather(*(plugin.register(channel) for plugin in plugins))
        failed = {p.resource: problem for p, problem in zip(plugins, problems, strict=True) if problem is not None}
        if not failed:
            self._pause = 0.0
            return
        self._pause = min(2 * self._pause or FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._next_try = now + self._pause
        resource, problem = next(iter(failed.items()))
        log.warning("the kubelet does not take %s: %s; again in %s s", resource, problem, self._pause)


def _identity(path: Path) -> Identity | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_ctime_ns


_IN_MOVED_TO, _IN_CREATE, _IN_DELETE, _IN_ONLYDIR, _IN_IGNORED = 0x80, 0x100, 0x200, 0x01000000, 0x8000
_HEADER = struct.Struct("iIII")  # struct inotify_event: watch, mask, cookie, length of the name


class SocketWatch:
    """Watches a directory for the sockets of kubelet and plugins. Where that fails, waiting is just waiting."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._changed = asyncio.Event()
        self.libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = -1
        self._watching = False

    async def changed(self, within: float) -> None:
        """Wait for a change, for at most so many seconds."""
        if not self._watching:
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
        self._watching = False

    def _watch(self) -> None:
        if self._descriptor < 0:
            self._descriptor = self.libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if self._descriptor < 0:
                log.warning("cannot watch %s: %s", self._directory, os.strerror(ctypes.get_errno()))
                return
            asyncio.get_running_loop().add_reader(self._descriptor, self._read)
        mask = _IN_MOVED_TO | _IN_CREATE | _IN_DELETE | _IN_ONLYDIR
        watch = self.libc.inotify_add_watch(self._descriptor, os.fsencode(self._directory), mask)
        self._watching = watch >= 0

    def _read(self) -> None:
        try:
            content = os.read(self._descriptor, 64 * 1024)
        except OSError:
            return
        while content:
            _, mask, _, length = _HEADER.unpack_from(content)
            name = os.fsdecode(content[_HEADER.size : _HEADER.size + length].rstrip(b"\0"))
            content = content[_HEADER.size + length :]
            if mask & _IN_IGNORED:  # the directory itself is gone
                self._watching = False
            if mask & _IN_IGNORED or name == KUBELET_SOCKET or name.startswith(SOCKET_PREFIX):
                self._changed.set()
