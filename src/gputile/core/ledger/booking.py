"""Builds the bookings of bound pods and allocated ResourceClaims. A booking names the GPUs in use.

kube-scheduler writes the allocations of claims, and counts them itself. The ledger has a booking
under the claim's UID as long as the claim has an allocation.
"""

from collections.abc import Callable, Iterator

import msgspec

from gputile.api.core import Pod
from gputile.api.resource_claims import AllocatedDevice, ResourceClaim, claims_of, gpu_index
from gputile.api.well_known import ALLOCATION_ANNOTATION
from gputile.core.devices.allocation import (
    Allocation,
    AllocationError,
    GpuShare,
    decode_allocation,
    reservation_of,
)
from gputile.core.devices.claim_request import CLAIM_UNIT_MIB, asks_for_gpus
from gputile.core.devices.inventory import Gpu
from gputile.core.devices.request import Request, RequestError, RequestKind, Shape, parse_request
from gputile.core.kube_predicates.pod_requests import NO_HOST_RESOURCES, HostResources, host_request
from gputile.core.ledger.node_info import NodeInfo

DOUBTED = float("-inf")
"""The ``assumed_at`` of a booking whose pod has to be read from the API server at once."""


class Booking(msgspec.Struct, frozen=True, gc=False, eq=False):
    """The GPUs of one pod or claim. Bookings that differ only in ``version`` are equal."""

    uid: str
    namespace: str
    name: str
    node: str
    trust_group: str
    # None if the GPUs of a bound pod are unknown, because it has no readable allocation
    allocation: Allocation | None
    problem: str = ""  # the reason why the allocation is unknown
    asked_mib: int = 0  # the requested memory of all GPUs, 0 for whole GPUs
    priority: int = 0
    # The monotonic time in seconds of a Binding, or of a read of the pod, that the watch has not
    # confirmed yet
    assumed_at: float | None = None
    plan: str = ""  # the plan of the pod's reservation
    plan_size: int = 0  # the number of reservations in the plan
    reserved: bool = False  # a reservation: no Binding of the pod has been sent
    expires_ns: int = 0  # Unix time in nanoseconds at which a reservation ends
    host: HostResources = NO_HOST_RESOURCES  # the pod's request for CPU and memory of the machine
    first: bool = False  # the first pod of its plan to be bound
    preemption: bool = False  # a reservation of a preemptor, whose victims have to leave
    # The newest resourceVersion that is known to have the reservation, or the version that was read
    version: str = ""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Booking):
            return NotImplemented
        return msgspec.structs.astuple(self)[:-1] == msgspec.structs.astuple(other)[:-1]

    def __hash__(self) -> int:
        return hash(self.uid)

    @property
    def begun(self) -> bool:
        """Whether the pod is known to be bound. An assumed Binding may still fail."""
        return not self.reserved and self.assumed_at is None

    @property
    def gpus(self) -> tuple[GpuShare, ...]:
        return self.allocation.gpus if self.allocation else ()

    @property
    def whole(self) -> bool:
        return self.allocation is not None and self.allocation.whole

    @property
    def time_sliced(self) -> bool:
        """Whether the booking has several time slices of a GPU."""
        return len({share.uuid for share in self.gpus}) < len(self.gpus)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def on_gpu(self, uuid: str) -> bool:
        return any(share.uuid == uuid for share in self.gpus)

    def amounts_on(self, info: NodeInfo) -> dict[int, tuple[int, int]]:
        """Return the MiB and percent that the booking has on each GPU of the node, by GPU index."""
        found: dict[int, tuple[int, int]] = {}
        for share in self.gpus:
            if (i := info.column(share.uuid)) is not None:
                index = info.inventory.gpus[i].index
                mib, percent = self.amounts(share, info.gpu_total(i), info.replicas)
                before = found.get(index, (0, 0))
                found[index] = before[0] + mib, before[1] + percent
        return found

    def amounts(self, share: GpuShare, total_mib: int, replicas: int = 0) -> tuple[int, int]:
        """Return the MiB and percent of compute that ``share`` uses of a GPU with ``total_mib``.

        For a pod with whole GPUs, the result is the whole GPU, and the amounts in ``share`` do not
        matter. If ``replicas`` pods share each whole GPU by time-slicing, it is an equal part.
        """
        if replicas and self.whole:
            return total_mib // replicas, 100 // replicas
        return (
            (max(share.mib, total_mib), max(share.percent, 100))
            if self.whole
            else (share.mib, share.percent)
        )


def frees(before: Booking | None, after: Booking | None) -> bool:
    """Return whether a change from ``before`` to ``after`` may free GPUs, even on the same node."""
    if before is None:
        return False
    return after is None or (before.node, before.gpus) != (after.node, after.gpus)


