"""Chooses the pods to evict so that a whole gang fits. A single pod counts as a gang of one.

Either all pods that start together fit, or no pod is evicted. The pods are placed one by one, the
hardest first. Each pod gets free GPUs if there are any. Otherwise it gets the GPUs whose victims
(``victim_choice``) increase the loss least. Each attempt evicts only pods below one priority, and a
binary search finds the lowest priority that is enough. Finally, victims whose GPUs are not needed
are spared. All victims together respect the PodDisruptionBudgets.

In each attempt, the search for a kind of pod ends when ``_MOST_NODES`` nodes with victims are
found. After a pod is placed, only nodes that have changed are judged again.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gputile.api.core import Pod
from gputile.core.devices.gang_membership import GangName
from gputile.core.devices.request import Request
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.ledger.booking import Booking
from gputile.core.scheduling.eviction_rules import (
    NO_LOSS,
    EvictionBudget,
    EvictionRules,
    Loss,
    eviction_loss,
    total_loss,
)
from gputile.core.scheduling.freeable_gpus import VictimChoice
from gputile.core.scheduling.gang_plan import GangCandidate, Kinds, decisions, hardness, kinds_of
from gputile.core.scheduling.placement_engine import Decision, PlacementEngine
from gputile.core.scheduling.reservation_rules import lost_reservation
from gputile.core.scheduling.victim_choice import Preemptor, VictimSearch, lowest_sufficient

_SECOND = 10**9
_MOST_NODES = 100


@dataclass(frozen=True, slots=True)
class VictimSearchInput:
    """The cluster in which victims are searched for. ``pods`` maps UIDs to bound pods.

    ``empty`` has the nodes of ``predicates`` without pods. Nodes in ``closed`` are not used.
    """

    engine: PlacementEngine
    predicates: Predicates
    empty: Predicates
    pods: Mapping[str, Pod]
    closed: Collection[str] = ()

    def snapshot(self) -> "VictimSearchInput":
        return replace(self, engine=self.engine.snapshot(), predicates=self.predicates.snapshot())

    def remove(self, uid: str) -> None:
        self.engine.ledger.remove_pod(uid)
        self.predicates.remove(uid)

    def restore(self, booking: Booking) -> None:
        self.engine.ledger.assume(booking)
        if (pod := self.pods.get(booking.uid)) is not None:
            self.predicates.place(pod, booking.node)

    def accepts(self, pod: Pod, node: str) -> bool:
        """Return whether a node passes kube-scheduler's checks for a pod.

        If the pod is already placed, the checks ignore its placement.
        """
        counted = self.predicates.remove(pod.metadata.uid)
        free = self.predicates.reason(pod, node) is None
        if counted:
            self.predicates.place(pod, counted)
        return free


@dataclass(frozen=True, slots=True)
class GangVictims:
    """Placements of a gang's pods by UID, victims, and pods whose reservations are withdrawn."""

    places: dict[str, Decision]
    evicted: tuple[str, ...]
    withdrawn: tuple[str, ...] = ()
    loss: Loss = NO_LOSS


def choose_gang_victims(
    members: Sequence[GangCandidate],
    needed: int,
    cluster: VictimSearchInput,
    rules: EvictionRules,
    now_ns: int,
) -> GangVictims | None:
    """Place the ``needed`` easiest pods of ``members``, with victims if necessary.

    The result has the least loss that was found. It is None if evicting pods of lower priority is
    not enough. ``now_ns`` is Unix time in nanoseconds.
    """
    chosen = sorted(members, key=hardness)[-needed:]
    priority, now_s = min(member.pod.spec.priority or 0 for member in chosen), now_ns / _SECOND
    cluster = cluster.snapshot()
    for member in members:
        cluster.remove(member.pod.metadata.uid)
    for uid in rules.facts:
        if rules.is_leaving(uid, now_s):
            cluster.remove(uid)
    kinds = kinds_of(chosen, cluster.predicates.repelling())
    levels = [priority]  # for one pod, ``VictimSearch`` itself finds the least important victims
    if len(chosen) > 1:
        below = {
            booking.priority
            for booking in cluster.engine.ledger.bookings()
            if booking.begun and booking.priority < priority and booking.uid in rules.facts
        }
        levels = [min(below, default=priority), *(level + 1 for level in sorted(below))]
    return lowest_sufficient(
        levels, lambda level: _Attempt(chosen, kinds, cluster, rules, level, now_ns).run()
    )


