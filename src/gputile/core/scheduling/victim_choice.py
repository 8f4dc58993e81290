"""Chooses pods to evict for a pod of higher priority, node by node.

Only pods up to the lowest sufficient priority are considered, so that the priority of the most
important victim is as low as possible. ``Loss`` defines the rest of the order. ``freeable_gpus``
chooses the GPUs and their victims on one node.

A pod of a gang leaves with its whole gang. But if a gang has more running pods than its size, the
surplus pods may leave alone. No PodDisruptionBudget is violated.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from gputile.api.core import Pod
from gputile.core.devices.gang_membership import GangName, gang_of
from gputile.core.devices.request import Request, RequestError
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.node_info import ServingMode
from gputile.core.placement.fit import same_resource, serves
from gputile.core.scheduling.eviction_rules import (
    MOST_GRACE_S,
    NO_LOSS,
    EvictionBudget,
    EvictionFacts,
    EvictionRules,
    eviction_loss,
    total_loss,
)
from gputile.core.scheduling.freeable_gpus import (
    LEAVING,
    VictimChoice,
    VictimGroup,
    cheapest_choice,
    freeable_gpus,
)
from gputile.core.scheduling.placement_engine import PlacementEngine

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Preemptor:
    """The pod for which others are evicted. ``now_s`` is Unix time in seconds."""

    uid: str
    request: Request
    priority: int
    now_s: float


def lowest_sufficient(
    levels: Sequence[int], attempt: Callable[[int], _Found | None]
) -> _Found | None:
    """Return the result of ``attempt`` at the lowest sufficient level, by binary search.

    ``levels`` are in ascending order. The highest level is tried first: if it is not enough, no
    level is.
    """
    low, high = 0, len(levels) - 1
    middle, best = high, None
    while low <= high:
        found = attempt(levels[middle])
        if found is None:
            low = middle + 1
        else:
            best, high = found, middle - 1
        middle = (low + high) // 2
    return best


class VictimSearch:
    """Chooses victims for one preemptor, node by node. The cost of each gang is computed once."""

    def __init__(self, engine: PlacementEngine, preemptor: Preemptor, rules: EvictionRules) -> None:
        self._engine, self._ledger, self._rules = engine, engine.ledger, rules
        self._preemptor = preemptor
        self._gangs: dict[GangName, tuple[int, VictimGroup | None]] = {}

    def on_node(self, name: str, only_gpus: frozenset[str] = frozenset()) -> VictimChoice | None:
        """Return the GPUs of a node with the least loss, or None if evictions are not enough.

        If ``only_gpus`` is not empty, the choice is among the GPUs with these UUIDs.
        """
        request = self._preemptor.request
        state = self._ledger.state(name)
        if (
            state is None
            or not serves(state.serving_mode, request.shape)
            or not same_resource(state.info, request.shape)
            or (request.shape.isolated and not state.info.isolates_memory)
            or state.serving_mode is ServingMode.OTHER_PLUGIN
        ):
            return None
        bookings = list(self._ledger.on_node(name))
        pairs = {each.uid: self._groups_of(each) for each in bookings}
        if all(first is None for uid, (first, _) in pairs.items() if uid != self._preemptor.uid):
            return None
        # First try to evict single pods of gangs. If these are not enough, evict whole gangs.
        ways = [{uid: first for uid, (first, _) in pairs.items()}]
        if any(first is not last for first, last in pairs.values()):
            ways.append({uid: last for uid, (_, last) in pairs.items()})
        choices = [freeable_gpus(state, request, bookings, way, only_gpus) for way in ways]
        priorities = {
            group.loss.priority for gpus in choices for gpu in gpus for group in gpu.freed
        }

        def attempt(level: int) -> VictimChoice | None:
            found = (cheapest_choice(name, gpus, request.shape.gpus, level) for gpus in choices)
            return next((choice for choice in found if choice is not None), None)

        return lowest_sufficient(sorted(priorities) or [NO_LOSS.priority], attempt)

    def _groups_of(self, booking: Booking) -> tuple[VictimGroup | None, VictimGroup | None]:
        """Return the smallest group that can leave with a pod, and the group of its whole gang.

        A group is None if its pods may not leave.
        """
        if booking.uid == self._preemptor.uid:
            return LEAVING, LEAVING
        if booking.reserved:
            # A gang's reservations are valid only together. Only the gang planner withdraws them.
            withdrawn = (
                self._rules.withdraws
                and booking.preemption
                and booking.priority < self._preemptor.priority
            )
            group = VictimGroup((booking.uid,), NO_LOSS, reserved=True) if withdrawn else None
            return group, group
        facts = self._rules.facts.get(booking.uid)
        if self._rules.is_leaving(booking.uid, self._preemptor.now_s):
            return LEAVING, LEAVING
        if facts is None or facts.leaves_at or not self._may_be_evicted(booking, facts):
            return None, None
        if facts.gang is None:
            group = self._victim_group([booking])
            return group, group
        most, whole = self._gang_group(facts.gang)
        return (
            self._victim_group([booking], EvictionBudget(facts.gang, most)) if most else whole
        ), whole

    def _gang_group(self, name: GangName) -> tuple[int, VictimGroup | None]:
        """Return how many pods may leave without the rest of their gang, and the group of all pods.

        The group is None if the gang as a whole may not leave.
        """
        known = self._gangs.get(name)
        if known is not None:
            return known
        staying: list[Booking] = []
        evictable = True
        size = self._rules.gang_size(name)
        for uid in sorted(self._rules.gangs.get(name, ())):
            booking, facts = self._ledger.booking(uid), self._rules.facts.get(uid)
            if booking is None or facts is None or self._rules.is_being_removed(uid):
                continue
            staying.append(booking)
            evictable = evictable and self._may_be_evicted(booking, facts)
            size = max(size, 0 if name.by_object else facts.gang_size)
        whole = self._victim_group(staying) if staying and evictable else None
        found = self._gangs[name] = max(0, len(staying) - size) if size > 0 else 0, whole
        return found

    def _may_be_evicted(self, booking: Booking, facts: EvictionFacts) -> bool:
        """Return whether a pod may be evicted, apart from budgets.

        The pod must be known to be bound, and have a lower priority. It must not be static, and its
        grace period must not exceed a day.
        """
        lower = booking.begun and booking.priority < self._preemptor.priority
        return lower and not facts.static and facts.grace_s <= MOST_GRACE_S

    def _victim_group(
        self, bookings: Sequence[Booking], gang: EvictionBudget | None = None
    ) -> VictimGroup | None:
        uids = tuple(booking.uid for booking in bookings)
        budgets = (*map(self._rules.budget, uids), gang)
        guarded = Counter(budget for budget in budgets if budget is not None)
        if any(count > budget.allows for budget, count in guarded.items()):
            return None
        facts, now_s = self._rules.facts, self._preemptor.now_s
        losses = (eviction_loss(each, self._ledger, facts[each.uid], now_s) for each in bookings)
        return VictimGroup(uids, total_loss(losses), evictions=tuple(guarded.items()))


def may_preempt(engine: PlacementEngine, pod: Pod) -> bool:
    """Return whether evictions can help ``pod``.

    Evictions cannot help if the pod's request is invalid. For a pod of a gang, ``gang_victims``
    chooses the victims of the whole gang.
    """
    try:
        engine.request(pod)
    except RequestError:
        return False
    return not engine.ledger.configuration.admission.gangs or gang_of(pod) is None


def completed_victims(
    engine: PlacementEngine,
    request: Request,
    node: str,
    proposed: Iterable[str],
    priority: int,
    facts: Mapping[str, EvictionFacts],
) -> frozenset[str] | None:
    """Return the UIDs of the pods that have to leave ``node`` for a request, or None.

    ``proposed`` are kube-scheduler's victims. All of them leave, since they may also block the pod
    for reasons other than GPUs. kube-scheduler's dry run counts units of the whole node, so these
    victims may not free enough on any GPU. In that case more pods of lower priority are chosen.
    kube-scheduler knows no gangs and evicts on one node only, so a pod of a gang leaves without its
    gang here. ``facts`` has the facts of the bound pods, by UID.

    The result is None if evictions are not enough, or if a proposed pod is static: its kubelet
    restarts a static pod.
    """
    first = frozenset(proposed)
    if any(uid in facts and facts[uid].static for uid in first):
        return None
    if engine.refusal(request, node) is None:
        return first
    alone = {}
    for booking in engine.ledger.on_node(node):
        known = facts.get(booking.uid, EvictionFacts(booking.namespace, booking.name))
        alone[booking.uid] = msgspec.structs.replace(known, gang=None, leaves_at=0.0)
    rules = EvictionRules(alone, {}, evicted=first, withdraws=False)
    choice = VictimSearch(engine, Preemptor("", request, priority, 0.0), rules).on_node(node)
    return first.union(choice.evicted) if choice is not None else None
