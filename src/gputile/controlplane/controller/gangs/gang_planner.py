"""Plans one round: what to write so that the first gangs of the queue start. No I/O, no clock.

The gangs are taken in the order of the queue. A gang that fits whole gets its reservations; the gangs after it see
them. A gang that does not fit is passed over, so that later ones use what it cannot; but not for ever: after
``gangs.patienceSeconds`` gangs behind it start only on nodes that it could not use (``gang_reach``), and what becomes
free is reserved for it until it fits, or until that has lasted for long enough (``starvation``). Only one gang at a
time has such reservations, so no two gangs wait for each other's. A gang for which pods of lower priority would leave
enough has them evicted, and has reservations until they have left (``gang_preemption``).
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from gputile.api.core import Pod
from gputile.api.reasons import EventReason
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.evictions import Evictions
from gputile.controlplane.controller.gangs.gang import Gang, Gangs
from gputile.controlplane.controller.gangs.gang_preemption import GangPreemption, PreemptionPlan, PreemptionState
from gputile.controlplane.controller.gangs.gang_reservations import GangReservations
from gputile.controlplane.controller.gangs.gang_round import GangEvent, GangReports, GangRound
from gputile.controlplane.controller.gangs.gang_searches import GangReach, GangSearches
from gputile.controlplane.controller.gangs.starvation import StarvationTimeout
from gputile.controlplane.controller.pod_preemption import PodPreemption
from gputile.core.devices.gang_membership import GangName, gang_of, gated
from gputile.core.devices.reservation import reservation_of
from gputile.core.ledger.ledger import LedgerError
from gputile.core.placement.steps import Steps
from gputile.core.scheduling.gang_plan import GangPlan
from gputile.core.scheduling.gang_rules import in_line, no_room_text, too_few_text
from gputile.core.scheduling.gang_victims import GangVictims

_SECOND = 10**9
_FIRST_PAUSE, _LONGEST_PAUSE = _SECOND, 60 * _SECOND  # before a reservation that was refused is written again
_NODES_NAMED = 10
_SETTLING_SECONDS = 5.0  # so long the pods of one gang may take to be created before anybody is told that some miss
_INCOMPLETE, _WAITING, _BEHIND = EventReason.GANG_INCOMPLETE, EventReason.GANG_WAITING, EventReason.GANG_BEHIND
_PLANNED, _PREEMPTING = EventReason.GANG_PLANNED, EventReason.GANG_PREEMPTING
_ENDED = EventReason.PREEMPTION_ENDED
_RENEW_PART = 4  # of the time of a reservation: what ends within it is renewed


@dataclass(frozen=True, slots=True)
class _Refused:
    """How often in a row a reservation of a gang was refused, why, and until when none is written (Unix time in ns)."""

    times: int
    why: str
    again_ns: int

    def pauses(self, now_ns: int) -> bool:
        """Return whether none is written yet; a pause that lasts too long was begun while a clock was ahead."""
        return 0 < self.again_ns - now_ns <= _LONGEST_PAUSE


class GangPlanner:
    """Decides round by round; ``new_plan_name`` returns a name that no plan has had.

    What it remembers is of gangs that have unbound pods, and goes with them.
    """

    def __init__(self, cluster_state: ClusterState, new_plan_name: Callable[[], str]) -> None:
        self._cluster_state = cluster_state
        self._configuration = cluster_state.ledger.configuration
        self._gangs = Gangs(cluster_state)
        self._starvation = StarvationTimeout(self._configuration.gangs)
        self._reservations = GangReservations(cluster_state, new_plan_name, self._starvation)
        self._reports = GangReports(cluster_state)
        self._searches = GangSearches(cluster_state)
        self._reach = GangReach(cluster_state)
        self.evictions = Evictions(self._configuration)
        self.preemption = GangPreemption(self._configuration, self.evictions)
        self.pods = PodPreemption(self._configuration, self.evictions, new_plan_name)
        self._refused: dict[GangName, _Refused] = {}
        self._several_started = False
        self._round = GangRound()
        self._starting_on: set[str] = set()

    def steps(self, now_ns: int) -> Steps[GangRound]:
        """Return, in steps, what to write now; the cluster state already has it, and may not change meanwhile.

        ``now_ns`` is Unix time in nanoseconds. Whoever gives up half-way closes the steps, and calls ``abandon``.
        """
        cluster_state, result = self._cluster_state, GangRound()
        self._round = result
        cluster_state.tick(now_ns)
        gangs = (yield from self._gangs.look()) if self._configuration.admission.gangs else []
        names = {gang.name for gang in gangs}
        self._searches.begin(names)
        self.evictions.begin(cluster_state)
        self.preemption.begin(cluster_state, names)
        self._reports.begin(names)
        for name in self._refused.keys() - names:
            del self._refused[name]
        self._starvation.begin(names, cluster_state.now_ns)
        self._several_started = sum(gang.started for gang in gangs) > 1
        head: Gang | None = None
        starting_on = set[str]()
        for gang in gangs:
            yield
            if gang.repeated and self._has_reservation(gang):
                self._starvation.repeat(gang.name)
            yield from self._reservations.renew(gang, result)
            result.gates += sorted((pod for pod in gang.reserved if gated(pod)), key=in_line)
            yield from self._add_places(gang, starting_on)
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
                    self._starvation.starve(gang.name, certain=self._searches.starts_some_day(gang))
        if self._configuration.preemption.enabled:
            self.pods.plan(cluster_state, result)
            result.evictions += self.evictions.rests()
        self._starting_on = starting_on
        runs = {gang.name: not gang.below_min_member for gang in gangs}
        self._starvation.end(
            lambda name: runs.get(name, cluster_state.members.runs(name)), finished=not result.unfinished
        )
        if not result.unfinished:
            self._searches.end_cycle()
        return result

    def states(self) -> Counter[EventReason]:
        """Return how many gangs with unbound pods there are, by the reason of the event that was last told of them."""
        return self._reports.states()

    def waiting_since(self) -> float:
        """Return when the gang that lacks GPUs for longest began to, Unix time in seconds; 0 where none does."""
        return self._reports.waiting_since()

    def without_room(self) -> list[Pod]:
        """Return the pods for which the last searches found no room, of each gang as many as have to start together.

        Pods that others leave GPUs for are not among them.
        """
        found = self._searches.without_room()
        return [pod for pod in found if (gang := gang_of(pod)) is None or self.preemption.plan_of(gang) is None]

    def nodes_with_room(self, gang: GangName) -> set[str]:
        """Return the nodes on which a gang that lacks room has room for some of its pods, as the last search found."""
        return self._searches.nodes_with_room(gang)

    def starting_on(self) -> set[str]:
        """Return the nodes to which pods of gangs are about to be bound, as the last round found.

        Only autoscaling asks for them.
        """
        return self._starting_on

    def abandon(self) -> Steps[None]:
        """Take back, in steps, what was expected of a round that was given up: nothing of it is written."""
        yield from self._reservations.take_back(self._round)
        self._reports.take_back()
        self._round = GangRound()
        self._searches.end_cycle()  # else the next round would leave out what this one has searched for

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
        if gang is None or (before is not None and before.pauses(now_ns)):
            return
        times = before.times + 1 if before is not None else 1
        again_ns = now_ns + min(_LONGEST_PAUSE, _FIRST_PAUSE << min(times - 1, 10))
        self._refused[gang] = _Refused(times, why, again_ns)

    def _advance(self, gang: Gang, head: Gang | None, result: GangRound) -> Steps[bool]:
        """Reserve GPUs for the unreserved pods of a gang, if they fit; return whether they do."""
        if not self._is_complete(gang, result):
            self._give_up(gang, "some of its pods are gone", result)
            yield from self._reservations.remove(gang, result)
            return False
        preempting = self.preemption.plan_of(gang.name)
        if preempting is not None and (yield from self._goes_on(gang, preempting, result)):
            return self.preemption.plan_of(gang.name) is None
        refused = self._refused.get(gang.name)
        if refused is not None and refused.pauses(self._cluster_state.now_ns):
            yield from self._reservations.remove(gang, result)
            text = f"{gang.together} wait: the API server refuses to store what is reserved for them: {refused.why}"
            self._reports.tell(gang, _WAITING, text, result)
            return False
        beside = (yield from self._reach.of(head)) if head is not None else None
        starved = beside is None and self._is_starved(gang)
        if gang.repeated and self._starvation.resting:
            # The reservations that end stay on the pods: so the next leader knows of them, too.
            self._reports.tell(gang, _WAITING, _unbegun(gang, self._configuration.gangs.keep_seconds), result)
            return False
        if self._searches.must_wait(gang, beside, starved=starved):
            result.unfinished = True
            return False
        search = yield from self._searches.find(gang, beside, starved=starved)
        if search.reason is not None:
            self._reports.tell(gang, search.reason, search.text, result)
        plan = search.plan
        if plan is None:
            yield from self._reservations.remove(gang, result)
            return False
        if plan.fits:
            yield from self._start(gang, plan, result)
            return True
        found = self.preemption.find(gang, beside.nodes if beside is not None else ())
        if found is not None:
            yield from self._keep_places(gang, found, result)
            return False
        if head is not None and beside is not None and self._searches.could_be_on(gang, beside):
            text = f"{gang.together} wait behind gang {head.name}, which has waited too long to be passed again"
            self._reports.tell(gang, _BEHIND, text, result)
        else:
            self._reports.tell(gang, _WAITING, no_room_text(gang.together, plan), result)
        if head is None and self._is_starved(gang):
            yield from self._reservations.keep_what_fits(gang, plan, result)
        else:
            yield from self._reservations.remove(gang, result)
        return False

    def _add_places(self, gang: Gang, nodes: set[str]) -> Steps[None]:
        """Add the nodes to which pods of a gang are about to be bound."""
        if self._configuration.autoscaling.enabled:
            for pod in gang.reserved:
                if (reservation := reservation_of(pod)) is not None:
                    nodes.add(reservation.node)
                yield

    def _start(self, gang: Gang, plan: GangPlan, result: GangRound) -> Steps[None]:
        """Write the reservations of a plan that may start."""
        yield from self._reservations.plan(gang, plan, len(plan.places), result, starts=True)
        result.planned += 1
        text = f"gang {gang.name.name}: {len(plan.places)} pods have their places, on {_nodes(plan)}"
        self._reports.tell(gang, _PLANNED, text, result, warning=False)

    # -- places that other pods leave

    def _keep_places(self, gang: Gang, found: GangVictims, result: GangRound) -> Steps[None]:
        """Write reservations of places that others have to leave; who leaves is asked to when they are written."""
        plan = self.preemption.reserve(gang, found)
        yield from self._reservations.plan(gang, plan, len(plan.places), result, starts=False)
        leave = f"; {self.evictions.named(found.evicted)} must leave" if found.evicted else ""
        text = f"{gang.together} have places kept on {_nodes(plan)} until others have left them{leave}"
        self._reports.tell(gang, _PREEMPTING, text, result, warning=False)

    def _goes_on(self, gang: Gang, preempting: PreemptionPlan, result: GangRound) -> Steps[bool]:
        """Go on with the places that pods leave for a gang; return whether it still has them, or starts on them."""
        preemption = self.preemption
        state, why = preemption.look(gang, preempting)
        if state is PreemptionState.LOST:
            self._give_up(gang, why, result)
            return False
        if state is PreemptionState.FREE:
            preemption.drop(gang)
            yield from self._start(gang, preempting.plan, result)
            return True
        if preemption.ends_soon(preempting, self._configuration.gangs.hold_seconds * _SECOND // _RENEW_PART):
            yield from self._reservations.plan(gang, preempting.plan, len(preempting.plan.places), result, starts=False)
        elif evictions := preemption.due(gang):
            result.evictions.append(evictions)
        return True

    def _give_up(self, gang: Gang, why: str, result: GangRound) -> None:
        if self.preemption.plan_of(gang.name) is not None:
            self.preemption.drop(gang)
            text = f"gang {gang.name.name}: no places are kept any more that others leave: {why}"
            result.events.append(GangEvent(gang.unreserved, _ENDED, text))

    def _has_reservation(self, gang: Gang) -> bool:
        ends = (self._cluster_state.reservation_end(pod.metadata.uid) for pod in (*gang.reserved, *gang.unreserved))
        return any(end_ns > self._cluster_state.now_ns for end_ns in ends)

    # -- whether a gang may start

    def _is_complete(self, gang: Gang, result: GangRound) -> bool:
        if not gang.size:
            what = f"PodGroup {gang.name} does not exist, or its spec.minMember is not 1 or more: create it"
            if self._cluster_state.groups is None:
                what = "the cluster has no PodGroups: install their CRD, or name the gang by labels"
            self._reports.tell(gang, _INCOMPLETE, f"gang {gang.name.name}: {what}", result)
            return False
        if len(gang.unreserved) >= gang.needed:
            return True
        if self._cluster_state.now_ns - gang.complete_at * _SECOND > _SETTLING_SECONDS * _SECOND:
            there = gang.size - gang.needed + len(gang.unreserved)
            text = f"{too_few_text(gang.name, gang.size, there)}; {_remedy(gang)}"
            self._reports.tell(gang, _INCOMPLETE, text, result, warning=False)
        return False

    def _is_starved(self, gang: Gang) -> bool:
        """Return whether room is to be reserved for the gang: it needs it, has waited, and may fit some day."""
        complete = gang.size > 0 and len(gang.unreserved) >= gang.needed
        # Gangs that lost pods could wait for each other's GPUs for ever if one of them reserved what it cannot use.
        may_reserve = gang.below_min_member and not (gang.started and self._several_started)
        may_reserve = may_reserve and gang.name not in self._refused and self.preemption.plan_of(gang.name) is None
        waited = self._starvation.has_passed(gang.name, gang.complete_at, self._cluster_state.now_ns)
        return may_reserve and complete and waited and not self._searches.is_too_large(gang)


def _remedy(gang: Gang) -> str:
    """Return what to do where pods of a gang are missing, and nobody knows whether they are still to come."""
    fewer = "lower spec.minMember of the PodGroup" if gang.name.by_object else "create a Job without gang labels for it"
    return (
        "if no more come, the events of their Job say what refuses them (a ResourceQuota, say); if the others have "
        f"succeeded already and this is what is left, {fewer}"
    )


def _unbegun(gang: Gang, seconds: int) -> str:
    return (
        f"{gang.together} wait: GPUs were reserved for them again and again, for {seconds} seconds at most, and "
        "kube-scheduler bound none of them; its own events on the pods say why (volumes, say); others may use "
        "the GPUs for as long, then the pods are planned again"
    )


def _nodes(plan: GangPlan) -> str:
    return ", ".join(sorted({place.node for place in plan.places.values()})[:_NODES_NAMED])
