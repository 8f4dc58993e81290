"""Tells which nodes the pods of a gang could use if no other pods were in the cluster."""

from collections.abc import Collection
from dataclasses import dataclass

from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.gangs.gang import Gang
from gputile.core.devices.request import RequestError
from gputile.core.placement.steps import Steps
from gputile.core.scheduling.gang_kinds import GangCandidate, kinds_of


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
