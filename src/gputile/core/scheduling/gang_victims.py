"""Chooses the pods to evict so that a whole gang has room: all pods that start together, or nobody.

The pods of the gang are placed one after the other, those first that are the hardest to place. Each gets a free place
where there is one, and else the place that costs least (``victim_choice``) on top of what the pods before it cost.
That is tried with victims up to one priority only; the lowest that is enough is found by halving. In the end those
pods stay after all whose place nobody needs. All victims together are within the PodDisruptionBudgets.

While the search goes on, pods are taken out of the ledger and those of the gang booked in it; before it returns, all is
as it was. For each priority that is tried, at most ``victim_choice.MOST_NODES`` nodes are judged for each kind of pod,
and after each pod only those again that have changed.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gputile.api.core import Pod
from gputile.core.devices.gang_membership import GangName
from gputile.core.devices.request import Request
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.events import Assumed, Forgotten
from gputile.core.placement.steps import Steps, at_once
from gputile.core.scheduling.eviction_rules import NOTHING, EvictionBudget, EvictionLosses, EvictionRules, Loss
from gputile.core.scheduling.gang_kinds import GangCandidate, Kinds, kinds_of
from gputile.core.scheduling.gang_plan import hardness
from gputile.core.scheduling.placement_engine import Decision
from gputile.core.scheduling.reserved_place import lost_reservation
from gputile.core.scheduling.victim_choice import MOST_NODES, Preemptor, VictimChoice, choose_victims
from gputile.core.scheduling.without_pods import VictimSearchInput, WithoutPods, takes

_LOOKED_AT = 1000  # pods in one step
_SECOND = 10**9
_MOST = 2**63 - 1  # of a field of a loss: annotations may claim absurd amounts


@dataclass(frozen=True, slots=True)
class GangVictims:
    """The places of a gang's pods by UID, and the UIDs of the pods that have to be evicted for them."""

    places: dict[str, Decision]
    evicted: tuple[str, ...]
    loss: Loss = NOTHING


def choose_gang_victims(
    members: Sequence[GangCandidate], needed: int, cluster: VictimSearchInput, rules: EvictionRules, now_ns: int
) -> Steps[GangVictims | None]:
    """Return, in steps, places for ``needed`` of ``members``, the easiest to place, with the least loss that is found.

    None where no evictions of pods of lower priority are enough. ``now_ns`` is Unix time in nanoseconds. A caller that
    gives up half-way closes the steps: ledger and predicates are as before then.
    """
    chosen = sorted(members, key=hardness)[-needed:]
    priority, now_s = min(member.pod.spec.priority or 0 for member in chosen), now_ns / _SECOND
    aside = WithoutPods(cluster)
    try:
        for member in members:
            aside.claim(member.pod)
            yield
        for number, uid in enumerate(list(rules.facts)):
            if rules.is_leaving(uid, now_s):
                aside.take(uid)
                yield
            elif number % _LOOKED_AT == 0:
                yield
        levels = yield from _levels(cluster, rules, priority)
        kinds = kinds_of(chosen, cluster.predicates.repelling())
        best: GangVictims | None = None
        low, high = 0, len(levels) - 1
        middle = high  # the first attempt tells whether the eviction of all is enough
        while low <= high:
            attempt = _Attempt(chosen, kinds, cluster, rules, levels[middle], now_ns)
            found = yield from attempt.run()
            if found is None:
                low = middle + 1
            else:
                best, high = found, middle - 1
            middle = (low + high) // 2
        yield from aside.bring_back_in_steps()
        return best
    finally:
        aside.bring_back()


def is_enough(
    places: Mapping[str, Booking],
    pods: Iterable[tuple[Pod, str]],
    gone: Collection[str],
    cluster: VictimSearchInput,
    rules: EvictionRules,
    now_ns: int,
) -> Steps[bool]:
    """Return, in steps, whether the reserved ``places`` (by UID) are free once ``gone`` and who leaves have left.

    ``pods`` are the pods of the plan with their nodes, which must take them then, too.
    """
    aside = WithoutPods(cluster)
    try:
        for node in {booking.node for booking in places.values()}:
            for uid in [booking.uid for booking in cluster.engine.ledger.on_node(node)]:
                if uid in gone or rules.is_leaving(uid, now_ns / _SECOND):
                    aside.take(uid)
                    yield
        enough = True
        for booking in places.values():
            enough = enough and lost_reservation(cluster.engine.ledger, booking) is None
            yield
        for pod, node in pods:
            enough = enough and (yield from takes(cluster.predicates, pod, node))
        yield from aside.bring_back_in_steps()
        return enough
    finally:
        aside.bring_back()


def _levels(cluster: VictimSearchInput, rules: EvictionRules, priority: int) -> Steps[list[int]]:
    """Return, in steps, the priorities below which pods may have to leave, the lowest first; below that is nobody."""
    below = set[int]()
    for number, booking in enumerate(list(cluster.engine.ledger.bookings())):
        if booking.begun and booking.priority < priority and booking.uid in rules.facts:
            below.add(booking.priority)
        if number % _LOOKED_AT == 0:
            yield
    return [min(below, default=priority), *(level + 1 for level in sorted(below))]


