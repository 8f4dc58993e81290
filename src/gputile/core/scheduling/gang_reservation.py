"""What a pod gets when its Binding is decided: a pod of a gang gets the place that its gang's plan keeps for it.

A plan is complete when all its places are in the ledger and still free for their pods. Since one extender decides all
Bindings on one ledger, from then on nobody else can take them. Only the controller could take a place away, unheard of
yet. So a plan begins with one pod, its first: its Binding holds for the very version of the pod that is known here, and
the controller, before it touches any place of a plan that has not begun, takes that of the first pod away. One of the
two comes first, and the other one fails. That makes the start of a gang all or nothing, at any lag.
"""

from gputile.api.core import Pod
from gputile.core.devices.allocation import Chosen
from gputile.core.devices.gang_membership import gang_of
from gputile.core.devices.inventory import advertised_units
from gputile.core.devices.request import Request
from gputile.core.devices.reservation import reservation_of
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_arrays import MIXED_GROUPS
from gputile.core.ledger.node_info import ServingMode
from gputile.core.placement.fit import FitRefusal, FitRule
from gputile.core.placement.steps import Steps, at_once
from gputile.core.scheduling.decision import Decision
from gputile.core.scheduling.placement_engine import PlacementEngine

_A_STEP = 128  # places of a plan that are judged before others are let in


def claim(placer: PlacementEngine, pod: Pod, request: Request, node: str, now_ns: int) -> Decision | FitRefusal:
    """Return which cards of ``node`` the pod gets now, or why it gets none. ``now_ns`` is Unix time in nanoseconds."""
    why = place_problem(placer.ledger, pod, now_ns)
    if why:
        return FitRefusal(FitRule.UNPLACED, why)
    hold = placer.ledger.booking(pod.metadata.uid)
    if hold is None:
        return placer.decide(request, node, now_ns)
    if hold.node != node:
        return FitRefusal(FitRule.UNPLACED, f"its gang keeps cards of node {hold.node} for it")
    if (first := waits_for(placer.ledger, pod.metadata.uid)) is not None:
        return FitRefusal(FitRule.UNPLACED, f"pod {first.key} of its gang is bound first, and is not yet")
    return _taken(placer, hold, now_ns)


def place_of(pod: Pod, ledger: Ledger, now_ns: int) -> str:
    """Return the node that the pod's gang keeps for it, "" where it is free to go anywhere."""
    if not ledger.configuration.admission.gangs:
        return ""
    booking, hold = ledger.booking(pod.metadata.uid), reservation_of(pod)
    if booking is not None:
        return booking.node if booking.tentative else ""
    return hold.node if hold is not None and hold.allocation is None and hold.expires_ns > now_ns else ""


def place_problem(ledger: Ledger, pod: Pod, now_ns: int) -> str:
    """Return why a pod of a gang must wait, "" where it need not, and for a pod of none."""
    gang = gang_of(pod) if ledger.configuration.admission.gangs else None
    if gang is None:
        return ""
    booking = ledger.booking(pod.metadata.uid)
    if booking is None:
        return "" if place_of(pod, ledger, now_ns) else f"gang {gang.name}: no place is kept for the pod yet"
    why = plan_problem(ledger, booking)
    return f"gang {gang.name}: {why}" if why else ""


def plan_problem(ledger: Ledger, booking: Booking) -> str:
    """Return why the plan of a hold may not start, "" where it may, or has."""
    return at_once(plan_problem_steps(ledger, booking))


def plan_problem_steps(ledger: Ledger, booking: Booking) -> Steps[str]:
    """Return, in steps, what ``plan_problem`` returns: a plan may have thousands of places."""
    if not booking.tentative:
        return ""
    members = ledger.by_plan(booking.plan)
    if any(member.begun for member in members):
        return lost_place(ledger, booking)
    if len(members) < booking.plan_size:
        return f"{len(members)} of the {booking.plan_size} places of its plan are kept so far"
    if _first(ledger, booking.plan) is None:
        return "its plan has no pod to begin with"
    for number, member in enumerate(members, 1):
        if number % _A_STEP == 0:
            yield
        if member.tentative and (why := lost_place(ledger, member)):
            return why
    return ""


def waits_for(ledger: Ledger, uid: str) -> Booking | None:
    """Return the pod that must be bound, for certain, before the pod with this UID may be; None where there is none."""
    hold = ledger.booking(uid)
    if hold is None or not hold.tentative or any(member.begun for member in ledger.by_plan(hold.plan)):
        return None
    first = _first(ledger, hold.plan)
    return first if first is not None and first.uid != uid else None


def _first(ledger: Ledger, plan: str) -> Booking | None:
    """Return the pod that a plan begins with, which may be about to be bound; None where it has none."""
    return next((member for member in ledger.by_plan(plan) if member.first), None)


def lost_place(ledger: Ledger, hold: Booking) -> str:
    """Return why the cards of a hold cannot be taken any more, "" where they can."""
    row = ledger.row_of.get(hold.node)
    facts = ledger.facts(row) if row is not None else None
    if row is None or facts is None or hold.allocation is None:
        return f"node {hold.node}, where {hold.key} has its place, is gone"
    columns, mode = ledger.columns, facts.mode.value if facts.mode else ""
    if columns.service[row] in (ServingMode.NOTHING, ServingMode.CLOSED) or mode != hold.allocation.mode:
        return f"node {hold.node}, where {hold.key} has its place, does not serve it any more"
    column_of = {card.uuid: i for i, card in enumerate(facts.inventory.cards)}
    for share in hold.cards:
        i = column_of.get(share.uuid)
        if i is None or not columns.usable[row, i]:
            return f"GPU {share.index} of node {hold.node}, where {hold.key} has its place, is gone or unhealthy"
        taken = (
            (hold.whole and columns.pods[row, i] > 1)
            or columns.used[row, i] > columns.total[row, i]
            or (share.percent and columns.percent[row, i] > 100)
            or columns.pods[row, i] > columns.slots[row]
            or (columns.grouped[row] and columns.group[row, i] == MIXED_GROUPS)
        )
        if taken:
            return f"GPU {share.index} of node {hold.node}, where {hold.key} has its place, was taken by others"
    shared = facts.mode is not None and facts.mode.shared
    if shared and facts.unit_mib != hold.allocation.unit_mib:
        return f"node {hold.node}, where {hold.key} has its place, has another memory unit now"
    return ""


def _taken(placer: PlacementEngine, hold: Booking, now_ns: int) -> Decision:
    """Return the decision that takes a hold which is there to be taken."""
    state = placer.state(hold.node)
    allocation = hold.allocation
    if state is None or allocation is None:
        raise ValueError(f"the hold of {hold.key} has lost its place")
    card_of = {card.uuid: card for card in state.facts.inventory.cards}
    cards = tuple(
        Chosen(
            card_of[share.uuid],
            0 if allocation.whole else advertised_units(card_of[share.uuid], state.facts.unit_mib),
        )
        for share in allocation.cards
    )
    return Decision(
        hold.node,
        cards,
        allocation.decided_at(now_ns),
        plan=hold.plan,
        plan_size=hold.plan_size,
        first=hold.first,
        version=hold.version,
    )
