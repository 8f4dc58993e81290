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
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

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
    ("grpc.max_reconnect_backoff_ms", 100),  # a kubelet that has restarted is asked at once
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
Handlers: TypeAlias = "dict[str, grpc.RpcMethodHandler[bytes, bytes]]"
Identity = tuple[int, int, int]


class RefusedError(Exception):
    """The kubelet's call fails, with a gRPC status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


class KubeletSocket:
    """A gRPC server for the kubelet, which carries calls to the agent as bytes and streams the latest ``message``.

    It has a socket for each ``subject``, since few calls name the resource. The socket's name is never used twice: a
    server that stops gracefully removes its socket's name, also when another server has taken it over by then.

    ``streams`` counts the kubelets that listen; ``on_listen`` is called when one begins to.
    """

    def __init__(self, subject: str, carry: Carry, on_listen: Callable[[], None] = lambda: None) -> None:
        self.subject = subject
        self.path: Path | None = None
        self.streams = 0
        self._carry = carry
        self._on_listen = on_listen
        self._message = b""
        self._changed = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    @property
    def there(self) -> bool:
        """Whether the socket can be found: the kubelet removes all sockets when it starts."""
        return self.path is not None and self.path.exists()

    async def serve_on(self, path: Path, services: Mapping[str, Handlers]) -> None:
        """Serve anew on a socket ``path``; nothing is served where it cannot be made."""
        await self.stop()
        self.path = path
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers(
            tuple(grpc.method_handlers_generic_handler(name, handlers) for name, handlers in services.items())
        )
        try:
            self._server.add_insecure_port(f"unix:{path}")
            await _completed(self._server.start())
        except (OSError, RuntimeError) as error:  # gRPC's word for a socket that cannot be made
            log.error("cannot serve %s: %s", self.subject, error)
            await self.stop()

    async def stop(self) -> None:
        server, self._server, self.path = self._server, None, None
        if server is not None:
            self._wake_streams()
            await _completed(server.stop(grace=LAST_ANSWERS_WITHIN_S))

    def announce(self, message: bytes) -> None:
        """Send a message to all streams, present and future."""
        self._message = message
        self._wake_streams()

    def relayed(self, methods: Iterable[str]) -> Handlers:
        return {name: grpc.unary_unary_rpc_method_handler(partial(self._relay, name)) for name in methods}

    async def stream(self, request: bytes, context: Context) -> AsyncIterator[bytes]:  # noqa: ARG002 - gRPC's signature
        server, sent = self._server, None
        self.streams += 1
        self._on_listen()
        try:
            while self._server is server:
                changed, message = self._changed, self._message
                if message != sent:
                    yield message
                    sent = message
                await changed.wait()
        finally:
            self.streams -= 1

    def _wake_streams(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _relay(self, method: str, request: bytes, context: Context) -> bytes:
        try:
            return await self._carry(method, self.subject, request)
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


class Plugin(KubeletSocket):
    """Serves one resource to the kubelet. ``registered_at`` is when the present kubelet took this socket.

    No stream means that nobody knows this resource.
    """

    registered_at: float | None = None
    _was_heard = False

    async def start(self, directory: Path) -> None:
        name = self.subject.rpartition("/")[2].replace("+", ".")
        handlers: Handlers = {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(self._options),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self.stream),
            **self.relayed(RELAYED),
        }
        path = directory / f"{SOCKET_PREFIX}{name}-{secrets.token_hex(3)}.sock"
        await self.serve_on(path, {SERVICE: handlers})

    async def stop(self) -> None:
        self.registered_at, self._was_heard = None, False
        await super().stop()

    def check_listening(self, now: float) -> None:
        """Register again if the kubelet does not listen any more, or never began to."""
        if self.streams:
            self._was_heard = True
            return
        overdue = self.registered_at is not None and now - self.registered_at > LISTEN_WITHIN_S
        if self._was_heard or overdue:
            log.warning("the kubelet does not listen to %s; registering again", self.subject)
            self.registered_at, self._was_heard = None, False

    async def register(self, kubelet: grpc.aio.Channel) -> str | None:
        """Register with the kubelet; return why that failed, None if it did not."""
        path = self.path
        request = pb.RegisterRequest(
            version=VERSION, endpoint=path.name if path else "", resource_name=self.subject, options=OPTIONS
        )
        register: grpc.aio.UnaryUnaryMultiCallable[pb.RegisterRequest, pb.Empty]
        register = kubelet.unary_unary(REGISTER, pb.RegisterRequest.SerializeToString, pb.Empty.FromString)
        try:
            await register(request, timeout=ANSWER_WITHIN_S)
        except grpc.aio.AioRpcError as error:
            return error.details() or error.code().name
        if path == self.path:  # not stopped meanwhile
            self.registered_at = asyncio.get_running_loop().time()
            log.info("registered %s", self.subject)
        return None

    async def _options(self, request: bytes, context: Context) -> bytes:  # noqa: ARG002 - gRPC's signature
        return OPTIONS.SerializeToString()


class Registrar:
    """Registers resources with the kubelet of one device plugin directory, and serves them.

    ``registered`` says whether the kubelet has taken all of them, ``epoch`` when a new kubelet was last seen, on the
    event loop's clock; ``changed`` is called when either is another. When it is no longer ``in_charge`` it
    serves nothing more, and has ``stood_down``.
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
        """Wait until an older gateway has removed its sockets, and remove those of one that has died."""
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
        own = {plugin.path for plugin in self._plugins.values()}
        found = self._directory.glob(f"{SOCKET_PREFIX}*.sock")
        return any(path not in own and answers(path) for path in found)

    async def run(self) -> None:
        try:
            while True:
                await self.reconcile()
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
            if resource not in self._plugins:
                self._plugins[resource] = Plugin(resource, self._carry, self._changed)
                self._watch.wake()
            if resource in changed:
                self._plugins[resource].announce(changed[resource])

    async def withdraw(self) -> None:
        """Stop serving all resources until they are advertised again."""
        self.registered = False
        await self._remove(list(self._plugins))

    async def reconcile(self) -> None:
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
        if self._directory.is_dir():
            await plugin.start(self._directory)
        if self._plugins.get(plugin.subject) is not plugin:
            await plugin.stop()  # no longer advertised

    async def _remove(self, resources: Sequence[str]) -> None:
        await asyncio.gather(*(plugin.stop() for plugin in [self._plugins.pop(name) for name in resources]))

    async def _register(self, plugins: Sequence[Plugin], now: float) -> None:
        target = f"unix:{self._directory / KUBELET_SOCKET}"
        async with grpc.aio.insecure_channel(target, options=CLIENT_OPTIONS) as channel:
            problems = await asyncio.gather(*(plugin.register(channel) for plugin in plugins))
        failed = {p.subject: problem for p, problem in zip(plugins, problems, strict=True) if problem is not None}
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


_IN_MOVED_TO, _IN_CREATE, _IN_DELETE, _IN_ONLYDIR = 0x80, 0x100, 0x200, 0x01000000
_WATCHED = _IN_MOVED_TO | _IN_CREATE | _IN_DELETE | _IN_ONLYDIR


class SocketWatch:
    """Watches a directory for sockets that come and go. Where that fails, waiting is just waiting."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._changed = asyncio.Event()
        self.libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = -1

    async def changed(self, within: float) -> None:
        """Wait for a change, for at most so many seconds."""
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
        # Once more is nothing, but where the directory was made anew.
        self.libc.inotify_add_watch(self._descriptor, os.fsencode(self._directory), _WATCHED)

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            os.read(self._descriptor, 64 * 1024)
        self._changed.set()
