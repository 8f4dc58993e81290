"""Decides what is written to the pods of a gang: which reservations they are given, keep and lose."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from gputile.api.core import Pod
from gputile.api.well_known import RESERVATION_ANNOTATION
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.gangs.gang import Gang, reservation_lasts
from gputile.controlplane.controller.gangs.gang_round import GangRound, ReservationPatch
from gputile.core.devices.reservation import Reservation, reservation_of
from gputile.core.scheduling.gang_plan import GangPlan
from gputile.core.scheduling.gang_rules import in_line

_SECOND = 10**9


@dataclass(frozen=True, slots=True)
class GangReservations:
    """Adds to a ``result`` what is to be written; the ``state``, a snapshot, counts it from then on.

    ``new_plan_name`` returns a name that no plan has had.
    """

    state: ClusterState
    result: GangRound
    new_plan_name: Callable[[], str]

    def plan(self, gang: Gang, plan: GangPlan, pod_count: int, *, starts: bool, repeated: bool = False) -> None:
        """Reserve the places of ``plan`` for its pods, ``pod_count`` of which start together.

        Pods of the gang without a place in it lose their reservations. Unless the plan ``starts``, the extender binds
        none of its pods. ``repeated``: GPUs have been reserved for the gang in vain before.
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
                    repeated=repeated,
                )
                writes.append(ReservationPatch(pod, reservation))
            elif RESERVATION_ANNOTATION in pod.metadata.annotations:
                writes.append(ReservationPatch(pod, None))
        self._add(writes)

    def renew(self, gang: Gang) -> None:
        """Extend the reservations of a started plan that end soon."""
        reservations = [(pod, reservation) for pod in gang.ending if (reservation := reservation_of(pod)) is not None]
        self._add(
            [
                ReservationPatch(pod, msgspec.structs.replace(reservation, expires_ns=self._expires_ns))
                for pod, reservation in reservations
            ]
        )

    def keep_what_fits(self, gang: Gang, plan: GangPlan) -> None:
        """Reserve what fits for a gang that has waited too long, where that is more than it has or some of it ends."""
        reserved = sum(self.state.reservation(pod) is not None for pod in gang.unreserved)
        valid = sum(reservation_lasts(self.state, pod) for pod in gang.unreserved)
        if len(plan.places) > valid or reserved > valid:
            self.plan(gang, plan, gang.needed, starts=False)

    def remove(self, gang: Gang) -> None:
        """Remove the reservations of the pods that wait.

        Those that have ended go as well, since the extender's clock may differ.
        """
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
            self.state.expect(patch.pod, patch.reservation)


def _first(pods: Sequence[Pod], plan: GangPlan) -> str:
    """Return the UID of the pod that is bound first: the extender binds those with GPUs, in the order of their line."""
    with_gpus = [pod for pod in pods if (place := plan.places.get(pod.metadata.uid)) and place.allocation is not None]
    return min(with_gpus, key=in_line).metadata.uid if with_gpus else ""
