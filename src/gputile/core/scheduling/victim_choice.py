"""Chooses the pods whose eviction frees GPUs for a pod of higher priority, on the node where that costs least.

kube-scheduler chooses victims by what is left of the whole node, so it finds none where a node has enough in sum and
no GPU has. Here each GPU is a covering problem: the pods that leave it have to free what is missing on it. Of all
choices that one is taken whose most important victim is the least important; then the one with the fewest victims, the
least cost that pods state (``controller.kubernetes.io/pod-deletion-cost``), and the least GPU time lost.

A first pass judges each node by its largest pods first. A second one searches the nodes in the order of what the first
pass found, exactly as long as ``_SEARCHED`` sets of pods are not used up. A pod of a gang leaves with its whole gang,
unless more pods of the gang run than start together.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from gputile.core.devices.gang_membership import GangName
from gputile.core.devices.inventory import Gpu
from gputile.core.devices.request import Request, RequestKind
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.node_info import ServingMode
from gputile.core.ledger.snapshot import GpuState, NodeState
from gputile.core.placement.fit import same_unit, serves
from gputile.core.placement.steps import Steps
from gputile.core.scheduling.eviction_facts import EvictionFacts
from gputile.core.scheduling.placement_engine import PlacementEngine

MOST_NODES = 100
LATE_S = 60.0  # a pod that should have been gone for so long may never go: nobody waits for it
_SEARCHED = 20_000  # sets of pods, over all nodes of one choice
_SEARCHED_PER_GPU, _SEARCHED_PER_NODE = 500, 4_000
_BUDGET_ROUNDS = 4
_NO_PRIORITY = -(2**31) - 1  # below all of Kubernetes'


class Loss(NamedTuple):
    """What a set of victims costs; the smaller the better, from the first field on.

    ``gpu_seconds`` is the time since they started, in thousandths of a GPU's seconds.
    """

    priority: int = _NO_PRIORITY
    pods: int = 0
    cost: int = 0
    gpu_seconds: int = 0

    def __add__(self, other: tuple[object, ...]) -> "Loss":
        """Return the loss of both."""
        assert isinstance(other, Loss)  # noqa: S101 - a sum of losses only
        return Loss(
            max(self.priority, other.priority),
            self.pods + other.pods,
            self.cost + other.cost,
            self.gpu_seconds + other.gpu_seconds,
        )


NOTHING = Loss()


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

    ``evicted`` are pods whose eviction was requested, and ``over_budget`` returns those of the pods with the UIDs given
    whose eviction, in this order, a PodDisruptionBudget forbids.
    """

    facts: Mapping[str, EvictionFacts]
    gangs: Mapping[GangName, Collection[str]]
    evicted: Collection[str] = ()
    over_budget: Callable[[Sequence[str]], Collection[str]] = lambda _: ()


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
) -> Steps[VictimChoice | None]:
    """Return, in steps, the place with the least loss on the nodes ``names``; None where no evictions are enough.

    At most ``MOST_NODES`` nodes that have a pod of lower priority are judged, the first ones. With ``only_gpus`` the
    place is on the GPUs with these UUIDs. The ledger may change between two steps: the choice is then as old as it is.
    """
    units = _Units(engine, preemptor, rules)
    problems: list[tuple[Loss, int, _Node]] = []
    for name in names:
        node = units.node(name, only_gpus)
        yield
        if node is None:
            continue
        found = node.solve(0)
        if found is not None:
            problems.append((found.loss, len(problems), node))
        if len(problems) >= MOST_NODES:
            break
    problems.sort(key=lambda each: each[:2])
    best: VictimChoice | None = None
    left = _SEARCHED
    for loss, _, node in problems:
        # What the first pass found on the node is no bound on the losses below the first field: the search decides.
        if best is not None and (loss.priority > best.loss.priority or left <= 0):
            break
        choice, used = node.within_budgets(min(left, _SEARCHED_PER_NODE), rules.over_budget)
        left -= used
        if choice is not None and (best is None or choice.loss < best.loss):
            best = choice
        yield
    return best


