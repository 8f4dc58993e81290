"""Searches for GPUs for gangs on a snapshot, and remembers failed searches.

A failed search is not repeated until GPUs become free or the gang's pods change. The number of
searches per round is limited. The next round searches for the remaining gangs.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from gputile.api.core import Pod
from gputile.controlplane.controller.cluster_state import ClusterPlacement, ClusterState
from gputile.controlplane.controller.gang_queue import Gang
from gputile.core.devices.gang_membership import GangName, scheduling_order
from gputile.core.devices.request import RequestError
from gputile.core.scheduling.gang_plan import GangCandidate, GangPlan, kinds_of, plan_gang

MOST_SEARCHES = 256
_ROOM_VALID_NS = 10 * 10**9
NOWHERE: frozenset[str] = frozenset()
# the UIDs of a gang's pods, and the number of pods that start together
_SearchInput = tuple[frozenset[str], int]


@dataclass(frozen=True, slots=True)
class _FailedSearch:
    """A search that found too few GPUs, with its input."""

    search_input: _SearchInput
    closed: frozenset[str]
    freed_counter: int  # ``freed_counter`` of the cluster
    pass_number: int  # the number of the pass over all gangs
    at_ns: int
    plan: GangPlan  # the result without the nodes in ``closed``
    room: GangPlan  # the result with all nodes

    def is_valid(self, now_ns: int) -> bool:
        """Return whether the result is still valid.

        If the gang would fit with the nodes in ``closed`` (``room``), the result expires after
        ``_ROOM_VALID_NS``, because other pods may use the GPUs of these nodes.
        """
        return not self.room.fits or 0 <= now_ns - self.at_ns < _ROOM_VALID_NS


class GangSearches:
    """The searches of all gangs. Memory is bounded by the number of gangs with unbound pods."""

    def __init__(self) -> None:
        self._failed: dict[GangName, _FailedSearch] = {}
        # searches in the empty cluster: the input, the cluster's ``grown_counter``, the result
        self._alone: dict[GangName, tuple[_SearchInput, int, GangPlan]] = {}
        self._freed_counter, self._left, self._pass_number = 0, 0, 0

    def begin(self, names: Collection[GangName], state: ClusterState) -> None:
        self._freed_counter, self._left = state.freed_counter, MOST_SEARCHES
        for remembered in (self._failed, self._alone):
            for name in remembered.keys() - names:
                del remembered[name]

    def end_pass(self) -> None:
        self._pass_number += 1

    def find(
        self, gang: Gang, closed: frozenset[str], state: ClusterState, reserved_count: int | None
    ) -> GangPlan | None:
        """Return the plan for a gang, or None if the search is left to a later round.

        Nodes in ``closed`` are excluded. ``reserved_count`` is the number of lasting reservations
        if the gang may have some before it fits, or None otherwise. If a remembered plan has
        another number of pods, the search is repeated.

        Raises:
            RequestError: the GPU request of a pod can never be served.
        """
        search_input = frozenset(pod.metadata.uid for pod in gang.unreserved), gang.needed
        failed = self._failed.get(gang.name)
        if (
            failed is not None
            and reserved_count in (None, len(failed.plan.places))
            and (failed.search_input, failed.closed) == (search_input, closed)
            and (
                failed.pass_number == self._pass_number
                or (failed.freed_counter == self._freed_counter and failed.is_valid(state.now_ns))
            )
        ):
            return failed.plan
        if self._left <= 0:
            return None
        self._left -= 1
        self._failed.pop(gang.name, None)
        members = [
            GangCandidate(pod, state.placement.engine.request(pod)) for pod in gang.unreserved
        ]

        def search(placement: ClusterPlacement, closed: frozenset[str] = NOWHERE) -> GangPlan:
            return plan_gang(
                members, gang.needed, placement.engine, placement.predicates, state.now_ns, closed
            )

        plan = search(state.placement, closed)
        if plan.fits:
            return plan
        room = search(state.placement) if closed else plan
        self._failed[gang.name] = _FailedSearch(
            search_input, closed, self._freed_counter, self._pass_number, state.now_ns, plan, room
        )
        if self._alone.get(gang.name, ())[:2] != (search_input, state.grown_counter):
            self._alone[gang.name] = (
                search_input,
                state.grown_counter,
                search(state.empty_placement),
            )
        return plan

    def too_large(self, gang: Gang) -> GangPlan | None:
        """Return the incomplete plan if the gang would not fit even on empty nodes, or None."""
        alone = self._alone.get(gang.name)
        return alone[-1] if alone is not None and not alone[-1].fits else None

    def nodes_alone(self, gang: Gang) -> set[str]:
        """Return the nodes that the gang would use if all nodes were empty."""
        alone = self._alone.get(gang.name)
        return {place.node for place in alone[-1].places.values()} if alone is not None else set()

    def without_room(self, state: ClusterState, served: Callable[[GangName], object]) -> list[Pod]:
        """Return the pods for which the latest searches found no room.

        If a gang lacks room for n pods, the result has only n of its pods. A gang is excluded if
        ``served`` does not return None for the gang.
        """
        found: list[Pod] = []
        for name, failed in self._failed.items():
            if served(name) is not None:
                continue
            uids, needed = failed.search_input
            lacking = uids - failed.room.places.keys()
            pods = [pod for pod in state.members.pods(name) if pod.metadata.uid in lacking]
            found += sorted(pods, key=scheduling_order)[: max(0, needed - len(failed.room.places))]
        return found

    def nodes_with_room(self, name: GangName) -> set[str]:
        failed = self._failed.get(name)
        return (
            {place.node for place in failed.room.places.values()} if failed is not None else set()
        )


def reachable_nodes(gang: Gang, state: ClusterState) -> frozenset[str]:
    """Return the nodes that an unreserved pod of the gang could use if the cluster were empty."""
    empty, found = state.empty_placement, set[str]()
    try:
        members = [GangCandidate(pod, empty.engine.request(pod)) for pod in gang.unreserved]
    except RequestError:
        return NOWHERE  # no node accepts the pod
    for each in kinds_of(members, ()).candidates:
        names = empty.predicates.open_alone(each.pod)
        found.update(
            names if each.request is None else empty.engine.best_first(each.request, names)
        )
    return frozenset(found)
