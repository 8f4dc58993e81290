"""Records what a round of planning gangs decided, and reports each change of a gang once."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from gputile.api.core import Pod
from gputile.api.reasons import EventReason
from gputile.controlplane.controller.gangs.gang import Gang
from gputile.controlplane.controller.gangs.gang_preemption import Eviction
from gputile.core.devices.gang_membership import GangName
from gputile.core.devices.reservation import Reservation


@dataclass(frozen=True, slots=True)
class ReservationPatch:
    """A pod whose reservation is to be written, and the reservation; None removes it."""

    pod: Pod
    reservation: Reservation | None


@dataclass(frozen=True, slots=True)
class GangEvent:
    """Something to tell the people who look at a gang's pods."""

    pods: tuple[Pod, ...]
    reason: EventReason
    message: str
    warning: bool = True


@dataclass(slots=True)
class GangRound:
    """What a round decided. ``reservations`` are written first; ``gates`` are of pods that were reserved before it.

    ``evictions`` are of pods that leave places which were written in an earlier round, each list for one gang, or what
    stays of one.

    ``unfinished`` tells that gangs are left for which there was no time; the next round goes on with them.
    ``contradictions`` tell of gangs that were left out because what is known of their pods contradicts itself.
    """

    reservations: list[list[ReservationPatch]] = field(default_factory=list)
    gates: list[Pod] = field(default_factory=list)
    evictions: list[list[Eviction]] = field(default_factory=list)
    events: list[GangEvent] = field(default_factory=list)
    waiting: int = 0
    planned: int = 0
    unfinished: bool = False
    contradictions: list[str] = field(default_factory=list)


_SECOND = 10**9
_LACKS_GPUS: Final = (
    EventReason.GANG_WAITING,
    EventReason.GANG_BEHIND,
    EventReason.GANG_TOO_LARGE,
    EventReason.GANG_PREEMPTING,
)
STATES: Final = (EventReason.GANG_PLANNED, EventReason.GANG_INCOMPLETE, *_LACKS_GPUS)
"""The reasons of the events that tell in which state a gang is."""


class GangReports:
    """The events that tell the states of gangs. An event is left out where the one before it said the same."""

    def __init__(self) -> None:
        self._now_ns = 0
        self._reported: dict[GangName, tuple[EventReason, str]] = {}
        self._lacking_since: dict[GangName, int] = {}  # Unix time in nanoseconds
        self._told_now: list[GangName] = []  # in this round

    def begin(self, names: Collection[GangName], now_ns: int) -> None:
        self._told_now, self._now_ns = [], now_ns
        for remembered in (self._reported, self._lacking_since):
            for name in remembered.keys() - names:
                del remembered[name]

    def states(self) -> Counter[EventReason]:
        return Counter(reason for reason, _ in self._reported.values())

    def waiting_since(self) -> float:
        """Return when the gang that lacks GPUs for longest began to, Unix time in seconds; 0 where none does."""
        return min(self._lacking_since.values(), default=0) / _SECOND

    def take_back(self) -> None:
        """Tell the events of a round again that was given up before they were written."""
        for name in self._told_now:
            self._reported.pop(name, None)

    def tell(self, gang: Gang, reason: EventReason, message: str, result: GangRound, *, warning: bool = True) -> None:
        """Add an event to the round, unless the last one of this gang said the same."""
        if reason in _LACKS_GPUS:
            self._lacking_since.setdefault(gang.name, self._now_ns)
        else:
            self._lacking_since.pop(gang.name, None)
        if self._reported.get(gang.name) != (reason, message):
            self._reported[gang.name] = (reason, message)
            self._told_now.append(gang.name)
            result.events.append(GangEvent(gang.unreserved, reason, message, warning))
