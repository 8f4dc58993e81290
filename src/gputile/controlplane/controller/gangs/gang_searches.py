"""Schedules the searches for places that gangs wait for, and remembers those that failed.

A search that failed would fail again while nothing changed, and each costs as much as it may. So what it found stands
until GPUs became free or the pods are others; one that gave up before it was certain is made again after a pause. A
round makes searches for so many steps only; gangs that are left wait for the next one.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from gputile.api.core import Pod
from gputile.api.reasons import EventReason
from gputile.controlplane.controller.cluster_state import ClusterPlacement, ClusterState
from gputile.controlplane.controller.gangs.gang import Gang, reservation_lasts
from gputile.core.devices.gang_membership import GangName
from gputile.core.devices.request import RequestError
from gputile.core.placement.steps import Steps
from gputile.core.scheduling.gang_kinds import GangCandidate, kinds_of
from gputile.core.scheduling.gang_plan import GangPlan, plan_gang
from gputile.core.scheduling.gang_rules import in_line


@dataclass(frozen=True, slots=True, eq=False)
class ReachableNodes:
    """The names of the ``nodes`` that pods of a gang could use; it is equal to itself only.

    It is right for these ``pods`` (UIDs), and until the cluster has ``grown``.
    """

    pods: frozenset[str]
    grown: int
    nodes: Collection[str]


class GangReach:
    """Keeps the latest answer: it stands until the gang's pods or the nodes change."""

    def __init__(self, cluster_state: ClusterState) -> None:
        self._cluster_state = cluster_state
        self._known: ReachableNodes | None = None

    def of(self, gang: Gang) -> Steps[ReachableNodes]:
        """Return, in steps, the nodes that at least one of a gang's unreserved pods could use alone."""
        pods, grown = frozenset(pod.metadata.uid for pod in gang.unreserved), self._cluster_state.grown
        known = self._known
        if known is None or (known.pods, known.grown) != (pods, grown):
            known = self._known = ReachableNodes(pods, grown, (yield from self._nodes(gang)))
        return known

    def _nodes(self, gang: Gang) -> Steps[Collection[str]]:
        empty, found = self._cluster_state.empty_placement, set[str]()
        try:
            members = [GangCandidate(pod, empty.engine.request(pod)) for pod in gang.unreserved]
        except RequestError:
            return found  # no node takes the pod
        for each in (yield from kinds_of(members, ())).asking:
            yield from empty.predicates.prepare(each.pod)
            names = [name for name, reason in empty.predicates.alone(each.pod).items() if reason is None]
            found.update(names if each.request is None else empty.engine.best_first(each.request, names))
            yield
        return found


STEPS_A_ROUND = 10_000  # beyond these no further gang is searched places for: news wait while a round goes on
TOO_LARGE: Final = EventReason.GANG_TOO_LARGE
_INVALID: Final = EventReason.INVALID_GPU_REQUEST
_SECOND = 10**9
_FIRST_PAUSE, _LONGEST_PAUSE = _SECOND, 60 * _SECOND  # before a search that gave up is made again
_ROOM_STANDS = 10 * _SECOND  # so long room counts that a gang was not given


@dataclass(frozen=True, slots=True)
class _Tried:
    """A search that failed: it would fail again while the same pods wait and nothing became free.

    ``cycle`` is the pass over all gangs that it was part of. One that gave up is made again from ``again_ns`` on (Unix
    time in nanoseconds), since each costs as much as it may; ``failures`` of them came in a row.

    ``beside`` are the nodes on which no place was looked for, and ``room`` is what a search found there, too. It may
    fit; then it is looked at again some time after ``at_ns`` (Unix time in ns), as others may have taken it.
    """

    pods: frozenset[str]
    needed: int
    freed: int
    grown: int
    cycle: int
    plan: GangPlan
    room: GangPlan
    beside: ReachableNodes | None
    at_ns: int
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
class GangSearch:
    """What is known of a gang's places: a plan, which may not fit; None where no search can ever find one that does.

    ``reason`` and ``text`` are the event that tells people why none can; ``reason`` is None where it was told before.
    """

    plan: GangPlan | None = None
    reason: EventReason | None = None
    text: str = ""


