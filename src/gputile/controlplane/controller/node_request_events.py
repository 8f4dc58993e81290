"""Words what is said about the pods that nodes are asked for; each thing is said once in half an hour.

No I/O, no clock.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gputile.api.core import Pod
from gputile.api.reasons import EventReason
from gputile.controlplane.controller.gangs.gang_round import GangEvent
from gputile.controlplane.controller.node_orders import NodeOrders, Order
from gputile.core.devices.node_type import worded
from gputile.core.refusal import NodeTypeRule, Refusal
from gputile.core.scheduling.new_nodes import NewNodes

_SECOND: Final = 10**9
_TOLD_AGAIN_SECONDS: Final = 1800  # the API server forgets an event after an hour
_LEFT: Final = (
    EventReason.NODE_NOT_ADDED,
    "no node has as much in sum as is asked for, which the autoscaler sees by itself: its own events and log say why "
    "it has added none",
)
_BEYOND_MOST: Final = (
    EventReason.NODE_NOT_ADDED,
    "no GPU has room for the pod, and as many nodes as autoscaling.mostNodes allows are wanted for others before it",
)


@dataclass(frozen=True, slots=True)
class NodeRequestOutlook:
    """How things stand with the pods that were looked at, by their UIDs.

    ``wanted`` are the types of which nodes are to be asked for. ``pausing`` names the types of pods that wait until the
    next node may be; ``left`` are pods that are left to the autoscaler, since it sees them itself, and ``late`` those
    that have waited for as long as a node may take to come.
    """

    found: NewNodes
    wanted: Collection[str]
    pausing: Mapping[str, str]
    left: Collection[str]
    late: Collection[str]


class NodeRequestEvents:
    """Remembers what was said about the pods that wait; ``orders`` are the nodes that were asked for them."""

    def __init__(self, orders: NodeOrders) -> None:
        self._orders = orders
        self._told: dict[str, dict[EventReason, tuple[str, int]]] = {}  # UID -> what was said last, and when (ns)

    def tell(self, pods: Iterable[Pod], outlook: NodeRequestOutlook, now_ns: int) -> list[GangEvent]:
        """Return what is new to say about the pods that were looked at."""
        events = []
        for pod in pods:
            said = self._state(pod.metadata.uid, outlook)
            if said is not None and self._is_new(pod.metadata.uid, *said, now_ns):
                reason, text = said
                events.append(GangEvent((pod,), reason, text, reason is not EventReason.NODE_REQUESTED))
        return events

    def happened_again(self, reason: EventReason, uids: Iterable[str] | None = None) -> None:
        """Have it said anew of these pods, of all where none are named."""
        for uid in self._told if uids is None else uids:
            self._told.get(uid, {}).pop(reason, None)

    def keep(self, uids: Collection[str]) -> None:
        self._told = {uid: texts for uid, texts in self._told.items() if uid in uids}

    def clear(self) -> None:
        self._told.clear()

    def _state(self, uid: str, outlook: NodeRequestOutlook) -> tuple[EventReason, str] | None:
        """Return reason and text of the event that says how things stand with a pod, None where there is nothing."""
        type_name, why = outlook.found.types.get(uid), outlook.found.refused.get(uid)
        if why is not None:
            return _refused(why)
        if uid in outlook.left:
            return _LEFT
        if type_name is not None and type_name not in outlook.wanted:
            return None
        pausing = outlook.pausing.get(uid, "")
        if (order := self._orders.order(uid, pausing)) is not None:
            return _pauses(pausing, order)
        if type_name is None:
            return _BEYOND_MOST if uid in outlook.late else None
        return _requested(type_name, self._orders.order(uid, type_name))

    def _is_new(self, uid: str, reason: EventReason, text: str, now_ns: int) -> bool:
        """Return whether it was not the last that was said for this reason, not long ago; it is from now on."""
        told = self._told.setdefault(uid, {})
        before, at_ns = told.get(reason, ("", now_ns))
        if before == text and now_ns - at_ns < _TOLD_AGAIN_SECONDS * _SECOND:
            return False
        told[reason] = text, now_ns
        return True


def _refused(why: Mapping[str, Refusal[NodeTypeRule]]) -> tuple[EventReason, str]:
    paused = any(refusal.rule.passes for refusal in why.values())
    reason = EventReason.NODE_NOT_ADDED if paused else EventReason.NO_NODE_TYPE_FITS
    return reason, f"no node is asked for that could take the pod: {worded(why)}"


def _pauses(type_name: str, order: Order) -> tuple[EventReason, str]:
    text = (
        f"the autoscaler was asked {order.times} times for a node with the label {type_name}, and the pod has "
        f"no place: the next one is asked for {order.pause_seconds} s after the last"
    )
    return EventReason.NODE_NOT_ADDED, text


def _requested(type_name: str, order: Order | None) -> tuple[EventReason, str]:
    text = f"no GPU has room for the pod: the autoscaler is asked for a node with the label {type_name}"
    number = "" if order is None or order.times == 1 else f", number {order.times} for this pod"
    return EventReason.NODE_REQUESTED, text + number
