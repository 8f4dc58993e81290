"""Which pods have to leave a node so that a request fits its cards.

kube-scheduler's dry run counts units of the whole node; it cannot see that they are on different cards. Here its
victims are completed until one card, or as many as the pod asks, really has room, and those that need not leave
are spared.
"""

from collections.abc import Iterable

from gputile.device.request import Request
from gputile.ledger.booking import Booking
from gputile.scheduling.decision import Decision
from gputile.scheduling.placer import Placer


def victims(
    placer: Placer, request: Request, node: str, proposed: Iterable[str], priority: int
) -> frozenset[str] | None:
    """Return the UIDs of the pods that have to leave ``node``, None where no set of lower-priority pods is enough.

    ``proposed`` are the victims of the in-tree plugins: they leave in any case (they may be in the way for other
    reasons, CPU or memory). Others are added from the lowest priority up, those first whose card has the least left
    on it, and taken back from the highest down where the pod fits without their leaving.
    """
    leaving = set(proposed)
    if _fits(placer, request, node, leaving):
        return frozenset(leaving)
    # A hold is of a pod that is not on the node yet: kube-scheduler can evict nobody for it.
    staying = {b.uid: b for b in placer.ledger.on_node(node) if not b.tentative and b.uid not in leaving}
    added: list[str] = []
    while not _fits(placer, request, node, leaving | set(added)):
        lower = [b for b in staying.values() if b.priority < priority]
        if not lower:
            return None
        added.append(_next(lower, staying.values()).uid)
        del staying[added[-1]]
    for uid in reversed(added[:-1]):
        if _fits(placer, request, node, leaving | (set(added) - {uid})):
            added.remove(uid)
    return frozenset(leaving | set(added))


def _next(lower: Iterable[Booking], staying: Iterable[Booking]) -> Booking:
    """Return who leaves next: of the lowest priority, the one on the card that is nearest to be empty by then."""
    held: dict[str, int] = {}  # MiB by card
    for booking in staying:
        for share in booking.cards:
            held[share.uuid] = held.get(share.uuid, 0) + share.mib

    def order(booking: Booking) -> tuple[int, int, int, str]:
        left = min((held[share.uuid] for share in booking.cards), default=0)
        return booking.priority, left, -sum(share.mib for share in booking.cards), booking.uid

    return min(lower, key=order)


def _fits(placer: Placer, request: Request, node: str, leaving: set[str]) -> bool:
    return isinstance(placer.decide(request, node, 0, frozenset(leaving)), Decision)
