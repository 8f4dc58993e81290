"""Finds which pods must leave a node's GPUs so that a request fits: a covering problem on each GPU.

Pods that leave together are a group. The groups that leave a GPU have to free what is missing on it. The largest that
are enough are a first answer; a search through sets of groups looks for one that loses less.
"""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import combinations

from gputile.core.scheduling.victim_groups import (
    NOTHING,
    Cover,
    EvictionBudget,
    FreedAmounts,
    GpuCovering,
    Loss,
    MissingAmounts,
    VictimGroup,
    total_loss,
)

_SEARCHED_PER_GPU = 500  # sets of groups
_SEARCHED_JOINTLY = 500


class NodeCovering:
    """The covering problem of a node: ``wanted`` of its GPUs have to become free enough.

    ``searched`` counts the sets of groups that were looked at.
    """

    def __init__(self, wanted: int, gpus: Sequence[GpuCovering]) -> None:
        self._wanted, self._gpus = wanted, gpus
        self._left = self.searched = 0
        self._open = False  # whether a search could find more than the last ``solve``
        self._forced: Cover | None = None  # the only cover that a search could find

    @cached_property
    def _level(self) -> int | None:
        """The lowest priority up to which pods have to leave, None where all are not enough."""
        levels = sorted(level for gpu in self._gpus if (level := gpu.level()) is not None)
        return levels[self._wanted - 1] if len(levels) >= self._wanted else None

    def best(self, searched: int) -> Cover | None:
        """Return what ``solve`` does, without solving again where no search can find anything else."""
        if self._forced is None:
            return self.solve(searched)
        self.searched = 0
        return self._forced

    def solve(self, searched: int) -> Cover | None:
        """Return the best cover that a look at ``searched`` sets of pods finds; with 0 the largest pods leave."""
        self._left, self.searched, self._open = searched, 0, False
        cover = next((cover for cover in self._covers() if cover is not None), None)
        self._forced = None if self._open else cover
        return cover

    def _covers(self) -> Iterable[Cover | None]:
        """Yield what is found up to one priority after the other, from the lowest that could be enough.

        Only where gangs or budgets let some of their pods go it may not be enough.
        """
        if self._level is None:
            return
        yield self._up_to(self._level, self._gpus)
        if not any(gpu.is_limited() for gpu in self._gpus) or not self._within_budgets():
            return
        whole = [gpu.with_whole_gangs() for gpu in self._gpus]
        priorities = {freed.group.loss.priority for gpu in self._gpus for freed in gpu.amounts}
        for level in (self._level, *sorted(each for each in priorities if each > self._level)):
            if level > self._level:
                yield self._up_to(level, self._gpus)
            yield self._up_to(level, whole)
            yield self._jointly(level)

    def _within_budgets(self) -> bool:
        """Return whether the budgets could let enough pods go: whether all GPUs together need no more of them."""
        on_gpus = Counter(freed.group for gpu in self._gpus for freed in gpu.amounts)
        allowed = {budget for group in on_gpus for budget, _ in group.evictions}
        needed = sorted(need for gpu in self._gpus if (need := _evictions_needed(gpu, on_gpus)) is not None)
        if len(needed) < self._wanted:
            return False
        return sum(needed[: self._wanted]) <= sum(budget.allows for budget in allowed)

    def _jointly(self, level: int) -> Cover | None:
        """Return some cover, of all GPUs at once: where GPU after GPU one takes the pods that another one needs."""
        left = _SEARCHED_JOINTLY
        for gpus in combinations(self._gpus, self._wanted) if self._wanted > 1 else ():
            search = _JointSearch(gpus, level, left)
            gone = search.look([], search.missing)
            left -= search.looked_at
            if gone is not None:
                for group in _to_spare(gpus, gone):
                    gone.remove(group)
                return Cover(tuple(gpu.gpu for gpu in gpus), tuple(gone))
            if left <= 0:
                break
        return None

    def _up_to(self, level: int, gpus: Sequence[GpuCovering]) -> Cover | None:
        """Return the best cover with groups of a priority up to ``level``, GPU after GPU."""
        gone: dict[VictimGroup, None] = {}
        chosen: list[int] = []
        left = dict(enumerate(gpus))
        covers: dict[int, tuple[tuple[int, ...], Sequence[VictimGroup]]] = {}  # by the GPU's position
        new = set(left)  # the GPUs whose cover is not known
        while len(chosen) < self._wanted:
            for i in sorted(new):
                groups = self._cover(left[i], level, gone)
                if groups is not None:
                    covers[i] = total_loss(groups)[1:], groups
            if not covers:
                return None
            best = min(covers, key=lambda i: covers[i][0])
            _, groups = covers.pop(best)
            chosen.append(best)
            del left[best]
            gone |= dict.fromkeys(groups)
            new = {i for i, gpu in left.items() if gpu.is_left_by(groups) or gpu.is_limited_by(groups)}
            for i in new:
                covers.pop(i, None)
        of_cover = [gpus[i] for i in chosen]
        for group in _to_spare(of_cover, gone) if len(of_cover) > 1 else ():
            del gone[group]
        if len(of_cover) > 1:
            of_cover = _exchanged(of_cover, left.values(), gone)
        return Cover(tuple(gpu.gpu for gpu in of_cover), tuple(gone))

    def _cover(self, gpu: GpuCovering, level: int, gone: Collection[VictimGroup]) -> Sequence[VictimGroup] | None:
        """Return more groups of a priority up to ``level`` that leave enough on the GPU; None where all do not."""
        missing = gpu.missing_after(gone)
        amounts = [
            freed
            for freed in gpu.amounts
            if freed.group not in gone and freed.group.loss.priority <= level and freed.group.joins(gone)
        ]
        first = _largest_first(missing, amounts, gone)
        if first is None and not (gpu.is_limited() and _could_be_enough(missing, amounts, gone)):
            return None
        if first is not None and len(first) in (0, len(amounts)):  # where all have to leave there is nothing to search
            return first
        self._open = True
        limit = _SEARCHED_PER_GPU if first is None else min(self._left, _SEARCHED_PER_GPU)
        search = _CoverSearch(amounts, limit, first, gone)
        if limit > 0:
            search.look(0, missing, NOTHING, ())
        self._left -= search.looked_at
        self.searched += search.looked_at
        return search.best


