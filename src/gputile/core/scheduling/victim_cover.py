"""Finds which pods have to leave the GPUs of one node so that a request fits: a covering problem on each GPU.

Pods that leave together are a group. The groups that leave a GPU have to free what is missing on it. The largest that
are enough are a first answer; a search through sets of groups looks for one that loses less.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from gputile.core.devices.inventory import Gpu

_SEARCHED_PER_GPU = 500  # sets of groups
_BUDGET_ROUNDS = 4
_NO_PRIORITY = -(2**31) - 1  # below all of Kubernetes'


class Loss(NamedTuple):
    """What a set of victims costs; the smaller the better, from the first field on.

    ``gpu_milliseconds`` is the time since they started, times the part of GPUs that they hold.
    """

    priority: int = _NO_PRIORITY
    pods: int = 0
    cost: int = 0
    gpu_milliseconds: int = 0

    def plus(self, other: "Loss") -> "Loss":
        """Return the loss of both."""
        return Loss(
            max(self.priority, other.priority),
            self.pods + other.pods,
            self.cost + other.cost,
            self.gpu_milliseconds + other.gpu_milliseconds,
        )


NOTHING = Loss()


@dataclass(frozen=True, slots=True, eq=False)
class VictimGroup:
    """Pods that leave together. ``reserved`` is a pod that waits for GPUs that are kept for it."""

    uids: tuple[str, ...]
    loss: Loss
    reserved: bool = False


LEAVING = VictimGroup((), NOTHING)  # of pods whose deletion was requested: nobody has to do anything


class FreedAmounts(NamedTuple):
    """What a group frees on one GPU: MiB, percent of compute, pods, and ``incompatible`` ones among them."""

    group: VictimGroup
    mib: int
    percent: int
    pods: int
    incompatible: int


class MissingAmounts(NamedTuple):
    """What a GPU lacks for the request; nothing is lacking where all are 0 or less.

    ``incompatible`` pods all have to leave: the preempting pod may not be on a GPU with them.
    """

    mib: int
    percent: int
    pods: int
    incompatible: int

    @property
    def nothing(self) -> bool:
        """Whether the request fits the GPU."""
        return self.mib <= 0 and self.percent <= 0 and self.pods <= 0 and self.incompatible <= 0

    def without(self, freed: FreedAmounts) -> "MissingAmounts":
        """Return what is lacking once a group has left."""
        return MissingAmounts(
            self.mib - freed.mib,
            self.percent - freed.percent,
            self.pods - freed.pods,
            self.incompatible - freed.incompatible,
        )

    def with_back(self, freed: FreedAmounts) -> "MissingAmounts":
        """Return what is lacking if a group that was to leave stays."""
        return MissingAmounts(
            self.mib + freed.mib,
            self.percent + freed.percent,
            self.pods + freed.pods,
            self.incompatible + freed.incompatible,
        )


class GpuCovering(NamedTuple):
    """The covering problem of a GPU: what it lacks, and what each group that may leave frees on it, largest first."""

    gpu: Gpu
    missing: MissingAmounts
    amounts: tuple[FreedAmounts, ...]

    def level(self) -> int | None:
        """Return the lowest priority up to which pods have to leave the GPU; None where all are not enough."""
        missing, level = self.missing, _NO_PRIORITY
        for freed in sorted(self.amounts, key=lambda each: each.group.loss.priority):
            if missing.nothing:
                break
            missing, level = missing.without(freed), freed.group.loss.priority
        return level if missing.nothing else None

    def missing_after(self, gone: Collection[VictimGroup]) -> MissingAmounts:
        """Return what is lacking once these groups have gone."""
        missing = self.missing
        for freed in self.amounts if gone else ():
            if freed.group in gone:
                missing = missing.without(freed)
        return missing

    def is_left_by(self, groups: Collection[VictimGroup]) -> bool:
        """Return whether a pod of one of these groups is on the GPU."""
        return any(freed.group in groups for freed in self.amounts)


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


class NodeCovering:
    """The covering problem of a node: ``wanted`` of its GPUs have to become free enough.

    ``searched`` counts the sets of groups that were looked at.
    """

    def __init__(self, name: str, wanted: int, gpus: Sequence[GpuCovering]) -> None:
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
        """Return the best choice that violates no PodDisruptionBudget, and how many sets of pods were looked at."""
        node, used = self, 0
        for _ in range(_BUDGET_ROUNDS):
            choice = node.solve(searched - used)
            used += node.searched
            forbidden = frozenset(over_budget(choice.evicted)) if choice is not None else frozenset()
            if not forbidden:
                return choice, used
            node = node._keeping(forbidden)
        return None, used

    def _keeping(self, uids: frozenset[str]) -> "NodeCovering":
        """Return the node as if these pods could not be evicted."""
        gpus = [
            gpu._replace(amounts=tuple(freed for freed in gpu.amounts if uids.isdisjoint(freed.group.uids)))
            for gpu in self._gpus
        ]
        return NodeCovering(self._name, self._wanted, gpus)

    def solve(self, searched: int) -> VictimChoice | None:
        """Return the best choice that a look at ``searched`` sets of pods finds; with 0 the largest pods leave."""
        self._left, self.searched = searched, 0
        if self._level is None:
            return None
        gone: dict[VictimGroup, None] = {}
        chosen: list[int] = []
        covers: dict[int, Sequence[VictimGroup] | None] = {}  # by the GPU's position
        while len(chosen) < self._wanted:
            for i, gpu in enumerate(self._gpus):
                if i not in covers:
                    covers[i] = self._cover(gpu, self._level, gone)
            found = {i: groups for i, groups in covers.items() if groups is not None and i not in chosen}
            if not found:
                return None
            best = min(found, key=lambda i: _total(found[i])[1:])
            chosen.append(best)
            gone |= dict.fromkeys(found[best])
            for i in [i for i, gpu in enumerate(self._gpus) if gpu.is_left_by(found[best])]:
                covers.pop(i, None)
        gpus = [self._gpus[i] for i in chosen]
        for group in _to_spare(gpus, gone) if len(gpus) > 1 else ():
            del gone[group]
        return VictimChoice(
            self._name,
            tuple(gpu.gpu for gpu in gpus),
            tuple(uid for group in gone if not group.reserved for uid in group.uids),
            tuple(uid for group in gone if group.reserved for uid in group.uids),
            _total(gone),
        )

    def _cover(self, gpu: GpuCovering, level: int, gone: Collection[VictimGroup]) -> Sequence[VictimGroup] | None:
        """Return more groups of a priority up to ``level`` that leave enough on the GPU; None where all do not."""
        missing = gpu.missing_after(gone)
        amounts = [freed for freed in gpu.amounts if freed.group not in gone and freed.group.loss.priority <= level]
        first = _largest_first(missing, amounts)
        if first is None or len(first) == 0:
            return first
        search = _Search(amounts, min(self._left, _SEARCHED_PER_GPU), first)
        search.run(missing)
        self._left -= search.looked_at
        self.searched += search.looked_at
        return search.best


def _to_spare(gpus: Sequence[GpuCovering], gone: Collection[VictimGroup]) -> list[VictimGroup]:
    """Return groups that need not leave because others, chosen for the sake of another GPU, free enough."""
    missing = {gpu.gpu.uuid: gpu.missing_after(gone) for gpu in gpus}
    amounts: dict[VictimGroup, list[tuple[str, FreedAmounts]]] = {}
    for gpu in gpus:
        for freed in gpu.amounts:
            amounts.setdefault(freed.group, []).append((gpu.gpu.uuid, freed))
    spared = []
    for group in sorted(gone, key=lambda each: each.loss, reverse=True):
        back = {uuid: missing[uuid].with_back(freed) for uuid, freed in amounts[group]}
        if all(each.nothing for each in back.values()):
            missing |= back
            spared.append(group)
    return spared


def _total(groups: Iterable[VictimGroup]) -> Loss:
    total = NOTHING
    for group in groups:
        total = total.plus(group.loss)
    return total


def _largest_first(missing: MissingAmounts, amounts: Sequence[FreedAmounts]) -> list[VictimGroup] | None:
    """Return groups that free enough, the largest first, and none of them in vain; None where all are not enough.

    Incompatible pods all have to leave.
    """
    taken: list[FreedAmounts] = []
    for freed in sorted(amounts, key=lambda each: not each.incompatible) if missing.incompatible > 0 else amounts:
        if missing.nothing:
            break
        taken.append(freed)
        missing = missing.without(freed)
    if not missing.nothing:
        return None
    for freed in taken[:-1][::-1]:
        back = missing.with_back(freed)
        if back.nothing:
            taken.remove(freed)
            missing = back
    return [freed.group for freed in taken]


class _Search:
    """Looks for a cheaper cover than ``best``: depth first, larger groups first, until ``limit`` sets are looked at.

    Any priority is as good as another here: one of the node's pods with the highest one has to leave anyway.
    """

    def __init__(self, amounts: Sequence[FreedAmounts], limit: int, best: list[VictimGroup]) -> None:
        self._amounts, self._limit = amounts, limit
        self.best, self._loss = best, _total(best)
        self.looked_at = 0

    def run(self, missing: MissingAmounts) -> None:
        """Search; what is found is ``best``."""
        if self._limit > 0:
            self._from(0, missing, NOTHING, ())

    def _from(self, position: int, missing: MissingAmounts, loss: Loss, taken: tuple[VictimGroup, ...]) -> None:
        self.looked_at += 1
        if missing.nothing:
            if loss[1:] < self._loss[1:]:
                self.best, self._loss = list(taken), loss
            return
        for i in range(position, len(self._amounts)):
            if self.looked_at >= self._limit or self._is_hopeless(i, missing, loss):
                return
            freed = self._amounts[i]
            self._from(i + 1, missing.without(freed), loss.plus(freed.group.loss), (*taken, freed.group))

    def _is_hopeless(self, position: int, missing: MissingAmounts, loss: Loss) -> bool:
        """Return whether no groups from a position on make a better cover: too little, or too many pods."""
        mib, pods = missing.mib, loss.pods
        for freed in self._amounts[position:]:
            if mib <= 0:
                break
            mib -= freed.mib
            pods += 1 if freed.group.loss.pods else 0
        return mib > 0 or pods > self._loss.pods
