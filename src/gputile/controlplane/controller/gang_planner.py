"""One round of planning: what to write so that the first gangs of the queue start. No I/O, no clock.

The gangs are taken in the order of the queue. A gang that fits whole gets its reservations; the gangs after it see
them. A gang that does not fit is passed over, so that later ones use what it cannot; but not for ever: after
``gangs.patienceSeconds`` it blocks the queue behind it, and what becomes free is reserved for it until it fits, or
until that has lasted for long enough (``starvation``). Only one gang at a time has reservations that it cannot use yet,
so no two gangs wait for each other's.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from gputile.api.core import Pod
from gputile.api.well_known import HOLD_ANNOTATION
from gputile.controlplane.controller.cluster_state import ClusterState, PlacementState
from gputile.controlplane.controller.gangs import Gang, Gangs, reservation_lasts
from gputile.controlplane.controller.starvation import StarvationTimeout
from gputile.core.devices.gang_membership import GangName, gang_of, gated
from gputile.core.devices.request import RequestError
from gputile.core.devices.reservation import Reservation, reservation_of
from gputile.core.ledger.ledger import LedgerError
from gputile.core.placement.steps import Steps
from gputile.core.scheduling.gang_kinds import GangCandidate
from gputile.core.scheduling.gang_plan import GangPlan, plan_gang
from gputile.core.scheduling.gang_rules import in_line, no_room_text, together_text, too_few_text

_SECOND = 10**9
STEPS_A_ROUND = 10_000  # beyond these no further gang is searched places for: news wait while a round goes on
_FIRST_PAUSE, _LONGEST_PAUSE = _SECOND, 60 * _SECOND  # before a search that gave up is made again
_NODES_NAMED = 10
_SETTLING_SECONDS = 5.0  # so long the pods of one gang may take to be created before anybody is told that some miss
_INCOMPLETE, _WAITING, _BEHIND, _TOO_LARGE = "GangIncomplete", "GangWaiting", "GangBehind", "GangTooLarge"
_PLANNED = "GangPlanned"
STATES: Final = (_PLANNED, _INCOMPLETE, _WAITING, _BEHIND, _TOO_LARGE)


@dataclass(frozen=True, slots=True)
class ReservationPatch:
    """A pod whose reservation is to be written, and the reservation; None removes it."""

    pod: Pod
    reservation: Reservation | None


@dataclass(frozen=True, slots=True)
class GangEvent:
    """Something to tell the people who look at a gang's pods."""

    pods: tuple[Pod, ...]
    reason: str
    message: str
    warning: bool = True


@dataclass(slots=True)
class Round:
    """What a round decided. ``reservations`` are written first; ``gates`` are of pods that were reserved before it.

    ``unfinished`` tells that gangs are left for which there was no time; the next round goes on with them.
    ``contradictions`` tell of gangs that were left out because what is known of their pods contradicts itself.
    """

    reservations: list[list[ReservationPatch]] = field(default_factory=list)
    gates: list[Pod] = field(default_factory=list)
    events: list[GangEvent] = field(default_factory=list)
    waiting: int = 0
    planned: int = 0
    unfinished: bool = False
    contradictions: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Tried:
    """A search that failed: it would fail again while the same pods wait and nothing became free.

    ``cycle`` is the pass over all gangs that it was part of. One that gave up is made again from ``again_ns`` on (Unix
    time in nanoseconds), since each costs as much as it may; ``failures`` of them came in a row.
    """

    pods: frozenset[str]
    needed: int
    freed: int
    grown: int
    cycle: int
    plan: GangPlan
    again_ns: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class _AloneInCluster:
    """What a search found for the pods in a cluster without others; ``grown`` is the cluster's at that time."""

    pods: frozenset[str]
    needed: int
    grown: int
    plan: GangPlan


@dataclass(frozen=True, slots=True)
class _Refused:
    """How often in a row a reservation of a gang was refused, why, and until when none is written (Unix time in ns)."""

    times: int
    why: str
    again_ns: int


