"""Searches places for gangs on a snapshot, and remembers the searches that failed.

A search that failed would fail again while nothing changed. So what it found stands until GPUs became free, or the
pods are others. A round makes so many searches at most; the gangs that are left come first in the next one.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from gputile.api.core import Pod
from gputile.controlplane.controller.cluster_state import ClusterPlacement, ClusterState
from gputile.controlplane.controller.gangs.gang import Gang
from gputile.core.devices.gang_membership import GangName, in_line
from gputile.core.devices.request import RequestError
from gputile.core.scheduling.gang_plan import GangCandidate, GangPlan, kinds_of, plan_gang

MOST_SEARCHES = 256
_ROOM_STANDS = 10 * 10**9
NOWHERE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _FailedSearch:
    """A search that found too few places, and what it depended on: pods and nodes, and what was free.

    ``room`` is what was found on all nodes, ``turn`` the pass over all gangs that the search was part of.
    """

    pods: frozenset[str]
    needed: int
    closed: frozenset[str]
    freed: int
    turn: int
    at_ns: int
    plan: GangPlan
    room: GangPlan

    def stands(self, now_ns: int) -> bool:
        """Return whether nobody can have taken room that the gang was not given; after a while others may have."""
        return not self.room.fits or 0 <= now_ns - self.at_ns < _ROOM_STANDS


@dataclass(frozen=True, slots=True)
class _Alone:
    """What a search found for the pods in a cluster without others, when that had ``grown`` so often."""

    pods: frozenset[str]
    needed: int
    grown: int
    plan: GangPlan


class GangSearches:
    """What it remembers is of gangs that have unbound pods."""

    def __init__(self) -> None:
        self._failed: dict[GangName, _FailedSearch] = {}
        self._alone: dict[GangName, _Alone] = {}
        self._freed, self._left, self._turn = 0, 0, 0

    def begin(self, names: Collection[GangName], state: ClusterState) -> None:
        self._freed, self._left = state.freed, MOST_SEARCHES
        for remembered in (self._failed, self._alone):
            for name in remembered.keys() - names:
                del remembered[name]

    def all_had_their_turn(self) -> None:
        self._turn += 1

    def find(self, gang: Gang, closed: frozenset[str], state: ClusterState, kept: int | None) -> GangPlan | None:
        """Return the places that a gang may have now, none on a ``closed`` node; None where a later round searches.

        ``kept`` is how many places are kept for the gang although it does not fit, None where none are to be.

        Raises:
            RequestError: a pod asks for GPUs in a way that can never be served.
        """
        pods, failed = _uids(gang), self._failed.get(gang.name)
        if (
            failed is not None
            and kept in (None, len(failed.plan.places))
            and (failed.pods, failed.needed, failed.closed) == (pods, gang.needed, closed)
            and (failed.turn == self._turn or (failed.freed == self._freed and failed.stands(state.now_ns)))
        ):
            return failed.plan
        if self._left <= 0:
            return None
        self._left -= 1
        self._failed.pop(gang.name, None)
        members = [GangCandidate(pod, state.placement.engine.request(pod)) for pod in gang.unreserved]
        plan = room = _plan(members, gang.needed, state.placement, state.now_ns, closed)
        if plan.fits:
            return plan
        if closed:
            room = _plan(members, gang.needed, state.placement, state.now_ns)
        self._failed[gang.name] = _FailedSearch(
            pods, gang.needed, closed, self._freed, self._turn, state.now_ns, plan, room
        )
        alone = self._alone.get(gang.name)
        if alone is None or (alone.pods, alone.needed, alone.grown) != (pods, gang.needed, state.grown):
            found = _plan(members, gang.needed, state.empty_placement, state.now_ns)
            self._alone[gang.name] = _Alone(pods, gang.needed, state.grown, found)
        return plan

    def too_large(self, gang: Gang) -> GangPlan | None:
        """Return the places that the gang would have in the empty cluster where these are too few, else None."""
        alone = self._alone.get(gang.name)
        return alone.plan if alone is not None and not alone.plan.fits else None

    def nodes_alone(self, gang: Gang) -> set[str]:
        """Return the nodes of the places that the gang would get in the empty cluster."""
        alone = self._alone.get(gang.name)
        return {place.node for place in alone.plan.places.values()} if alone is not None else set()

    def without_room(self, state: ClusterState, served: Callable[[GangName], object]) -> list[Pod]:
        """Return the pods for which the last searches found no room, of each gang as many as have to start together.

        Gangs that are ``served`` otherwise are left out.
        """
        found: list[Pod] = []
        for name, failed in self._failed.items():
            if served(name) is not None:
                continue
            lacking = failed.pods - failed.room.places.keys()
            pods = [pod for pod in state.members.pods(name) if pod.metadata.uid in lacking]
            found += sorted(pods, key=in_line)[: max(0, failed.needed - len(failed.room.places))]
        return found

    def nodes_with_room(self, name: GangName) -> set[str]:
        failed = self._failed.get(name)
        return {place.node for place in failed.room.places.values()} if failed is not None else set()


def reachable_nodes(gang: Gang, state: ClusterState) -> frozenset[str]:
    """Return the nodes that at least one of a gang's unreserved pods could use alone, if they were empty."""
    empty, found = state.empty_placement, set[str]()
    try:
        members = [GangCandidate(pod, empty.engine.request(pod)) for pod in gang.unreserved]
    except RequestError:
        return NOWHERE  # no node takes the pod
    for each in kinds_of(members, ()).asking:
        names = empty.predicates.open_alone(each.pod)
        found.update(names if each.request is None else empty.engine.best_first(each.request, names))
    return frozenset(found)


def _plan(
    members: Sequence[GangCandidate],
    needed: int,
    placement: ClusterPlacement,
    now_ns: int,
    closed: Collection[str] = (),
) -> GangPlan:
    return plan_gang(members, needed, placement.engine, placement.predicates, now_ns, closed)


def _uids(gang: Gang) -> frozenset[str]:
    return frozenset(pod.metadata.uid for pod in gang.unreserved)
