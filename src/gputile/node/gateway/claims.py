"""Serves the kubelet as a DRA driver: carries its calls to the agent, and streams the GPUs' health.

The kubelet finds the driver by a socket in ``plugins_registry`` and keeps it registered as long as the socket is there.
One socket serves registration and driver. Its name is new each time, so that two gateways can serve beside each other
in an upgrade: the kubelet then calls the one that came last. The kubelet asks again whatever fails.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import grpc

from gputile.api.well_known import DRIVER
from gputile.node.gateway.link import answers
from gputile.node.gateway.protocols import dra_v1_pb2 as dra
from gputile.node.gateway.registration import Carry, Context, RefusedError

log = logging.getLogger(__name__)

REGISTRY: Final = "plugins_registry"  # in the kubelet's own directory
CALLS: Final = ("NodePrepareResources", "NodeUnprepareResources")
VERSIONS: Final = ("v1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
_REGISTRATION: Final = "pluginregistration.Registration"
_CLAIMS: Final = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
_LAST_ANSWERS_WITHIN_S: Final = 1.0

Handlers: TypeAlias = "dict[str, grpc.RpcMethodHandler[bytes, bytes]]"


class ClaimsPlugin:
    """The driver on one node. ``directory`` is the kubelet's ``plugins_registry``."""

    def __init__(self, directory: Path, carry: Carry) -> None:
        self._directory = directory
        self._carry = carry
        self._health = b""
        self._changed = asyncio.Event()
        self._server: grpc.aio.Server | None = None
        self._socket = directory

    async def serve(self, health: bytes | None) -> None:
        """Serve the kubelet, and tell it the GPUs' health: a NodeWatchResourcesResponse. None: serve no more."""
        if health is None:
            await self.stop()
            return
        self._health = health
        self._wake_streams()
        if self._server is None or not self._socket.exists():
            await self.stop()
            try:
                await self._start()
            except (OSError, RuntimeError) as error:  # gRPC's word for a socket that cannot be made
                log.error("cannot serve claims: %s", error)
                await self.stop()

    async def look(self, *, in_charge: bool) -> None:
        """Serve on a new socket if somebody has removed the old one, and not beside a younger gateway."""
        if not in_charge:
            await self.stop()
        elif self._server is not None and not self._socket.exists():
            await self.serve(self._health)

    async def _start(self) -> None:
        for left in self._directory.glob(f"{DRIVER}-*.sock"):
            if not answers(left):
                left.unlink(missing_ok=True)
        self._socket = self._directory / f"{DRIVER}-{secrets.token_hex(4)}-reg.sock"
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        registration: Handlers = {"GetInfo": unary(self._info), "NotifyRegistrationStatus": unary(self._registered)}
        calls: Handlers = {name: unary(partial(self._relay, name)) for name in CALLS}
        health: Handlers = {"NodeWatchResources": stream(self._watch_health)}
        services = {_REGISTRATION: registration, _CLAIMS: calls, **dict.fromkeys(VERSIONS[1:], health)}
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        self._server.add_generic_rpc_handlers(
            tuple(grpc.method_handlers_generic_handler(name, each) for name, each in services.items())
        )
        self._server.add_insecure_port(f"unix:{self._socket}")
        await self._server.start()

    async def stop(self) -> None:
        """Serve nothing any more: the kubelet forgets the driver when its socket goes."""
        server, self._server = self._server, None
        if server is not None:
            self._wake_streams()
            await server.stop(grace=_LAST_ANSWERS_WITHIN_S)
            with contextlib.suppress(OSError):
                self._socket.unlink(missing_ok=True)

    def _wake_streams(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _info(self, request: bytes, context: Context) -> bytes:  # noqa: ARG002 - gRPC's signature, as below
        found = dra.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(self._socket), supported_versions=list(VERSIONS)
        )
        return found.SerializeToString()

    async def _registered(self, request: bytes, context: Context) -> bytes:  # noqa: ARG002
        status = dra.RegistrationStatus.FromString(request)
        if status.plugin_registered:
            log.info("the kubelet has registered the driver %s", DRIVER)
        else:
            log.error("the kubelet does not take the driver %s: %s", DRIVER, status.error)
        return b""

    async def _watch_health(self, request: bytes, context: Context) -> AsyncIterator[bytes]:  # noqa: ARG002
        sent = b""
        while self._server is not None:
            changed, health = self._changed, self._health
            if health != sent:
                yield health
                sent = health
            await changed.wait()

    async def _relay(self, method: str, request: bytes, context: Context) -> bytes:
        try:
            return await self._carry(method, DRIVER, request)
        except RefusedError as error:
            await context.abort(error.code, str(error))
