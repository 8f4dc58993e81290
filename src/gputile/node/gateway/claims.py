"""Serves the kubelet as a DRA driver: carries its calls to the agent, and streams the GPUs' health.

The kubelet finds the driver by a socket in ``plugins_registry`` and keeps it registered as long as the socket is there.
One socket serves registration and driver. Its name is new each time, so that two gateways can serve beside each other
in an upgrade: the kubelet then calls the one that came last. The kubelet asks again whatever fails.
"""

import logging
import secrets
from pathlib import Path
from typing import Final

import grpc

from gputile.api.well_known import DRIVER
from gputile.node.gateway.link import answers
from gputile.node.gateway.protocols import dra_v1_pb2 as dra
from gputile.node.gateway.registration import Carry, Context, Handlers, KubeletSocket

log = logging.getLogger(__name__)

REGISTRY: Final = "plugins_registry"  # in the kubelet's own directory
CALLS: Final = ("NodePrepareResources", "NodeUnprepareResources")
VERSIONS: Final = ("v1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
_REGISTRATION: Final = "pluginregistration.Registration"
_CLAIMS: Final = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"


class ClaimsPlugin(KubeletSocket):
    """The driver on one node. ``directory`` is the kubelet's ``plugins_registry``."""

    def __init__(self, directory: Path, carry: Carry) -> None:
        super().__init__(DRIVER, carry)
        self._directory = directory
        self._serves = False

    async def serve(self, health: bytes | None) -> None:
        """Serve the kubelet, and tell it the GPUs' health: a NodeWatchResourcesResponse. None: serve no more."""
        self._serves = health is not None
        if health is None:
            await self.stop()
            return
        self.announce(health)
        if not self.there:
            await self._start()

    async def reconcile(self, *, in_charge: bool) -> None:
        """Serve on a new socket if somebody has removed the old one, and not beside a younger gateway."""
        if not in_charge:
            await self.serve(None)
        elif self._serves and not self.there:
            await self._start()

    async def _start(self) -> None:
        for left in self._directory.glob(f"{DRIVER}-*.sock"):
            if not answers(left):
                left.unlink(missing_ok=True)
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        registration: Handlers = {"GetInfo": unary(self._info), "NotifyRegistrationStatus": unary(self._registered)}
        health: Handlers = {"NodeWatchResources": stream(self.stream)}
        services = {_REGISTRATION: registration, _CLAIMS: self.relayed(CALLS), **dict.fromkeys(VERSIONS[1:], health)}
        await self.serve_on(self._directory / f"{DRIVER}-{secrets.token_hex(4)}-reg.sock", services)

    async def _info(self, request: bytes, context: Context) -> bytes:  # noqa: ARG002 - gRPC's signature, as below
        found = dra.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(self.path), supported_versions=list(VERSIONS)
        )
        return found.SerializeToString()

    async def _registered(self, request: bytes, context: Context) -> bytes:  # noqa: ARG002
        status = dra.RegistrationStatus.FromString(request)
        if status.plugin_registered:
            log.info("the kubelet has registered the driver %s", DRIVER)
        else:
            log.error("the kubelet does not take the driver %s: %s", DRIVER, status.error)
        return b""
