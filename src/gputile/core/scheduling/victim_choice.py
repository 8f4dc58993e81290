"""Chooses the pods to evict for a pod of higher priority, on the node where that costs least.

kube-scheduler chooses victims by what is left of the whole node, so it finds none where a node has enough in sum and
no GPU has. Here each GPU is a covering problem: the pods that leave it have to free what is missing on it. Of all
choices that one is taken whose most important victim is the least important; then the one with the fewest victims, the
least cost that pods state (``controller.kubernetes.io/pod-deletion-cost``), and the least GPU time lost.

A first pass judges each node by its largest pods first. A second one searches the nodes exactly, in the order of what
the first pass found, until it has looked at ``_SEARCHED`` sets of pods. A pod of a gang leaves with its whole gang,
unless more pods of the gang run than start together: so many of them, whichever they are, may leave alone.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gputile.core.devices.gang_membership import GangName
from gputile.core.devices.inventory import Gpu
from gputile.core.devices.request import Request, RequestKind
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_info import ServingMode
from gputile.core.ledger.snapshot import GpuState, NodeState
from gputile.core.placement.fit import same_unit, serves
from gputile.core.placement.steps import Steps, at_once
from gputile.core.scheduling.eviction_facts import MOST_GRACE_S, EvictionFacts
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.core.scheduling.victim_cover import NodeCovering
from gputile.core.scheduling.victim_groups import (
    LEAVING,
    NOTHING,
    EvictionBudget,
    FreedAmounts,
    GpuCovering,
    Loss,
    MissingAmounts,
    VictimGroup,
)

MOST_NODES = 100
SOON_S = 3600.0  # whoever was told to leave, and may take longer than that, is nobody to wait for
LATE_S = 60.0  # a pod that should have been gone for so long may never go: nobody waits for it
SEARCHED = 20_000  # sets of pods, over all nodes of one choice
_SEARCHED_PER_NODE = 4_000


@dataclass(frozen=True, slots=True)
class Preemptor:
    """The pod that others have to leave for; ``now_s`` is Unix time in seconds."""

    uid: str
    request: Request
    priority: int
    now_s: float


@dataclass(frozen=True, slots=True)
class EvictionRules:
    """Whom the cluster lets go. ``gangs`` are the UIDs of each gang's bound pods.

    ``evicted`` are pods whose eviction was requested, and ``budget`` returns what guards the pod with a UID, None for
    nothing. ``withdraws`` tells whether a place that is kept for a
    pod of lower priority may be withdrawn. ``gang_size`` returns how many pods of a gang by PodGroup start together, 0
    where nobody knows: such a gang leaves whole. Pods that leave within ``soon_s`` seconds count as gone.
    """

    facts: Mapping[str, EvictionFacts]
    gangs: Mapping[GangName, Collection[str]]
    evicted: Collection[str] = ()
    budget: Callable[[str], EvictionBudget | None] = lambda _: None
    withdraws: bool = True
    gang_size: Callable[[GangName], int] = lambda _: 0
    soon_s: float = SOON_S

    def over_budget(self, uids: Iterable[str]) -> list[str]:
        return at_once(self.over_budget_in_steps(uids))

    def over_budget_in_steps(self, uids: Iterable[str]) -> Steps[list[str]]:
        """Do as ``over_budget`` does, of thousands of pods."""
        begun: Counter[Hashable] = Counter()
        over: list[str] = []
        for uid in uids:
            yield
            budget = self.budget(uid)
            if budget is None:
                continue
            if begun[budget.name] >= budget.allows:
                over.append(uid)
            else:
                begun[budget.name] += 1
        return over

    def was_told_to_leave(self, uid: str) -> bool:
        """Return whether a pod is being deleted, or its eviction was requested: it stays in no gang."""
        facts = self.facts.get(uid)
        return uid in self.evicted or (facts is not None and bool(facts.leaves_at))

    def is_leaving(self, uid: str, now_s: float) -> bool:
        """Return whether a pod counts as gone at ``now_s`` (Unix time in seconds): it was told to leave, about now."""
        facts = self.facts.get(uid)
        leaves_at = facts.leaves_at if facts is not None else 0.0
        return uid in self.evicted or (bool(leaves_at) and -self.soon_s <= now_s - leaves_at < LATE_S)


@dataclass(frozen=True, slots=True)
class VictimChoice:
    """The place that a pod gets: GPUs of a node, and who has to leave for it.

    ``evicted`` are pods to be evicted, ``withdrawn`` pods that wait and lose the GPUs that are kept for them.
    """

    node: str
    gpus: tuple[Gpu, ...]
    evicted: tuple[str, ...]
    withdrawn: tuple[str, ...]
    loss: Loss = NOTHING


def choose_victims(
    engine: PlacementEngine,
    preemptor: Preemptor,
    names: Iterable[str],
    rules: EvictionRules,
    only_gpus: frozenset[str] = frozenset(),
    searched: int = SEARCHED,
) -> Steps[VictimChoice | None]:
    """Return, in steps, the place with the least loss on the nodes ``names``; None where no evictions are enough.

    At most ``MOST_NODES`` nodes that have a pod of lower priority are judged, the first ones. With ``only_gpus`` the
    place is on the GPUs with these UUIDs. The search looks at ``searched`` sets of pods; with 0 the largest pods leave.
    The ledger may change between two steps: the choice is then as old as it is.
    """
    groups = _VictimGroups(engine, preemptor, rules)
    coverings: list[tuple[Loss, int, str, NodeCovering]] = []
    for name in names:
        node = groups.node(name, only_gpus)
        yield
        if node is None:
            continue
        found = node.solve(0)
        if found is not None:
            coverings.append((found.loss, len(coverings), name, node))
        if len(coverings) >= MOST_NODES:
            break
    coverings.sort(key=lambda each: each[:2])
    best: VictimChoice | None = None
    left = searched
    for loss, _, name, node in coverings:
        # What the first pass found on the node is no bound on the losses below the first field: the search decides.
        if best is not None and (loss.priority > best.loss.priority or (searched and left <= 0)):
            break
        cover = node.best(min(left, _SEARCHED_PER_NODE))
        left -= node.searched
        if cover is not None and (best is None or cover.loss < best.loss):
            best = VictimChoice(name, cover.gpus, cover.uids(reserved=False), cover.uids(reserved=True), cover.loss)
        yield
    return best


class EvictionLosses:
    """What the eviction of each pod costs at ``now_s``, Unix time in seconds."""

    def __init__(self, ledger: Ledger, facts: Mapping[str, EvictionFacts], now_s: float) -> None:
        self._ledger, self._facts, self._now_s = ledger, facts, now_s
        self._totals: dict[str, tuple[dict[str, int], int]] = {}

    def of(self, booking: Booking) -> Loss:
        facts = self._facts[booking.uid]
        seconds = max(0, int(self._now_s - facts.started_at)) if facts.started_at else 0
        return Loss(booking.priority, 1, facts.cost, seconds * self._milli_gpus(booking))

    def _milli_gpus(self, booking: Booking) -> int:
        """Return how many thousandths of GPUs a pod holds: of each GPU its memory or its compute, what is more."""
        totals, replicas = self._totals_of(booking.node)
        held = 0
        for share in booking.gpus:
            total = totals.get(share.uuid, 0)
            mib, percent = booking.takes(share, total, replicas)
            held += max(1000 * mib // max(1, total), 10 * percent)
        return held

    def _totals_of(self, node: str) -> tuple[dict[str, int], int]:
        """Return how many MiB each GPU of a node has, and how many pods have each whole GPU in turns."""
        known = self._totals.get(node)
        if known is None:
            info = self._ledger.info_of(node)
            known = self._totals[node] = (
                ({gpu.uuid: info.gpu_total(i) for i, gpu in enumerate(info.inventory.gpus)}, info.replicas)
                if info is not None
                else ({}, 0)
            )
        return known


class _VictimGroups:
    """Which pods leave together for one preemptor, and what that costs; found once for each gang."""

    def __init__(self, engine: PlacementEngine, preemptor: Preemptor, rules: EvictionRules) -> None:
        self._engine, self._ledger, self._rules = engine, engine.ledger, rules
        self._preemptor = preemptor
        self._gangs: dict[GangName, tuple[int, VictimGroup | None]] = {}
        self._losses = EvictionLosses(self._ledger, rules.facts, preemptor.now_s)

    def node(self, name: str, only_gpus: frozenset[str]) -> NodeCovering | None:
        """Return the covering problem of a node, None where the eviction of pods cannot make the request fit."""
        request = self._preemptor.request
        state = self._engine.state(name, frozenset({self._preemptor.uid}))
        if state is None or not serves(state.serving_mode, request.shape) or not same_unit(state.info, request.shape):
            return None
        if state.serving_mode is ServingMode.OTHER_PLUGIN:
            return None
        bookings = [each for each in self._ledger.on_node(name) if each.uid != self._preemptor.uid]
        groups = {each.uid: self._of(each) for each in bookings}
        if not any(groups.values()):
            return None
        on_gpu: dict[str, list[Booking]] = {}
        for booking in bookings:
            for share in booking.gpus:
                on_gpu.setdefault(share.uuid, []).append(booking)
        gpus = []
        for gpu in state.gpus:
            if gpu.gpu.healthy and (not only_gpus or gpu.gpu.uuid in only_gpus):
                covering = _gpu_covering(state, gpu, request, on_gpu.get(gpu.gpu.uuid, ()), groups)
                if covering is not None:
                    gpus.append(covering)
        return NodeCovering(request.shape.gpus, gpus) if len(gpus) >= request.shape.gpus else None

    def _of(self, booking: Booking) -> tuple[VictimGroup, ...]:
        """Return who leaves if the pod of a booking has to: one of these groups; none where it may not be made to."""
        if booking.reserved:
            # A gang's reservations stand or fall together, and the controller alone decides about them.
            withdrawn = self._rules.withdraws and booking.preemption and booking.priority < self._preemptor.priority
            return (VictimGroup((booking.uid,), NOTHING, reserved=True),) if withdrawn else ()
        facts = self._rules.facts.get(booking.uid)
        if self._rules.is_leaving(booking.uid, self._preemptor.now_s):
            return (LEAVING,)
        if facts is None or facts.leaves_at or not self._may_be_evicted(booking, facts):
            return ()
        most, whole = self._gang(facts.gang) if facts.gang is not None else (0, None)
        alone = self._together([booking], facts.gang, most) if most or facts.gang is None else None
        return tuple(group for group in (alone, whole) if group is not None)

    def _gang(self, name: GangName) -> tuple[int, VictimGroup | None]:
        """Return how many pods of a gang may leave alone, and the group of all, None where it may not leave."""
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
        whole = self._together(staying, name, 0) if staying and evictable else None
        found = self._gangs[name] = max(0, len(staying) - size) if size > 0 else 0, whole
        return found

    def _may_be_evicted(self, booking: Booking, facts: EvictionFacts) -> bool:
        """Return whether a pod is bound for certain, of lower priority, and gone within a day once it is told."""
        lower = booking.begun and booking.priority < self._preemptor.priority
        return lower and not facts.static and facts.grace_s <= MOST_GRACE_S

    def _together(self, bookings: Sequence[Booking], gang: GangName | None, most: int) -> VictimGroup | None:
        uids = tuple(booking.uid for booking in bookings)
        if self._rules.over_budget(uids):
            return None
        loss = self._losses.of(bookings[0])
        for booking in bookings[1:]:
            loss = loss.plus(self._losses.of(booking))
        guarded = Counter(budget for uid in uids if (budget := self._rules.budget(uid)) is not None)
        return VictimGroup(uids, loss, gang=gang, most=most, evictions=tuple(guarded.items()))


def _gpu_covering(
    state: NodeState,
    gpu: GpuState,
    request: Request,
    bookings: Iterable[Booking],
    groups: Mapping[str, Sequence[VictimGroup]],
) -> GpuCovering | None:
    """Return what has to leave a GPU for the request, None where the GPU is too small or nobody may leave it."""
    shape, info = request.shape, state.info
    if shape.mib > gpu.total:
        return None
    alone = shape.kind is not RequestKind.SHARED and not info.sliced
    amounts: dict[VictimGroup, FreedAmounts] = {}
    incompatible_pods = 0
    for booking in bookings:
        share = next(each for each in booking.gpus if each.uuid == gpu.gpu.uuid)
        mib, percent = booking.takes(share, gpu.total, info.replicas)
        incompatible = int(alone or (info.grouped and booking.trust_group != shape.trust_group))
        incompatible_pods += incompatible
        if incompatible and not groups[booking.uid]:
            return None
        for group in groups[booking.uid]:
            before = amounts.get(group, FreedAmounts(group, 0, 0, 0, 0))
            amounts[group] = FreedAmounts(
                group,
                mib + before.mib,
                percent + before.percent,
                1 + before.pods,
                incompatible + before.incompatible,
            )
    missing = MissingAmounts(
        mib=gpu.used + shape.mib - gpu.total if shape.kind is RequestKind.SHARED else 0,
        percent=gpu.percent + shape.percent - 100 if shape.percent else 0,
        pods=0 if alone else gpu.pods + 1 - info.max_pods_per_gpu,
        incompatible=incompatible_pods,
    )
    leaving = amounts.pop(LEAVING, None)
    if leaving is not None:
        missing = missing.without(leaving)
    order = sorted(amounts.values(), key=lambda each: (-each.mib, -each.percent, each.group.loss, each.group.uids))
    return GpuCovering(gpu.gpu, missing, tuple(order))
