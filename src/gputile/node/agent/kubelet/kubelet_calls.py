"""Answers the kubelet's device plugin calls that come through the gateway."""

import logging
from collections.abc import Sequence
from typing import Protocol

from gputile.node.agent.decisions.calls.validation import AllocationConflict
from gputile.node.agent.decisions.devices.device_lists import Device
from gputile.node.gateway.messages import Call, CallAnswer, CallRefused
from gputile.node.gateway.protocols import deviceplugin_v1beta1_pb2 as pb

log = logging.getLogger(__name__)

ADMISSION = ("GetPreferredAllocation", "Allocate")
"""The calls by which the kubelet admits a pod."""
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"


class AgentNotReady(Exception):
    """Asked too early, or at a bad moment: the kubelet should ask again."""


class DevicePluginCalls(Protocol):
    """Answers the calls on the plugins of all resources."""

    async def preferred(
        self, resource: str, available: Sequence[str], must: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """Return the IDs that the kubelet should take."""

    async def allocate(self, resource: str, ids: tuple[str, ...]) -> pb.ContainerAllocateResponse:
        """Return what a container gets.

        Raises:
            AllocationConflict: the IDs cannot be served.
        """

    async def prestart(self, resource: str, ids: tuple[str, ...]) -> None:
        """Prepare the start of a container.

        Raises:
            AgentNotReady: it must not start yet.
        """


async def answer(handler: DevicePluginCalls, call: Call) -> CallAnswer | CallRefused:
    """Return what the kubelet is answered."""
    try:
        match call.method:
            case "GetPreferredAllocation":
                return CallAnswer(call.number, await _preferred(handler, call))
            case "Allocate":
                return CallAnswer(call.number, await _allocate(handler, call))
            case "PreStartContainer":
                asked = pb.PreStartContainerRequest.FromString(call.body)
                await handler.prestart(call.resource, tuple(asked.devices_ids))
                return CallAnswer(call.number, pb.PreStartContainerResponse().SerializeToString())
            case unknown:
                return CallRefused(call.number, "UNIMPLEMENTED", f"there is no {unknown}")
    except AllocationConflict as error:
        return CallRefused(call.number, "FAILED_PRECONDITION", str(error))
    except AgentNotReady as error:
        return CallRefused(call.number, "UNAVAILABLE", str(error))
    except Exception as error:
        log.exception("%s of %s", call.method, call.resource)
        return CallRefused(call.number, "INTERNAL", f"{type(error).__name__}: {error}")


def devices_message(devices: Sequence[Device]) -> bytes:
    """Return a ListAndWatchResponse."""
    return pb.ListAndWatchResponse(
        devices=[pb.Device(ID=device_id, health=HEALTHY if well else UNHEALTHY) for device_id, well in devices]
    ).SerializeToString()


async def _preferred(handler: DevicePluginCalls, call: Call) -> bytes:
    """Steer the kubelet. An error here would kill the pod, so there is none: no preference is an answer too."""
    answers = []
    for asked in pb.PreferredAllocationRequest.FromString(call.body).container_requests:
        try:
            ids = await handler.preferred(
                call.resource,
                tuple(asked.available_deviceIDs),
                tuple(asked.must_include_deviceIDs),
                asked.allocation_size,
            )
        except Exception:
            log.exception("no preference for %d of %s", asked.allocation_size, call.resource)
            ids = ()
        answers.append(pb.ContainerPreferredAllocationResponse(deviceIDs=ids))
    return pb.PreferredAllocationResponse(container_responses=answers).SerializeToString()


async def _allocate(handler: DevicePluginCalls, call: Call) -> bytes:
    """Answer what a container gets."""
    answers = [
        await handler.allocate(call.resource, tuple(asked.devices_ids))
        for asked in pb.AllocateRequest.FromString(call.body).container_requests
    ]
    return pb.AllocateResponse(container_responses=answers).SerializeToString()