def _exchanged(
    chosen: Sequence[GpuCovering], others: Iterable[GpuCovering], gone: dict[VictimGroup, None]
) -> list[GpuCovering]:
    """Return the GPUs to take: one of the others instead of a chosen one, where ``gone`` frees it and fewer can leave.

    Those that need not leave then are taken out of ``gone``.
    """
    found = list(chosen)
    for gpu in others:
        if not gpu.missing_after(gone).nothing:
            continue
        for i in range(len(found)):
            instead = [*found[:i], gpu, *found[i + 1 :]]
            spared = _to_spare(instead, gone)
            if spared:
                found = instead
                for group in spared:
                    del gone[group]
                break
    return found


def _to_spare(gpus: Sequence[GpuCovering], gone: Collection[VictimGroup]) -> list[VictimGroup]:
    """Return groups that need not leave because others, chosen for the sake of another GPU, free enough."""
    missing = {gpu.gpu.uuid: gpu.missing_after(gone) for gpu in gpus}
    amounts: dict[VictimGroup, list[tuple[str, FreedAmounts]]] = {}
    for gpu in gpus:
        for freed in gpu.amounts:
            amounts.setdefault(freed.group, []).append((gpu.gpu.uuid, freed))
    spared = []
    for group in sorted(gone, key=lambda each: each.loss, reverse=True):
        on_gpus = amounts.get(group, ())
        with_it = {uuid: missing[uuid].with_back(freed) for uuid, freed in on_gpus}
        if all(each.nothing for each in with_it.values()):
            missing |= with_it
            spared.append(group)
    return spared


def _largest_first(
    missing: MissingAmounts, amounts: Sequence[FreedAmounts], gone: Collection[VictimGroup]
) -> list[VictimGroup] | None:
    """Return groups that free enough, the largest first, and none of them in vain; None where all are not enough.

    Incompatible pods all have to leave. Single pods of gangs go before whole gangs; where they are not enough, after.
    """
    order = sorted(amounts, key=lambda each: not each.incompatible) if missing.incompatible > 0 else amounts
    letting_go = {freed.group.gang for freed in amounts if freed.group.most}
    if not letting_go:
        return _in_turn(missing, order, gone)
    alone = sorted(order, key=lambda each: each.group.gang in letting_go and not each.group.most)
    whole = sorted(order, key=lambda each: each.group.most > 0)
    found = _in_turn(missing, alone, gone)
    return found if found is not None else _in_turn(missing, whole, gone)


def _in_turn(
    missing: MissingAmounts, amounts: Iterable[FreedAmounts], gone: Collection[VictimGroup]
) -> list[VictimGroup] | None:
    """Return groups that free enough, the first ones that can leave, and none of them in vain; None for not enough."""
    taken: dict[VictimGroup, FreedAmounts] = {}
    for freed in amounts:
        if missing.nothing:
            break
        if freed.group.joins(gone, taken):
            taken[freed.group] = freed
            missing = missing.without(freed)
    if not missing.nothing:
        return None
    for freed in list(taken.values())[:-1][::-1]:
        with_it = missing.with_back(freed)
        if with_it.nothing:
            del taken[freed.group]
            missing = with_it
    return list(taken)


