"""The kubelet's side of one resource: a gRPC server on a socket in its device plugin directory.

Each resource has a server of its own, since no call names the resource. The socket's name is never used twice: a
server that stops gracefully removes its socket's name, also when another server has taken it over by then.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Protocol

import grpc

from gputile.agent.advertise import Device
from gputile.gateway.protocols import deviceplugin_v1beta1_pb2 as pb
from gputile.gateway.protocols import deviceplugin_v1beta1_pb2_grpc as rpc
from gputile.agent.verify import Contradiction

log = logging.getLogger(__name__)

SOCKET_PREFIX = "gputile-"
LAST_ANSWERS_WITHIN_S = 1.0
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
OPTIONS = pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)


class NotReady(Exception):
    """Asked too early, or at a bad moment: the kubelet should ask again."""


class Desk(Protocol):
    """Who answers for all resources."""

    def devices(self, resource: str) -> tuple[Device, ...]:
        """Return the IDs of a resource, each with whether it is healthy."""

    async def preferred(
        self, resource: str, available: Sequence[str], must: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """Return the IDs that the kubelet should take."""

    async def allocate(self, resource: str, ids: tuple[str, ...]) -> pb.ContainerAllocateResponse:
        """Return what a container gets.

        Raises:
            Contradiction: the IDs cannot be served.
        """

    async def prestart(self, resource: str, ids: tuple[str, ...]) -> None:
        """Prepare the start of a container.

        Raises:
            NotReady: it must not start yet.
        """


class Plugin(rpc.DevicePluginServicer):
    """Serves one resource. ``streams`` counts the kubelets that listen: none means that nobody knows this resource."""

    def __init__(self, resource: str, directory: Path, desk: Desk) -> None:
        self.resource = resource
        self.streams = 0
        self._directory = directory
        self._desk = desk
        self._news = asyncio.Event()
        self._stopping = False
        self._server: grpc.aio.Server | None = None
        self._socket: Path | None = None

    @property
    def endpoint(self) -> str:
        """The socket's name inside the directory."""
        return self._socket.name if self._socket else ""

    @property
    def there(self) -> bool:
        """Whether the socket can be found: the kubelet removes all sockets when it starts."""
        return self._socket is not None and self._socket.exists()

    async def start(self) -> None:
        """Serve on a new socket."""
        await self.stop()
        name = self.resource.rpartition("/")[2].replace("+", ".")
        self._socket = self._directory / f"{SOCKET_PREFIX}{name}-{secrets.token_hex(3)}.sock"
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        rpc.add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self._socket}")
        await self._server.start()

    async def stop(self) -> None:
        """Stop serving: the kubelet is told at once, and what it is asking gets its answer."""
        server, self._server, self._socket = self._server, None, None
        if server is not None:
            self._stopping = True
            self.announce()
            stopping = asyncio.ensure_future(server.stop(grace=LAST_ANSWERS_WITHIN_S))
            try:
                await asyncio.shield(stopping)
            except asyncio.CancelledError:
                await stopping  # a server that is left half stopped keeps its socket
                raise
            finally:
                self._stopping = False

    def announce(self) -> None:
        """Tell the kubelet if the devices have changed."""
        self._news.set()
        self._news = asyncio.Event()

    # -- v1beta1.DevicePlugin

    async def GetDevicePluginOptions(
        self,
        request: pb.Empty,  # noqa: ARG002 - the service's signature, here and below
        context: grpc.aio.ServicerContext[pb.Empty, pb.DevicePluginOptions],  # noqa: ARG002
    ) -> pb.DevicePluginOptions:
        """Say that preferences and the call before each start are wanted."""
        return OPTIONS

    async def ListAndWatch(
        self,
        request: pb.Empty,  # noqa: ARG002
        context: grpc.aio.ServicerContext[pb.Empty, pb.ListAndWatchResponse],  # noqa: ARG002
    ) -> AsyncIterator[pb.ListAndWatchResponse]:
        """Send all devices, and again whenever they change."""
        sent: tuple[Device, ...] | None = None
        self.streams += 1
        try:
            while not self._stopping:
                news, devices = self._news, self._desk.devices(self.resource)
                if devices != sent:
                    yield _message(devices)
                    sent = devices
                await news.wait()
        finally:
            self.streams -= 1

    async def GetPreferredAllocation(
        self,
        request: pb.PreferredAllocationRequest,
        context: grpc.aio.ServicerContext[pb.PreferredAllocationRequest, pb.PreferredAllocationResponse],  # noqa: ARG002
    ) -> pb.PreferredAllocationResponse:
        """Steer the kubelet. An error here would kill the pod, so there is none: no preference is an answer too."""
        answers = []
        for asked in request.container_requests:
            try:
                ids = await self._desk.preferred(
                    self.resource,
                    tuple(asked.available_deviceIDs),
                    tuple(asked.must_include_deviceIDs),
                    asked.allocation_size,
                )
            except Exception:
                log.exception("no preference for %d of %s", asked.allocation_size, self.resource)
                ids = ()
            answers.append(pb.ContainerPreferredAllocationResponse(deviceIDs=ids))
        return pb.PreferredAllocationResponse(container_responses=answers)

    async def Allocate(
        self,
        request: pb.AllocateRequest,
        context: grpc.aio.ServicerContext[pb.AllocateRequest, pb.AllocateResponse],
    ) -> pb.AllocateResponse:
        """Answer what a container gets."""
        try:
            answers = [
                await self._desk.allocate(self.resource, tuple(asked.devices_ids))
                for asked in request.container_requests
            ]
        except Contradiction as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return pb.AllocateResponse(container_responses=answers)

    async def PreStartContainer(
        self,
        request: pb.PreStartContainerRequest,
        context: grpc.aio.ServicerContext[pb.PreStartContainerRequest, pb.PreStartContainerResponse],
    ) -> pb.PreStartContainerResponse:
        """Write the limits; the kubelet repeats the call until it succeeds."""
        try:
            await self._desk.prestart(self.resource, tuple(request.devices_ids))
        except NotReady as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return pb.PreStartContainerResponse()


def _message(devices: tuple[Device, ...]) -> pb.ListAndWatchResponse:
    return pb.ListAndWatchResponse(
        devices=[pb.Device(ID=device_id, health=HEALTHY if well else UNHEALTHY) for device_id, well in devices]
    )
