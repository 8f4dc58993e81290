"""Describes the covering problem of a GPU: which pods leave together, what they free and cost."""

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

from gputile.core.devices.gang_membership import GangName
from gputile.core.devices.inventory import Gpu

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
        return Loss(
            max(self.priority, other.priority),
            self.pods + other.pods,
            self.cost + other.cost,
            self.gpu_milliseconds + other.gpu_milliseconds,
        )


NOTHING = Loss()


class EvictionBudget(NamedTuple):
    """What guards a pod: a PodDisruptionBudget, known by ``name``, that ``allows`` so many evictions now."""

    name: Hashable
    allows: int


@dataclass(frozen=True, slots=True, eq=False)
class VictimGroup:
    """Pods that leave together. ``reserved`` is a pod that waits for GPUs that are kept for it.

    A pod of a ``gang`` leaves with all others, or alone: at most ``most`` such groups of one pod leave, and none beside
    the group of the whole gang, whose ``most`` is 0. ``evictions`` says how many of its pods each budget guards.
    """

    uids: tuple[str, ...]
    loss: Loss
    reserved: bool = False
    gang: GangName | None = None
    most: int = 0
    evictions: tuple[tuple[EvictionBudget, int], ...] = ()

    def joins(self, *others: Collection["VictimGroup"]) -> bool:
        """Return whether the group can leave, too, where the others do."""
        if self.gang is not None:
            same = [other for groups in others for other in groups if other.gang == self.gang]
            if same and (len(same) >= self.most or not all(other.most for other in same)):
                return False
        return all(
            count + sum(other.takes_of(budget) for groups in others for other in groups) <= budget.allows
            for budget, count in self.evictions
        )

    def takes_of(self, budget: EvictionBudget) -> int:
        return next((count for each, count in self.evictions if each.name == budget.name), 0)


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
        return self.mib <= 0 and self.percent <= 0 and self.pods <= 0 and self.incompatible <= 0

    def without(self, freed: FreedAmounts) -> "MissingAmounts":
        return MissingAmounts(
            self.mib - freed.mib,
            self.percent - freed.percent,
            self.pods - freed.pods,
            self.incompatible - freed.incompatible,
        )

    def with_back(self, freed: FreedAmounts) -> "MissingAmounts":
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
        """Return the lowest priority up to which pods have to leave the GPU; None where all are not enough.

        Where a gang or a budget lets only so many pods go, it may be a higher one.
        """
        missing, level = self.missing, _NO_PRIORITY
        letting_go = self.letting_go()
        for freed in sorted(self.amounts, key=lambda each: each.group.loss.priority):
            if freed.group.gang in letting_go and not freed.group.most:
                continue  # its pods count one by one
            if missing.nothing:
                break
            missing, level = missing.without(freed), freed.group.loss.priority
        return level if missing.nothing else None

    def letting_go(self) -> frozenset[GangName | None]:
        """Return the gangs with pods on the GPU that may leave alone."""
        return frozenset(freed.group.gang for freed in self.amounts if freed.group.most)

    def is_limited(self) -> bool:
        """Return whether not all that may leave the GPU may leave it together: a gang or a budget lets only some go."""
        return any(freed.group.most or freed.group.evictions for freed in self.amounts)

    def with_whole_gangs(self) -> "GpuCovering":
        return self._replace(amounts=tuple(freed for freed in self.amounts if not freed.group.most))

    def missing_after(self, gone: Collection[VictimGroup]) -> MissingAmounts:
        missing = self.missing
        for freed in self.amounts if gone else ():
            if freed.group in gone:
                missing = missing.without(freed)
        return missing

    def is_limited_by(self, groups: Collection[VictimGroup]) -> bool:
        """Return whether fewer pods may leave the GPU once these groups leave: of the same gang, or budget."""
        gangs = {group.gang for group in groups if group.gang is not None}
        budgets = {budget.name for group in groups for budget, _ in group.evictions}
        if not gangs and not budgets:
            return False
        return any(
            freed.group.gang in gangs or any(budget.name in budgets for budget, _ in freed.group.evictions)
            for freed in self.amounts
        )

    def is_left_by(self, groups: Collection[VictimGroup]) -> bool:
        return any(freed.group in groups for freed in self.amounts)


@dataclass(frozen=True, slots=True)
class Cover:
    """A solution of a node's covering problem: the GPUs that become free enough, and the groups that leave them."""

    gpus: tuple[Gpu, ...]
    groups: tuple[VictimGroup, ...]

    @property
    def loss(self) -> Loss:
        return total_loss(self.groups)

    def uids(self, *, reserved: bool) -> tuple[str, ...]:
        """Return the UIDs of the pods that leave: of those that are bound, or that wait for reserved GPUs."""
        return tuple(uid for group in self.groups if group.reserved == reserved for uid in group.uids)


def total_loss(groups: Iterable[VictimGroup]) -> Loss:
    return reduce(Loss.plus, (group.loss for group in groups), NOTHING)