class _Attempt:
    """One way through the pods of a gang, in which pods with a priority below ``below`` may have to leave."""

    def __init__(
        self,
        members: Sequence[GangCandidate],
        kinds: Kinds,
        cluster: VictimSearchInput,
        rules: EvictionRules,
        below: int,
        now_ns: int,
    ) -> None:
        self._members, self._kinds, self._asking = members, kinds.number, kinds.asking
        self._cluster, self._engine, self._ledger = cluster, cluster.engine, cluster.engine.ledger
        self._predicates = cluster.predicates
        self._rules = replace(rules, budget=self._budget, withdraws=False)
        self._budget_before = rules.budget
        self._below, self._now_ns = below, now_ns
        self._losses = EvictionLosses(self._ledger, rules.facts, now_ns / _SECOND)
        self._aside = WithoutPods(cluster)
        self._victims: dict[str, Booking] = {}
        self._most_important = NOTHING.priority  # of the victims
        self._guarded: Counter[Hashable] = Counter()  # by the name of a budget: how many victims it guards
        self._places: dict[str, tuple[Pod, Decision]] = {}
        self._judged: dict[int, dict[str, VictimChoice | None]] = {}  # by kind and node, by the largest pods

    def run(self) -> Steps[GangVictims | None]:
        """Return the places of all pods and who has to leave, None where one pod has no place."""
        try:
            for member, kind in zip(self._members, self._kinds, strict=True):
                yield from self._predicates.prepare(self._asking[kind].pod)
                place = self._free(self._asking[kind]) or (yield from self._freed(self._asking[kind], kind))
                if place is None:
                    yield from self._take_back()
                    return None
                self._put(member, place)
            yield
            yield from self._spare()
            loss = NOTHING
            for booking in self._victims.values():
                loss = loss.plus(self._losses.of(booking))
                yield
            places = {uid: place for uid, (_, place) in self._places.items()}
            yield from self._take_back()
            return GangVictims(places, tuple(self._victims), loss)
        finally:
            for uid in self._places:
                self._ledger.apply(Forgotten(uid))
                self._predicates.remove(uid)
            self._aside.bring_back()

    def _take_back(self) -> Steps[None]:
        """Look at the cluster as it is again, in steps."""
        while self._places:
            uid, _ = self._places.popitem()
            self._ledger.apply(Forgotten(uid))
            self._predicates.remove(uid)
            yield
        yield from self._aside.bring_back_in_steps()

    # -- the place of one pod

    def _free(self, asking: GangCandidate) -> Decision | None:
        reasons, closed = self._predicates.reasons(asking.pod), self._cluster.closed
        names = [name for name, reason in reasons.items() if reason is None and name not in closed]
        if asking.request is None:
            return Decision(names[0], (), None) if names else None
        for name in self._engine.best_first(asking.request, names):
            decision = self._engine.decide(asking.request, name, self._now_ns)
            if isinstance(decision, Decision):
                return decision
        return None

    def _freed(self, asking: GangCandidate, kind: int) -> Steps[Decision | None]:
        """Return the place whose victims cost least beside those that leave already; they are gone then."""
        request = asking.request
        if request is None:
            return None
        judged = yield from self._judge(asking, request, kind)
        for name in sorted(judged, key=lambda name: (self._added(judged[name].loss), name)):
            choice = judged[name]
            bookings = [booking for uid in choice.evicted if (booking := self._ledger.booking(uid)) is not None]
            yield from self._take(bookings)
            if (yield from self._predicates.reason(asking.pod, choice.node)) is None:
                yield from self._leave_for_good(bookings)
                self._changed(booking.node for booking in self._with_their_gangs(bookings))
                info = self._ledger.info_of(choice.node)
                return self._engine.decision(request, info, choice.gpus, self._now_ns) if info is not None else None
            yield from self._let_stay(bookings)
        return None

    def _take(self, bookings: Iterable[Booking]) -> Steps[None]:
        """Look at pods as if they were gone; there may be thousands, of one gang."""
        for booking in bookings:
            self._aside.take(booking.uid)
            yield

    def _let_stay(self, bookings: Iterable[Booking]) -> Steps[None]:
        for booking in bookings:
            self._aside.leave(booking.uid)
            yield

    def _leave_for_good(self, bookings: Iterable[Booking]) -> Steps[None]:
        for booking in bookings:
            self._victims[booking.uid] = booking
            self._most_important = max(self._most_important, booking.priority)
            if (budget := self._budget_before(booking.uid)) is not None:
                self._guarded[budget.name] += 1
            yield

    def _judge(self, asking: GangCandidate, request: Request, kind: int) -> Steps[dict[str, VictimChoice]]:
        """Return what the first look at each node finds for a kind of pods; nodes that have not changed stand."""
        known = self._judged.setdefault(kind, {})
        now, empty = self._predicates.reasons(asking.pod), self._cluster.empty.reasons(asking.pod)
        found: dict[str, VictimChoice] = {}
        for name, reason in now.items():
            if name in self._cluster.closed or (reason is not None and empty.get(name, reason) is not None):
                continue
            choice = known.get(name)
            if name not in known or (choice is not None and self._rules.over_budget(choice.evicted)):
                known[name] = self._choice(request, name)
                yield
            if (choice := known[name]) is not None:
                found[name] = choice
            if len(found) >= MOST_NODES:
                break
        return found

    def _choice(self, request: Request, name: str) -> VictimChoice | None:
        preemptor = Preemptor("", request, self._below, self._now_ns / _SECOND)
        return choose_victims(self._engine, preemptor, [name], self._rules)

    def _added(self, loss: Loss) -> Loss:
        """Return a loss without the priority where pods that are as important leave anyway."""
        return loss._replace(priority=max(loss.priority, self._most_important))

    def _budget(self, uid: str) -> EvictionBudget | None:
        """Return what guards a pod once the victims so far have been evicted."""
        budget = self._budget_before(uid)
        return budget._replace(allows=budget.allows - self._guarded[budget.name]) if budget is not None else None

    def _put(self, member: GangCandidate, place: Decision) -> None:
        booking = place.booking(member.pod, member.request, 0.0)
        if booking is not None:
            self._ledger.apply(Assumed(booking))
        self._predicates.place(member.pod, place.node)
        self._places[member.pod.metadata.uid] = member.pod, place
        self._changed([place.node])

    def _with_their_gangs(self, bookings: Iterable[Booking]) -> Iterable[Booking]:
        """Yield bookings, and those of the gangs of their pods: fewer of these may leave alone now."""
        gangs = set[GangName]()
        for booking in bookings:
            yield booking
            if (gang := self._rules.facts[booking.uid].gang) is not None:
                gangs.add(gang)
        for gang in gangs:
            others = (self._ledger.booking(uid) for uid in self._rules.gangs.get(gang, ()))
            yield from (other for other in others if other is not None)

    def _changed(self, nodes: Iterable[str]) -> None:
        for name in set(nodes):
            for known in self._judged.values():
                known.pop(name, None)

    # -- who may stay after all

    def _spare(self) -> Steps[None]:
        """Let those victims stay whose leaving no place needs, the dearest first; of a gang that leaves whole all."""
        sets = yield from self._sets()
        order = yield from self._dearest_first(list(sets))
        on_node: dict[str, list[tuple[Pod, Decision]]] = {}
        for pod, place in self._places.values():
            on_node.setdefault(place.node, []).append((pod, place))
        yield
        for uid in order:
            bookings = [self._victims[each] for each in sets[uid] or (uid,)]
            yield from self._let_stay(bookings)
            if (yield from self._stand(on_node, {booking.node for booking in bookings})):
                for booking in bookings:
                    del self._victims[booking.uid]
            else:
                yield from self._take(bookings)

    def _sets(self) -> Steps[dict[str, Sequence[str]]]:
        """Return, in steps, which victims stay or leave together, by the first of them; empty for one alone.

        There may be tens of thousands: one alone is no object of its own, which the garbage collector would walk.
        """
        sets: dict[str, Sequence[str]] = {}
        whole: dict[GangName, list[str] | None] = {}
        for uid in self._victims:
            yield
            gang = self._rules.facts[uid].gang
            if gang is not None and gang not in whole:
                whole[gang] = [] if self._leaves_whole(gang) else None
            together = whole[gang] if gang is not None else None
            if together is None:
                sets[uid] = ()
                continue
            if not together:
                sets[uid] = together
            together.append(uid)
        return sets

    def _dearest_first(self, uids: Sequence[str]) -> Steps[list[str]]:
        """Return, in steps, the victims with those first whose leaving costs most; equal ones stay in their order."""
        losses = np.empty((len(Loss._fields), len(uids)), dtype=np.int64)
        for position, uid in enumerate(uids):
            losses[:, position] = [min(each, _MOST) for each in self._losses.of(self._victims[uid])]
            yield
        return [uids[position] for position in np.lexsort(-losses[::-1]).tolist()]  # the last key is the first in order

    def _leaves_whole(self, gang: GangName) -> bool:
        """Return whether no pod of a gang stays that is not told to leave already: such a one may hang for ever."""
        staying = (uid for uid in self._rules.gangs.get(gang, ()) if not self._rules.was_told_to_leave(uid))
        return all(self._ledger.booking(uid) is None for uid in staying)

    def _stand(self, on_node: Mapping[str, Sequence[tuple[Pod, Decision]]], nodes: Iterable[str]) -> Steps[bool]:
        """Return, in steps, whether the gang could still have all its places on these nodes."""
        for node in nodes:
            for pod, place in on_node.get(node, ()):
                yield
                booking = self._ledger.booking(pod.metadata.uid)
                if booking is not None and lost_reservation(self._ledger, booking) is not None:
                    return False
                if not at_once(takes(self._predicates, pod, place.node)):
                    return False
        return True
