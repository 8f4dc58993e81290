"""The kubelet's device manager in Python: which IDs a container gets, and what is remembered.

Follows ``pkg/kubelet/cm/devicemanager/manager.go`` of Kubernetes 1.36 step by step (``Allocate``,
``devicesToAllocate``, ``filterByAffinity`` without NUMA hints, ``devicesToReuse``), since the ways in which it does
not follow a plugin's wish are just what is to be tested.
"""

import base64
import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gputile.api.core import Container, Pod
from gputile.api.quantity import parse_count
from gputile.node.gateway import kubelet_pb2 as pb

CHECKPOINT = "kubelet_internal_checkpoint"


class AdmissionError(Exception):
    """The pod is refused for good: phase Failed, reason UnexpectedAdmissionError."""


class DevicesUnavailable(AdmissionError):
    """The kubelet itself refuses the pod: ``lacking`` IDs of ``resource`` are not free."""

    def __init__(self, resource: str, required: int, available: int) -> None:
        counts = f"Requested: {required}, Available: {available}"
        super().__init__(f"requested number of devices unavailable for {resource}. {counts}")
        self.resource, self.lacking = resource, required - available


@dataclass
class Given:
    """What a container got of one resource."""

    ids: frozenset[str]
    answer: pb.ContainerAllocateResponse


@dataclass
class Endpoint:
    """A registered plugin."""

    stub: Any
    options: pb.DevicePluginOptions


