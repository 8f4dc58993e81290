"""Caches the pods that are bound to the node, with their requests and bookings.

An event of the watch may be older than the result of a direct read, or newer. In either case, the
cache must not replace a pod by an older version.
"""

import contextlib
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod, is_older, unversioned
from gputile.api.quantity import parse_active_threads
from gputile.api.well_known import (
    ALLOCATION_ANNOTATION,
    GPU_CORE,
    GPU_MEMORY,
    MEMORY_UNIT_ANNOTATION,
    MIRROR_ANNOTATION,
    MPS_THREADS_ANNOTATION,
)
from gputile.core.devices.allocation import Allocation, AllocationError, GpuShare, decode_allocation
from gputile.core.devices.request import (
    ContainerRequest,
    Request,
    RequestError,
    RequestKind,
    parse_request,
)


@dataclass(frozen=True, slots=True)
class KnownPod:
    """A pod that is bound to this node.

    ``request`` is None for a pod without GPUs, or if the request is ``invalid``. ``allocation`` is
    None if the pod has no valid allocation annotation.
    """

    pod: Pod
    trust_group: str
    request: Request | None = None
    allocation: Allocation | None = None
    invalid: bool = False

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid

    @property
    def kubelet_uid(self) -> str:
        """The kubelet's UID of the pod. For a static pod, ``uid`` is the UID of the mirror pod."""
        return self.pod.metadata.annotations.get(MIRROR_ANNOTATION, self.uid)

    @property
    def key(self) -> str:
        """``namespace/name``, by which the kubelet's list identifies pods."""
        return self.pod.key

    @property
    def alive(self) -> bool:
        """Whether containers of the pod may still run or start."""
        return not self.pod.finished

    @property
    def shared_gpus(self) -> int:
        """The number of shared GPUs per container: 0 for whole GPUs, 1 for an unknown request."""
        if self.request is None:
            return 1
        return self.request.shape.gpus if self.request.shape.kind is RequestKind.SHARED else 0

    @property
    def units_per_gpu(self) -> int:
        """How many memory units the pod requests on each of its shared GPUs."""
        return self.request.units // self.request.shape.gpus if self.request is not None else 0

    @property
    def own_unit_mib(self) -> int:
        """The memory unit in MiB that the pod's annotation states, or 0 without the annotation."""
        stamped = MEMORY_UNIT_ANNOTATION in self.pod.metadata.annotations
        return self.request.unit_mib if stamped and self.request is not None else 0

    @property
    def mps_threads(self) -> int:
        """The percentage of a GPU's threads that the pod requests in mode mps, or 0 if none."""
        try:
            return parse_active_threads(self.pod.metadata.annotations[MPS_THREADS_ANNOTATION])
        except (KeyError, ValueError):
            return 0

    @property
    def containers(self) -> tuple[ContainerRequest, ...]:
        return self.request.containers if self.request is not None else ()

    def demand(self, container: ContainerRequest | None, resource: str) -> int:
        if self.request is None or container is None:
            return 0
        kind = self.request.shape.kind
        if kind is RequestKind.SHARED:
            shared = {GPU_MEMORY: container.units, GPU_CORE: container.percent}
            return shared.get(resource, 0)
        return container.gpus if resource == kind.value else 0

    def container_request(self, name: str) -> ContainerRequest | None:
        return next((each for each in self.containers if each.name == name), None)

    def booked(self, container: str) -> tuple[GpuShare, ...]:
        """Return the container's booked share of each GPU, or () without a booking."""
        return self.allocation.containers.get(container, ()) if self.allocation else ()


def known_pod(pod: Pod, configuration: Configuration) -> KnownPod:
    request, allocation, invalid = None, None, False
    try:
        request = parse_request(pod, configuration.unit_mib, configuration.trust_group)
    except RequestError:
        invalid = True
    with contextlib.suppress(KeyError, AllocationError):
        allocation = decode_allocation(pod.metadata.annotations[ALLOCATION_ANNOTATION])
    return KnownPod(pod, configuration.trust_group(pod), request, allocation, invalid)


MOST_GONE = 4096


class PodCache(dict[str, KnownPod]):
    """The pods by key.

    ``gone`` are the UIDs of pods that the watch or a list has reported as deleted. The response to
    an earlier read or write may arrive later. It must not restore the pod, because the watch will
    not report the deletion again. ``ahead`` are the UIDs of pods that were read directly, but not
    yet reported by the watch or a list. A list without such a pod may be older than the pod.
    ``listed`` is True once the API server has listed all pods.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gone: dict[str, None] = {}
        self.ahead: set[str] = set()
        self.listed = False


def answered_pod(pod_cache: PodCache, pod: Pod, configuration: Configuration) -> bool:
    """Store a pod that was read directly, unless the watch has reported the pod's deletion."""
    uid, held = pod.metadata.uid, pod_cache.get(pod.key)
    if uid in pod_cache.gone:
        return False
    if held is None or held.uid != uid:
        pod_cache.ahead.add(uid)
    return _update(pod_cache, pod, configuration)


def apply_pod(pod_cache: PodCache, pod: Pod, configuration: Configuration) -> bool:
    """Store a pod from the watch or a list, unless a newer version or a newer pod is stored.

    Return whether a relevant field changed. Most of the kubelet's status updates change none.
    """
    pod_cache.ahead.discard(pod.metadata.uid)
    return _update(pod_cache, pod, configuration)


def _update(pod_cache: PodCache, pod: Pod, configuration: Configuration) -> bool:
    held = pod_cache.get(pod.key)
    if held is not None and is_older(
        pod.metadata.resource_version, held.pod.metadata.resource_version
    ):
        return False
    if held is not None and unversioned(pod) == unversioned(held.pod):
        pod_cache[pod.key] = replace(held, pod=pod)
        return False
    pod_cache[pod.key] = known_pod(pod, configuration)
    return True


def remove_pod(pod_cache: PodCache, pod: Pod) -> None:
    """Remove a pod that was deleted, but not a newer pod of the same name."""
    held = pod_cache.get(pod.key)
    if held is not None and held.uid == pod.metadata.uid:
        del pod_cache[pod.key]
    _record_deleted(pod_cache, pod.metadata.uid)


def replace_pods(
    pod_cache: PodCache,
    pods: Iterable[Pod],
    configuration: Configuration,
    unreadable: Container[str] = (),
) -> None:
    """Store a complete list of pods. Pods whose UIDs are in ``unreadable`` remain as they are."""
    listed = {pod.key: pod for pod in pods}
    uids = {pod.metadata.uid for pod in listed.values()}
    for key, known in list(pod_cache.items()):
        if known.uid in unreadable:
            continue
        if known.uid not in uids and known.uid not in pod_cache.ahead:
            _record_deleted(pod_cache, known.uid)
        if key not in listed:
            del pod_cache[key]
    pod_cache.ahead.clear()
    pod_cache.listed = True
    for pod in listed.values():
        apply_pod(pod_cache, pod, configuration)


def _record_deleted(pod_cache: PodCache, uid: str) -> None:
    pod_cache.ahead.discard(uid)
    pod_cache.gone[uid] = None
    if len(pod_cache.gone) > MOST_GONE:
        del pod_cache.gone[next(iter(pod_cache.gone))]


def read_again(pod_cache: PodCache, configuration: Configuration) -> None:
    for key, known in pod_cache.items():
        pod_cache[key] = known_pod(known.pod, configuration)
