"""Keeps what was last told of each gang, and since when it has been without GPUs."""

from collections import Counter
from collections.abc import Collection
from typing import Final

from gputile.api.reasons import EventReason
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.gangs.gang import Gang
from gputile.controlplane.controller.gangs.gang_round import GangEvent, GangRound
from gputile.controlplane.controller.gangs.gang_searches import TOO_LARGE
from gputile.core.devices.gang_membership import GangName

_SECOND = 10**9
_WANTS_GPUS: Final = (EventReason.GANG_WAITING, EventReason.GANG_BEHIND, TOO_LARGE, EventReason.GANG_PREEMPTING)
STATES: Final = (EventReason.GANG_PLANNED, EventReason.GANG_INCOMPLETE, *_WANTS_GPUS)


class GangReports:
    """The events of gangs, each told once until another one is."""

    def __init__(self, cluster_state: ClusterState) -> None:
        self._cluster_state = cluster_state
        self._reported: dict[GangName, tuple[EventReason, str]] = {}
        self._wanting: dict[GangName, int] = {}  # since when gangs have been without GPUs, Unix time in nanoseconds

    def begin(self, names: Collection[GangName]) -> None:
        """Begin a round: forget all gangs but those ``names``."""
        for remembered in (self._reported, self._wanting):
            for name in remembered.keys() - names:
                del remembered[name]
        for name, since_ns in self._wanting.items():
            self._wanting[name] = min(since_ns, self._cluster_state.now_ns)  # the clock was ahead

    def states(self) -> Counter[EventReason]:
        """Return how many gangs there are by the reason of the event that was last told of them."""
        return Counter(reason for reason, _ in self._reported.values())

    def waiting_since(self) -> float:
        """Return since when the gang has been without GPUs that has been longest, Unix time in seconds; 0: none is."""
        return min(self._wanting.values(), default=0) / _SECOND

    def tell(self, gang: Gang, reason: EventReason, message: str, result: GangRound, *, warning: bool = True) -> None:
        """Add an event to the round, unless it is the one that was told last of this gang."""
        if reason in _WANTS_GPUS:
            self._wanting.setdefault(gang.name, self._cluster_state.now_ns)
        else:
            self._wanting.pop(gang.name, None)
        if self._reported.get(gang.name) != (reason, message):
            self._reported[gang.name] = (reason, message)
            result.events.append(GangEvent(gang.unreserved, reason, message, warning))
