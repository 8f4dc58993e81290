"""Stores the ledger's bookings by UID, node and plan, and the reservations of unbound pods.

A reservation is a booking of GPUs for a pod that is not bound yet. Whether the pod may use its
reservation is decided in ``core.scheduling.reservation_rules``.
"""

from collections.abc import Collection, Container, Iterator, KeysView
from dataclasses import dataclass, field

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.core.devices.allocation import Allocation, reservation_of
from gputile.core.devices.request import Request, RequestError, RequestKind, parse_request
from gputile.core.ledger.booking import Booking


def reserved_booking(pod: Pod, configuration: Configuration) -> Booking | None:
    """Return the reservation in the annotation of ``pod`` as a booking, or None.

    The result is None without a readable reservation of GPUs. A reservation counts only if it
    matches the pod's request, since the Binding copies the reservation unchanged.
    """
    if pod.spec.node_name or pod.finished:
        return None
    reservation = reservation_of(pod)
    if reservation is None or reservation.allocation is None:
        return None
    if not configuration.reserves_gpus(preemption=reservation.preemption):
        return None
    try:
        request = parse_request(pod, configuration.unit_mib, configuration.trust_group)
    except RequestError:
        return None
    if request is None or not _matches(request, reservation.allocation):
        return None
    return Booking(
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        node=reservation.node,
        trust_group=configuration.trust_group(pod),
        allocation=reservation.allocation,
        asked_mib=request.shape.mib * request.shape.gpus,
        priority=pod.spec.priority or 0,
        plan=reservation.plan,
        plan_size=reservation.size,
        reserved=True,
        expires_ns=reservation.expires_ns,
        first=reservation.first,
        preemption=reservation.preemption,
        version=pod.metadata.resource_version,
        host=request.host,
    )


def _matches(request: Request, allocation: Allocation) -> bool:
    shape, shared = request.shape, request.shape.kind is RequestKind.SHARED
    if len(allocation.gpus) != shape.gpus or allocation.whole == shared:
        return False
    return not shared or (
        allocation.unit_mib == request.unit_mib
        and all(
            (share.mib, share.percent) == (shape.mib, shape.percent) for share in allocation.gpus
        )
    )


class Reservations:
    """The reservations of all pods: in force, expired, or with a Binding in flight.

    Expired reservations stay stored. They are valid again if a clock that was ahead is corrected.
    """

    def __init__(self) -> None:
        self._by_uid: dict[str, Booking] = {}
        self.now_ns = 0

    def copy(self) -> "Reservations":
        twin = Reservations()
        twin._by_uid, twin.now_ns = self._by_uid.copy(), self.now_ns
        return twin

    def store(self, uid: str, reservation: Booking | None) -> None:
        """Store the reservation of a pod. None removes the stored reservation."""
        if reservation is not None:
            self._by_uid[uid] = reservation
        else:
            self._by_uid.pop(uid, None)

    def get(self, uid: str) -> Booking | None:
        reservation = self._by_uid.get(uid)
        return (
            reservation
            if reservation is not None and reservation.expires_ns > self.now_ns
            else None
        )

    def uids(self) -> KeysView[str]:
        return self._by_uid.keys()

    def retain(self, *uids: Container[str]) -> None:
        """Drop the reservations of pods whose UIDs are in none of these collections."""
        for uid in [uid for uid in self._by_uid if not any(uid in some for some in uids)]:
            del self._by_uid[uid]


@dataclass(slots=True)
class PlanBookings:
    """The bookings of a plan's pods, by UID, both reserved and bound.

    ``begun`` has the UIDs of the pods that are known to be bound. ``first`` has the bookings of the
    pods to bind first. In a valid plan this is exactly one pod.
    """

    members: dict[str, Booking] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    first: dict[str, Booking] = field(default_factory=dict)

    def copy(self) -> "PlanBookings":
        return PlanBookings(self.members.copy(), self.begun.copy(), self.first.copy())


class BookingIndex:
    """All bookings, by UID, by node, and by the plan of a gang.

    A copy shares the bookings of each node with its original until one of them changes the node.
    """

    def __init__(self) -> None:
        self._by_uid: dict[str, Booking] = {}
        self._by_node: dict[str, dict[str, Booking]] = {}
        self._owned: set[str] = set()  # nodes whose bookings no copy shares
        self._plans: dict[str, PlanBookings] = {}

    def copy(self) -> "BookingIndex":
        twin = BookingIndex()
        twin._by_uid = self._by_uid.copy()
        twin._by_node, self._owned = self._by_node.copy(), set()
        twin._plans = {name: plan.copy() for name, plan in self._plans.items()}
        return twin

    def __iter__(self) -> Iterator[Booking]:
        return iter(self._by_uid.values())

    def uids(self) -> KeysView[str]:
        return self._by_uid.keys()

    def get(self, uid: str) -> Booking | None:
        return self._by_uid.get(uid)

    def on_node(self, name: str) -> Collection[Booking]:
        return self._by_node.get(name, {}).values()

    def plan(self, name: str) -> PlanBookings:
        return self._plans.get(name) or PlanBookings()

    def set(self, booking: Booking) -> None:
        """Add a booking, or replace the pod's booking, which must have the same node and plan."""
        uid = booking.uid
        self._by_uid[uid] = self._own(booking.node)[uid] = booking
        if not booking.plan:
            return
        plan = self._plans.setdefault(booking.plan, PlanBookings())
        plan.members[uid] = booking
        if booking.begun:
            plan.begun.add(uid)
        else:
            plan.begun.discard(uid)
        if booking.first:
            plan.first[uid] = booking

    def pop(self, uid: str) -> Booking | None:
        """Remove the booking of a pod and return the booking. Return None without a booking."""
        booking = self._by_uid.pop(uid, None)
        if booking is None:
            return None
        others = self._own(booking.node)
        del others[uid]
        if not others:
            del self._by_node[booking.node]
            self._owned.discard(booking.node)
        if booking.plan:
            plan = self._plans[booking.plan]
            del plan.members[uid]
            plan.begun.discard(uid)
            plan.first.pop(uid, None)
            if not plan.members:
                del self._plans[booking.plan]
        return booking

    def _own(self, node: str) -> dict[str, Booking]:
        """Return a node's bookings to be modified, and copy them first if they may be shared."""
        if node not in self._owned:
            self._owned.add(node)
            self._by_node[node] = self._by_node.get(node, {}).copy()
        return self._by_node[node]