@dataclass
class DeviceManager:
    """``honour`` False: preferences are asked for and not followed. ``choice`` is the order of everything unordered.

    ``report`` is told of each resource's healthy devices, as the node's status is.
    """

    directory: Path
    choice: random.Random
    active: Callable[[], set[str]]
    honour: bool = True
    healthy: dict[str, set[str]] = field(default_factory=dict)
    unhealthy: dict[str, set[str]] = field(default_factory=dict)
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    given: dict[tuple[str, str], dict[str, Given]] = field(default_factory=dict)
    allocated: dict[str, set[str]] = field(default_factory=dict)
    pending: str = ""
    sources_ready: bool = True
    running: Callable[[str, str], bool] = lambda uid, container: False
    report: Callable[[str, int], None] = lambda resource, amount: None
    seconds: dict[str, list[float]] = field(default_factory=dict)
    _reusable: dict[str, dict[str, set[str]]] = field(default_factory=dict)

    # -- allocation

    async def allocate(self, pod: Pod, container: Container) -> None:
        uid = pod.metadata.uid
        self.pending = uid
        reusable = self._reusable.setdefault(uid, {})
        for other in self._reusable.keys() - {uid}:
            del self._reusable[other]
        await self._container(pod, container, reusable)
        init = next((c for c in pod.spec.init_containers if c.name == container.name), None)
        for resource, given in self.given.get((uid, container.name), {}).items():
            if init is not None and init.restart_policy != "Always":
                reusable.setdefault(resource, set()).update(given.ids)
            else:
                reusable.setdefault(resource, set()).difference_update(given.ids)

    async def _container(self, pod: Pod, container: Container, reusable: dict[str, set[str]]) -> None:
        uid, collected, written = pod.metadata.uid, False, False
        resources = list(container.resources.limits.items())
        self.choice.shuffle(resources)
        for resource, limit in resources:
            if resource not in self.healthy:
                continue  # not a device plugin's resource, or one that was dropped since the node does not have it
            if not collected:
                self.collect()
                collected = True
            ids = await self._devices(uid, container.name, resource, parse_count(limit), reusable.get(resource, set()))
            if not ids:
                continue
            endpoint = self.endpoints[resource]
            shuffled = sorted(ids)
            self.choice.shuffle(shuffled)
            request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=shuffled)])
            try:
                with self._timed("Allocate"):
                    answer = await endpoint.stub.Allocate(request)
            except Exception as error:
                self._recount()
                raise AdmissionError(f"Allocate of {resource}: {_details(error)}") from error
            self.given.setdefault((uid, container.name), {})[resource] = Given(ids, answer.container_responses[0])
            written = True
        if written:
            self.write()

    async def _devices(
        self, uid: str, container: str, resource: str, required: int, reusable: set[str]
    ) -> frozenset[str]:
        if not self.sources_ready and self.running(uid, container):
            return frozenset()
        before = self.given.get((uid, container), {}).get(resource)
        needed = required - (len(before.ids) if before else 0)
        if before and needed:
            raise AdmissionError(f"changed request for {resource}")
        healthy = self.healthy[resource]
        if required and not healthy:
            raise AdmissionError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if before and not before.ids <= healthy:
            raise AdmissionError(f"previously allocated devices are no longer healthy; {resource}")
        if needed == 0:
            return frozenset()
        in_use, taken = self.allocated.setdefault(resource, set()), set[str]()

        def take(devices: set[str]) -> bool:
            order = sorted(devices - taken)
            self.choice.shuffle(order)
            for device in order[: required - len(taken)]:
                self.allocated.setdefault(resource, set()).add(device)
                taken.add(device)
            return len(taken) == required

        if take(reusable):
            return frozenset(taken)
        available = healthy - in_use
        if len(available) < required - len(taken):
            self._recount()
            raise DevicesUnavailable(resource, required - len(taken), len(available))
        preferred = await self._preferred(resource, available | taken, set(taken), required)
        if self.honour and take(preferred & available):
            return frozenset(taken)
        if take(available):
            return frozenset(taken)
        raise AdmissionError(f"unexpectedly allocated less resources than required: {resource}")

    async def _preferred(self, resource: str, available: set[str], must: set[str], size: int) -> set[str]:
        endpoint = self.endpoints[resource]
        if not endpoint.options.get_preferred_allocation_available:
            return set()
        order = sorted(available)
        self.choice.shuffle(order)
        asked = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=order, must_include_deviceIDs=sorted(must), allocation_size=size
        )
        try:
            with self._timed("GetPreferredAllocation"):
                answer = await endpoint.stub.GetPreferredAllocation(
                    pb.PreferredAllocationRequest(container_requests=[asked])
                )
        except Exception as error:
            self._recount()
            raise AdmissionError(f"GetPreferredAllocation of {resource}: {_details(error)}") from error
        return set(answer.container_responses[0].deviceIDs)

    @contextmanager
    def _timed(self, call: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds.setdefault(call, []).append(time.perf_counter() - begin)

    # -- bookkeeping

    def collect(self) -> None:
        """Give back the devices of pods that are not active any more."""
        if not self.sources_ready:
            return
        active = self.active() | {self.pending}
        gone = [key for key in self.given if key[0] not in active]
        for key in gone:
            del self.given[key]
        if gone:
            self._recount()

    def _recount(self) -> None:
        self.allocated = {}
        for resources in self.given.values():
            for resource, given in resources.items():
                self.allocated.setdefault(resource, set()).update(given.ids)

    def update(self, resource: str, devices: pb.ListAndWatchResponse) -> None:
        self.healthy[resource] = {d.ID for d in devices.devices if d.health == "Healthy"}
        self.unhealthy[resource] = {d.ID for d in devices.devices if d.health != "Healthy"}
        self.report(resource, len(self.healthy[resource]))

    def disconnected(self, resource: str) -> None:
        """The stream ended: everything of this resource is unhealthy until the plugin registers again."""
        if resource in self.healthy:
            self.unhealthy[resource] = self.unhealthy.get(resource, set()) | self.healthy[resource]
            self.healthy[resource] = set()

    def allocatable(self) -> dict[str, int]:
        return {resource: len(ids) for resource, ids in self.healthy.items()}

    def write(self) -> None:
        entries = [
            {
                "PodUID": uid,
                "ContainerName": container,
                "ResourceName": resource,
                "DeviceIDs": {"-1": sorted(given.ids)},
                "AllocResp": base64.b64encode(given.answer.SerializeToString()).decode(),
            }
            for (uid, container), resources in self.given.items()
            for resource, given in resources.items()
        ]
        registered = {resource: sorted(ids) for resource, ids in self.healthy.items()}
        body = {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": registered}, "Checksum": 1}
        path = self.directory / CHECKPOINT
        beside = path.with_suffix(".tmp")
        beside.write_text(json.dumps(body))
        beside.replace(path)

    def read(self) -> None:
        """Start from the checkpoint: registered resources are known, without a healthy device until they register."""
        path = self.directory / CHECKPOINT
        if not path.exists():
            return
        data = json.loads(path.read_text())["Data"]
        for entry in data["PodDeviceEntries"]:
            answer = pb.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
            ids = frozenset(device for group in entry["DeviceIDs"].values() for device in group)
            self.given.setdefault((entry["PodUID"], entry["ContainerName"]), {})[entry["ResourceName"]] = Given(
                ids, answer
            )
        for resource in data["RegisteredDevices"]:
            self.healthy[resource] = set()
        self._recount()


def _details(error: Exception) -> str:
    details = getattr(error, "details", None)
    return str(details()) if callable(details) else repr(error)