class GangSearches:
    """Searches for places on the cluster state. What it remembers is of gangs that have unbound pods."""

    def __init__(self, cluster_state: ClusterState) -> None:
        self._cluster_state = cluster_state
        self._tried: dict[GangName, _Tried] = {}
        self._alone: dict[GangName, _AloneInCluster] = {}
        self._cycle = 0  # counts the passes over all gangs; each may take several rounds
        self._steps_left = 0

    def begin(self, names: Collection[GangName]) -> None:
        self._steps_left = STEPS_A_ROUND
        for remembered in (self._tried, self._alone):
            for name in remembered.keys() - names:
                del remembered[name]

    def end_cycle(self) -> None:
        """Take note that all gangs have had their turn."""
        self._cycle += 1

    def is_too_large(self, gang: Gang) -> bool:
        """Return whether not even the empty cluster has places for the gang."""
        alone = self._alone.get(gang.name)
        return alone is not None and not alone.plan.fits and alone.plan.certain

    def starts_some_day(self, gang: Gang) -> bool:
        alone = self._alone.get(gang.name)
        return alone is not None and alone.plan.fits

    def could_be_on(self, gang: Gang, reach: ReachableNodes) -> bool:
        """Return whether the places that the gang would get in the empty cluster are on some of these nodes."""
        alone = self._alone.get(gang.name)
        return alone is not None and any(place.node in reach.nodes for place in alone.plan.places.values())

    def must_wait(self, gang: Gang, beside: ReachableNodes | None, *, starved: bool) -> bool:
        """Return whether the round has gone on for so long that the gang's search is left to the next one."""
        return self._steps_left <= 0 and self._known(gang, beside, starved=starved) is None

    def find(self, gang: Gang, beside: ReachableNodes | None, *, starved: bool) -> Steps[GangSearch]:
        """Return, in steps, what a search finds now; ``starved`` tells that GPUs are reserved for the gang anyway.

        No place is on a node of ``beside``.
        """
        cluster_state, known = self._cluster_state, self._known(gang, beside, starved=starved)
        if known is not None:
            return self._too_large(gang) or GangSearch(known)
        members: list[GangCandidate] = []
        try:
            for pod in gang.unreserved:
                members.append(GangCandidate(pod, cluster_state.placement.engine.request(pod)))
                yield
        except RequestError as error:
            return GangSearch(None, _INVALID, f"gang {gang.name.name}: {error}")
        pods, freed = _uids(gang), cluster_state.freed
        plan = room = yield from self._search(members, gang.needed, cluster_state.placement, beside)
        if beside is not None and not plan.fits:
            room = yield from self._search(members, gang.needed, cluster_state.placement)
        tried = self._tried.pop(gang.name, None)
        if plan.fits:
            return GangSearch(plan)
        self._tried[gang.name] = self._failed(gang, freed, (plan, room, beside), tried)
        yield from self._in_the_empty_cluster(gang, pods, members)
        return self._too_large(gang) or GangSearch(plan)

    def _too_large(self, gang: Gang) -> GangSearch | None:
        """Return that the gang can never start, None where it may some day."""
        if not self.is_too_large(gang):
            return None
        text = (
            f"{gang.together} can never start here: the empty cluster has room for "
            f"{self._alone[gang.name].plan.room}; add nodes, or ask for less"
        )
        return GangSearch(None, TOO_LARGE, text)

    def without_room(self) -> list[Pod]:
        """Return the pods for which the last searches found no room, of each gang as many as have to start together."""
        found: list[Pod] = []
        for name, tried in self._tried.items():
            lacking = tried.pods - tried.room.places.keys()
            pods = [pod for pod in self._cluster_state.members.pods(name) if pod.metadata.uid in lacking]
            found += sorted(pods, key=in_line)[: max(0, tried.needed - len(tried.room.places))]
        return found

    def nodes_with_room(self, name: GangName) -> set[str]:
        tried = self._tried.get(name)
        return {place.node for place in tried.room.places.values()} if tried is not None else set()

    def _known(self, gang: Gang, beside: ReachableNodes | None, *, starved: bool) -> GangPlan | None:
        """Return the plan of a search that need not be made again."""
        tried, cluster_state = self._tried.get(gang.name), self._cluster_state
        if tried is None or (tried.pods, tried.needed, tried.beside) != (_uids(gang), gang.needed, beside):
            return None
        room_stands = not tried.room.fits or 0 <= cluster_state.now_ns - tried.at_ns < _ROOM_STANDS
        nothing_new = (cluster_state.freed == tried.freed and room_stands) or tried.cycle == self._cycle
        # Where the clock was set back, the time is so far ahead that it means nothing.
        paused = 0 < tried.again_ns - cluster_state.now_ns <= _LONGEST_PAUSE and cluster_state.grown == tried.grown
        if not nothing_new and not paused:
            return None
        if starved and sum(reservation_lasts(cluster_state, pod) for pod in gang.unreserved) != len(tried.plan.places):
            return None  # what is reserved for it was lost, or ends
        return tried.plan

    def _failed(
        self, gang: Gang, freed: int, found: tuple[GangPlan, GangPlan, ReachableNodes | None], before: _Tried | None
    ) -> _Tried:
        """Return what to remember of a search; ``found`` are its ``plan``, its ``room`` and what it was ``beside``."""
        plan, room, beside = found
        pods, again_ns, failures, now_ns = _uids(gang), 0, 0, self._cluster_state.now_ns
        if not (plan.certain and room.certain):
            failures = before.failures + 1 if before is not None and before.pods == pods else 1
            again_ns = now_ns + min(_LONGEST_PAUSE, _FIRST_PAUSE << min(failures - 1, 10))
        grown, cycle = self._cluster_state.grown, self._cycle
        return _Tried(pods, gang.needed, freed, grown, cycle, plan, room, beside, now_ns, again_ns, failures)

    def _in_the_empty_cluster(self, gang: Gang, pods: frozenset[str], members: Sequence[GangCandidate]) -> Steps[None]:
        """Remember what the empty cluster has for the gang, unless that is known."""
        known, grown = self._alone.get(gang.name), self._cluster_state.grown
        if known is None or (known.pods, known.needed, known.grown) != (pods, gang.needed, grown):
            plan = yield from self._search(members, gang.needed, self._cluster_state.empty_placement)
            self._alone[gang.name] = _AloneInCluster(pods, gang.needed, grown, plan)

    def _search(
        self,
        members: Sequence[GangCandidate],
        needed: int,
        placement: ClusterPlacement,
        beside: ReachableNodes | None = None,
    ) -> Steps[GangPlan]:
        """Search in steps, and count them."""
        engine, predicates, now_ns = placement.engine, placement.predicates, self._cluster_state.now_ns
        steps = plan_gang(members, needed, engine, predicates, now_ns, beside.nodes if beside is not None else ())
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


def _uids(gang: Gang) -> frozenset[str]:
    return frozenset(pod.metadata.uid for pod in gang.unreserved)