class GangPlanner:
    """Decides round by round; ``new_plan`` gives each plan a name of its own.

    What it remembers is of gangs that have unbound pods, and goes with them.
    """

    def __init__(self, cluster_state: ClusterState, new_plan: Callable[[], str]) -> None:
        self._cluster_state = cluster_state
        self._configuration = cluster_state.ledger.configuration
        self._new_plan = new_plan
        self._gangs = Gangs(cluster_state)
        self._starvation = StarvationTimeout(self._configuration.gangs)
        self._tried: dict[GangName, _Tried] = {}
        self._ever: dict[GangName, _AloneInCluster] = {}
        self._refused: dict[GangName, _Refused] = {}
        self._several_started = False
        self._reported: dict[GangName, tuple[str, str]] = {}
        self._cycle = 0  # counts the passes over all gangs; each may take several rounds
        self._steps_left = 0
        self._round = Round()

    def steps(self, now_ns: int) -> Steps[Round]:
        """Return, in steps, what to write now; the cluster state already has it, and may not change meanwhile.

        ``now_ns`` is Unix time in nanoseconds. Whoever gives up half-way closes the steps, and calls ``abandon``.
        """
        cluster_state, result = self._cluster_state, Round()
        self._round, self._steps_left = result, STEPS_A_ROUND
        cluster_state.tick(now_ns)
        gangs = yield from self._gangs.look()
        names = {gang.name for gang in gangs}
        for remembered in (self._tried, self._ever, self._reported, self._refused):
            for name in remembered.keys() - names:
                del remembered[name]
        self._starvation.begin(names, cluster_state.now_ns)
        self._several_started = sum(gang.started for gang in gangs) > 1
        head: Gang | None = None
        for gang in gangs:
            yield
            if gang.repeated and self._keeps_gpus(gang):
                self._starvation.repeat(gang.name)
            yield from self._extend(gang, result)
            result.gates += sorted((pod for pod in gang.reserved if gated(pod)), key=in_line)
            if gang.name.by_object and not cluster_state.groups_read:
                # Its size is not known yet: only what has begun goes on.
                result.waiting += bool(gang.unreserved)
                continue
            try:
                advanced = not gang.unreserved or (yield from self._advance(gang, head, result))
            except LedgerError as error:  # that of one gang must not keep all others waiting
                result.contradictions.append(f"gang {gang.name}: {error}")
                result.waiting += 1
                continue
            if not advanced:
                result.waiting += 1
                if head is None and not result.unfinished and self._is_starved(gang):
                    head = gang
                    self._starvation.starve(gang.name, certain=self._starts_some_day(gang))
        runs = {gang.name: not gang.below_min_member for gang in gangs}
        self._starvation.end(
            lambda name: runs.get(name, cluster_state.members.runs(name)), finished=not result.unfinished
        )
        if not result.unfinished:
            self._cycle += 1
        return result

    def states(self) -> Counter[str]:
        """Return how many gangs with unbound pods there are, by the reason of the event that was last told of them."""
        return Counter(reason for reason, _ in self._reported.values())

    def without_room(self) -> list[Pod]:
        """Return the pods for which the last searches found no room, of each gang as many as have to start together."""
        found: list[Pod] = []
        for name, tried in self._tried.items():
            lacking = tried.pods - tried.plan.places.keys()
            pods = [pod for pod in self._cluster_state.members.pods(name) if pod.metadata.uid in lacking]
            found += sorted(pods, key=in_line)[: max(0, tried.needed - len(tried.plan.places))]
        return found

    def abandon(self) -> None:
        """Take back what was expected of a round that was given up: nothing of it is written."""
        for write in [write for gang in self._round.reservations for write in gang]:
            self._cluster_state.not_written(write.pod)
        self._round = Round()

    def account(self) -> str:
        """Return what the next leader is to know of the GPUs that were reserved in vain."""
        return self._starvation.account()

    def resume(self, text: str) -> None:
        """Go on where the leader before ended; ``text`` is its ``account``, "" where there is none.

        Raises:
            AccountError: it cannot be read; nothing has changed.
        """
        self._starvation.resume(text)

    def refused(self, pod: Pod, why: str) -> None:
        """Note that the API server refuses the reservation of ``pod``: for a while none is written for its gang."""
        gang, now_ns = gang_of(pod), self._cluster_state.now_ns
        before = self._refused.get(gang) if gang is not None else None
        if gang is None or (before is not None and before.again_ns > now_ns):
            return
        times = before.times + 1 if before is not None else 1
        again_ns = now_ns + min(_LONGEST_PAUSE, _FIRST_PAUSE << min(times - 1, 10))
        self._refused[gang] = _Refused(times, why, again_ns)

    def _advance(self, gang: Gang, head: Gang | None, result: Round) -> Steps[bool]:
        """Reserve GPUs for the unreserved pods of a gang, if they fit; return whether they do."""
        if not self._is_complete(gang, result):
            yield from self._remove_reservations(gang, result)
            return False
        refused = self._refused.get(gang.name)
        if refused is not None and 0 < refused.again_ns - self._cluster_state.now_ns <= _LONGEST_PAUSE:
            yield from self._remove_reservations(gang, result)
            text = f"{_together(gang)} wait: the API server refuses to store what is reserved for them: {refused.why}"
            self._report(gang, _WAITING, text, result)
            return False
        if head is not None:
            yield from self._remove_reservations(gang, result)
            text = f"{_together(gang)} wait behind gang {head.name}, which has waited too long to be passed again"
            self._report(gang, _BEHIND, text, result)
            return False
        if gang.repeated and self._starvation.resting:
            # What ends is left as it is: so whoever plans next knows it too.
            self._report(gang, _WAITING, _unbegun(gang, self._configuration.gangs.keep_seconds), result)
            return False
        if self._has_to_wait_for_a_search(gang):
            result.unfinished = True
            return False
        plan = yield from self._plan(gang, result)
        if plan is None:
            yield from self._remove_reservations(gang, result)
            return False
        if plan.fits:
            yield from self._write(gang, plan, len(plan.places), result)
            result.planned += 1
            places = ", ".join(sorted({place.node for place in plan.places.values()})[:_NODES_NAMED])
            text = f"gang {gang.name.name}: {len(plan.places)} pods have their places, on {places}"
            self._report(gang, _PLANNED, text, result, warning=False)
            return True
        self._report(gang, _WAITING, no_room_text(_together(gang), plan), result)
        if self._is_starved(gang):
            yield from self._reserve_what_fits(gang, plan, result)
        else:
            yield from self._remove_reservations(gang, result)
        return False

    def _keeps_gpus(self, gang: Gang) -> bool:
        ends = (self._cluster_state.reservation_end(pod.metadata.uid) for pod in (*gang.reserved, *gang.unreserved))
        return any(end_ns > self._cluster_state.now_ns for end_ns in ends)

    # -- whether a gang may start

    def _is_complete(self, gang: Gang, result: Round) -> bool:
        if not gang.size:
            what = f"PodGroup {gang.name} does not exist, or its spec.minMember is not 1 or more: create it"
            if self._cluster_state.groups is None:
                what = "the cluster has no PodGroups: install their CRD, or name the gang by labels"
            self._report(gang, _INCOMPLETE, f"gang {gang.name.name}: {what}", result)
            return False
        if len(gang.unreserved) >= gang.needed:
            return True
        if self._cluster_state.now_ns - gang.complete_at * _SECOND > _SETTLING_SECONDS * _SECOND:
            there = gang.size - gang.needed + len(gang.unreserved)
            text = f"{too_few_text(gang.name, gang.size, there)}; {_remedy(gang)}"
            self._report(gang, _INCOMPLETE, text, result, warning=False)
        return False

    def _is_starved(self, gang: Gang) -> bool:
        """Return whether room is to be reserved for the gang: it needs it, has waited, and may fit some day."""
        complete = gang.size > 0 and len(gang.unreserved) >= gang.needed
        # Gangs that lost pods could wait for each other's GPUs for ever if one of them reserved what it cannot use.
        may_reserve = gang.below_min_member and not (gang.started and self._several_started)
        may_reserve = may_reserve and gang.name not in self._refused
        waited = self._starvation.has_passed(gang.name, gang.complete_at, self._cluster_state.now_ns)
        return may_reserve and complete and waited and not self._is_too_large(gang)

    def _is_too_large(self, gang: Gang) -> bool:
        ever = self._ever.get(gang.name)
        return ever is not None and not ever.plan.fits and ever.plan.certain

    def _starts_some_day(self, gang: Gang) -> bool:
        ever = self._ever.get(gang.name)
        return ever is not None and ever.plan.fits

    # -- searches

    def _known(self, gang: Gang) -> GangPlan | None:
        """Return the plan of a search that need not be made again."""
        tried, cluster_state = self._tried.get(gang.name), self._cluster_state
        if tried is None or (tried.pods, tried.needed) != (_uids(gang), gang.needed):
            return None
        nothing_new = cluster_state.freed == tried.freed or tried.cycle == self._cycle
        # Where the clock was set back, the time is so far ahead that it means nothing.
        paused = 0 < tried.again_ns - cluster_state.now_ns <= _LONGEST_PAUSE and cluster_state.grown == tried.grown
        if not nothing_new and not paused:
            return None
        if self._is_starved(gang) and sum(reservation_lasts(cluster_state, pod) for pod in gang.unreserved) != len(
            tried.plan.places
        ):
            return None  # what is reserved for it was lost, or ends
        return tried.plan

    def _has_to_wait_for_a_search(self, gang: Gang) -> bool:
        """Return whether the round has gone on for so long that the gang's search is left to the next one."""
        return self._steps_left <= 0 and self._known(gang) is None

    def _plan(self, gang: Gang, result: Round) -> Steps[GangPlan | None]:
        """Return what a search finds now; None where none can ever find anything."""
        cluster_state, known = self._cluster_state, self._known(gang)
        if known is not None:
            return None if self._is_too_large(gang) else known
        members: list[GangCandidate] = []
        try:
            for pod in gang.unreserved:
                members.append(GangCandidate(pod, cluster_state.placement.engine.request(pod)))
                yield
        except RequestError as error:
            self._report(gang, "InvalidGPURequest", f"gang {gang.name.name}: {error}", result)
            return None
        pods, freed = _uids(gang), cluster_state.freed
        plan = yield from self._search(members, gang.needed, cluster_state.placement)
        tried = self._tried.pop(gang.name, None)
        if plan.fits:
            return plan
        self._tried[gang.name] = self._failed(gang, pods, freed, plan, tried)
        ever = yield from self._in_the_empty_cluster(gang, pods, members)
        if not self._is_too_large(gang):
            return plan
        text = (
            f"{_together(gang)} can never start here: the empty cluster has room for {len(ever.places)}; "
            f"{ever.lacking}; add nodes, or ask for less"
        )
        self._report(gang, _TOO_LARGE, text, result)
        return None

    def _failed(self, gang: Gang, pods: frozenset[str], freed: int, plan: GangPlan, before: _Tried | None) -> _Tried:
        again_ns = failures = 0
        if not plan.certain:
            failures = before.failures + 1 if before is not None and before.pods == pods else 1
            again_ns = self._cluster_state.now_ns + min(_LONGEST_PAUSE, _FIRST_PAUSE << min(failures - 1, 10))
        return _Tried(pods, gang.needed, freed, self._cluster_state.grown, self._cycle, plan, again_ns, failures)

    def _in_the_empty_cluster(
        self, gang: Gang, pods: frozenset[str], members: Sequence[GangCandidate]
    ) -> Steps[GangPlan]:
        known, grown = self._ever.get(gang.name), self._cluster_state.grown
        if known is None or (known.pods, known.needed, known.grown) != (pods, gang.needed, grown):
            plan = yield from self._search(members, gang.needed, self._cluster_state.empty_placement)
            known = self._ever[gang.name] = _AloneInCluster(pods, gang.needed, grown, plan)
        return known.plan

    def _search(self, members: Sequence[GangCandidate], needed: int, placement: PlacementState) -> Steps[GangPlan]:
        """Search in steps, and count them."""
        steps = plan_gang(members, needed, placement.engine, placement.predicates, self._cluster_state.now_ns)
        try:
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    plan: GangPlan = end.value
                    return plan
                self._steps_left -= 1
                yield
        finally:
            steps.close()

    # -- what is written

    def _write(self, gang: Gang, plan: GangPlan, pods: int, result: Round) -> Steps[None]:
        """Write the places of ``plan`` as reservations of one plan of ``pods`` pods; others of the gang lose theirs."""
        name = f"{gang.name.name}/{self._new_plan()}"[-253:]
        with_gpus = sum(place.allocation is not None for place in plan.places.values())
        # Places of a gang that cannot start yet are less than its plan has: nobody may take one.
        starts = pods == len(plan.places)
        size = with_gpus if starts else pods
        expires_ns = self._cluster_state.now_ns + self._configuration.gangs.hold_seconds * _SECOND
        first = _first(gang.unreserved, plan) if starts else ""
        repeated = starts and (gang.repeated or self._starvation.reserves(gang.name))
        if repeated:
            self._starvation.repeat(gang.name)
        writes = []
        for pod in gang.unreserved:
            place = plan.places.get(pod.metadata.uid)
            if place is not None:
                reservation = Reservation(
                    plan=name,
                    size=size,
                    pods=pods,
                    node=place.node,
                    expires_ns=expires_ns,
                    allocation=place.allocation,
                    first=pod.metadata.uid == first,
                    repeated=repeated,
                )
                writes.append(ReservationPatch(pod, reservation))
            elif HOLD_ANNOTATION in pod.metadata.annotations:
                writes.append(ReservationPatch(pod, None))
        yield from self._expect(writes, result)

    def _extend(self, gang: Gang, result: Round) -> Steps[None]:
        """Let reservations of a started plan end as late as new ones."""
        ends = self._cluster_state.now_ns + self._configuration.gangs.hold_seconds * _SECOND
        reservations = [(pod, reservation) for pod in gang.ending if (reservation := reservation_of(pod)) is not None]
        writes = [
            ReservationPatch(pod, msgspec.structs.replace(reservation, expires_ns=ends))
            for pod, reservation in reservations
        ]
        yield from self._expect(writes, result)

    def _reserve_what_fits(self, gang: Gang, plan: GangPlan, result: Round) -> Steps[None]:
        """Reserve what there is for a gang that has waited too long, where that is more than it has reserved."""
        reserved = sum(self._cluster_state.reservation(pod) is not None for pod in gang.unreserved)
        valid = sum(reservation_lasts(self._cluster_state, pod) for pod in gang.unreserved)
        if len(plan.places) > valid or reserved > valid:
            yield from self._write(gang, plan, gang.needed, result)

    def _remove_reservations(self, gang: Gang, result: Round) -> Steps[None]:
        # Also those that have ended: the extender's clock may differ.
        writes = [ReservationPatch(pod, None) for pod in gang.unreserved if HOLD_ANNOTATION in pod.metadata.annotations]
        yield from self._expect(writes, result)

    def _expect(self, writes: Sequence[ReservationPatch], result: Round) -> Steps[None]:
        expected: list[ReservationPatch] = []
        if writes:
            result.reservations.append(expected)
        for write in writes:
            self._cluster_state.expect(write.pod, write.reservation)
            expected.append(write)
            yield

    # -- what is said

    def _report(self, gang: Gang, reason: str, message: str, result: Round, *, warning: bool = True) -> None:
        if self._reported.get(gang.name) != (reason, message):
            self._reported[gang.name] = (reason, message)
            result.events.append(GangEvent(gang.unreserved, reason, message, warning))


