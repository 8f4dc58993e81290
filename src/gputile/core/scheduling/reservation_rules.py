"""Decides whether a pod may use its reservation, and which pods need a reservation.

The pods of a gang are bound to the GPUs that the gang's plan reserves. A pod that preempts others
has a plan of its own, and may use its reservation when the victims have ended. All other pods need
no reservation.

A plan is complete when all its reservations are in the ledger and their GPUs are still free for
them. From then on no other pod can get these GPUs, since one extender decides all Bindings on one
ledger. Only the controller can withdraw a reservation, and the extender's watch may lag behind the
controller's write. So the first pod of a plan is bound before the others, by a Binding that is
valid only for the pod's resourceVersion in the ledger. Before the controller changes a reservation
of a plan that has not begun, it removes the reservation of the plan's first pod. Only one of these
two writes succeeds. So a gang starts as a whole or not at all, however far the watch lags.
"""

import msgspec

from gputile.api.core import Pod
from gputile.core.devices.allocation import reservation_of
from gputile.core.devices.gang_membership import gang_of
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_arrays import MIXED_GROUPS
from gputile.core.ledger.node_info import NodeInfo, ServingMode
from gputile.core.refusal import Refusal, ReservationRule, refusal_by


def reserved_node(ledger: Ledger, pod: Pod, now_ns: int) -> Refusal[ReservationRule] | str | None:
    """Return the only node that the pod may be bound to, or why the pod has to wait.

    The node is the node of the pod's reservation, or of a Binding that is not confirmed yet. None
    means that the pod may use any node that it fits. A pod with a reservation belongs to the plan
    of the reservation even if the pod's labels have changed.
    """
    booking = ledger.booking(pod.metadata.uid)
    if booking is not None and booking.preemption:
        why = lost_reservation(ledger, booking) if booking.reserved else None
        if why is not None and why.rule is ReservationRule.GPU_TAKEN:
            return _lost(ReservationRule.VICTIMS_REMAIN, booking, why.gpu)
        return why or booking.node
    if not ledger.configuration.admission.gangs:
        return booking.node if booking is not None else None
    gang = gang_of(pod)
    name = gang.name if gang is not None else ""
    if booking is not None:
        why = plan_problem(ledger, booking)
        return _of_gang(name, why) if why is not None else booking.node
    reservation = reservation_of(pod)
    # If another device plugin manages the GPUs, the reservation is not booked.
    if (
        reservation is not None
        and reservation.allocation is None
        and not reservation.preemption
        and reservation.expires_ns > now_ns
    ):
        return reservation.node
    return _of_gang(name, refusal_by(ReservationRule.NO_RESERVATION)) if gang is not None else None


def _of_gang(name: str, why: Refusal[ReservationRule]) -> Refusal[ReservationRule]:
    return msgspec.structs.replace(why, text=f"gang {name}: {why.text}") if name else why


def plan_problem(ledger: Ledger, booking: Booking) -> Refusal[ReservationRule] | None:
    """Return why a pod with a reservation may not be bound, or None.

    The first pod of a plan may be bound if all reservations of the plan can be used. The other pods
    are bound after the first, and each needs only its own reservation. The result is None for a
    bound pod.
    """
    if not booking.reserved:
        return None
    plan = ledger.plan(booking.plan)
    if not plan.begun and len(plan.members) < booking.plan_size:
        return refusal_by(
            ReservationRule.PLAN_INCOMPLETE, there=len(plan.members), wanted=booking.plan_size
        )
    if not plan.begun and not plan.first:
        return refusal_by(ReservationRule.NO_FIRST_POD)
    judged = plan.members.values() if booking.first and not plan.begun else (booking,)
    lost = (lost_reservation(ledger, each) for each in judged if each.reserved)
    return next((why for why in lost if why is not None), None)


def first_to_bind(ledger: Ledger, reservation: Booking) -> Booking | None:
    """Return the booking that must be confirmed before ``reservation`` may be used, or None."""
    plan = ledger.plan(reservation.plan)
    if not reservation.reserved or plan.begun:
        return None
    first = next(iter(plan.first.values()), None)
    return first if first is not None and first.uid != reservation.uid else None


def waits_for_first(ledger: Ledger, uid: str) -> bool:
    """Return whether the pod with this UID has to wait until the first pod of its plan is bound."""
    booking = ledger.booking(uid)
    return booking is not None and first_to_bind(ledger, booking) is not None


def lost_reservation(ledger: Ledger, reservation: Booking) -> Refusal[ReservationRule] | None:
    """Return why the GPUs of a reservation cannot be used any more, or None if they can."""
    row, node_info = ledger.row_of.get(reservation.node), ledger.info_of(reservation.node)
    if row is None or node_info is None or reservation.allocation is None:
        return _lost(ReservationRule.NODE_GONE, reservation)
    mode = node_info.mode.value if node_info.mode else ""
    if mode != reservation.allocation.mode:
        return _lost(ReservationRule.NOT_SERVED, reservation)
    found = _lost_gpu(ledger, row, node_info, reservation)
    shared = node_info.mode is not None and node_info.mode.shared
    if found is None and shared and node_info.unit_mib != reservation.allocation.unit_mib:
        return _lost(ReservationRule.OTHER_UNIT, reservation)
    if found is None and ledger.node_arrays.serving_mode[row] in (
        ServingMode.NOTHING,
        ServingMode.BLOCKED,
    ):
        return _lost(ReservationRule.NODE_CLOSED, reservation)
    return found


def _lost(
    rule: ReservationRule, reservation: Booking, index: int | None = None
) -> Refusal[ReservationRule]:
    gpu = "" if index is None else f"GPU {index} of "
    about = f"{gpu}node {reservation.node}, reserved for {reservation.key},"
    return refusal_by(rule, node=reservation.node, gpu=index, about=about)


def _lost_gpu(
    ledger: Ledger, row: int, node_info: NodeInfo, reservation: Booking
) -> Refusal[ReservationRule] | None:
    # On a node with time-slicing, several pods may share a whole GPU
    alone = reservation.whole and not node_info.sliced
    for share in reservation.gpus:
        i = node_info.column(share.uuid)
        if i is None or not ledger.node_arrays.usable[row, i]:
            return _lost(ReservationRule.GPU_GONE, reservation, share.index)
        if _is_overbooked(ledger, row, i, alone=alone, compute=share.percent > 0):
            return _lost(ReservationRule.GPU_TAKEN, reservation, share.index)
    return None


def _is_overbooked(ledger: Ledger, row: int, i: int, *, alone: bool, compute: bool) -> bool:
    """Return whether the bookings of a GPU exceed its limits.

    With ``alone``, the limit is one pod. Without ``compute``, bookings of compute are ignored."""
    arrays = ledger.node_arrays
    return bool(
        (alone and arrays.pods[row, i] > 1)
        or arrays.used[row, i] > arrays.total[row, i]
        or (compute and arrays.percent[row, i] > 100)
        or arrays.pods[row, i] > arrays.max_pods_per_gpu[row]
        or (arrays.grouped[row] and arrays.group[row, i] == MIXED_GROUPS)
    )
