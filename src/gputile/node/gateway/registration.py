"""Keeps the resources and the DRA driver registered with the kubelet, whatever restarts.

When a kubelet starts, it removes all sockets from its device plugin directory and recreates its
own. So the inode of its socket identifies a kubelet, and a plugin whose socket was removed serves
on a new one. inotify(7) reports this at once, which matters: the kubelet then admits pods
immediately, and permanently fails those whose devices are not registered by then. If the kubelet
does not listen to a registered plugin, the plugin registers again. If the kubelet does not answer,
registration is retried at growing intervals.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import secrets
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from functools import partial
from pathlib import Path
from typing import TypeAlias

import grpc

from gputile.api.quantity import MIB
from gputile.api.well_known import DRIVER
from gputile.node.gateway import kubelet_pb2 as pb
from gputile.node.gateway.link import has_listener

log = logging.getLogger(__name__)

VERSION = "v1beta1"
SERVICE = f"{VERSION}.DevicePlugin"
REGISTER = f"/{VERSION}.Registration/Register"
RELAYED = ("GetPreferredAllocation", "Allocate", "PreStartContainer")
OPTIONS = pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)
KUBELET_SOCKET = "kubelet.sock"
SOCKET_PREFIX = "gputile-"
CLIENT_OPTIONS = (
    # Strict servers reject the default, the percent-encoded socket path.
    ("grpc.default_authority", "localhost"),
    # The kubelet's own limit for PodResources: DefaultMaxMsgSize.
    ("grpc.max_receive_message_length", 16 * MIB),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),  # connect at once to a kubelet that has restarted
)
SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),
    # GetPreferredAllocation can name each device twice.
    ("grpc.max_receive_message_length", 16 * MIB),
)
RECONCILE_EVERY_S = 1.5
REGISTER_TIMEOUT_S = 5.0
STOP_GRACE_S = 1.0
HAND_OVER_TIMEOUT_S = 3.0
HAND_OVER_POLL_S = 0.05
LISTEN_TIMEOUT_S = 5.0  # from registration to the kubelet's ListAndWatch
FIRST_PAUSE_S = 0.05  # the kubelet creates its socket a moment before it accepts connections
LONGEST_PAUSE_S = 30.0

REGISTRY = "plugins_registry"  # in the kubelet's root directory
DRA_CALLS = ("NodePrepareResources", "NodeUnprepareResources")
DRA_VERSIONS = ("v1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
DRA_REGISTRATION = "pluginregistration.Registration"
DRA_SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"

Forward = Callable[[str, str, bytes], Awaitable[bytes]]
"""Forwards (method, resource, request) to the agent; returns its response; raises RefusedError."""
Context = grpc.aio.ServicerContext[bytes, bytes]
Handlers: TypeAlias = "dict[str, grpc.RpcMethodHandler[bytes, bytes]]"
KubeletIdentity = tuple[int, int, int]


class RefusedError(Exception):
    """A call of the kubelet is refused with a gRPC status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


class KubeletSocket:
    """A gRPC server for the kubelet that relays calls to the agent and streams the latest message.

    Each ``subject`` (a resource, or the DRA driver) has its own socket, since most calls do not
    name the resource. A socket's name is never reused: a server that stops gracefully unlinks its
    name, even if another server has bound that name since.

    ``streams`` is the number of open streams; ``on_listen`` is called when one opens.
    """

    def __init__(
        self, subject: str, forward: Forward, on_listen: Callable[[], None] = lambda: None
    ) -> None:
        self.subject = subject
        self.path: Path | None = None
        self.streams = 0
        self._forward = forward
        self._on_listen = on_listen
        self._message = b""
        self._changed = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    @property
    def exists(self) -> bool:
        """Whether the socket's file exists: the kubelet removes all sockets when it starts."""
        return self.path is not None and self.path.exists()

    async def serve(self, path: Path, services: Mapping[str, Handlers]) -> None:
        """Serve on a new socket ``path``; log an error if it cannot be created."""
        await self.stop()
        self.path = path
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers(
            tuple(
                grpc.method_handlers_generic_handler(name, handlers)
                for name, handlers in services.items()
            )
        )
        try:
            self._server.add_insecure_port(f"unix:{path}")
            await _completed(self._server.start())
        # gRPC raises RuntimeError if it cannot create a socket.
        except (OSError, RuntimeError) as error:
            log.error("cannot serve %s: %s", self.subject, error)
            await self.stop()

    async def stop(self) -> None:
        server, self._server, self.path = self._server, None, None
        if server is not None:
            self._wake_streams()
            await _completed(server.stop(grace=STOP_GRACE_S))

    def announce(self, message: bytes) -> None:
        """Send a message to all streams, present and future."""
        self._message = message
        self._wake_streams()

    def relayed(self, methods: Iterable[str]) -> Handlers:
        return {
            name: grpc.unary_unary_rpc_method_handler(partial(self._relay, name))
            for name in methods
        }

    # The parameters are those of gRPC.
    async def stream(
        self,
        request: bytes,  # noqa: ARG002
        context: Context,  # noqa: ARG002
    ) -> AsyncIterator[bytes]:
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
            return await self._forward(method, self.subject, request)
        except RefusedError as error:
            await context.abort(error.code, str(error))


