"""Serves resources and the DRA driver to the kubelet on sockets, and relays the kubelet's calls."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
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
SOCKET_PREFIX = "gputile-"
SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),
    # A request of GetPreferredAllocation may name each device twice.
    ("grpc.max_receive_message_length", 16 * MIB),
)
REGISTER_TIMEOUT_S = 5.0
STOP_GRACE_S = 1.0
REGISTRY = "plugins_registry"  # in the kubelet's root directory
DRA_CALLS = ("NodePrepareResources", "NodeUnprepareResources")
DRA_VERSIONS = ("v1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
DRA_REGISTRATION = "pluginregistration.Registration"
DRA_SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"

Forward = Callable[[str, str, bytes], Awaitable[bytes]]
"""Sends (method, resource, request) to the agent. Returns the response or raises RefusedError."""
Context = grpc.aio.ServicerContext[bytes, bytes]
Handlers: TypeAlias = "dict[str, grpc.RpcMethodHandler[bytes, bytes]]"


class RefusedError(Exception):
    """The agent or the gateway refuses a call of the kubelet. ``code`` is the gRPC status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


class KubeletSocket:
    """A gRPC server for the kubelet that relays calls to the agent and streams the latest message.

    Each ``subject`` (a resource, or the DRA driver) has its own socket, because most calls do not
    name the resource. The name of a socket is never used again. Otherwise, a server that stops
    gracefully would remove the socket that another server has created with the same name.

    ``streams`` is the number of open streams. ``on_listen`` is called when a stream opens.
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
        """Whether the file of the socket exists. A kubelet removes all sockets when it starts."""
        return self.path is not None and self.path.exists()

    async def serve(self, path: Path, services: Mapping[str, Handlers]) -> None:
        """Serve on a new socket ``path``. If the socket cannot be created, log an error."""
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
        """Send a message to all open streams, and to the streams that open later."""
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
    """Finish ``work`` even if this task is cancelled.

    A gRPC server whose start was interrupted keeps its socket and cannot be stopped.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


class Plugin(KubeletSocket):
    """Serves one resource to the kubelet.

    ``registered_at`` is when the current kubelet registered this socket, on the event loop's clock.
    It is None while the socket is not registered.
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
        """Register with the kubelet. Return the reason for a failure, or None after a success."""
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
    """Serves the DRA driver to the kubelet while the agent reports the driver's health.

    The kubelet finds the driver by a socket in ``directory``, the kubelet's ``plugins_registry``.
    The driver is registered while the socket exists. This socket serves both the registration and
    the driver. It has a new name each time, so that two gateways can serve in an upgrade. The
    kubelet then calls the gateway that registered last. The kubelet retries failed calls.
    """

    def __init__(self, directory: Path, forward: Forward) -> None:
        super().__init__(DRIVER, forward)
        self._directory = directory
        self._has_health = False

    def set_health(self, health: bytes | None) -> None:
        """Stream a NodeWatchResourcesResponse to the kubelet.

        After a ``health`` of None, the next ``reconcile`` stops the server.
        """
        self._has_health = health is not None
        if health is not None:
            self.announce(health)

    async def reconcile(self) -> None:
        """Start or stop the server. If the socket was removed, create a new one."""
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
