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
    """Adds to a round what is to be written; the cluster state counts it from then on.

    ``new_plan_name`` returns a name that no plan has had.
    """

    def __init__(
        self, cluster_state: ClusterState, new_plan_name: Callable[[], str], starvation: StarvationTimeout
    ) -> None:
        self._cluster_state, self._new_plan_name, self._starvation = cluster_state, new_plan_name, starvation
        self._configuration = cluster_state.ledger.configuration

    def plan(self, gang: Gang, plan: GangPlan, pod_count: int, result: GangRound, *, starts: bool) -> Steps[None]:
        """Reserve the places of ``plan`` for its pods, ``pod_count`` of which start together.

        Pods of the gang without a place in it lose their reservations. Unless the plan ``starts``, the extender binds
        none of its pods.
        """
        name = f"{gang.name.name}/{self._new_plan_name()}"[-253:]
        with_gpus = sum(place.allocation is not None for place in plan.places.values())
        size = with_gpus if starts else pod_count
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
                    pods=pod_count,
                    node=place.node,
                    expires_ns=expires_ns,
                    allocation=place.allocation,
                    first=pod.metadata.uid == first,
                    repeated=repeated,
                )
                writes.append(ReservationPatch(pod, reservation))
            elif RESERVATION_ANNOTATION in pod.metadata.annotations:
                writes.append(ReservationPatch(pod, None))
        yield from self._add_to(writes, result)

    def renew(self, gang: Gang, result: GangRound) -> Steps[None]:
        """Extend the reservations of a started plan that end soon."""
        ends = self._cluster_state.now_ns + self._configuration.gangs.hold_seconds * _SECOND
        reservations = [(pod, reservation) for pod in gang.ending if (reservation := reservation_of(pod)) is not None]
        writes = [
            ReservationPatch(pod, msgspec.structs.replace(reservation, expires_ns=ends))
            for pod, reservation in reservations
        ]
        yield from self._add_to(writes, result)

    def keep_what_fits(self, gang: Gang, plan: GangPlan, result: GangRound) -> Steps[None]:
        """Reserve what fits for a gang that has waited too long, where that is more than it has or some of it ends."""
        reserved = sum(self._cluster_state.reservation(pod) is not None for pod in gang.unreserved)
        valid = sum(reservation_lasts(self._cluster_state, pod) for pod in gang.unreserved)
        if len(plan.places) > valid or reserved > valid:
            yield from self.plan(gang, plan, gang.needed, result, starts=False)

    def remove(self, gang: Gang, result: GangRound) -> Steps[None]:
        """Remove the reservations of the pods that wait.

        Those that have ended go as well, since the extender's clock may differ.
        """
        writes = [
            ReservationPatch(pod, None) for pod in gang.unreserved if RESERVATION_ANNOTATION in pod.metadata.annotations
        ]
        yield from self._add_to(writes, result)

    def take_back(self, result: GangRound) -> Steps[None]:
        """Have the cluster state count nothing, in steps, of a round that was given up before it was written."""
        for patch in [patch for patches in result.reservations for patch in patches]:
            self._cluster_state.not_written(patch.pod)
            yield

    def _add_to(self, writes: Sequence[ReservationPatch], result: GangRound) -> Steps[None]:
        added: list[ReservationPatch] = []
        if writes:
            result.reservations.append(added)
        for patch in writes:
            self._cluster_state.expect(patch.pod, patch.reservation)
            added.append(patch)
            yield


def _first(pods: Sequence[Pod], plan: GangPlan) -> str:
    """Return the UID of the pod that is bound first: the extender binds those with GPUs, in the order of their line."""
    with_gpus = [pod for pod in pods if (place := plan.places.get(pod.metadata.uid)) and place.allocation is not None]
    return min(with_gpus, key=in_line).metadata.uid if with_gpus else ""
