"""Chooses the pods that leave a node so that enough of its GPUs become free for a pod.

kube-scheduler counts what is free on the whole node. So it finds no victims if a node has enough in
total, but no single GPU has enough. Here victims are chosen GPU by GPU. The pods that free the most
of what is missing come first, and among equals the cheapest pods. Finally, victims that are not
needed are spared.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gputile.core.devices.inventory import Gpu
from gputile.core.devices.request import Request, RequestKind
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.node_info import GpuState, NodeState
from gputile.core.placement.fit import is_of_model
from gputile.core.scheduling.eviction_rules import NO_LOSS, EvictionBudget, Loss, total_loss


@dataclass(frozen=True, slots=True)
class VictimChoice:
    """GPUs of a node, and the UIDs of the pods that lose these GPUs.

    ``evicted`` are bound pods. ``withdrawn`` are pending pods, which lose only their reservations.
    """

    node: str
    gpus: tuple[Gpu, ...]
    evicted: tuple[str, ...]
    withdrawn: tuple[str, ...]
    loss: Loss = NO_LOSS


@dataclass(frozen=True, slots=True, eq=False)
class VictimGroup:
    """Pods that leave together: one pod, or a whole gang.

    ``reserved`` states that the group is a pending pod, which loses its reservation. ``evictions``
    has each budget with the number of the group's pods that the budget guards. If a gang has more
    running pods than its size, the gang itself is a budget: it limits how many pods leave without
    the others.
    """

    uids: tuple[str, ...]
    loss: Loss
    reserved: bool = False
    evictions: tuple[tuple[EvictionBudget, int], ...] = ()


# The group of pods that need no eviction: pods being deleted, and the preemptor itself
LEAVING = VictimGroup((), NO_LOSS)


class GpuAmounts(NamedTuple):
    """What a group of pods frees on a GPU, or what the GPU lacks for the request.

    The GPU lacks nothing if no amount is above 0. ``incompatible`` counts the pods that may not
    share the GPU with the preemptor and therefore all have to leave.
    """

    mib: int = 0
    percent: int = 0
    pods: int = 0
    incompatible: int = 0

    @property
    def is_nothing(self) -> bool:
        return self.mib <= 0 and self.percent <= 0 and self.pods <= 0 and self.incompatible <= 0

    def without(self, freed: "GpuAmounts") -> "GpuAmounts":
        return GpuAmounts(*(mine - other for mine, other in zip(self, freed, strict=True)))

    def plus(self, freed: "GpuAmounts") -> "GpuAmounts":
        return GpuAmounts(*(mine + other for mine, other in zip(self, freed, strict=True)))

    def fraction_in(self, freed: "GpuAmounts") -> float:
        """Return the sum, over all missing amounts, of the fraction that ``freed`` covers.

        A fraction is at most 1.
        """
        return sum(
            min(other, mine) / mine for mine, other in zip(self, freed, strict=True) if mine > 0
        )


class _Departures:
    """The groups chosen to leave a node, with the number of evictions of each budget."""

    def __init__(self) -> None:
        self.groups: dict[VictimGroup, None] = {}
        self._evictions: Counter[Hashable] = Counter()  # evictions, by the name of the budget

    def allows(self, group: VictimGroup) -> bool:
        """Return whether the budgets allow the group to leave in addition to the chosen groups."""
        return all(
            self._evictions[budget.name] + count <= budget.allows
            for budget, count in group.evictions
        )

    def add(self, group: VictimGroup) -> None:
        self.groups[group] = None
        for budget, count in group.evictions:
            self._evictions[budget.name] += count

    def remove(self, group: VictimGroup) -> None:
        del self.groups[group]
        for budget, count in group.evictions:
            self._evictions[budget.name] -= count


@dataclass(slots=True, eq=False)
class _LeavingGpu:
    """A GPU, what the GPU lacks for the request, and what each group frees there by leaving."""

    gpu: Gpu
    missing: GpuAmounts
    freed: dict[VictimGroup, GpuAmounts]

    def missing_after(self, gone: Collection[VictimGroup]) -> GpuAmounts:
        missing = self.missing
        for group in gone:
            if (freed := self.freed.get(group)) is not None:
                missing = missing.without(freed)
        return missing


def freeable_gpus(
    state: NodeState,
    request: Request,
    bookings: Iterable[Booking],
    groups: Mapping[str, VictimGroup | None],
    only_gpus: Collection[str],
) -> list[_LeavingGpu]:
    """Return the GPUs that evictions can free for the request.

    If ``only_gpus`` is not empty, only the GPUs with these UUIDs are considered.
    """
    on_gpu: dict[str, list[Booking]] = {}
    for booking in bookings:
        for uuid in dict.fromkeys(share.uuid for share in booking.gpus):
            on_gpu.setdefault(uuid, []).append(booking)
    containers = request.shape.containers if state.info.sliced else ()
    # Containers with one GPU each may have time slices of the same GPU.
    slices = len(containers) if containers and all(each.gpus == 1 for each in containers) else 1
    found = (
        _gpu(state, each, request, on_gpu.get(each.gpu.uuid, ()), groups, nth)
        for nth in range(1, slices + 1)
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
    nth: int,
) -> _LeavingGpu | None:
    """Return what a GPU lacks and which groups may leave, or None if it cannot be freed.

    The GPU must have room for ``nth`` time slices, which is 1 without time-slicing.
    """
    shape, info = request.shape, state.info
    if shape.mib > gpu.total or not is_of_model(gpu, shape):
        return None
    alone = shape.kind is not RequestKind.SHARED and not info.sliced
    freed: dict[VictimGroup, GpuAmounts] = {}
    incompatible_pods = 0
    for booking in bookings:
        shares = [each for each in booking.gpus if each.uuid == gpu.gpu.uuid]
        mib, percent = booking.amounts(shares[0], gpu.total, info.replicas)
        incompatible = int(alone or (info.grouped and booking.trust_group != shape.trust_group))
        incompatible_pods += incompatible
        group = groups[booking.uid]
        if group is None and incompatible:
            return None
        if group is not None:
            freed[group] = freed.get(group, GpuAmounts()).plus(
                GpuAmounts(mib, percent, len(shares), incompatible)
            )
    missing = GpuAmounts(
        mib=gpu.used + shape.mib - gpu.total if shape.kind is RequestKind.SHARED else 0,
        percent=gpu.percent + shape.percent - 100 if shape.percent else 0,
        pods=0 if alone else gpu.pods + nth - info.max_pods_per_gpu,
        incompatible=incompatible_pods,
    )
    return _LeavingGpu(gpu.gpu, missing.without(freed.pop(LEAVING, GpuAmounts())), freed)


def cheapest_choice(
    node: str, gpus: Sequence[_LeavingGpu], wanted: int, level: int
) -> VictimChoice | None:
    """Choose the cheapest victims of priority up to ``level`` that free ``wanted`` GPUs."""
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
    """Remove groups that need not leave for ``wanted`` free GPUs. Return the free GPUs.

    The most expensive groups are spared first.
    """
    missing = {gpu: gpu.missing_after(gone.groups) for gpu in gpus}
    for group in sorted(gone.groups, key=lambda each: each.loss, reverse=True):
        stays = {gpu: missing[gpu].plus(gpu.freed[group]) for gpu in gpus if group in gpu.freed}
        if sum(amounts.is_nothing for amounts in (missing | stays).values()) >= wanted:
            missing |= stays
            gone.remove(group)
    return [gpu for gpu, amounts in missing.items() if amounts.is_nothing]


def _victims_on(gpu: _LeavingGpu, level: int, gone: _Departures) -> list[VictimGroup] | None:
    """Return additional victims, with priorities up to ``level``, that free enough of the GPU.

    Return None if there are none.
    """
    missing = gpu.missing_after(gone.groups)
    freed = {
        group: amounts
        for group, amounts in gpu.freed.items()
        if group.loss.priority <= level and group not in gone.groups
    }

    def order(group: VictimGroup) -> tuple[object, ...]:
        first = missing.incompatible > 0 and freed[group].incompatible > 0
        part = missing.fraction_in(freed[group]) / max(group.loss.pods, 0.5)
        return not first, -part, group.loss[1:], group.uids

    chosen: list[VictimGroup] = []
    for group in sorted(freed, key=order):
        if missing.is_nothing:
            break
        if gone.allows(group):
            gone.add(group)
            chosen.append(group)
            missing = missing.without(freed[group])
    for group in chosen:
        gone.remove(group)
    return chosen if missing.is_nothing else None
