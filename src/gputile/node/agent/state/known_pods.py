"""Describes the pods of this node for allocation: what each container asks, and what was booked."""

from dataclasses import dataclass

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.api.gpu_time import parse_active_threads
from gputile.api.well_known import (
    ALLOCATION_ANNOTATION,
    GPU_CORE,
    GPU_MEMORY,
    MIRROR_ANNOTATION,
    MPS_THREADS_ANNOTATION,
)
from gputile.core.devices.allocation import Allocation, AllocationError, GpuShare, decode_allocation
from gputile.core.devices.request import ContainerRequest, Request, RequestError, RequestKind, parse_request


@dataclass(frozen=True, slots=True)
class KnownPod:
    """A pod bound to this node.

    ``request`` is None for a pod without GPUs, and for one whose request breaks a rule; ``allocation`` is None where
    there is none that can be read, and ``problem`` says why.
    """

    pod: Pod
    trust_group: str
    request: Request | None = None
    allocation: Allocation | None = None
    problem: str | None = None

    @property
    def uid(self) -> str:
        """The pod's UID: two pods of one name differ in it."""
        return self.pod.metadata.uid

    @property
    def kubelet_uid(self) -> str:
        """The UID by which the kubelet has the pod: the API server knows a static pod by another one, its mirror's."""
        return self.pod.metadata.annotations.get(MIRROR_ANNOTATION, self.uid)

    @property
    def key(self) -> str:
        """``namespace/name``, which is all that the kubelet tells of a pod."""
        return self.pod.key

    @property
    def alive(self) -> bool:
        """Whether its containers may still run or start."""
        return not self.pod.finished

    @property
    def shared_gpus(self) -> int:
        """How many GPUs each container shares; 0 for whole GPUs, 1 where it is not known."""
        if self.request is None:
            return 1
        return self.request.shape.gpus if self.request.shape.kind is RequestKind.SHARED else 0

    @property
    def mps_threads(self) -> int:
        """The percentage of a GPU's threads that the pod asks for in mode mps; 0 where it asks for no valid one."""
        try:
            return parse_active_threads(self.pod.metadata.annotations[MPS_THREADS_ANNOTATION])
        except (KeyError, ValueError):
            return 0

    def demand(self, container: ContainerRequest, resource: str) -> int:
        """Return how many IDs of ``resource`` a container asks for."""
        if self.request is None:
            return 0
        kind = self.request.shape.kind
        if kind is RequestKind.SHARED:
            return container.units if resource == GPU_MEMORY else container.percent if resource == GPU_CORE else 0
        return container.gpus if resource == kind.value else 0

    def container_request(self, name: str) -> ContainerRequest | None:
        """Return what a container asks for, None where it asks for no GPU."""
        containers = self.request.containers if self.request else ()
        return next((container for container in containers if container.name == name), None)

    def booked(self, container: str) -> tuple[GpuShare, ...]:
        """Return a container's booked part of each GPU; empty where nothing is booked."""
        return self.allocation.containers.get(container, ()) if self.allocation else ()


def known_pod(pod: Pod, configuration: Configuration) -> KnownPod:
    """Return what admission needs to know of ``pod``."""
    group = configuration.trust_group(pod)
    request, allocation, problem = None, None, None
    try:
        request = parse_request(pod, configuration.unit_mib, configuration.trust_group)
    except RequestError as error:
        problem = str(error)
    text = pod.metadata.annotations.get(ALLOCATION_ANNOTATION)
    if text is not None:
        try:
            allocation = decode_allocation(text)
        except AllocationError as error:
            problem = f"its annotation {ALLOCATION_ANNOTATION} cannot be read: {error}"
    return KnownPod(pod, group, request, allocation, problem)
