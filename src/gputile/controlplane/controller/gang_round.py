"""Collects a round's decisions, sets when reservations expire, and reports each change once."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from gputile.api.core import Pod
from gputile.api.well_known import RESERVATION_ANNOTATION, EventReason
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.evictions import Eviction
from gputile.controlplane.controller.gang_queue import Gang, has_lasting_reservation
from gputile.core.devices.allocation import Reservation, reservation_of
from gputile.core.devices.gang_membership import GangName, scheduling_order
from gputile.core.scheduling.gang_plan import GangPlan

_SECOND = 10**9


@dataclass(frozen=True, slots=True)
class ReservationPatch:
    """A change to a pod's reservation."""

    pod: Pod
    reservation: Reservation | None  # None removes the reservation
    nominated: str | None = None  # "" removes the nominated node, None leaves it unchanged


@dataclass(frozen=True, slots=True)
class GangEvent:
    """An event to record for each of ``pods``."""

    pods: tuple[Pod, ...]
    reason: EventReason
    message: str
    warning: bool = True


@dataclass(slots=True)
class GangRound:
    """The result of a round.

    ``gates`` contains the pods whose scheduling gates are removed, because an earlier round has
    stored their reservations. ``evictions`` contains the evictions that are due after earlier
    rounds. They are grouped by preemptor, or by gang if the gang must leave as a whole.

    If ``unfinished`` is True, another round must follow at once, because searches were postponed or
    the victims of a new reservation must be evicted. ``contradictions`` names gangs that were
    skipped because the known states of their pods contradict each other.
    """

    reservations: list[list[ReservationPatch]] = field(default_factory=list)
    gates: list[Pod] = field(default_factory=list)
    evictions: list[list[Eviction]] = field(default_factory=list)
    events: list[GangEvent] = field(default_factory=list)
    unfinished: bool = False
    contradictions: list[str] = field(default_factory=list)


@dataclass(slots=True)
class RoundBuilder:
    """A round in progress. Each write is added to ``result`` and immediately applied to ``state``.

    ``new_plan_name`` returns a unique name. ``several_started`` is True if more than one gang has
    started and has lost pods since then. ``head`` is a gang that has waited too long, so that later
    gangs may no longer start before it. ``closed`` contains the nodes that ``head`` could use.
    Later gangs must not use these nodes.
    """

    state: ClusterState
    new_plan_name: Callable[[], str]
    several_started: bool
    result: GangRound = field(default_factory=GangRound)
    head: Gang | None = None
    closed: frozenset[str] = frozenset()

    def plan(self, gang: Gang, plan: GangPlan, pod_count: int, *, starts: bool) -> None:
        """Write the reservations of ``plan``.

        ``pod_count`` is the number of pods that start together. Pods of the gang that are not in
        the plan lose their old reservations. If ``starts`` is False, the extender binds none of
        the plan's pods.
        """
        name = f"{gang.name.name}/{self.new_plan_name()}"[-253:]
        with_gpus = sum(place.allocation is not None for place in plan.places.values())
        first = _first(gang.unreserved, plan) if starts else ""
        writes = []
        for pod in gang.unreserved:
            place = plan.places.get(pod.metadata.uid)
            if place is not None:
                reservation = Reservation(
                    plan=name,
                    size=with_gpus if starts else pod_count,
                    pods=pod_count,
                    node=place.node,
                    expires_ns=self._expires_ns,
                    allocation=place.allocation,
                    first=pod.metadata.uid == first,
                    since_ns=gang.reserved_since_ns or self.state.now_ns,
                )
                writes.append(ReservationPatch(pod, reservation))
            elif RESERVATION_ANNOTATION in pod.metadata.annotations:
                writes.append(ReservationPatch(pod, None))
        self._add(writes)

    def renew(self, gang: Gang) -> None:
        """Set a new end for the reservations of ``gang.ending``.

        These reservations end soon, or so late that a wrong clock must have set their end.
        """
        reservations = [
            (pod, reservation)
            for pod in gang.ending
            if (reservation := reservation_of(pod)) is not None
        ]
        self._add(
            [
                ReservationPatch(
                    pod, msgspec.structs.replace(reservation, expires_ns=self._expires_ns)
                )
                for pod, reservation in reservations
            ]
        )

    def reserve_what_fits(self, gang: Gang, plan: GangPlan) -> None:
        """Reserve the available GPUs for a gang that has waited too long.

        Reservations are written only if their number grows, or if stored reservations expire soon.
        """
        reserved = sum(self.state.reservation(pod) is not None for pod in gang.unreserved)
        valid = sum(has_lasting_reservation(self.state, pod) for pod in gang.unreserved)
        if len(plan.places) > valid or reserved > valid:
            self.plan(gang, plan, gang.needed, starts=False)

    def remove(self, gang: Gang) -> None:
        """Remove the reservations of ``gang.unreserved``, including expired reservations."""
        self._add(
            [
                ReservationPatch(pod, None)
                for pod in gang.unreserved
                if RESERVATION_ANNOTATION in pod.metadata.annotations
            ]
        )

    @property
    def _expires_ns(self) -> int:
        return self.state.now_ns + self.state.ledger.configuration.gangs.hold_seconds * _SECOND

    def _add(self, writes: Sequence[ReservationPatch]) -> None:
        if writes:
            self.result.reservations.append(list(writes))
        for patch in writes:
            self.state.assume_write(patch.pod, patch.reservation)


