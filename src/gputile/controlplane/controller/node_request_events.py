"""Words the events of pods that nodes are asked for; each is recorded once in half an hour."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from gputile.api.core import Pod
from gputile.api.reasons import EventReason
from gputile.controlplane.controller.gangs.gang_round import GangEvent
from gputile.core.devices.node_type import worded
from gputile.core.refusal import NodeTypeRule, Refusal

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
    """Remembers what was said about the pods that wait."""

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