def _could_be_enough(missing: MissingAmounts, amounts: Sequence[FreedAmounts], gone: Collection[VictimGroup]) -> bool:
    """Return whether each amount for itself could become enough within the budgets of single pods."""
    free: list[FreedAmounts] = []
    guarded: dict[EvictionBudget, list[FreedAmounts]] = {}
    for freed in amounts:
        if freed.group.gang is None and len(freed.group.evictions) == 1:
            guarded.setdefault(freed.group.evictions[0][0], []).append(freed)
        else:
            free.append(freed)
    left = {budget: budget.allows - sum(group.takes_of(budget) for group in gone) for budget in guarded}

    def most(amount: Callable[[FreedAmounts], int]) -> int:
        return sum(map(amount, free)) + sum(
            sum(sorted(map(amount, groups), reverse=True)[: left[budget]]) for budget, groups in guarded.items()
        )

    return (
        most(lambda freed: freed.mib) >= missing.mib
        and most(lambda freed: freed.percent) >= missing.percent
        and most(lambda freed: freed.pods) >= missing.pods
        and most(lambda freed: freed.incompatible) >= missing.incompatible
    )


def _evictions_needed(gpu: GpuCovering, on_gpus: Mapping[VictimGroup, int]) -> int | None:
    """Return how many evictions that budgets count the GPU needs at least; None where all that may leave is too little.

    ``on_gpus`` tells on how many GPUs each group is. Groups on several, and gangs, are taken to leave for nothing.
    """
    missing, guarded = gpu.missing, list[FreedAmounts]()
    for freed in gpu.amounts:
        if freed.group.gang is None and freed.group.evictions and on_gpus[freed.group] == 1:
            guarded.append(freed)
        else:
            missing = missing.without(freed)
    needed = 0
    for lacking, amounts in (
        (missing.mib, [freed.mib for freed in guarded]),
        (missing.percent, [freed.percent for freed in guarded]),
        (missing.pods, [freed.pods for freed in guarded]),
        (missing.incompatible, [freed.incompatible for freed in guarded]),
    ):
        left, count = lacking, 0
        for amount in sorted(amounts, reverse=True):
            if left <= 0:
                break
            left, count = left - amount, count + 1
        if left > 0:
            return None
        needed = max(needed, count)
    return needed


class _JointSearch:
    """Looks for groups that leave all of some GPUs: depth first, until ``limit`` sets are looked at."""

    def __init__(self, gpus: Sequence[GpuCovering], level: int, limit: int) -> None:
        self._amounts = [[freed for freed in gpu.amounts if freed.group.loss.priority <= level] for gpu in gpus]
        self._of_group: dict[VictimGroup, list[tuple[int, FreedAmounts]]] = {}
        for position, amounts in enumerate(self._amounts):
            for freed in amounts:
                self._of_group.setdefault(freed.group, []).append((position, freed))
        self.missing, self._limit = [gpu.missing for gpu in gpus], limit
        self.looked_at = 0

    def look(self, taken: list[VictimGroup], missing: list[MissingAmounts]) -> list[VictimGroup] | None:
        """Return groups with those ``taken``, after which the GPUs lack what is ``missing``."""
        self.looked_at += 1
        position = next((position for position, each in enumerate(missing) if not each.nothing), None)
        if position is None:
            return taken
        for freed in self._amounts[position]:
            if self.looked_at >= self._limit:
                return None
            if freed.group in taken or not freed.group.joins(taken):
                continue
            left = list(missing)
            for at, each in self._of_group[freed.group]:
                left[at] = left[at].without(each)
            found = self.look([*taken, freed.group], left)
            if found is not None:
                return found
        return None


class _CoverSearch:
    """Looks for a cheaper cover than ``best``, or for any: depth first, larger groups first.

    It ends when ``limit`` sets are looked at.

    Any priority is as good as another here: one of the node's pods with the highest one has to leave anyway.
    """

    def __init__(
        self,
        amounts: Sequence[FreedAmounts],
        limit: int,
        best: list[VictimGroup] | None,
        gone: Collection[VictimGroup],
    ) -> None:
        self._amounts, self._limit, self._gone = amounts, limit, gone
        self.best = best
        self._loss = total_loss(best) if best is not None else Loss(pods=sys.maxsize)
        self.looked_at = 0

    def look(self, position: int, missing: MissingAmounts, loss: Loss, taken: tuple[VictimGroup, ...]) -> None:
        """Look at the groups from a position on, with those ``taken``; what is found is ``best``."""
        self.looked_at += 1
        if missing.nothing:
            if loss[1:] < self._loss[1:]:
                self.best, self._loss = list(taken), loss
            return
        for i in range(position, len(self._amounts)):
            freed = self._amounts[i]
            if not freed.group.joins(self._gone, taken):
                continue
            if self.looked_at >= self._limit or self._is_hopeless(i, missing, loss):
                return
            self.look(i + 1, missing.without(freed), loss.plus(freed.group.loss), (*taken, freed.group))

    def _is_hopeless(self, position: int, missing: MissingAmounts, loss: Loss) -> bool:
        """Return whether no groups from a position on make a better cover: too little, or too many pods."""
        mib, pods = missing.mib, loss.pods
        for freed in self._amounts[position:]:
            if mib <= 0:
                break
            mib -= freed.mib
            pods += 1 if freed.group.loss.pods else 0
        return mib > 0 or pods > self._loss.pods
