"""Bounds how many nodes are bought in vain, and words the events of pods that nodes are asked for.

Back-offs grow with each node that was asked for one pod, and with each failure of a type. No I/O, no clock; times are
Unix time in nanoseconds. By a clock that was set back no pause is on.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gputile.api.core import Pod
from gputile.api.well_known import EventReason
from gputile.controlplane.controller.gangs.gang_round import GangEvent
from gputile.core.devices.node_type import worded
from gputile.core.refusal import NodeTypeRule, Refusal

_SECOND: Final = 10**9
_FIRST_PAUSE_NS: Final = 60 * _SECOND
_LONGEST_PAUSE_NS: Final = 3600 * _SECOND
_REMEMBERED_NS: Final = 24 * 3600 * _SECOND  # so long after its pause a failure counts for how long the next pause is


@dataclass(frozen=True, slots=True)
class Order:
    """How often a node of a type was asked for a pod, when first and last, and by which Jobs last."""

    times: int
    first_ns: int
    last_ns: int
    jobs: frozenset[str]

    def pauses(self, now_ns: int) -> bool:
        """Return whether the next node is asked for later: the second at once, then after a minute, then doubling."""
        pause_ns = min(_FIRST_PAUSE_NS << min(self.times - 2, 10), _LONGEST_PAUSE_NS) if self.times > 1 else 0
        return 0 <= now_ns - self.last_ns < pause_ns


@dataclass(frozen=True, slots=True)
class _Failure:
    """How often in a row no node of a type came that is of use, the pause after that, and what happened last."""

    times: int
    at_ns: int
    pause_ns: int
    refusal: Refusal[NodeTypeRule]


class NodeBackoff:
    """The orders for pods that have no place yet, and the failures of types; their first pause lasts ``wait_ns``."""

    def __init__(self, wait_ns: int) -> None:
        self._wait_ns = wait_ns
        self._orders: dict[str, dict[str, Order]] = {}  # by the pod's UID, and by type
        self._failures: dict[str, _Failure] = {}

    def ordered_types(self) -> set[str]:
        """Return the types of which a node has been asked for a pod that has no place yet."""
        return {name for orders in self._orders.values() for name in orders}

    def order(self, uid: str, type_name: str) -> Order | None:
        return self._orders.get(uid, {}).get(type_name)

    def ordered(self, uids: Iterable[str], type_name: str, jobs: Collection[str], now_ns: int) -> None:
        """Note that nodes of a type are asked for these pods now, by new placeholders of these Jobs."""
        for uid in uids:
            before = self.order(uid, type_name)
            times, first_ns = (before.times, before.first_ns) if before is not None else (0, now_ns)
            self._orders.setdefault(uid, {})[type_name] = Order(times + 1, first_ns, now_ns, frozenset(jobs))

    def settle(self, exists: Callable[[str], bool], place: Callable[[str], tuple[str, int] | None]) -> None:
        """Forget pods that are gone or have a place, and the failures of types of which a node has been of use.

        That is one which has joined since it was asked for. ``place`` returns the type of the node that a pod is bound
        to, and when that joined; None where it is not bound.
        """
        for uid, orders in list(self._orders.items()):
            found = place(uid)
            if found is None and exists(uid):
                continue
            del self._orders[uid]
            if found is not None and found[0] in orders and found[1] >= orders[found[0]].first_ns:
                self._failures.pop(found[0], None)

    def fail(self, type_name: str, refusal: Refusal[NodeTypeRule], now_ns: int) -> None:
        """Have no node of a type asked for from now on, each time for twice as long."""
        before = self._failures.get(type_name)
        if before is not None and now_ns - before.at_ns >= before.pause_ns + _REMEMBERED_NS:
            before = None
        times = before.times + 1 if before is not None else 1
        pause_ns = min(self._wait_ns << min(times - 1, 10), max(self._wait_ns, _LONGEST_PAUSE_NS))
        self._failures[type_name] = _Failure(times, now_ns, pause_ns, refusal)

    def pausing(self, type_name: str, now_ns: int) -> Refusal[NodeTypeRule] | None:
        """Return why no node of a type is asked for now, None where one may be."""
        failed = self._failures.get(type_name)
        return failed.refusal if failed is not None and 0 <= now_ns - failed.at_ns < failed.pause_ns else None

    def times_failed(self, type_name: str) -> int:
        failed = self._failures.get(type_name)
        return failed.times if failed is not None else 0


_TOLD_AGAIN_NS: Final = 1800 * 10**9  # the API server forgets an event after an hour
Wording = tuple[EventReason, str]
LEFT: Final = (
    EventReason.NODE_NOT_ADDED,
    "no node has as much in sum as is asked for, which the autoscaler sees by itself: its own events and log say why "
    "it has added none",
)
BEYOND_MOST: Final = (
    EventReason.NODE_NOT_ADDED,
    "no GPU has room for the pod, and as many nodes as autoscaling.mostNodes allows are wanted for others before it",
)


def refused(why: Mapping[str, Refusal[NodeTypeRule]]) -> Wording:
    passes = any(refusal.rule.passes for refusal in why.values())
    reason = EventReason.NODE_NOT_ADDED if passes else EventReason.NO_NODE_TYPE_FITS
    return reason, f"no node is asked for that could take the pod: {worded(why)}"


def requested(type_name: str, times: int) -> Wording:
    text = f"no GPU has room for the pod: the autoscaler is asked for a node with the label {type_name}"
    return EventReason.NODE_REQUESTED, text + (f", number {times} for this pod" if times > 1 else "")


class NodeRequestEvents:
    """Remembers what was said about the pods that wait: each event is recorded once in half an hour."""

    def __init__(self) -> None:
        self._told: dict[str, dict[EventReason, tuple[str, int]]] = {}  # UID -> what was said last, and when (ns)

    def new_event(self, pod: Pod, wording: Wording, now_ns: int) -> list[GangEvent]:
        """Return the event, unless it was the last that was said for its reason, not long ago."""
        reason, text = wording
        told = self._told.setdefault(pod.metadata.uid, {})
        before, at_ns = told.get(reason, ("", now_ns))
        if before == text and now_ns - at_ns < _TOLD_AGAIN_NS:
            return []
        told[reason] = text, now_ns
        return [GangEvent((pod,), reason, text, reason is not EventReason.NODE_REQUESTED)]

    def happened_again(self, reason: EventReason, uids: Iterable[str] | None = None) -> None:
        """Have it said anew of these pods, of all where none are named."""
        for uid in self._told if uids is None else uids:
            self._told.get(uid, {}).pop(reason, None)

    def keep(self, uids: Collection[str]) -> None:
        self._told = {uid: texts for uid, texts in self._told.items() if uid in uids}

    def clear(self) -> None:
        self._told.clear()
