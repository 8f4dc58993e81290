"""Plans a round: decides which reservations let gangs start. Does no I/O and reads no clock.

Gangs are planned by priority, then by age. If a whole gang fits, it gets reservations, and later
gangs see these reservations. If a gang does not fit, later gangs may start before it for
``gangs.patienceSeconds``. After that, GPUs that become free are reserved for the gang, and later
gangs start only on nodes that the waiting gang could not use. This state ends when the gang fits,
or after a limited time (``GangPatience``). At most one gang at a time has reserved GPUs that it
cannot use yet, so no two gangs wait for each other. If the eviction of pods of lower priority makes
room for a gang, the gang preempts these pods (``preemption``).
"""

from collections.abc import Callable

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.api.well_known import EventReason
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.gang_queue import (
    Gang,
    GangPatience,
    has_lasting_reservation,
    waiting_gangs,
)
from gputile.controlplane.controller.gang_round import GangReports, GangRound, RoundBuilder
from gputile.controlplane.controller.gang_searches import GangSearches, reachable_nodes
from gputile.controlplane.controller.pod_preemption import PodPreemption
from gputile.controlplane.controller.preemption import Preemption, PreemptionState
from gputile.core.devices.allocation import reservation_of
from gputile.core.devices.gang_membership import (
    GangName,
    gang_of,
    has_gang_gate,
    scheduling_order,
    too_few_text,
)
from gputile.core.devices.request import RequestError
from gputile.core.ledger.ledger import LedgerError
from gputile.core.scheduling.gang_plan import GangPlan

_SECOND = 10**9
_REFUSED_NS = 10 * _SECOND  # the back-off after the API server has refused a reservation
_NODES_NAMED = 10
# how long a gang may be incomplete before its missing pods are reported
_SETTLING_SECONDS = 5.0