def booking_of(pod: Pod, unit_mib: int, trust_group: Callable[[Pod], str]) -> Booking | None:
    """Return the booking of ``pod``, or None if it is unbound, is finished (U4) or requests no GPU.

    A bound pod that requests GPUs and has no readable allocation gets a booking without GPUs. If
    the pod requests no GPUs, its allocation is ignored, since anybody could have written the
    annotation.
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
    """Return the allocation of a bound pod, or why the allocation is unknown."""
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
        return (
            None,
            f"its annotation {ALLOCATION_ANNOTATION} names {named} of the {asked} GPUs that it "
            f"requests",
        )
    return _at_least(request.shape, allocation), ""


def _at_least(shape: Shape, allocation: Allocation) -> Allocation:
    """Raise an allocation to at least what the pod requests.

    The kubelet allocates what the pod requests. If the allocation states less, the difference is
    added to each of the pod's GPUs, since the GPU that has the difference is unknown.
    """
    if shape.kind is not RequestKind.SHARED:
        return allocation if allocation.whole else msgspec.structs.replace(allocation, whole=True)
    gpus = allocation.gpus
    mib = max(0, shape.mib * shape.gpus - sum(share.mib for share in gpus))
    percent = max(0, shape.percent * shape.gpus - sum(share.percent for share in gpus))
    if not mib and not percent:
        return allocation
    more = tuple(
        msgspec.structs.replace(share, mib=share.mib + mib, percent=share.percent + percent)
        for share in gpus
    )
    return msgspec.structs.replace(allocation, gpus=more)


class Claims:
    """The latest version of each claim that requests or has GPUs of gputile."""

    def __init__(self) -> None:
        self._by_uid: dict[str, ResourceClaim] = {}
        self._uids: dict[str, str] = {}  # by namespace/name

    def copy(self) -> "Claims":
        twin = Claims()
        twin._by_uid, twin._uids = self._by_uid.copy(), self._uids.copy()
        return twin

    def __contains__(self, uid: object) -> bool:
        return uid in self._by_uid

    def uids(self) -> list[str]:
        return list(self._by_uid)

    def all(self) -> list[ResourceClaim]:
        return list(self._by_uid.values())

    def get(self, uid: str) -> ResourceClaim | None:
        return self._by_uid.get(uid)

    def apply(self, claim: ResourceClaim) -> None:
        uid = claim.metadata.uid
        if not asks_for_gpus(claim) and not claim.gpus:
            self.drop(uid)
            return
        self._by_uid[uid] = claim
        self._uids[claim.key] = uid

    def drop(self, uid: str) -> None:
        claim = self._by_uid.pop(uid, None)
        if claim is not None and self._uids.get(claim.key) == uid:
            del self._uids[claim.key]

    def of_pod(self, pod: Pod) -> Iterator[ResourceClaim]:
        """Yield the pod's known GPU claims in the order in which kube-scheduler allocates them."""
        for name in claims_of(pod):
            uid = self._uids.get(f"{pod.metadata.namespace}/{name}")
            if uid is not None:
                yield self._by_uid[uid]


def claim_node(claim: ResourceClaim) -> str:
    """Return the node of an allocated claim, or "" without an allocation."""
    return next((each.pool for each in claim.gpus), "")


def claim_booking(
    claim: ResourceClaim, node_info: NodeInfo | None, trust_group: str
) -> Booking | None:
    """Return the booking of an allocated claim, or None if the claim holds no GPU.

    Devices with admin access do not count. MIG instances do not count either, since the inventory
    does not have them. ``node_info`` describes the node ``claim_node(claim)``. If a device of
    the claim is not on this node, the booking has no GPUs.
    """
    node = claim_node(claim)
    held = [each for each in claim.gpus if not each.admin_access and not each.is_instance]
    if not held:
        return None
    gpus = {gpu.index: gpu for gpu in node_info.inventory.gpus} if node_info is not None else {}
    unknown = [
        f"{each.pool}/{each.device}"
        for each in held
        if each.pool != node or gpu_index(each.device) not in gpus
    ]
    allocation, problem = None, ""
    if unknown:
        problem = f"it is allocated {', '.join(unknown)}, which node {node} does not have"
    else:
        mode = node_info.mode.value if node_info is not None and node_info.mode is not None else ""
        shares = tuple(_share(each, gpus[gpu_index(each.device)]) for each in held)
        whole = any(each.share_id is None for each in held)
        allocation = Allocation(shares, {}, CLAIM_UNIT_MIB, mode=mode, whole=whole)
    return Booking(
        uid=claim.metadata.uid,
        namespace=claim.metadata.namespace,
        name=claim.pods[0].name if claim.pods else claim.metadata.name,
        node=node,
        trust_group=trust_group,
        allocation=allocation,
        problem=problem,
        asked_mib=sum(each.mib for each in held),
    )


def _share(device: AllocatedDevice, gpu: Gpu) -> GpuShare:
    if device.share_id is None:
        return GpuShare(gpu.uuid, gpu.index, gpu.mib, 100)
    return GpuShare(gpu.uuid, gpu.index, device.mib, device.percent)