def is_enough(
    places: Mapping[str, Booking],
    pods: Iterable[tuple[Pod, str]],
    gone: Collection[str],
    cluster: VictimSearchInput,
    rules: EvictionRules,
    now_ns: int,
) -> bool:
    """Return whether the reservations ``places`` can be used once all pods in ``gone`` have ended.

    ``places`` maps UIDs to reservations, and ``gone`` has UIDs. Pods that are already leaving count
    as ended, too. ``pods`` are the plan's pods with their nodes. These pods must pass
    kube-scheduler's checks on these nodes.
    """
    cluster = cluster.snapshot()
    for node in {booking.node for booking in places.values()}:
        for uid in [
            booking.uid for booking in cluster.engine.ledger.on_node(node) if not booking.reserved
        ]:
            if uid in gone or rules.is_leaving(uid, now_ns / _SECOND):
                cluster.remove(uid)
    if any(
        lost_reservation(cluster.engine.ledger, booking) is not None for booking in places.values()
    ):
        return False
    return all(cluster.accepts(pod, node) for pod, node in pods)


class _Attempt:
    """One attempt to place a gang's pods, which may evict pods with a priority below ``below``."""

    def __init__(
        self,
        members: Sequence[GangCandidate],
        kinds: Kinds,
        cluster: VictimSearchInput,
        rules: EvictionRules,
        below: int,
        now_ns: int,
    ) -> None:
        self._members, self._kinds, self._candidates = members, kinds.number, kinds.candidates
        self._cluster = cluster.snapshot()
        self._engine, self._ledger = self._cluster.engine, self._cluster.engine.ledger
        self._predicates = self._cluster.predicates
        self._rules = replace(rules, budget=self._budget)
        self._budget_before = rules.budget
        self._below, self._now_ns = below, now_ns
        self._victims: dict[str, Booking] = {}
        self._withdrawn: list[str] = []
        self._most_important = NO_LOSS.priority  # the highest of all victims
        # the number of victims so far, by the name of the budget that guards them
        self._guarded: Counter[Hashable] = Counter()
        self._places: dict[str, tuple[Pod, Decision]] = {}
        self._judged: dict[int, dict[str, VictimChoice | None]] = {}  # by kind and node

    def run(self) -> GangVictims | None:
        """Return the placements and the victims, or None if one of the pods does not fit."""
        for member, kind in zip(self._members, self._kinds, strict=True):
            place = self._choose_free_gpus(self._candidates[kind]) or self._choose_victims(
                self._candidates[kind], kind
            )
            if place is None:
                return None
            self._assign(member, place)
        self._spare()
        places = {uid: place for uid, (_, place) in self._places.items()}
        loss = total_loss(map(self._loss, self._victims.values()))
        return GangVictims(places, tuple(self._victims), tuple(self._withdrawn), loss)

    # -- the GPUs of one pod

    def _choose_free_gpus(self, candidate: GangCandidate) -> Decision | None:
        names = [
            name
            for name in self._predicates.open_nodes(candidate.pod)
            if name not in self._cluster.closed
        ]
        return next(decisions(self._engine, candidate, names, self._now_ns), None)

    def _choose_victims(self, candidate: GangCandidate, kind: int) -> Decision | None:
        """Choose the GPUs whose victims add the least loss, and remove these victims."""
        request = candidate.request
        if request is None:
            return None
        judged = self._judge(candidate.pod, request, kind)
        for name in sorted(judged, key=lambda name: (self._added(judged[name].loss), name)):
            choice = judged[name]
            leaving = [*choice.evicted, *choice.withdrawn]
            bookings = [
                booking for uid in leaving if (booking := self._ledger.booking(uid)) is not None
            ]
            for booking in bookings:
                self._cluster.remove(booking.uid)
            info = self._ledger.info_of(name)
            if info is not None and self._predicates.reason(candidate.pod, name) is None:
                self._record_victims(bookings)
                return self._engine.decision(request, info, choice.gpus, self._now_ns)
            for booking in bookings:
                self._cluster.restore(booking)
        return None

    def _record_victims(self, bookings: Iterable[Booking]) -> None:
        gangs, nodes = set[GangName](), set[str]()
        for booking in bookings:
            nodes.add(booking.node)
            if booking.reserved:
                self._withdrawn.append(booking.uid)
                continue
            self._victims[booking.uid] = booking
            self._most_important = max(self._most_important, booking.priority)
            if (budget := self._budget_before(booking.uid)) is not None:
                self._guarded[budget.name] += 1
            if (gang := self._rules.facts[booking.uid].gang) is not None:
                gangs.add(gang)
        # Fewer of the other pods of these gangs may now be evicted without their gang.
        for gang in gangs:
            others = (self._ledger.booking(uid) for uid in self._rules.gangs.get(gang, ()))
            nodes.update(other.node for other in others if other is not None)
        self._changed(nodes)

    def _judge(self, pod: Pod, request: Request, kind: int) -> dict[str, VictimChoice]:
        """Return the victims on each node for a kind of pod. Search only changed nodes again."""
        known = self._judged.setdefault(kind, {})
        search = VictimSearch(
            self._engine, Preemptor("", request, self._below, self._now_ns / _SECOND), self._rules
        )
        now, empty = self._predicates.reasons(pod), self._cluster.empty.reasons(pod)
        found: dict[str, VictimChoice] = {}
        for name, reason in now.items():
            if name in self._cluster.closed or (
                reason is not None and empty.get(name, reason) is not None
            ):
                continue
            choice = known.get(name)
            if name not in known or (
                choice is not None and self._rules.over_budget(choice.evicted)
            ):
                known[name] = search.on_node(name)
            if (choice := known[name]) is not None:
                found[name] = choice
            if len(found) >= _MOST_NODES:
                break
        return found

    def _added(self, loss: Loss) -> Loss:
        """Raise the priority of a loss to the highest priority of the victims so far."""
        return loss._replace(priority=max(loss.priority, self._most_important))

    def _budget(self, uid: str) -> EvictionBudget | None:
        """Return the budget that guards a pod, reduced by the victims so far."""
        budget = self._budget_before(uid)
        return (
            budget._replace(allows=budget.allows - self._guarded[budget.name])
            if budget is not None
            else None
        )

    def _assign(self, member: GangCandidate, place: Decision) -> None:
        booking = place.booking(member.pod, member.request, 0.0)
        if booking is not None:
            self._ledger.assume(booking)
        self._predicates.place(member.pod, place.node)
        self._places[member.pod.metadata.uid] = member.pod, place
        self._changed([place.node])

    def _changed(self, nodes: Iterable[str]) -> None:
        for name in set(nodes):
            for known in self._judged.values():
                known.pop(name, None)

    def _loss(self, booking: Booking) -> Loss:
        return eviction_loss(
            booking, self._ledger, self._rules.facts[booking.uid], self._now_ns / _SECOND
        )

    # -- sparing victims

    def _spare(self) -> None:
        """Spare unnecessary victims, the most expensive first. A gang is spared as a whole."""
        on_node: dict[str, list[tuple[Pod, Decision]]] = {}
        for pod, place in self._places.values():
            on_node.setdefault(place.node, []).append((pod, place))
        for bookings in self._victim_sets():
            for booking in bookings:
                self._cluster.restore(booking)
            nodes = {booking.node for booking in bookings}
            is_valid = all(
                self._is_placement_valid(pod, place)
                for node in nodes
                for pod, place in on_node.get(node, ())
            )
            for booking in bookings:
                if is_valid:
                    del self._victims[booking.uid]
                else:
                    self._cluster.remove(booking.uid)

    def _victim_sets(self) -> list[list[Booking]]:
        """Return the sets of victims that leave together, the most expensive first."""
        whole: dict[GangName, list[Booking]] = {}
        sets: list[list[Booking]] = []
        for booking in self._victims.values():
            gang = self._rules.facts[booking.uid].gang
            if gang is None or not self._leaves_whole(gang):
                sets.append([booking])
            elif gang in whole:
                whole[gang].append(booking)
            else:
                sets.append(whole.setdefault(gang, [booking]))
        return sorted(sets, key=lambda bookings: self._loss(bookings[0]), reverse=True)

    def _leaves_whole(self, gang: GangName) -> bool:
        """Return whether all pods of a gang are victims or are already being removed."""
        staying = (
            uid for uid in self._rules.gangs.get(gang, ()) if not self._rules.is_being_removed(uid)
        )
        return all(self._ledger.booking(uid) is None for uid in staying)

    def _is_placement_valid(self, pod: Pod, place: Decision) -> bool:
        """Return whether a placed pod can still run on its node and GPUs."""
        booking = self._ledger.booking(pod.metadata.uid)
        if booking is not None and lost_reservation(self._ledger, booking) is not None:
            return False
        return self._cluster.accepts(pod, place.node)
