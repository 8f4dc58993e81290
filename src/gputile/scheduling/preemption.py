"""Which pods have to leave a node so that a request fits its cards.

kube-scheduler's dry run counts units of the whole node; it cannot see that they are on different cards. Here its
victims are completed until one card, or as many as the pod asks, really has room, and those that need not leave
are spared.
"""

from collections.abc import Iterable

from gputile.device.request import Request
from gputile.scheduling.decision import Decision
from gputile.scheduling.placer import Placer


def victims(
    placer: Placer, request: Request, node: str, proposed: Iterable[str], priority: int
) -> frozenset[str] | None:
    """Return the UIDs of the pods that have to leave ``node``, None where no set of lower-priority pods is enough.

    ``proposed`` are the victims of the in-tree plugins: they leave in any case (they may be in the way for other
    reasons, CPU or memory). Others are added from the lowest priority up, and taken back from the highest down
    where the pod fits without their leaving.
    """
    leaving = set(proposed)
    if _fits(placer, request, node, leaving):
        return frozenset(leaving)
    # A hold is of a pod that is not on the node yet: kube-scheduler can evict nobody for it.
    on_node = (b for b in placer.ledger.on_node(node) if not b.tentative)
    lower = [b for b in on_node if b.priority < priority and b.uid not in leaving]
    added: list[str] = []
    for booking in sorted(lower, key=lambda b: (b.priority, b.uid)):
        added.append(booking.uid)
        if _fits(placer, request, node, leaving | set(added)):
            break
    else:
        return None
    for uid in reversed(added[:-1]):
        if _fits(placer, request, node, leaving | (set(added) - {uid})):
            added.remove(uid)
    return frozenset(leaving | set(added))


def _fits(placer: Placer, request: Request, node: str, leaving: set[str]) -> bool:
    return isinstance(placer.decide(request, node, 0, frozenset(leaving)), Decision)
