"""Decides what is written to the pods of a gang: which reservations they are given, keep and lose."""

from collections.abc import Callable, Sequence

import msgspec

from gputile.api.core import Pod
from gputile.api.well_known import RESERVATION_ANNOTATION
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.gangs.gang import Gang, reservation_lasts
from gputile.controlplane.controller.gangs.gang_round import GangRound, ReservationPatch
from gputile.controlplane.controller.gangs.starvation import StarvationTimeout
from gputile.core.devices.reservation import Reservation, reservation_of
from gputile.core.placement.steps import Steps
from gputile.core.scheduling.gang_plan import GangPlan
from gputile.core.scheduling.gang_rules import in_line

_SECOND = 10**9


class GangReservations:
    """``new_plan`` gives each plan a name of its own."""

    def __init__(self, cluster_state: ClusterState, new_plan: Callable[[], str], starvation: StarvationTimeout) -> None:
        self._cluster_state, self._new_plan, self._starvation = cluster_state, new_plan, starvation
        self._configuration = cluster_state.ledger.configuration

    def write(self, gang: Gang, plan: GangPlan, pods: int, result: GangRound, *, starts: bool) -> Steps[None]:
        """Write the places of ``plan`` as reservations of one plan of ``pods`` pods; others of the gang lose theirs.

        Where it is not one that ``starts``, nobody may take a place of it.
        """
        name = f"{gang.name.name}/{self._new_plan()}"[-253:]
        with_gpus = sum(place.allocation is not None for place in plan.places.values())
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
            elif RESERVATION_ANNOTATION in pod.metadata.annotations:
                writes.append(ReservationPatch(pod, None))
        yield from self._expect(writes, result)

    def renew(self, gang: Gang, result: GangRound) -> Steps[None]:
        """Let reservations of a started plan end as late as new ones."""
        ends = self._cluster_state.now_ns + self._configuration.gangs.hold_seconds * _SECOND
        reservations = [(pod, reservation) for pod in gang.ending if (reservation := reservation_of(pod)) is not None]
        writes = [
            ReservationPatch(pod, msgspec.structs.replace(reservation, expires_ns=ends))
            for pod, reservation in reservations
        ]
        yield from self._expect(writes, result)

    def keep_what_fits(self, gang: Gang, plan: GangPlan, result: GangRound) -> Steps[None]:
        """Reserve what there is for a gang that has waited too long, where that is more than it has reserved."""
        reserved = sum(self._cluster_state.reservation(pod) is not None for pod in gang.unreserved)
        valid = sum(reservation_lasts(self._cluster_state, pod) for pod in gang.unreserved)
        if len(plan.places) > valid or reserved > valid:
            yield from self.write(gang, plan, gang.needed, result, starts=False)

    def remove(self, gang: Gang, result: GangRound) -> Steps[None]:
        """Remove the reservations of pods that wait, and those that have ended: the extender's clock may differ."""
        writes = [
            ReservationPatch(pod, None) for pod in gang.unreserved if RESERVATION_ANNOTATION in pod.metadata.annotations
        ]
        yield from self._expect(writes, result)

    def take_back(self, result: GangRound) -> Steps[None]:
        """Take back, in steps, what was expected of a round of which nothing is written."""
        for write in [write for gang in result.reservations for write in gang]:
            self._cluster_state.not_written(write.pod)
            yield

    def _expect(self, writes: Sequence[ReservationPatch], result: GangRound) -> Steps[None]:
        expected: list[ReservationPatch] = []
        if writes:
            result.reservations.append(expected)
        for write in writes:
            self._cluster_state.expect(write.pod, write.reservation)
            expected.append(write)
            yield


def _first(pods: Sequence[Pod], plan: GangPlan) -> str:
    """Return the UID of the pod that the plan begins with: of those that the extender binds, the first in line."""
    with_gpus = [pod for pod in pods if (place := plan.places.get(pod.metadata.uid)) and place.allocation is not None]
    return min(with_gpus, key=in_line).metadata.uid if with_gpus else ""
