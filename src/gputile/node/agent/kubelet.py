"""Connects the agent to the kubelet through the gateway: calls, device IDs and the list of pods."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from gputile.node.agent.device_lists import Device
from gputile.node.agent.device_table import ListedPod, Listing
from gputile.node.gateway import kubelet_pb2 as pb
from gputile.node.gateway.link import (
    Advertise,
    Call,
    CallAnswer,
    CallRefused,
    FromGateway,
    ListDevices,
    Listed,
    MessageChannel,
    ServeClaims,
    State,
    TakeCharge,
)

log = logging.getLogger(__name__)

ADMISSION = ("GetPreferredAllocation", "Allocate", "NodePrepareResources")
"""The kubelet's calls during the admission of a pod or the preparation of its claims."""


Answers = Callable[[Call], Awaitable[CallAnswer | CallRefused]]
"""Answers the calls on the plugins of all resources, and those about claims."""


_MARGIN_S = 0.1
QUIET_S, LONGEST_BUSY_S = 0.2, 2.0
# A restarted kubelet admits its pods again one by one, and lists only pods that it has admitted.
SETTLED_AFTER_S = 10.0


class GatewayGoneError(Exception):
    """The gateway has closed the connection, so the agent must end."""


class KubeletLink:
    """The agent's connection to the kubelet, through the gateway.

    ``asked`` is the time of the kubelet's last admission call, on the monotonic clock. ``state`` is
    the latest state of the gateway. ``state_received`` is set with the first state, and
    ``registered`` once the kubelet has registered all resources.
    """

    def __init__(self, link: MessageChannel[FromGateway]) -> None:
        self.asked = 0.0
        self.state = State()
        self.registered = asyncio.Event()
        self.state_received = asyncio.Event()
        self._in_charge = asyncio.Event()
        self._link = link
        self._advertised: dict[str, tuple[Device, ...]] = {}
        self._health: bytes | None = None
        self._asked: dict[int, asyncio.Future[bytes | None]] = {}
        self._last = 0
        self._latest: tuple[bytes, Listing] = (b"", {})
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, answer: Answers) -> None:
        """Handle the gateway's messages. ``answer`` answers the kubelet's calls.

        Raises GatewayGoneError when the gateway closes the connection.
        """
        try:
            async for message in self._link.messages():
                match message:
                    case Call():
                        task = asyncio.get_running_loop().create_task(self._serve(answer, message))
                        self._tasks.add(task)
                        task.add_done_callback(self._tasks.discard)
                    case Listed(number, body):
                        asked = self._asked.get(number)
                        if asked is not None and not asked.done():
                            asked.set_result(body)
                    case State():
                        self.state = message
                        self.state_received.set()
                        if message.in_charge:
                            self._in_charge.set()
                        if message.registered:
                            self.registered.set()
        finally:
            self._link.close()
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        raise GatewayGoneError("the gateway has closed the connection")

    @property
    def settled(self) -> bool:
        """Whether the kubelet has run long enough to admit its pods again and list them all."""
        return time.monotonic() - self.state.epoch > SETTLED_AFTER_S

    async def until_quiet(self) -> None:
        """Wait until the kubelet makes no admission calls, but for at most 2 seconds."""
        for _ in range(int(LONGEST_BUSY_S / QUIET_S)):
            quiet = time.monotonic() - self.asked
            if quiet >= QUIET_S:
                return
            await asyncio.sleep(QUIET_S - quiet)

    async def take_charge(self) -> None:
        """Take over the node. Return when the agents of other gateways have released it."""
        self._link.send(TakeCharge())
        await self._in_charge.wait()

    def advertise(self, devices: Mapping[str, tuple[Device, ...]]) -> None:
        changed = {
            name: pb.ListAndWatchResponse(
                devices=[
                    pb.Device(ID=device_id, health="Healthy" if well else "Unhealthy")
                    for device_id, well in found
                ]
            ).SerializeToString()
            for name, found in devices.items()
            if self._advertised.get(name) != found
        }
        if changed or devices.keys() != self._advertised.keys():
            self._advertised = dict(devices)
            self._link.send(Advertise(tuple(devices), changed))

    def serve_claims(self, health: bytes | None) -> None:
        """Serve the DRA driver and report ``health``, or stop serving if ``health`` is None."""
        if health != self._health:
            self._health = health
            self._link.send(ServeClaims(health))

    async def list(self, within: float) -> Listing | None:
        """Return the kubelet's list of pods, or None if there is no answer within ``within`` s."""
        self._last += 1
        number = self._last
        asked = self._asked[number] = asyncio.get_running_loop().create_future()
        self._link.send(ListDevices(number, within))
        try:
            async with asyncio.timeout(within + _MARGIN_S):
                body = await asked
        except TimeoutError:
            return None
        finally:
            del self._asked[number]
        if body is None:
            return None
        if body != self._latest[0]:
            self._latest = body, as_listing(pb.ListPodResourcesResponse.FromString(body))
        return self._latest[1]

    async def _serve(self, answer: Answers, call: Call) -> None:
        if call.method in ADMISSION:
            self.asked = time.monotonic()
        self._link.send(await answer(call))
        if call.method in ADMISSION:  # because the next call may follow at once
            self.asked = time.monotonic()


def as_listing(answer: pb.ListPodResourcesResponse) -> Listing:
    """Convert the kubelet's response. A resource may have several entries, one per NUMA node."""
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