@dataclass(frozen=True, slots=True, eq=False)
class _Unit:
    """Pods that leave together. ``reserved`` is a pod that waits for GPUs that are kept for it."""

    uids: tuple[str, ...]
    loss: Loss
    reserved: bool = False


_LEAVING = _Unit((), NOTHING)  # of pods whose deletion was requested: nobody has to do anything


class _Share(NamedTuple):
    """What a unit frees on one GPU: MiB, percent of compute and pods; ``foreign`` pods of another trust group."""

    unit: _Unit
    mib: int
    percent: int
    pods: int
    foreign: int


class _Missing(NamedTuple):
    """What a GPU lacks for the request; nothing is lacking where all are 0 or less."""

    mib: int
    percent: int
    pods: int
    foreign: int

    @property
    def nothing(self) -> bool:
        return self.mib <= 0 and self.percent <= 0 and self.pods <= 0 and self.foreign <= 0

    def without(self, share: _Share) -> "_Missing":
        return _Missing(
            self.mib - share.mib, self.percent - share.percent, self.pods - share.pods, self.foreign - share.foreign
        )

    def with_back(self, share: _Share) -> "_Missing":
        return _Missing(
            self.mib + share.mib, self.percent + share.percent, self.pods + share.pods, self.foreign + share.foreign
        )


class _Units:
    """Which pods leave together for one preemptor, and what that costs; found once for each gang."""

    def __init__(self, engine: PlacementEngine, preemptor: Preemptor, rules: EvictionRules) -> None:
        self._engine, self._ledger, self._rules = engine, engine.ledger, rules
        self._preemptor = preemptor
        self._gangs: dict[GangName, tuple[frozenset[str], _Unit | None]] = {}
        self._totals: dict[str, tuple[dict[str, int], int]] = {}

    def node(self, name: str, only_gpus: frozenset[str]) -> "_Node | None":
        """Return the problem of a node, None where the eviction of pods cannot make the request fit."""
        request = self._preemptor.request
        state = self._engine.state(name, frozenset({self._preemptor.uid}))
        if state is None or not serves(state.serving_mode, request.shape) or not same_unit(state.info, request.shape):
            return None
        if state.serving_mode is ServingMode.OTHER_PLUGIN:
            return None
        bookings = [each for each in self._ledger.on_node(name) if each.uid != self._preemptor.uid]
        units = {each.uid: self._of(each) for each in bookings}
        if not any(units.values()):
            return None
        on_gpu: dict[str, list[Booking]] = {}
        for booking in bookings:
            for share in booking.gpus:
                on_gpu.setdefault(share.uuid, []).append(booking)
        gpus = []
        for gpu in state.gpus:
            if gpu.gpu.healthy and (not only_gpus or gpu.gpu.uuid in only_gpus):
                problem = _gpu_problem(state, gpu, request, on_gpu.get(gpu.gpu.uuid, ()), units)
                if problem is not None:
                    gpus.append(problem)
        return _Node(name, request.shape.gpus, gpus) if len(gpus) >= request.shape.gpus else None

    def _of(self, booking: Booking) -> _Unit | None:
        """Return who leaves if the pod of a booking has to, None where it may not be made to."""
        if booking.reserved:
            # A gang's reservations stand or fall together, and the controller alone decides about them.
            withdrawn = booking.preemption and booking.priority < self._preemptor.priority
            return _Unit((booking.uid,), NOTHING, reserved=True) if withdrawn else None
        facts = self._rules.facts.get(booking.uid)
        if booking.uid in self._rules.evicted or (facts is not None and self._is_leaving(facts)):
            return _LEAVING
        if facts is None or facts.leaves_at or not booking.begun or booking.priority >= self._preemptor.priority:
            return None
        if facts.gang is not None:
            spare, whole = self._gang(facts.gang)
            if booking.uid not in spare:
                return whole
        return self._unit([booking])

    def _is_leaving(self, facts: EvictionFacts) -> bool:
        return bool(facts.leaves_at) and self._preemptor.now_s - facts.leaves_at < LATE_S

    def _gang(self, name: GangName) -> tuple[frozenset[str], _Unit | None]:
        """Return the pods of a gang that may leave alone, and the unit of all others, None where it may not leave."""
        known = self._gangs.get(name)
        if known is not None:
            return known
        staying, size = [], 0
        for uid in sorted(self._rules.gangs.get(name, ())):
            booking, facts = self._ledger.booking(uid), self._rules.facts.get(uid)
            if booking is None or facts is None or uid in self._rules.evicted or facts.leaves_at:
                continue
            staying.append((self._loss(booking), booking))
            size = max(size, facts.gang_size)
        staying.sort(key=lambda each: (each[0], each[1].uid))
        # A PodGroup says how many pods start together, and only the controller reads it: its gangs leave whole.
        surplus = max(0, len(staying) - size) if size and not name.by_object else 0
        spare = frozenset(booking.uid for _, booking in staying[:surplus])
        lower = all(booking.priority < self._preemptor.priority and booking.begun for _, booking in staying)
        found = spare, self._unit([booking for _, booking in staying]) if lower else None
        self._gangs[name] = found
        return found

    def _unit(self, bookings: Sequence[Booking]) -> _Unit | None:
        uids = tuple(booking.uid for booking in bookings)
        if self._rules.over_budget(uids):
            return None
        loss = NOTHING
        for booking in bookings:
            loss += self._loss(booking)
        return _Unit(uids, loss)

    def _loss(self, booking: Booking) -> Loss:
        facts = self._rules.facts[booking.uid]
        seconds = max(0, int(self._preemptor.now_s - facts.started_at)) if facts.started_at else 0
        return Loss(booking.priority, 1, facts.cost, seconds * self._thousandths(booking))

    def _thousandths(self, booking: Booking) -> int:
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
            row = self._ledger.row_of.get(node)
            info = self._ledger.node_info(row) if row is not None else None
            gpus = info.inventory.gpus if info is not None else ()
            totals = {gpu.uuid: info.gpu_total(i) for i, gpu in enumerate(gpus)} if info is not None else {}
            known = self._totals[node] = totals, info.replicas if info is not None else 0
        return known


