"""Computes an upper bound of how many pods of a gang could have a place at once.

Pods of one shape on the same nodes take part in one sum, whatever else tells them apart, and all pods in the sums of
GPUs, MiB, percent of compute and places on GPUs, and of what kube-scheduler counts. Of pods that ask for some size of a
GPU or more, each GPU takes only so many as its free memory has that size. Rules about other pods are left out: a place
that they close now may open as pods of the gang are placed.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from gputile.core.devices.request import RequestKind, Shape
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_arrays import NodeArrays
from gputile.core.ledger.node_info import UNLIMITED_PODS, ServingMode
from gputile.core.placement import vectorized
from gputile.core.scheduling.gang_kinds import GangCandidate

Bool = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]

_MOST_GROUPS = 64  # further ones are counted as if they asked for no more than the smallest of them, on any node
_MOST_SIZES = 16


@dataclass(slots=True)
class _AlikePods:
    """Pods of one spec. ``open`` are the rows of the nodes that one of them could go to.

    ``capacity_bound`` is how many could be placed at most.
    """

    shape: Shape | None
    needs: Mapping[str, int]
    count: int
    open: Bool
    capacity_bound: int = 0
    names: list[str] = field(default_factory=list)


def most_placed(
    specs: Sequence[tuple[GangCandidate, int]],
    ledger: Ledger,
    predicates: Predicates,
    enough: int,
    closed: Collection[str] = (),
) -> int:
    """Return an upper bound of how many pods could have a place at once on nodes that are not ``closed``.

    Where the bound is ``enough`` or more, any number from ``enough`` on may be returned.

    ``specs`` has a pod of each spec, and how many there are of it.
    """
    groups = _merged(specs[_MOST_GROUPS:], ledger.node_arrays.rows)
    for candidate, count in specs[:_MOST_GROUPS]:
        groups.append(_group(candidate, count, ledger, predicates, closed))
    most = sum(min(group.count, group.capacity_bound) for group in groups)
    for nodes in {group.open.tobytes(): group.open for group in groups}.values():
        if most < enough:
            break
        inside = [group for group in groups if not (group.open & ~nodes).any()]
        outside = sum(min(group.count, group.capacity_bound) for group in groups) - sum(
            min(g.count, g.capacity_bound) for g in inside
        )
        together = _together(inside, nodes, ledger, predicates)
        most = min(most, outside + together)
    return most


def _merged(specs: Sequence[tuple[GangCandidate, int]], rows: int) -> list[_AlikePods]:
    """Return groups of the pods of several specs that ask for as many GPUs each, as if all were the smallest one."""
    found: dict[tuple[RequestKind, bool, int] | None, _AlikePods] = {}
    for candidate, count in specs:
        shape = candidate.request.shape if candidate.request is not None else None
        key = (shape.kind, bool(shape.percent), shape.gpus) if shape is not None else None
        group = found.setdefault(key, _AlikePods(shape, {}, 0, np.ones(rows, np.bool_)))
        if shape is not None and group.shape is not None:
            mib, percent = min(shape.mib, group.shape.mib), min(shape.percent, group.shape.percent)
            group.shape = replace(group.shape, mib=mib, percent=percent)
        group.count += count
        group.capacity_bound += count
    return list(found.values())


def _group(
    candidate: GangCandidate, count: int, ledger: Ledger, predicates: Predicates, closed: Collection[str]
) -> _AlikePods:
    arrays, request = ledger.node_arrays, candidate.request
    names = [name for name in predicates.open_alone(candidate.pod) if name in ledger.row_of and name not in closed]
    rows = np.fromiter((ledger.row_of[name] for name in names), np.intp, len(names))
    parts = np.full(len(names), count, np.int64)
    if request is not None:
        group = ledger.group_number(request.shape.trust_group)
        parts = np.minimum(parts, vectorized.capacity_bound(arrays, request.shape, group, rows))
    is_open = np.zeros(arrays.rows, np.bool_)
    is_open[rows[parts > 0]] = True
    shape = request.shape if request is not None else None
    found = _AlikePods(shape, predicates.needs(candidate.pod), count, is_open)
    for name, gpus in zip(names, parts.tolist(), strict=True):
        if gpus > 0:
            found.names.append(name)
            found.capacity_bound += min(gpus, predicates.capacity_bound(candidate.pod, name))
    return found


def _together(groups: Sequence[_AlikePods], nodes: Bool, ledger: Ledger, predicates: Predicates) -> int:
    """Return how many pods of ``groups``, which all have to go to ``nodes``, could have a place at once, at most."""
    total = 0
    families: dict[tuple[RequestKind, bool] | None, list[_AlikePods]] = {}
    for group in groups:
        shape = group.shape
        families.setdefault((shape.kind, bool(shape.percent)) if shape is not None else None, []).append(group)
    for family, members in families.items():
        capacity_bound = sum(min(group.count, group.capacity_bound) for group in members)
        if family is not None:
            capacity_bound = min(capacity_bound, _on_gpus(members, nodes, ledger.node_arrays))
            # the smallest size in MiB that they ask of a GPU, and some others
            sizes = sorted({group.shape.mib for group in members if group.shape is not None and group.shape.mib})
            for mib in sizes[:: -(-len(sizes) // _MOST_SIZES) or 1]:
                capacity_bound = min(capacity_bound, _of_size(mib, members, nodes, ledger.node_arrays))
        total += capacity_bound
    names = set().union(*(group.names for group in groups))
    spare: dict[str, int] = {}
    for name in names:
        for resource, amount in predicates.spare(name).items():
            spare[resource] = spare.get(resource, 0) + amount
    for resource in {resource for group in groups for resource in group.needs}:
        total = min(total, _fill(spare.get(resource, 0), ((g.needs.get(resource, 0), g) for g in groups)))
    return total


def _on_gpus(groups: Sequence[_AlikePods], nodes: Bool, arrays: NodeArrays) -> int:
    """Return how many pods of one family the GPUs of ``nodes`` take together, at most."""
    shapes = [(group.shape, group) for group in groups if group.shape is not None]
    first = shapes[0][0]
    serving = nodes & vectorized.serving(arrays, first)
    usable = arrays.usable & serving[:, None]
    if first.kind is not RequestKind.SHARED:
        if (nodes & np.isin(arrays.serving_mode, (ServingMode.OTHER_PLUGIN, ServingMode.SLICED))).any():
            return sum(group.count for group in groups)
        free = int((usable & (arrays.pods == 0)).sum())
        return _fill(free, ((shape.gpus, group) for shape, group in shapes))
    mib = np.where(usable, np.maximum(arrays.total - arrays.used, 0), 0).sum()
    percent = np.where(usable, np.maximum(100 - arrays.percent, 0), 0).sum()
    pods = np.where(usable, _pods_left(arrays), 0).sum()
    return min(
        _fill(int(mib), ((shape.mib * shape.gpus, group) for shape, group in shapes)),
        _fill(int(percent), ((shape.percent * shape.gpus, group) for shape, group in shapes)),
        _fill(int(pods), ((shape.gpus, group) for shape, group in shapes)),
    )


def _pods_left(arrays: NodeArrays) -> Int64:
    most: Int64 = arrays.max_pods_per_gpu[:, None].astype(np.int64)
    left: Int64 = np.clip(most - arrays.pods, 0, UNLIMITED_PODS)
    return left


def _of_size(mib: int, groups: Sequence[_AlikePods], nodes: Bool, arrays: NodeArrays) -> int:
    """Return how many pods of one family could have a place at once if all that ask for less than ``mib`` had one."""
    shapes = [(group.shape, group) for group in groups if group.shape is not None]
    usable = arrays.usable & (nodes & vectorized.serving(arrays, shapes[0][0]))[:, None]
    places = np.minimum(np.maximum(arrays.total - arrays.used, 0) // mib, _pods_left(arrays))
    smaller = sum(min(group.count, group.capacity_bound) for shape, group in shapes if shape.mib < mib)
    large = ((shape.gpus, group) for shape, group in shapes if shape.mib >= mib)
    return smaller + _fill(int(np.where(usable, places, 0).sum()), large)


def _fill(capacity: int, weights: Iterable[tuple[int, _AlikePods]]) -> int:
    """Return how many pods find room in ``capacity`` if the smallest go first."""
    total = 0
    for weight, group in sorted(weights, key=lambda pair: pair[0]):
        count = min(group.count, group.capacity_bound)
        taken = min(count, capacity // weight) if weight else count
        total, capacity = total + taken, capacity - taken * weight
    return total
