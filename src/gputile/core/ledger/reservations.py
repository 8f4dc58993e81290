"""Stores reservations (bookings of GPUs for pods that are not bound yet) and the plans of gangs.

Whether a pod may use its reservation is decided in ``core.scheduling.reservation_rules``.
"""

from collections.abc import Container, KeysView
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
    if request is None or not _is_for(request, reservation.allocation):
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


def _is_for(request: Request, allocation: Allocation) -> bool:
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


class BookedPlans:
    """The plans that have bookings in the ledger."""

    def __init__(self) -> None:
        self._plans: dict[str, PlanBookings] = {}

    def copy(self) -> "BookedPlans":
        twin = BookedPlans()
        twin._plans = {name: plan.copy() for name, plan in self._plans.items()}
        return twin

    def set(self, booking: Booking) -> None:
        """Add or replace a booking. A booking without a plan is ignored."""
        if not booking.plan:
            return
        plan = self._plans.setdefault(booking.plan, PlanBookings())
        plan.members[booking.uid] = booking
        if booking.begun:
            plan.begun.add(booking.uid)
        else:
            plan.begun.discard(booking.uid)
        if booking.first:
            plan.first[booking.uid] = booking

    def drop(self, booking: Booking) -> None:
        if not booking.plan:
            return
        plan, uid = self._plans[booking.plan], booking.uid
        del plan.members[uid]
        plan.begun.discard(uid)
        plan.first.pop(uid, None)
        if not plan.members:
            del self._plans[booking.plan]

    def of(self, name: str) -> PlanBookings:
        return self._plans.get(name) or PlanBookings()
