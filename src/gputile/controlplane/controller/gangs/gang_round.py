"""Says what a round of planning gangs decided: reservations, gates, evictions and events."""

from dataclasses import dataclass, field

from gputile.api.core import Pod
from gputile.api.reasons import EventReason
from gputile.controlplane.controller.gangs.gang_preemption import Eviction
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
