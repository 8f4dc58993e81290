"""Tells which pods go by a reserved place, and when a pod may take its own.

Places are kept for pods of a gang, by its plan. For a pod that others leave GPUs for a place is kept by a plan of its
own, and is there to be taken when they have gone. All other pods are ordinary, and need nothing of this module.

A plan is complete when all its places are in the ledger and still free for their pods. Since one extender decides all
Bindings on one ledger, from then on nobody else can take them. Only the controller can withdraw a place, and the
extender's watch may not have shown that yet. So a plan begins with one pod, its first: its Binding holds for the very
version of the pod that is known here, and the controller, before it touches any place of a plan that has not begun,
takes that of the first pod away. One of the two comes first, and the other one fails. That makes the start of a gang
all or nothing, at any lag.
"""

from dataclasses import replace

from gputile.api.core import Pod
from gputile.api.well_known import RESERVATION_ANNOTATION
from gputile.core.devices.allocation import Chosen
from gputile.core.devices.gang_membership import gang_of
from gputile.core.devices.inventory import advertised_units
from gputile.core.devices.request import Request
from gputile.core.devices.reservation import reservation_of
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.events import TimePassed
from gputile.core.ledger.ledger import Ledger
from gputile.core.placement.fit_refusal import FitRefusal
from gputile.core.placement.steps import Steps, at_once
from gputile.core.scheduling.decision import Decision
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.core.scheduling.reservation_refusal import ReservationRefusal, ReservationRule, lost_reservation

_A_STEP = 128  # places of a plan that are judged before others are let in


def is_ordinary(ledger: Ledger, pod: Pod) -> bool:
    """Return whether nothing is booked for the pod and no gang's plan decides about it: it may go where it fits."""
    if ledger.booking(pod.metadata.uid) is not None:
        return False
    if not ledger.configuration.admission.gangs:
        return True
    return RESERVATION_ANNOTATION not in pod.metadata.annotations and gang_of(pod) is None


def end_reservations(engine: PlacementEngine, now_ns: int) -> None:
    """End the reservations that last until ``now_ns`` or less, Unix time in nanoseconds."""
    engine.ledger.apply(TimePassed(now_ns))


def take_reservation(
    engine: PlacementEngine, pod: Pod, request: Request, node: str, now_ns: int
) -> Decision | FitRefusal | ReservationRefusal:
    """Return which GPUs of ``node`` a pod gets that is not ordinary, or why it gets none now.

    ``now_ns`` is Unix time in nanoseconds.
    """
    why = reservation_problem(engine.ledger, pod, now_ns)
    if why is not None:
        return why
    booking = engine.ledger.booking(pod.metadata.uid)
    if booking is None:
        return engine.decide(request, node, now_ns)
    if booking.node != node:
        return ReservationRefusal(ReservationRule.OTHER_NODE, node=booking.node)
    if (first := waits_for(engine.ledger, pod.metadata.uid)) is not None:
        return ReservationRefusal(ReservationRule.FIRST_NOT_BOUND, pod=first.key)
    return _taken(engine, booking, now_ns)


def reserved_node(ledger: Ledger, pod: Pod, now_ns: int) -> str | None:
    """Return the node where GPUs are kept for the pod, None where it is free to go anywhere."""
    booking, reservation = ledger.booking(pod.metadata.uid), reservation_of(pod)
    if booking is not None:
        return booking.node if booking.reserved else None
    if not ledger.configuration.admission.gangs:
        return None
    return (
        reservation.node
        if reservation is not None
        and reservation.allocation is None
        and not reservation.preemption
        and reservation.expires_ns > now_ns
        else None
    )


def reservation_problem(ledger: Ledger, pod: Pod, now_ns: int) -> ReservationRefusal | None:
    """Return why a pod that GPUs are reserved for, or a pod of a gang, must wait; None where it need not.

    A pod with a reservation belongs to its plan, whatever its labels have become.
    """
    booking = ledger.booking(pod.metadata.uid)
    if booking is not None and booking.preemption:
        return _preemption_problem(ledger, booking)
    if not ledger.configuration.admission.gangs:
        return None
    gang = gang_of(pod)
    name = gang.name if gang is not None else ""
    if booking is not None:
        why = at_once(plan_problem(ledger, booking))
        return replace(why, gang=name) if why is not None else None
    if gang is None or reserved_node(ledger, pod, now_ns) is not None:
        return None
    return ReservationRefusal(ReservationRule.NO_PLACE, name)


def _preemption_problem(ledger: Ledger, booking: Booking) -> ReservationRefusal | None:
    """Return why a pod cannot have yet what other pods leave for it, None where it can."""
    why = lost_reservation(ledger, booking) if booking.reserved else None
    if why is not None and why.rule is ReservationRule.GPU_TAKEN:
        return replace(why, rule=ReservationRule.NOT_LEFT_YET)
    return why


def plan_problem(ledger: Ledger, booking: Booking) -> Steps[ReservationRefusal | None]:
    """Return, in steps, why the plan of a reservation may not start, None where it may, or has.

    A plan may have thousands of places.
    """
    if not booking.reserved:
        return None
    members = ledger.by_plan(booking.plan)
    if any(member.begun for member in members):
        return lost_reservation(ledger, booking)
    if len(members) < booking.plan_size:
        return ReservationRefusal(ReservationRule.PLAN_INCOMPLETE, kept=len(members), size=booking.plan_size)
    if _first(ledger, booking.plan) is None:
        return ReservationRefusal(ReservationRule.NO_FIRST_POD)
    for number, member in enumerate(members, 1):
        if number % _A_STEP == 0:
            yield
        if member.reserved and (why := lost_reservation(ledger, member)) is not None:
            return why
    return None


def waits_for(ledger: Ledger, uid: str) -> Booking | None:
    """Return the pod that must be bound, for certain, before the pod with this UID may be; None where there is none."""
    booking = ledger.booking(uid)
    if booking is None or not booking.reserved or any(member.begun for member in ledger.by_plan(booking.plan)):
        return None
    first = _first(ledger, booking.plan)
    return first if first is not None and first.uid != uid else None


def _first(ledger: Ledger, plan: str) -> Booking | None:
    """Return the pod that a plan begins with, which may be about to be bound; None where it has none."""
    return next((member for member in ledger.by_plan(plan) if member.first), None)


def _taken(engine: PlacementEngine, booking: Booking, now_ns: int) -> Decision:
    """Return the decision that takes a reservation, ``booking``, which is there to be taken."""
    state = engine.state(booking.node)
    allocation = booking.allocation
    if state is None or allocation is None:
        raise ValueError(f"the reservation of {booking.key} has lost its place")
    gpu_of = {gpu.uuid: gpu for gpu in state.info.inventory.gpus}
    gpus = tuple(
        Chosen(
            gpu_of[share.uuid],
            0 if allocation.whole else advertised_units(gpu_of[share.uuid], state.info.unit_mib),
        )
        for share in allocation.gpus
    )
    return Decision(
        booking.node,
        gpus,
        allocation.decided_at(now_ns),
        plan=booking.plan,
        plan_size=booking.plan_size,
        first=booking.first,
        version=booking.version,
    )
