"""Chooses pods to evict for a pod of higher priority, greedily, and spares those not needed.

kube-scheduler counts what is free on the whole node, so it finds no victims if a node has enough in
sum but no single GPU has. Here victims are chosen GPU by GPU: first the pods that free the most of
what is missing, and of these the cheapest. Then each victim that the others make unnecessary is
spared. Only pods up to the lowest sufficient priority are considered, so that the most important
victim is as unimportant as possible (``Loss`` has the rest of the order).

A pod of a gang leaves with its whole gang, unless more pods of the gang run than start together:
then surplus pods, no matter which, may leave alone. No PodDisruptionBudget is violated.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import msgspec

from gputile.api.core import Pod
from gputile.core.devices.gang_membership import GangName, gang_of
from gputile.core.devices.inventory import Gpu
from gputile.core.devices.request import Request, RequestError, RequestKind
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.node_info import GpuState, NodeState, ServingMode
from gputile.core.placement.fit import is_of_model, same_resource, serves
from gputile.core.scheduling.eviction_rules import (
    MOST_GRACE_S,
    NOTHING,
    EvictionBudget,
    EvictionFacts,
    EvictionRules,
    Loss,
    eviction_loss,
    total_loss,
)
from gputile.core.scheduling.placement_engine import PlacementEngine

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Preemptor:
    """The pod for which others are evicted; ``now_s`` is Unix time in seconds."""

    uid: str
    request: Request
    priority: int
    now_s: float


@dataclass(frozen=True, slots=True)
class VictimChoice:
    """GPUs of a node, and the UIDs of the pods that lose them.

    ``evicted`` are bound pods, ``withdrawn`` pending ones.
    """

    node: str
    gpus: tuple[Gpu, ...]
    evicted: tuple[str, ...]
    withdrawn: tuple[str, ...]
    loss: Loss = NOTHING


@dataclass(frozen=True, slots=True, eq=False)
class VictimGroup:
    """Pods that leave together: one pod, or a whole gang.

    ``reserved``: a pending pod that loses its reservation. ``evictions`` is the number of its pods
    that each budget guards. If more pods of a gang run than start together, the gang is a budget
    itself: it limits how many of its pods leave without the others.
    """

    uids: tuple[str, ...]
    loss: Loss
    reserved: bool = False
    evictions: tuple[tuple[EvictionBudget, int], ...] = ()


# Pods that are being deleted, and the preemptor itself: they need no eviction
_LEAVING = VictimGroup((), NOTHING)


class GpuAmounts(NamedTuple):
    """What a group frees on a GPU, or what the GPU lacks.

    It lacks nothing if all amounts are 0 or less. ``incompatible`` is the number of pods that may
    not share the GPU with the preemptor, so all of them have to leave.
    """

    mib: int = 0
    percent: int = 0
    pods: int = 0
    incompatible: int = 0

    @property
    def nothing(self) -> bool:
        return self.mib <= 0 and self.percent <= 0 and self.pods <= 0 and self.incompatible <= 0

    def without(self, freed: "GpuAmounts") -> "GpuAmounts":
        return GpuAmounts(*(mine - other for mine, other in zip(self, freed, strict=True)))

    def plus(self, freed: "GpuAmounts") -> "GpuAmounts":
        return GpuAmounts(*(mine + other for mine, other in zip(self, freed, strict=True)))

    def part_in(self, freed: "GpuAmounts") -> float:
        """Return how much of the missing amounts ``freed`` covers: up to 1 for each, summed."""
        return sum(
            min(other, mine) / mine for mine, other in zip(self, freed, strict=True) if mine > 0
        )


class _Departures:
    """The groups that leave a node so far, and how many evictions of each budget they use."""

    def __init__(self) -> None:
        self.groups: dict[VictimGroup, None] = {}
        self._taken: Counter[Hashable] = Counter()  # evictions by the name of a budget

    def lets(self, group: VictimGroup) -> bool:
        """Return whether the budgets allow the group to leave in addition to the others."""
        return all(
            self._taken[budget.name] + count <= budget.allows for budget, count in group.evictions
        )

    def add(self, group: VictimGroup) -> None:
        self.groups[group] = None
        for budget, count in group.evictions:
            self._taken[budget.name] += count

    def remove(self, group: VictimGroup) -> None:
        del self.groups[group]
        for budget, count in group.evictions:
            self._taken[budget.name] -= count


@dataclass(slots=True, eq=False)
class _LeavingGpu:
    """A GPU, what it lacks for the request, and what each group that may leave frees on it."""

    gpu: Gpu
    missing: GpuAmounts
    freed: dict[VictimGroup, GpuAmounts]

    def missing_after(self, gone: Collection[VictimGroup]) -> GpuAmounts:
        missing = self.missing
        for group in gone:
            if (freed := self.freed.get(group)) is not None:
                missing = missing.without(freed)
        return missing


def lowest_enough(levels: Sequence[int], attempt: Callable[[int], _Found | None]) -> _Found | None:
    """Return the result of ``attempt`` at the lowest sufficient level, by binary search.

    ``levels`` are in ascending order. The highest level is tried first: if it is not enough, none
    is.
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
        """Return the GPUs of a node with the least loss; None if evictions are not enough.

        With ``only_gpus`` the choice is among the GPUs with these UUIDs.
        """
        request = self._preemptor.request
        state = self._ledger.state(name)
        if (
            state is None
            or not serves(state.serving_mode, request.shape)
            or not same_resource(state.info, request.shape)
            or (request.shape.isolated and not state.info.isolates_memory)
        ):
            return None
        if state.serving_mode is ServingMode.OTHER_PLUGIN:
            return None
        bookings = list(self._ledger.on_node(name))
        pairs = {each.uid: self._groups_of(each) for each in bookings}
        if all(first is None for uid, (first, _) in pairs.items() if uid != self._preemptor.uid):
            return None
        # First try to evict single pods of gangs. If gangs do not allow enough of that, evict whole
        # gangs.
        ways = [
            _gpus(
                state,
                request,
                bookings,
                {uid: first for uid, (first, _) in pairs.items()},
                only_gpus,
            )
        ]
        if any(first is not last for first, last in pairs.values()):
            ways.append(
                _gpus(
                    state,
                    request,
                    bookings,
                    {uid: last for uid, (_, last) in pairs.items()},
                    only_gpus,
                )
            )
        priorities = {group.loss.priority for gpus in ways for gpu in gpus for group in gpu.freed}

        def attempt(level: int) -> VictimChoice | None:
            found = (_choice(name, gpus, request.shape.gpus, level) for gpus in ways)
            return next((choice for choice in found if choice is not None), None)

        return lowest_enough(sorted(priorities) or [NOTHING.priority], attempt)

    def _groups_of(self, booking: Booking) -> tuple[VictimGroup | None, VictimGroup | None]:
        """Return the group with which a pod leaves, and that of its whole gang.

        Each is None if it may not leave.
        """
        if booking.uid == self._preemptor.uid:
            return _LEAVING, _LEAVING
        if booking.reserved:
            # A gang's reservations are valid only together, and only the gang planner decides about
            # them.
            withdrawn = (
                self._rules.withdraws
                and booking.preemption
                and booking.priority < self._preemptor.priority
            )
            group = VictimGroup((booking.uid,), NOTHING, reserved=True) if withdrawn else None
            return group, group
        facts = self._rules.facts.get(booking.uid)
        if self._rules.is_leaving(booking.uid, self._preemptor.now_s):
            return _LEAVING, _LEAVING
        if facts is None or facts.leaves_at or not self._may_be_evicted(booking, facts):
            return None, None
        if facts.gang is None:
            group = self._together([booking])
            return group, group
        most, whole = self._gang(facts.gang)
        return (
            self._together([booking], EvictionBudget(facts.gang, most)) if most else whole
        ), whole

    def _gang(self, name: GangName) -> tuple[int, VictimGroup | None]:
        """Return how many pods of a gang may leave alone, and the group of all its pods.

        The group is None if the gang may not leave.
        """
        known = self._gangs.get(name)
        if known is not None:
            return known
        staying: list[Booking] = []
        evictable = True
        size = self._rules.gang_size(name)
        for uid in sorted(self._rules.gangs.get(name, ())):
            booking, facts = self._ledger.booking(uid), self._rules.facts.get(uid)
            if booking is None or facts is None or self._rules.was_told_to_leave(uid):
                continue
            staying.append(booking)
            evictable = evictable and self._may_be_evicted(booking, facts)
            size = max(size, 0 if name.by_object else facts.gang_size)
        whole = self._together(staying) if staying and evictable else None
        found = self._gangs[name] = max(0, len(staying) - size) if size > 0 else 0, whole
        return found

    def _may_be_evicted(self, booking: Booking, facts: EvictionFacts) -> bool:
        """Return whether a pod may be evicted.

        It must be certainly bound, have a lower priority, not be static, and end within a day of
        its eviction.
        """
        lower = booking.begun and booking.priority < self._preemptor.priority
        return lower and not facts.static and facts.grace_s <= MOST_GRACE_S

    def _together(
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


def _gpus(
    state: NodeState,
    request: Request,
    bookings: Iterable[Booking],
    groups: Mapping[str, VictimGroup | None],
    only_gpus: Collection[str],
) -> list[_LeavingGpu]:
    """Return the GPUs (of ``only_gpus`` unless empty) that evictions can free for the request."""
    on_gpu: dict[str, list[Booking]] = {}
    for booking in bookings:
        for share in booking.gpus:
            on_gpu.setdefault(share.uuid, []).append(booking)
    found = (
        _gpu(state, each, request, on_gpu.get(each.gpu.uuid, ()), groups)
        for each in state.gpus
        if each.gpu.healthy and (not only_gpus or each.gpu.uuid in only_gpus)
    )
    return [gpu for gpu in found if gpu is not None]


def _gpu(
    state: NodeState,
    gpu: GpuState,
    request: Request,
    bookings: Iterable[Booking],
    groups: Mapping[str, VictimGroup | None],
) -> _LeavingGpu | None:
    """Return what a GPU lacks and what may leave it.

    None if the GPU is unsuitable, or an incompatible pod must stay.
    """
    shape, info = request.shape, state.info
    if shape.mib > gpu.total or not is_of_model(gpu, shape):
        return None
    alone = shape.kind is not RequestKind.SHARED and not info.sliced
    freed: dict[VictimGroup, GpuAmounts] = {}
    incompatible_pods = 0
    for booking in bookings:
        share = next(each for each in booking.gpus if each.uuid == gpu.gpu.uuid)
        mib, percent = booking.takes(share, gpu.total, info.replicas)
        incompatible = int(alone or (info.grouped and booking.trust_group != shape.trust_group))
        incompatible_pods += incompatible
        group = groups[booking.uid]
        if group is None and incompatible:
            return None
        if group is not None:
            freed[group] = freed.get(group, GpuAmounts()).plus(
                GpuAmounts(mib, percent, 1, incompatible)
            )
    missing = GpuAmounts(
        mib=gpu.used + shape.mib - gpu.total if shape.kind is RequestKind.SHARED else 0,
        percent=gpu.percent + shape.percent - 100 if shape.percent else 0,
        pods=0 if alone else gpu.pods + 1 - info.max_pods_per_gpu,
        incompatible=incompatible_pods,
    )
    return _LeavingGpu(gpu.gpu, missing.without(freed.pop(_LEAVING, GpuAmounts())), freed)


def _choice(node: str, gpus: Sequence[_LeavingGpu], wanted: int, level: int) -> VictimChoice | None:
    """Choose victims of priority up to ``level`` that free ``wanted`` GPUs, the cheapest first."""
    gone = _Departures()
    chosen: list[_LeavingGpu] = []
    while len(chosen) < wanted:
        found = ((gpu, _victims_on(gpu, level, gone)) for gpu in gpus if gpu not in chosen)
        victims = {gpu: groups for gpu, groups in found if groups is not None}
        if not victims:
            return None
        cheapest = min(
            victims, key=lambda gpu: total_loss(group.loss for group in victims[gpu])[1:]
        )
        for group in victims[cheapest]:
            gone.add(group)
        chosen.append(cheapest)
    free = _spare(gpus, wanted, gone)
    order = sorted(free, key=lambda gpu: chosen.index(gpu) if gpu in chosen else wanted)[:wanted]
    evicted = tuple(uid for group in gone.groups if not group.reserved for uid in group.uids)
    withdrawn = tuple(uid for group in gone.groups if group.reserved for uid in group.uids)
    loss = total_loss(group.loss for group in gone.groups)
    return VictimChoice(node, tuple(gpu.gpu for gpu in order), evicted, withdrawn, loss)


def _spare(gpus: Sequence[_LeavingGpu], wanted: int, gone: _Departures) -> list[_LeavingGpu]:
    """Spare groups that are not needed for ``wanted`` free GPUs; return the free GPUs.

    The most expensive groups are spared first.
    """
    missing = {gpu: gpu.missing_after(gone.groups) for gpu in gpus}
    for group in sorted(gone.groups, key=lambda each: each.loss, reverse=True):
        stays = {gpu: missing[gpu].plus(gpu.freed[group]) for gpu in gpus if group in gpu.freed}
        if sum(amounts.nothing for amounts in (missing | stays).values()) >= wanted:
            missing |= stays
            gone.remove(group)
    return [gpu for gpu, amounts in missing.items() if amounts.nothing]


def _victims_on(gpu: _LeavingGpu, level: int, gone: _Departures) -> list[VictimGroup] | None:
    """Return further groups that free enough of the GPU; None if even all do not.

    Their priority is at most ``level``.
    """
    missing = gpu.missing_after(gone.groups)
    freed = {
        group: amounts
        for group, amounts in gpu.freed.items()
        if group.loss.priority <= level and group not in gone.groups
    }

    def order(group: VictimGroup) -> tuple[object, ...]:
        first = missing.incompatible > 0 and freed[group].incompatible > 0
        part = missing.part_in(freed[group]) / max(group.loss.pods, 0.5)
        return not first, -part, group.loss[1:], group.uids

    taken: list[VictimGroup] = []
    for group in sorted(freed, key=order):
        if missing.nothing:
            break
        if gone.lets(group):
            gone.add(group)
            taken.append(group)
            missing = missing.without(freed[group])
    for group in taken:
        gone.remove(group)
    return taken if missing.nothing else None


def may_preempt(engine: PlacementEngine, pod: Pod) -> bool:
    """Return whether evictions can help ``pod``.

    They cannot if its request is invalid, or if it belongs to a planned gang.
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
    """Return the UIDs of the pods that have to leave ``node`` for a request.

    It is None if evicting lower priorities is not enough. kube-scheduler's victims, ``proposed``,
    all leave, since they may also be in the way for other reasons than GPUs. Its dry run counts
    units of the whole node, so they may not free enough on any GPU: then more are chosen. Since
    kube-scheduler knows no gangs and evicts on one node only, a pod of a gang leaves without its
    gang here. A static pod is never a victim, since its kubelet restarts it. ``facts`` describe the
    bound pods, by UID.
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
