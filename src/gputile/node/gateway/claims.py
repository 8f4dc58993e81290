"""Serves the kubelet as a DRA driver: relays its calls to the agent.

The kubelet finds the driver by a socket in ``plugins_registry``, and keeps it registered while the socket exists. The
same socket serves the registration and the driver. It has a new name each time, so that two gateways can serve at the
same time in an upgrade: the kubelet calls the one that registered last. The kubelet retries all failed calls.
"""

import logging
import secrets
from pathlib import Path
from typing import Final

import grpc

from gputile.api.well_known import DRIVER
from gputile.node.gateway.link import has_listener
from gputile.node.gateway.protocols import dra_v1_pb2 as dra
from gputile.node.gateway.registration import Carry, Context, Handlers, KubeletSocket

log = logging.getLogger(__name__)

REGISTRY: Final = "plugins_registry"  # in the kubelet's root directory
CALLS: Final = ("NodePrepareResources", "NodeUnprepareResources")
VERSION: Final = "v1.DRAPlugin"
_REGISTRATION: Final = "pluginregistration.Registration"
_CLAIMS: Final = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"


class ClaimsPlugin(KubeletSocket):
    """The driver on one node. ``directory`` is the kubelet's ``plugins_registry``.

    The next ``reconcile`` starts or stops the server, as ``served`` says.
    """

    def __init__(self, directory: Path, carry: Carry) -> None:
        super().__init__(DRIVER, carry)
        self._directory = directory
        self.served = False

    async def reconcile(self) -> None:
        """Start or stop the server; replace its socket if it was removed."""
        if not self.served:
            await self.stop()
        elif not self.exists:
            await self._start()

    async def _start(self) -> None:
        for path in self._directory.glob(f"{DRIVER}-*.sock"):
            if not has_listener(path):
                path.unlink(missing_ok=True)
        unary = grpc.unary_unary_rpc_method_handler
        registration: Handlers = {"GetInfo": unary(self._info), "NotifyRegistrationStatus": unary(self._registered)}
        services = {_REGISTRATION: registration, _CLAIMS: self.relayed(CALLS)}
        await self.serve(self._directory / f"{DRIVER}-{secrets.token_hex(4)}-reg.sock", services)

    async def _info(self, request: bytes, context: Context) -> bytes:  # noqa: ARG002 - gRPC's signature, as below
        info = dra.PluginInfo(type="DRAPlugin", name=DRIVER, endpoint=str(self.path), supported_versions=[VERSION])
        return info.SerializeToString()

    async def _registered(self, request: bytes, context: Context) -> bytes:  # noqa: ARG002
        status = dra.RegistrationStatus.FromString(request)
        if status.plugin_registered:
            log.info("the kubelet has registered the driver %s", DRIVER)
        else:
            log.error("the kubelet rejects the driver %s: %s", DRIVER, status.error)
        return b""