class _GpuProblem(NamedTuple):
    """A GPU, what it lacks, and what each unit that may leave frees on it, largest first."""

    gpu: Gpu
    missing: _Missing
    shares: tuple[_Share, ...]

    def level(self) -> int | None:
        """Return the lowest priority up to which pods have to leave the GPU; None where all are not enough."""
        missing, level = self.missing, _NO_PRIORITY
        for share in sorted(self.shares, key=lambda each: each.unit.loss.priority):
            if missing.nothing:
                break
            missing, level = missing.without(share), share.unit.loss.priority
        return level if missing.nothing else None

    def missing_after(self, gone: Collection[_Unit]) -> _Missing:
        """Return what is lacking once these units have gone."""
        missing = self.missing
        for share in self.shares if gone else ():
            if share.unit in gone:
                missing = missing.without(share)
        return missing

    def is_left_by(self, units: Collection[_Unit]) -> bool:
        """Return whether a pod of one of these units is on the GPU."""
        return any(share.unit in units for share in self.shares)


def _gpu_problem(
    state: NodeState, gpu: GpuState, request: Request, bookings: Iterable[Booking], units: Mapping[str, _Unit | None]
) -> _GpuProblem | None:
    """Return what has to leave a GPU for the request, None where the GPU is too small or nobody may leave it."""
    shape, info = request.shape, state.info
    if shape.mib > gpu.total:
        return None
    alone = shape.kind is not RequestKind.SHARED and not info.sliced
    shares: dict[_Unit, _Share] = {}
    foreign_pods = 0
    for booking in bookings:
        share = next(each for each in booking.gpus if each.uuid == gpu.gpu.uuid)
        mib, percent = booking.takes(share, gpu.total, info.replicas)
        foreign = int(alone or (info.grouped and booking.trust_group != shape.trust_group))
        foreign_pods += foreign
        unit = units[booking.uid]
        if unit is None:
            if foreign:
                return None
            continue
        before = shares.get(unit, _Share(unit, 0, 0, 0, 0))
        shares[unit] = _Share(
            unit, before.mib + mib, before.percent + percent, before.pods + 1, before.foreign + foreign
        )
    missing = _Missing(
        mib=gpu.used + shape.mib - gpu.total if shape.kind is RequestKind.SHARED else 0,
        percent=gpu.percent + shape.percent - 100 if shape.percent else 0,
        pods=0 if alone else gpu.pods + 1 - info.max_pods_per_gpu,
        foreign=foreign_pods,
    )
    leaving = shares.pop(_LEAVING, None)
    if leaving is not None:
        missing = missing.without(leaving)
    order = sorted(shares.values(), key=lambda share: (-share.mib, -share.percent, share.unit.loss, share.unit.uids))
    return _GpuProblem(gpu.gpu, missing, tuple(order))