def _first(pods: Sequence[Pod], plan: GangPlan) -> str:
    """Return the UID of the GPU pod that kube-scheduler tries first, or "" if there is none."""
    with_gpus = [
        pod
        for pod in pods
        if (place := plan.places.get(pod.metadata.uid)) and place.allocation is not None
    ]
    return min(with_gpus, key=scheduling_order).metadata.uid if with_gpus else ""


_LACKS_GPUS: Final = (
    EventReason.GANG_WAITING,
    EventReason.GANG_BEHIND,
    EventReason.GANG_TOO_LARGE,
    EventReason.GANG_PREEMPTING,
)
STATES: Final = (EventReason.GANG_PLANNED, EventReason.GANG_INCOMPLETE, *_LACKS_GPUS)
"""The reasons of the events that report the state of a gang."""


class GangReports:
    """Reports the state of each gang by an event, except repetitions of the previous event."""

    def __init__(self) -> None:
        self._now_ns = 0
        self._reported: dict[GangName, tuple[EventReason, str]] = {}
        self._lacking_since: dict[GangName, int] = {}  # Unix time in nanoseconds

    def begin(self, names: Collection[GangName], now_ns: int) -> None:
        self._now_ns = now_ns
        for remembered in (self._reported, self._lacking_since):
            for name in remembered.keys() - names:
                del remembered[name]

    def states(self) -> Counter[EventReason]:
        """Return the number of gangs with unbound pods by the reason of their latest event."""
        return Counter(reason for reason, _ in self._reported.values())

    def waiting_since(self) -> float:
        """Return when the longest-waiting gang began to wait (Unix seconds), or 0 if none waits."""
        return min(self._lacking_since.values(), default=0) / _SECOND

    def forget(self) -> None:
        """Forget the reported events, so that each event is recorded again."""
        self._reported.clear()

    def report(
        self,
        gang: Gang,
        reason: EventReason,
        message: str,
        result: GangRound,
        *,
        warning: bool = True,
    ) -> None:
        """Add an event to the round, unless it repeats the gang's previous event."""
        if reason in _LACKS_GPUS:
            self._lacking_since.setdefault(gang.name, self._now_ns)
        else:
            self._lacking_since.pop(gang.name, None)
        if self._reported.get(gang.name) != (reason, message):
            self._reported[gang.name] = (reason, message)
            result.events.append(GangEvent(gang.unreserved, reason, message, warning))