class GangPlanner:
    """Plans rounds. Its memory is bounded by the number of gangs with unbound pods."""

    def __init__(self, configuration: Configuration, new_plan_name: Callable[[], str]) -> None:
        self._configuration = configuration
        self._new_plan_name = new_plan_name
        self.patience = GangPatience(configuration.gangs)
        self.reports = GangReports()
        self.searches = GangSearches()
        self.preemption = Preemption(configuration)
        self._pod_preemption = PodPreemption(self.preemption, configuration, new_plan_name)
        self.evictions = self.preemption.evictions
        # why and when (Unix ns) the API server refused a reservation
        self._refused: dict[GangName, tuple[str, int]] = {}
        self._now_ns = 0
        # the pods without room in the latest round (``GangSearches.without_room``)
        self.without_room: list[Pod] = []
        self.starting_on: set[str] = set()  # nodes to which pods of gangs are about to be bound

    def plan(self, state: ClusterState) -> GangRound:
        """Plan a round on the snapshot ``state``, and apply the planned writes to ``state``."""
        gangs = waiting_gangs(state) if self._configuration.admission.gangs else []
        names = {gang.name for gang in gangs}
        self._now_ns = state.now_ns
        self.searches.begin(names, state)
        self.reports.begin(names, state.now_ns)
        self.patience.begin(names, state.now_ns)
        for name in self._refused.keys() - names:
            del self._refused[name]
        builder = RoundBuilder(
            state, self._new_plan_name, several_started=sum(gang.started for gang in gangs) > 1
        )
        result = builder.result
        self.preemption.begin(state, names, result)
        self.starting_on = set()
        for gang in gangs:
            pods = *gang.reserved, *gang.unreserved
            if gang.reserved_since_ns and any(
                state.reservation_end(pod.metadata.uid) > state.now_ns for pod in pods
            ):
                self.patience.record_unused_reservation(gang.name, gang.reserved_since_ns)
            builder.renew(gang)
            result.gates += sorted(
                (pod for pod in gang.reserved if has_gang_gate(pod)), key=scheduling_order
            )
            self.starting_on.update(
                each.node for pod in gang.reserved if (each := reservation_of(pod)) is not None
            )
            if gang.name.by_object and state.groups is None:
                continue  # The gang's size is not known yet, so only started plans continue.
            try:
                advanced = not gang.unreserved or self._advance(gang, builder)
            except LedgerError as error:  # an error of one gang must not block the others
                result.contradictions.append(f"gang {gang.name}: {error}")
                continue
            if not (advanced or builder.head or result.unfinished) and self._is_starved(
                gang, builder
            ):
                builder.head, builder.closed = gang, reachable_nodes(gang, state)
                self.patience.record_unused_reservation(gang.name, gang.reserved_since_ns)
        if self._configuration.preemption.enabled:
            self._pod_preemption.plan(state, result)
            result.evictions += self.evictions.rest_of_gangs()
        # Gangs that preempt are excluded, because their victims will free GPUs.
        self.without_room = self.searches.without_room(state, self.preemption.plan_of)
        if not result.unfinished:
            self.searches.end_pass()
        return result

    def abandon(self) -> None:
        """Record that this round is not written. The next round reports all events again."""
        self.reports.forget()

    def record_refusal(self, pod: Pod, why: str) -> None:
        """Record that the API server refused the reservation of ``pod``. Its gang backs off."""
        if (gang := gang_of(pod)) is not None:
            self._refused[gang] = why, self._now_ns

    def _advance(self, gang: Gang, builder: RoundBuilder) -> bool:
        """Reserve GPUs for the unreserved pods of a gang if they fit. Return whether they fit."""
        state, result = builder.state, builder.result
        if not self._is_complete(gang, builder):
            if self.preemption.plan_of(gang.name) is not None:
                self.preemption.give_up(gang, "some of its pods are gone")
            builder.remove(gang)
            return False
        preempting = self.preemption.plan_of(gang.name)
        if preempting is not None:
            progress = self.preemption.advance(gang, preempting, builder)
            if progress is PreemptionState.FREE:
                self._start(gang, preempting.plan, builder)
                return True
            if progress is not PreemptionState.LOST:
                return False
        why, refused_ns = self._refused.get(gang.name, ("", 0))
        if why and 0 <= state.now_ns - refused_ns < _REFUSED_NS:
            builder.remove(gang)
            text = f"{gang.together} wait: the API server refused a reservation: {why}"
            self.reports.report(gang, EventReason.GANG_WAITING, text, result)
            return False
        if gang.unbegun and self.patience.is_paused(gang.name):
            # Expired reservations stay on the pods, so that a new leader knows since when GPUs have
            # been reserved.
            text = _not_bound_text(gang, self._configuration.gangs.keep_seconds)
            self.reports.report(gang, EventReason.GANG_WAITING, text, result)
            return False
        starved = builder.head is None and self._is_starved(gang, builder)
        reserved_count = (
            sum(has_lasting_reservation(state, pod) for pod in gang.unreserved) if starved else None
        )
        try:
            plan = self.searches.find(gang, builder.closed, state, reserved_count)
        except RequestError as error:
            self.reports.report(
                gang, EventReason.INVALID_GPU_REQUEST, f"gang {gang.name.name}: {error}", result
            )
            builder.remove(gang)
            return False
        if plan is None:
            result.unfinished = True
            return False
        if plan.fits:
            self._start(gang, plan, builder)
            return True
        if (most := self.searches.too_large(gang)) is not None:
            text = f"{gang.together} do not fit: even an empty cluster has room for {most.room}"
            self.reports.report(
                gang, EventReason.GANG_TOO_LARGE, f"{text}; add nodes, or request less", result
            )
            builder.remove(gang)
            return False
        found = self.preemption.find(gang, builder.closed)
        if found is not None:
            plan = self.preemption.reserve(gang, found, builder)
            awaited = (
                f"the eviction of {self.evictions.pod_names(found.evicted)}"
                if found.evicted
                else "terminating pods"
            )
            text = f"{gang.together} have GPUs reserved on {_nodes(plan)}, and wait for {awaited}"
            self.reports.report(gang, EventReason.GANG_PREEMPTING, text, result, warning=False)
            return False
        self._wait(gang, plan, builder)
        return False

    def _wait(self, gang: Gang, plan: GangPlan, builder: RoundBuilder) -> None:
        """Report why a gang waits. If it has waited too long, reserve the GPUs that are free."""
        if builder.head is not None and not builder.closed.isdisjoint(
            self.searches.nodes_alone(gang)
        ):
            text = (
                f"{gang.together} wait for gang {builder.head.name}, which has waited longer than "
                f"gangs.patienceSeconds"
            )
            self.reports.report(gang, EventReason.GANG_BEHIND, text, builder.result)
        else:
            text = f"{gang.together} wait: there is room for {plan.room}"
            self.reports.report(gang, EventReason.GANG_WAITING, text, builder.result)
        if builder.head is None and self._is_starved(gang, builder):
            builder.reserve_what_fits(gang, plan)
        else:
            builder.remove(gang)

    def _start(self, gang: Gang, plan: GangPlan, builder: RoundBuilder) -> None:
        """Write the reservations of a plan that may start."""
        builder.plan(gang, plan, len(plan.places), starts=True)
        text = (
            f"gang {gang.name.name}: GPUs are reserved for {len(plan.places)} pods on "
            f"{_nodes(plan)}"
        )
        self.reports.report(gang, EventReason.GANG_PLANNED, text, builder.result, warning=False)

    # -- whether a gang may start

    def _is_complete(self, gang: Gang, builder: RoundBuilder) -> bool:
        if not gang.size:
            problem = f"PodGroup {gang.name} does not exist, or its spec.minMember is not 1 or more"
            text = f"gang {gang.name.name}: {problem}; create it, or name the gang by labels"
            self.reports.report(gang, EventReason.GANG_INCOMPLETE, text, builder.result)
            return False
        if len(gang.unreserved) >= gang.needed:
            return True
        if builder.state.now_ns - gang.complete_at * _SECOND > _SETTLING_SECONDS * _SECOND:
            existing = gang.size - gang.needed + len(gang.unreserved)
            text = f"{too_few_text(gang.name, gang.size, existing)}; {_remedy(gang)}"
            self.reports.report(
                gang, EventReason.GANG_INCOMPLETE, text, builder.result, warning=False
            )
        return False

    def _is_starved(self, gang: Gang, builder: RoundBuilder) -> bool:
        """Return whether GPUs must be reserved for a gang that has waited too long.

        The gang must be complete, and must fit an empty cluster.
        """
        complete = gang.size > 0 and len(gang.unreserved) >= gang.needed
        # Gangs that have lost pods could deadlock if one of them reserved GPUs that it cannot use
        # yet.
        may_reserve = gang.below_min_member and not (gang.started and builder.several_started)
        may_reserve = (
            may_reserve
            and gang.name not in self._refused
            and self.preemption.plan_of(gang.name) is None
        )
        waited = self.patience.has_waited(gang.name, gang.complete_at)
        return may_reserve and complete and waited and self.searches.too_large(gang) is None


def _remedy(gang: Gang) -> str:
    """Return advice for the owner of a gang whose missing pods may never be created."""
    fewer = (
        "lower spec.minMember of the PodGroup"
        if gang.name.by_object
        else "create a Job without gang labels for the rest"
    )
    return (
        "if no more pods are created, see the events of their Job, for example about a "
        f"ResourceQuota; if the other pods have already succeeded, {fewer}"
    )


def _not_bound_text(gang: Gang, seconds: int) -> str:
    return (
        f"{gang.together} wait: GPUs were reserved for {seconds} s, but kube-scheduler bound none "
        "of the pods; see the events of kube-scheduler for the pods, for example about volumes; "
        "the GPUs are now free for other pods, and will be reserved again later"
    )


def _nodes(plan: GangPlan) -> str:
    return ", ".join(sorted({place.node for place in plan.places.values()})[:_NODES_NAMED])