class _Node:
    """The GPUs of a node, of which ``wanted`` have to become free enough. ``searched`` counts the sets looked at."""

    def __init__(self, name: str, wanted: int, gpus: Sequence[_GpuProblem]) -> None:
        self._name, self._wanted, self._gpus = name, wanted, gpus
        self._left = self.searched = 0

    @cached_property
    def _level(self) -> int | None:
        """The lowest priority up to which pods have to leave, None where all are not enough."""
        levels = sorted(level for gpu in self._gpus if (level := gpu.level()) is not None)
        return levels[self._wanted - 1] if len(levels) >= self._wanted else None

    def within_budgets(
        self, searched: int, over_budget: Callable[[Sequence[str]], Collection[str]]
    ) -> tuple[VictimChoice | None, int]:
        """Return the best choice that violates no budget, and how many sets of pods were looked at for it."""
        node, used = self, 0
        for _ in range(_BUDGET_ROUNDS):
            choice = node.solve(searched - used)
            used += node.searched
            forbidden = frozenset(over_budget(choice.evicted)) if choice is not None else frozenset()
            if not forbidden:
                return choice, used
            node = node._keeping(forbidden)
        return None, used

    def _keeping(self, uids: frozenset[str]) -> "_Node":
        """Return the node as if these pods could not be evicted."""
        gpus = [
            gpu._replace(shares=tuple(share for share in gpu.shares if uids.isdisjoint(share.unit.uids)))
            for gpu in self._gpus
        ]
        return _Node(self._name, self._wanted, gpus)

    def solve(self, searched: int) -> VictimChoice | None:
        """Return the best choice that a look at ``searched`` sets of pods finds; with 0 the largest pods leave."""
        self._left, self.searched = searched, 0
        if self._level is None:
            return None
        gone: dict[_Unit, None] = {}
        chosen: list[int] = []
        covers: dict[int, Sequence[_Unit] | None] = {}  # by the GPU's position
        while len(chosen) < self._wanted:
            for i, gpu in enumerate(self._gpus):
                if i not in covers:
                    covers[i] = self._cover(gpu, self._level, gone)
            found = {i: units for i, units in covers.items() if units is not None and i not in chosen}
            if not found:
                return None
            best = min(found, key=lambda i: _total(found[i])[1:])
            chosen.append(best)
            gone |= dict.fromkeys(found[best])
            for i in [i for i, gpu in enumerate(self._gpus) if gpu.is_left_by(found[best])]:
                covers.pop(i, None)
        gpus = [self._gpus[i] for i in chosen]
        for unit in _to_spare(gpus, gone) if len(gpus) > 1 else ():
            del gone[unit]
        return VictimChoice(
            self._name,
            tuple(gpu.gpu for gpu in gpus),
            tuple(uid for unit in gone if not unit.reserved for uid in unit.uids),
            tuple(uid for unit in gone if unit.reserved for uid in unit.uids),
            _total(gone),
        )

    def _cover(self, gpu: _GpuProblem, level: int, gone: Collection[_Unit]) -> Sequence[_Unit] | None:
        """Return more units of a priority up to ``level`` that leave enough on the GPU; None where all do not."""
        missing = gpu.missing_after(gone)
        shares = [share for share in gpu.shares if share.unit not in gone and share.unit.loss.priority <= level]
        first = _largest_first(missing, shares)
        if first is None or len(first) == 0:
            return first
        search = _Search(shares, min(self._left, _SEARCHED_PER_GPU), first)
        search.run(missing)
        self._left -= search.looked_at
        self.searched += search.looked_at
        return search.best


