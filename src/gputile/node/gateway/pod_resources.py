"""Asks the kubelet who has which devices, as the client of its PodResources service.

The kubelet answers 100 calls a second, ten at once, and refuses the others; a refusal is tried again shortly after.
"""

import asyncio
import logging
from pathlib import Path

import grpc

from gputile.api.quantity import MIB

log = logging.getLogger(__name__)

LIST = "/v1.PodResourcesLister/List"
# The kubelet's own limit on messages of this service (podresources.DefaultMaxMsgSize).
MOST_BYTES = 16 * MIB
CLIENT_OPTIONS = (
    ("grpc.default_authority", "localhost"),  # the socket's path, percent-encoded, is refused by strict servers
    ("grpc.max_receive_message_length", MOST_BYTES),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
_PAUSE_S = 0.015


class PodResources:
    """One kubelet's PodResources socket. ``close`` it in the end."""

    def __init__(self, socket: Path) -> None:
        self._target = f"unix:{socket}"
        self._channel: grpc.aio.Channel | None = None
        self._one_at_a_time = asyncio.Lock()  # who closes the connection would end the calls of others on it

    async def list(self, within: float) -> bytes | None:
        """Return the kubelet's ListPodResourcesResponse, None where there is none within so many seconds."""
        last = "no answer"
        try:
            async with asyncio.timeout(within):
                while True:
                    async with self._one_at_a_time:
                        if self._channel is None:
                            self._channel = grpc.aio.insecure_channel(self._target, options=CLIENT_OPTIONS)
                        try:
                            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(LIST)
                            return await call(b"")
                        except grpc.aio.AioRpcError as error:
                            last = error.details() or error.code().name
                            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                                await self.close()  # gRPC would wait before it looks for the socket of a new kubelet
                    await asyncio.sleep(_PAUSE_S)
        except TimeoutError:
            log.warning("the kubelet has not listed its devices within %s s: %s", within, last)
            return None

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()