async def _completed(work: Coroutine[None, None, None]) -> None:
    """Finish ``work`` even if cancelled.

    A half-started server keeps its socket and cannot be stopped.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


class Plugin(KubeletSocket):
    """Serves one resource to the kubelet.

    ``registered_at`` is when the current kubelet registered this socket.
    """

    registered_at: float | None = None

    async def start(self, directory: Path) -> None:
        name = self.subject.rpartition("/")[2].replace("+", ".")
        handlers: Handlers = {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(self._options),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self.stream),
            **self.relayed(RELAYED),
        }
        await self.serve(
            directory / f"{SOCKET_PREFIX}{name}-{secrets.token_hex(3)}.sock", {SERVICE: handlers}
        )

    async def stop(self) -> None:
        self.registered_at = None
        await super().stop()

    async def register(self, kubelet: grpc.aio.Channel) -> str | None:
        """Register with the kubelet; return the reason if that fails."""
        path = self.path
        request = pb.RegisterRequest(
            version=VERSION,
            endpoint=path.name if path else "",
            resource_name=self.subject,
            options=OPTIONS,
        )
        register: grpc.aio.UnaryUnaryMultiCallable[pb.RegisterRequest, pb.Empty]
        register = kubelet.unary_unary(
            REGISTER, pb.RegisterRequest.SerializeToString, pb.Empty.FromString
        )
        try:
            await register(request, timeout=REGISTER_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return error.details() or error.code().name
        self.registered_at = asyncio.get_running_loop().time()
        log.info("registered %s", self.subject)
        return None

    async def _options(self, request: bytes, context: Context) -> bytes:  # noqa: ARG002
        return OPTIONS.SerializeToString()


class ClaimsPlugin(KubeletSocket):
    """Serves the DRA driver to the kubelet while it has a ``health``.

    The kubelet finds the driver by a socket in ``directory``, its ``plugins_registry``, and keeps
    it registered while the socket exists. The same socket serves the registration and the driver.
    It has a new name each time, so that two gateways can serve at the same time in an upgrade: the
    kubelet calls the one that registered last. The kubelet retries failed calls.
    """

    def __init__(self, directory: Path, forward: Forward) -> None:
        super().__init__(DRIVER, forward)
        self._directory = directory
        self._has_health = False

    def set_health(self, health: bytes | None) -> None:
        """Stream a NodeWatchResourcesResponse to the kubelet.

        None stops serving at the next ``reconcile``.
        """
        self._has_health = health is not None
        if health is not None:
            self.announce(health)

    async def reconcile(self) -> None:
        """Start or stop the server; replace its socket if it was removed."""
        if not self._has_health:
            await self.stop()
        elif not self.exists:
            await self._start()

    async def _start(self) -> None:
        for path in self._directory.glob(f"{DRIVER}-*.sock"):
            if not has_listener(path):
                path.unlink(missing_ok=True)
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        registration: Handlers = {
            "GetInfo": unary(self._info),
            "NotifyRegistrationStatus": unary(self._registered),
        }
        health: Handlers = {"NodeWatchResources": stream(self.stream)}
        services = {
            DRA_REGISTRATION: registration,
            DRA_SERVICE: self.relayed(DRA_CALLS),
            **dict.fromkeys(DRA_VERSIONS[1:], health),
        }
        await self.serve(self._directory / f"{DRIVER}-{secrets.token_hex(4)}-reg.sock", services)

    async def _info(self, request: bytes, context: Context) -> bytes:  # noqa: ARG002
        info = pb.PluginInfo(
            type="DRAPlugin",
            name=DRIVER,
            endpoint=str(self.path),
            supported_versions=list(DRA_VERSIONS),
        )
        return info.SerializeToString()

    async def _registered(self, request: bytes, context: Context) -> bytes:  # noqa: ARG002
        status = pb.RegistrationStatus.FromString(request)
        if status.plugin_registered:
            log.info("the kubelet has registered the driver %s", DRIVER)
        else:
            log.error("the kubelet rejects the driver %s: %s", DRIVER, status.error)
        return b""


class Registrar:
    """Registers resources with the kubelet of one device plugin directory, and serves them.

    ``advertise`` only records what to serve; ``reconcile`` starts and stops the servers. The caller
    repeats it after ``pause`` seconds, or when sockets change. ``epoch`` is when the current
    kubelet was first seen, on the event loop's clock. ``on_change`` is called when ``epoch`` or
    ``listening`` changes.
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
        self._kubelet: KubeletIdentity | None = None
        self._pause = 0.0  # after the last registration; 0 if it succeeded
        self._next_try = 0.0

    @property
    def registered(self) -> bool:
        """Whether the kubelet has registered all resources."""
        return bool(self._plugins) and all(
            plugin.registered_at is not None for plugin in self._plugins.values()
        )

    @property
    def listening(self) -> bool:
        """Whether the kubelet listens to all resources."""
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
        """Wait until older gateways have removed their sockets; remove those of dead gateways."""
        for _ in range(int(HAND_OVER_TIMEOUT_S / HAND_OVER_POLL_S)):
            left = list(self._directory.glob(f"{SOCKET_PREFIX}*.sock"))
            for path in left:
                if not has_listener(path):
                    path.unlink(missing_ok=True)
            if not any(path.exists() for path in left):
                return
            await asyncio.sleep(HAND_OVER_POLL_S)

    def advertise(self, resources: Sequence[str], changed: Mapping[str, bytes]) -> None:
        """Serve exactly ``resources``.

        ``changed`` maps those with changed devices to a new ListAndWatchResponse.
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
                log.warning("the kubelet does not listen to %s; registering again", plugin.subject)
                plugin.registered_at = None
        unregistered = [p for p in self._plugins.values() if p.exists and p.registered_at is None]
        if unregistered and kubelet is not None and now >= self._next_try:
            await self._register(unregistered, now)

    async def _stop_withdrawn(self) -> None:
        """Remove the sockets of withdrawn resources; the kubelet then drops their devices."""
        withdrawn, self._withdrawn = self._withdrawn, []
        await asyncio.gather(*(plugin.stop() for plugin in withdrawn))

    async def _register(self, plugins: Sequence[Plugin], now: float) -> None:
        target = f"unix:{self._directory / KUBELET_SOCKET}"
        async with grpc.aio.insecure_channel(target, options=CLIENT_OPTIONS) as channel:
            problems = await asyncio.gather(*(plugin.register(channel) for plugin in plugins))
        failed = {
            p.subject: problem
            for p, problem in zip(plugins, problems, strict=True)
            if problem is not None
        }
        if not failed:
            self._pause = 0.0
            return
        self._pause = min(2 * self._pause or FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._next_try = now + self._pause
        resource, problem = next(iter(failed.items()))
        log.warning(
            "the kubelet does not register %s: %s; trying again in %s s",
            resource,
            problem,
            self._pause,
        )


def _identity(path: Path) -> KubeletIdentity | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_ctime_ns


_IN_MOVED_TO, _IN_CREATE, _IN_DELETE, _IN_ONLYDIR = 0x80, 0x100, 0x200, 0x01000000
_WATCHED = _IN_MOVED_TO | _IN_CREATE | _IN_DELETE | _IN_ONLYDIR


class SocketWatch:
    """Watches a directory for created and removed sockets; if it cannot, ``changed`` only waits."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._changed = asyncio.Event()
        self.libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = -1

    async def changed(self, within: float) -> None:
        """Wait for a change, at most ``within`` seconds."""
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
        # Adding the watch again has no effect, unless the directory was recreated.
        self.libc.inotify_add_watch(self._descriptor, os.fsencode(self._directory), _WATCHED)

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            os.read(self._descriptor, 64 * 1024)
        self._changed.set()