def _to_spare(gpus: Sequence[_GpuProblem], gone: Collection[_Unit]) -> list[_Unit]:
    """Return units that need not leave because others, chosen for the sake of another GPU, free enough."""
    missing = {gpu.gpu.uuid: gpu.missing_after(gone) for gpu in gpus}
    shares: dict[_Unit, list[tuple[str, _Share]]] = {}
    for gpu in gpus:
        for share in gpu.shares:
            shares.setdefault(share.unit, []).append((gpu.gpu.uuid, share))
    spared = []
    for unit in sorted(gone, key=lambda each: each.loss, reverse=True):
        back = {uuid: missing[uuid].with_back(share) for uuid, share in shares[unit]}
        if all(each.nothing for each in back.values()):
            missing |= back
            spared.append(unit)
    return spared


def _total(units: Iterable[_Unit]) -> Loss:
    total = NOTHING
    for unit in units:
        total += unit.loss
    return total


def _largest_first(missing: _Missing, shares: Sequence[_Share]) -> list[_Unit] | None:
    """Return units that free enough, the largest first, and none of them in vain; None where all are not enough.

    Pods of other trust groups all have to leave.
    """
    taken: list[_Share] = []
    for share in sorted(shares, key=lambda each: not each.foreign) if missing.foreign > 0 else shares:
        if missing.nothing:
            break
        taken.append(share)
        missing = missing.without(share)
    if not missing.nothing:
        return None
    for share in taken[:-1][::-1]:
        back = missing.with_back(share)
        if back.nothing:
            taken.remove(share)
            missing = back
    return [share.unit for share in taken]


class _Search:
    """Looks for a cheaper cover than ``best``: depth first, larger units first, until ``limit`` sets are looked at.

    Any priority is as good as another here: one of the node's pods with the highest one has to leave anyway.
    """

    def __init__(self, shares: Sequence[_Share], limit: int, best: list[_Unit]) -> None:
        self._shares, self._limit = shares, limit
        self.best, self._loss = best, _total(best)
        self.looked_at = 0

    def run(self, missing: _Missing) -> None:
        """Search; what is found is ``best``."""
        if self._limit > 0:
            self._from(0, missing, NOTHING, ())

    def _from(self, position: int, missing: _Missing, loss: Loss, taken: tuple[_Unit, ...]) -> None:
        self.looked_at += 1
        if missing.nothing:
            if loss[1:] < self._loss[1:]:
                self.best, self._loss = list(taken), loss
            return
        for i in range(position, len(self._shares)):
            if self.looked_at >= self._limit or self._is_hopeless(i, missing, loss):
                return
            share = self._shares[i]
            self._from(i + 1, missing.without(share), loss + share.unit.loss, (*taken, share.unit))

    def _is_hopeless(self, position: int, missing: _Missing, loss: Loss) -> bool:
        """Return whether no units from a position on make a better cover: too little, or too many pods."""
        mib, pods = missing.mib, loss.pods
        for share in self._shares[position:]:
            if mib <= 0:
                break
            mib -= share.mib
            pods += 1 if share.unit.loss.pods else 0
        return mib > 0 or pods > self._loss.pods