def _together(gang: Gang) -> str:
    return together_text(gang.name, gang.needed, gang.running + len(gang.reserved))


def _remedy(gang: Gang) -> str:
    """Return what to do where pods of a gang are missing, and nobody knows whether they are still to come."""
    fewer = "lower spec.minMember of the PodGroup" if gang.name.by_object else "create a Job without gang labels for it"
    return (
        "if no more come, the events of their Job say what refuses them (a ResourceQuota, say); if the others have "
        f"succeeded already and this is what is left, {fewer}"
    )


def _unbegun(gang: Gang, seconds: int) -> str:
    return (
        f"{_together(gang)} wait: GPUs were reserved for them again and again, for {seconds} seconds at most, and "
        "kube-scheduler bound none of them; its own events on the pods say why (volumes, say); others may use "
        "the GPUs for as long, then the pods are planned again"
    )


def _uids(gang: Gang) -> frozenset[str]:
    return frozenset(pod.metadata.uid for pod in gang.unreserved)


def _first(pods: Sequence[Pod], plan: GangPlan) -> str:
    """Return the UID of the pod that the plan begins with: of those that the extender binds, the first in line."""
    with_gpus = [pod for pod in pods if (place := plan.places.get(pod.metadata.uid)) and place.allocation is not None]
    return min(with_gpus, key=in_line).metadata.uid if with_gpus else ""
