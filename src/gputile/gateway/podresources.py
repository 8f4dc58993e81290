"""Asking the kubelet who has which devices: the client of its PodResources service.

The kubelet answers 100 calls a second, ten at once, and refuses the others; a refusal is tried again shortly after.
"""

import asyncio
import logging
from pathlib import Path

import grpc

from gputile.agent.listing import ListedPod, Listing
from gputile.gateway.protocols import podresources_v1_pb2 as pb
from gputile.gateway.protocols.podresources_v1_pb2_grpc import PodResourcesListerStub

log = logging.getLogger(__name__)

# The kubelet's own limit on messages of this service (podresources.DefaultMaxMsgSize).
MOST_BYTES = 16 * 1024 * 1024
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

    async def list(self, within: float) -> Listing | None:
        """Return what the kubelet says, None where it does not answer within so many seconds."""
        last = "no answer"
        try:
            async with asyncio.timeout(within):
                while True:
                    try:
                        stub = PodResourcesListerStub(self._open())
                        return as_listing(await stub.List(pb.ListPodResourcesRequest()))
                    except grpc.aio.AioRpcError as error:
                        last = error.details() or error.code().name
                        if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                            await self.close()  # gRPC would wait before it looks for the socket of a new kubelet
                    await asyncio.sleep(_PAUSE_S)
        except TimeoutError:
            log.warning("the kubelet has not listed its devices within %s s: %s", within, last)
            return None

    async def close(self) -> None:
        """Close the connection."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    def _open(self) -> grpc.aio.Channel:
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self._target, options=CLIENT_OPTIONS)
        return self._channel


def as_listing(answer: pb.ListPodResourcesResponse) -> Listing:
    """Return the kubelet's answer as plain data; a resource may come in several entries, one for each NUMA node."""
    listing: dict[str, ListedPod] = {}
    for pod in answer.pod_resources:
        containers: dict[str, dict[str, frozenset[str]]] = {}
        for container in pod.containers:
            resources = containers.setdefault(container.name, {})
            for devices in container.devices:
                before = resources.get(devices.resource_name, frozenset())
                resources[devices.resource_name] = before.union(devices.device_ids)
        listed = ListedPod(pod.namespace, pod.name, containers)
        listing[listed.key] = listed
    return listing
