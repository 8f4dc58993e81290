"""Reads from a pod which GPUs of its node it has."""

from collections.abc import Callable

import msgspec

from gputile.api.core import Pod
from gputile.api.well_known import ALLOCATION_ANNOTATION
from gputile.core.devices.allocation import Allocation, AllocationError, GpuShare, decode_allocation, reservation_of
from gputile.core.devices.request import Request, RequestError, RequestKind, Shape, parse_request
from gputile.core.kube_predicates.pod_requests import NO_HOST_RESOURCES, HostResources, host_request

DOUBTED = float("-inf")
"""``Booking.assumed_at`` of a pod that has to be read at once."""


class Booking(msgspec.Struct, frozen=True, gc=False, eq=False):
    """What one pod holds. Bookings are equal that differ in ``version`` only.

    ``allocation`` is None for a pod that is bound to the node and asks for GPUs, but carries no readable
    allocation: nobody knows yet which GPUs it is on, ``problem`` says why, and ``asked_mib`` how much memory it
    asks for over all GPUs (0 for whole GPUs). ``assumed_at`` is the monotonic time in seconds of a bind, or of a
    reading of the pod, that the watch has not confirmed yet, None once it has.

    ``host`` is what the pod asks for of the machine beside its GPUs.

    ``plan`` names the gang's plan that gave the pod its place, "" for a pod of none, and ``plan_size`` is how many
    places the plan has. A ``reserved`` booking is a reservation: the GPUs are kept for a pod that no Binding has been
    sent for, until ``expires_ns`` (Unix time in nanoseconds). ``first`` marks that of the pod whose Binding begins the
    plan. ``version`` is the newest version of the pod that is known to carry the reservation; of a pod that was read,
    the version that was. ``preemption`` marks a place that other pods leave for a pod of higher priority.
    """

    uid: str
    namespace: str
    name: str
    node: str
    trust_group: str
    allocation: Allocation | None
    problem: str = ""
    asked_mib: int = 0
    priority: int = 0
    assumed_at: float | None = None
    plan: str = ""
    plan_size: int = 0
    reserved: bool = False
    expires_ns: int = 0
    host: HostResources = NO_HOST_RESOURCES
    first: bool = False
    preemption: bool = False
    version: str = ""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Booking):
            return NotImplemented
        return msgspec.structs.astuple(self)[:-1] == msgspec.structs.astuple(other)[:-1]

    def __hash__(self) -> int:
        return hash(self.uid)

    @property
    def begun(self) -> bool:
        """Whether the pod is bound for certain: what is assumed may be refused yet."""
        return not self.reserved and self.assumed_at is None

    @property
    def gpus(self) -> tuple[GpuShare, ...]:
        return self.allocation.gpus if self.allocation else ()

    @property
    def whole(self) -> bool:
        """Whether the pod has its GPUs for itself."""
        return self.allocation is not None and self.allocation.whole

    @property
    def key(self) -> str:
        """``namespace/name`` of the pod."""
        return f"{self.namespace}/{self.name}"

    def on_gpu(self, uuid: str) -> bool:
        return any(share.uuid == uuid for share in self.gpus)

    def takes(self, share: GpuShare, total_mib: int, replicas: int = 0) -> tuple[int, int]:
        """Return the MiB and the percent that ``share`` takes of a GPU that has ``total_mib``.

        Of a GPU that a pod has for itself that is all of it, whatever the share says: nobody else gets the GPU. Of
        one that ``replicas`` pods have in turns it is that part: all of them together have the GPU.
        """
        if replicas and self.whole:
            return total_mib // replicas, 100 // replicas
        return (max(share.mib, total_mib), max(share.percent, 100)) if self.whole else (share.mib, share.percent)


def frees(before: Booking | None, after: Booking | None) -> bool:
    """Return whether GPUs may be free because a pod has now ``after`` instead of ``before``; on the same node too."""
    if before is None:
        return False
    return after is None or (before.node, before.gpus) != (after.node, after.gpus)


def booking_of(pod: Pod, unit_mib: int, trust_group: Callable[[Pod], str]) -> Booking | None:
    """Return the booking of ``pod``; None if it is not bound, is finished (U4), or has no GPU.

    A bound pod that asks for GPUs and carries no readable allocation gets a booking without GPUs. An allocation
    on a pod that asks for none means nothing: anybody could have written it.
    """
    if not pod.spec.node_name or pod.finished:
        return None
    request, asked_mib = None, 0
    try:
        request = parse_request(pod, unit_mib, trust_group)
        if request is None:
            return None
        asked_mib, host = request.shape.mib * request.shape.gpus, request.host
    except RequestError:
        host = host_request(pod)
    allocation, problem = _allocation_of(pod, request)
    reservation = reservation_of(pod)
    return Booking(
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        node=pod.spec.node_name,
        trust_group=trust_group(pod),
        allocation=allocation,
        problem=problem,
        asked_mib=asked_mib,
        priority=pod.spec.priority or 0,
        plan=reservation.plan if reservation else "",
        plan_size=reservation.size if reservation else 0,
        host=host,
        first=reservation.first if reservation else False,
    )


def _allocation_of(pod: Pod, request: Request | None) -> tuple[Allocation | None, str]:
    """Return what a bound pod holds, or why nobody knows."""
    text = pod.metadata.annotations.get(ALLOCATION_ANNOTATION)
    if text is None:
        return None, f"it was bound without the annotation {ALLOCATION_ANNOTATION}"
    try:
        allocation = decode_allocation(text)
    except AllocationError as error:
        return None, f"its annotation {ALLOCATION_ANNOTATION} cannot be read: {error}"
    if request is None:
        return allocation, ""
    named, asked = len(allocation.gpus), request.shape.gpus
    if named < asked:
        return None, f"its annotation {ALLOCATION_ANNOTATION} names {named} of the {asked} GPUs that it asks for"
    return _at_least(request.shape, allocation), ""


def _at_least(shape: Shape, allocation: Allocation) -> Allocation:
    """Return what a pod holds where its allocation claims less than it asks for: the kubelet gives what is asked.

    What is missing is booked on each of its GPUs, since it could be on any of them.
    """
    if shape.kind is not RequestKind.SHARED:
        return allocation if allocation.whole else msgspec.structs.replace(allocation, whole=True)
    gpus = allocation.gpus
    mib = max(0, shape.mib * shape.gpus - sum(share.mib for share in gpus))
    percent = max(0, shape.percent * shape.gpus - sum(share.percent for share in gpus))
    if not mib and not percent:
        return allocation
    more = tuple(msgspec.structs.replace(share, mib=share.mib + mib, percent=share.percent + percent) for share in gpus)
    return msgspec.structs.replace(allocation, gpus=more)
