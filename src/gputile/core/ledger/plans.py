"""Keeps the plans of gangs: which pods have a place by each, and what is known of these places."""

from dataclasses import dataclass, field

from gputile.core.ledger.booking import Booking
from gputile.core.refusal import Refusal, ReservationRule


@dataclass(slots=True)
class PlanBookings:
    """The bookings that a plan gave, reserved and taken, by UID.

    ``begun`` are those whose pods are bound for certain, ``first`` those that begin the plan: one of a sound plan.
    ``lost`` are reservations whose GPUs cannot be taken any more, as of the position ``judged`` in the ledger's
    changes.
    """

    members: dict[str, Booking] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    first: dict[str, Booking] = field(default_factory=dict)
    lost: dict[str, Refusal[ReservationRule]] = field(default_factory=dict)
    judged: int = -1

    def copy(self) -> "PlanBookings":
        """Return a copy for a snapshot of the ledger, whose changes are counted anew."""
        return PlanBookings(self.members.copy(), self.begun.copy(), self.first.copy())


class Plans:
    """The plans that the ledger has bookings of."""

    def __init__(self) -> None:
        self._plans: dict[str, PlanBookings] = {}

    def copy(self) -> "Plans":
        twin = Plans()
        twin._plans = {name: plan.copy() for name, plan in self._plans.items()}
        return twin

    def put(self, booking: Booking) -> None:
        """Take in a booking, or what is newly known of it; one of no plan counts nothing."""
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
        plan.lost.pop(uid, None)
        if not plan.members:
            del self._plans[booking.plan]

    def of(self, name: str) -> PlanBookings:
        return self._plans.get(name) or PlanBookings()
