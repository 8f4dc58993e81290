"""Serves one resource to the kubelet: a gRPC server on a socket in its device plugin directory.

Each resource has a server of its own, since no call names the resource. The socket's name is never used twice: a
server that stops gracefully removes its socket's name, also when another server has taken it over by then. What the
kubelet says and hears goes through as bytes; the agent reads and writes it.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path

import grpc

from gputile.node.gateway.protocols import deviceplugin_v1beta1_pb2 as pb
from gputile.node.gateway.relay import RefusedError

SERVICE = "v1beta1.DevicePlugin"
RELAYED = ("GetPreferredAllocation", "Allocate", "PreStartContainer")
SOCKET_PREFIX = "gputile-"
LAST_ANSWERS_WITHIN_S = 1.0
OPTIONS = pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

Carry = Callable[[str, str, bytes], Awaitable[bytes]]
"""Carries a call to the agent: method, resource and request in, the answer out."""
Context = grpc.aio.ServicerContext[bytes, bytes]


class Plugin:
    """Serves one resource. ``streams`` counts the kubelets that listen: none means that nobody knows this resource.

    ``on_listen`` is called when one begins to.
    """

    def __init__(
        self, resource: str, directory: Path, devices: bytes, carry: Carry, on_listen: Callable[[], None] = lambda: None
    ) -> None:
        self.resource = resource
        self.streams = 0
        self._directory = directory
        self._devices = devices
        self._carry = carry
        self._on_listen = on_listen
        self._news = asyncio.Event()
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
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
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
        await _whole(self._server.start())

    async def stop(self) -> None:
        server, self._server, self._socket = self._server, None, None
        if server is not None:
            self._stopping = True
            self._tell()
            try:
                await _whole(server.stop(grace=LAST_ANSWERS_WITHIN_S))
            finally:
                self._stopping = False

    def announce(self, devices: bytes) -> None:
        """Tell the kubelet of a new list of devices, a ListAndWatchResponse."""
        self._devices = devices
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # -- v1beta1.DevicePlugin

    async def _options(self, request: bytes, context: Context) -> bytes:  # noqa: ARG002 - gRPC's signature, as below
        return OPTIONS.SerializeToString()

    async def _list_and_watch(self, request: bytes, context: Context) -> AsyncIterator[bytes]:  # noqa: ARG002
        sent: bytes | None = None
        self.streams += 1
        self._on_listen()
        try:
            while not self._stopping:
                news, devices = self._news, self._devices
                if devices != sent:
                    yield devices
                    sent = devices
                await news.wait()
        finally:
            self.streams -= 1

    async def _relay(self, method: str, request: bytes, context: Context) -> bytes:
        try:
            return await self._carry(method, self.resource, request)
        except RefusedError as error:
            await context.abort(error.code, str(error))


async def _whole(work: Coroutine[None, None, None]) -> None:
    """Finish what a cancellation must not leave half done: such a server keeps its socket, and cannot be stopped."""
    doing = asyncio.ensure_future(work)
    try:
        await asyncio.shield(doing)
    except asyncio.CancelledError:
        await doing
        raise
