"""Scores many nodes under the packing policy at once, on the ledger's arrays.

``scoring`` and ``prices`` say what a placement costs. This module converts the ledger's arrays into their unit,
thousandths of a GPU, and their costs into integers that compare nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gputile.core.devices.request import RequestKind, Shape
from gputile.core.kube_predicates.pod_requests import HostResources
from gputile.core.ledger.changes import Rows
from gputile.core.ledger.node_arrays import NodeArrays
from gputile.core.ledger.node_info import ServingMode
from gputile.core.placement import vectorized
from gputile.core.placement.packing.prices import WHOLE_GPU, Prices
from gputile.core.placement.packing.scoring import (
    PodDemand,
    ScoringContext,
    allowed,
    score,
    scoring_context,
    thousandths,
    usable_cpu,
)

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

STEPS_PER_GPU = 2500
"""Scores are integers: what differs by less than a 2500th of a GPU is equal."""
_WIDEST = 4.0  # GPUs by which the costs of two placements may differ and still be told apart
# By ``ServingMode``: which nodes give whole GPUs, and which give anything.
_WHOLE = np.array([serving_mode in (ServingMode.WHOLE, ServingMode.TOPOLOGY) for serving_mode in ServingMode])
_GIVES = np.array([serving_mode.blocks and serving_mode is not ServingMode.BLOCKED for serving_mode in ServingMode])


@dataclass(frozen=True, slots=True)
class PackingState:
    """Prices, and the cluster as it stood. ``hosts``: which rows have a model for each scarce need [needs, rows]."""

    context: ScoringContext
    hosts: Bool

    @property
    def value(self) -> Float64:
        """What a remnant is worth, in GPUs, by its thousandths: shape [1001]."""
        return self.context.prices.value


def build(arrays: NodeArrays, prices: Prices, models: Sequence[str], cpu: int) -> PackingState:
    """Look at the cluster with ``prices``.

    ``models`` is the GPU model of each row, "" where there is none or its GPUs differ; ``cpu`` is all the milli-CPU
    of the nodes with GPUs.
    """
    rows = np.flatnonzero((arrays.total > 0).any(axis=1))
    context = scoring_context(
        prices,
        np.maximum(arrays.cpu[rows], 0),
        remnants(arrays, rows),
        tuple(models[row] for row in rows.tolist()),
        (float(cpu), float((arrays.total > 0).sum())),
    )
    hosts = np.zeros((len(context.needs), arrays.rows), np.bool_)
    for i, (need, _) in enumerate(context.needs):
        hosts[i, : len(models)] = allowed(need.models, tuple(models))
    return PackingState(context, hosts)


def remnants(arrays: NodeArrays, rows: Rows) -> Int64:
    """Return what is left of each GPU, in thousandths: shape [rows, GPUs]. 0 where nothing is given away."""
    serving_mode, total = arrays.serving_mode[rows], arrays.total[rows].astype(np.int64)
    left = (total - arrays.used[rows]) * WHOLE_GPU // np.maximum(total, 1)
    isolated = serving_mode == ServingMode.MEMORY_AND_CORE
    if isolated.any():
        compute = (100 - arrays.percent[rows].astype(np.int64)) * (WHOLE_GPU // 100)
        left = np.where(isolated[:, None], np.minimum(left, compute), left)
    left *= arrays.pods[rows] < arrays.max_pods_per_gpu[rows, None]
    whole = _WHOLE[serving_mode]
    if whole.any():
        left = np.where(whole[:, None], (arrays.pods[rows] == 0) * WHOLE_GPU, left)
    left *= _GIVES[serving_mode][:, None] & arrays.usable[rows]
    result: Int64 = np.maximum(left, 0)
    return result


def scores(
    arrays: NodeArrays,
    shape: Shape,
    host: HostResources,
    group: int,
    rows: vectorized.Which,
    packing_state: PackingState,
) -> Int64:
    """Return for each of ``rows`` its score, higher is better, or -1 where the request does not fit: shape [rows].

    ``host`` is what the pod asks for beside GPUs.
    """
    fit, gpus = vectorized.ready(arrays, shape, group, rows)
    result = np.full(len(fit), vectorized.UNFIT, np.int64)
    if shape.kind is RequestKind.WHOLE:
        result[
            (arrays.serving_mode[rows] == ServingMode.OTHER_PLUGIN) | vectorized.sliced(arrays, shape, group, rows)
        ] = 0
    part = np.flatnonzero(fit)
    if not len(part):
        return result
    lines = vectorized.positions(rows, part)
    free, ready = remnants(arrays, lines), gpus[part]
    if shape.kind is RequestKind.SHARED:
        taken = thousandths(shape.mib, shape.percent, arrays.total[lines].astype(np.int64))
        ready = ready if arrays.packed[lines].all() else _chosen(arrays, shape, lines, ready)
    else:
        taken = np.full(free.shape, WHOLE_GPU)
    later = np.where(ready, np.maximum(free - taken, 0), -1)
    if shape.gpus > 1:
        order = _keys(packing_state.value, free, later).argsort(axis=1, kind="stable")
        free, later = np.take_along_axis(free, order, axis=1), np.take_along_axis(later, order, axis=1)
    change = _change(arrays, lines, packing_state, _Trial(shape.gpus, host, free, later))
    result[part] = _stepped(change + shape.gpus)
    return result


def scores_without_gpus(
    arrays: NodeArrays, host: HostResources, rows: vectorized.Which, packing_state: PackingState
) -> Int64:
    """Return a score for a pod without GPUs on each of ``rows``, higher where less GPU capacity is lost: shape [rows].

    A node without GPUs has nothing to lose, and is the best.
    """
    with_gpus: Bool = np.any(arrays.total[rows] > 0, axis=1)
    part = np.flatnonzero(with_gpus)
    result = np.full(len(with_gpus), int(2 * _WIDEST * STEPS_PER_GPU), np.int64)
    lines = vectorized.positions(rows, part)
    free = remnants(arrays, lines)
    result[part] = _stepped(_change(arrays, lines, packing_state, _Trial(0, host, free, free)))
    return result


@dataclass(frozen=True, slots=True)
class _Trial:
    """A pod of ``gpus`` GPUs on each of some nodes: thousandths of each GPU that are free now and ``later``, as
    ``score`` takes them, and what the pod asks for beside GPUs."""

    gpus: int
    host: HostResources
    free: Int64
    later: Int64


def _change(arrays: NodeArrays, lines: Rows, packing_state: PackingState, trial: _Trial) -> Float64:
    """Return what the worth of each of ``lines`` changes by with the pod, in GPUs: shape [lines]."""
    host = trial.host
    hosts = np.zeros((len(packing_state.hosts), len(lines)), np.bool_)
    known = lines < packing_state.hosts.shape[1]
    hosts[:, known] = packing_state.hosts[:, lines[known]]
    # kube-scheduler itself refuses a node with too little CPU or memory.
    cpu, mib = np.maximum(arrays.cpu[lines], host.cpu), np.maximum(arrays.host_mib[lines], host.mib)
    cpu_per_mib = packing_state.context.prices.cpu_per_mib
    usable = usable_cpu(cpu, mib, cpu_per_mib)
    taken = usable - usable_cpu(cpu - host.cpu, mib - host.mib, cpu_per_mib)
    demand = PodDemand(trial.gpus, taken)
    return score(packing_state.context, usable, trial.free, trial.later, hosts, demand)


def _stepped(change: Float64) -> Int64:
    """Return integers by which placements are compared, 0 or more."""
    stepped: Int64 = np.rint((np.clip(change, -_WIDEST, _WIDEST) + _WIDEST) * STEPS_PER_GPU).astype(np.int64)
    return stepped


def _keys(value: Float64, free: Int64, later: Int64) -> Float64:
    """Return keys that order the GPUs as ``policies.packing`` does; infinity for those that the pod cannot get."""
    change = np.round(value[np.maximum(later, 0)] - value[free], 4)
    return np.where(later >= 0, 1e-8 * free - change, np.inf)


def _chosen(arrays: NodeArrays, shape: Shape, rows: Rows, ready: Bool) -> Bool:
    """Return the candidate GPUs; on some nodes the node's own label has chosen among them (M9)."""
    result = ready.copy()
    for spread in (False, True):
        part = np.flatnonzero(~arrays.packed[rows] & (arrays.spread[rows] == spread))
        if not len(part):
            continue
        free = arrays.total[rows[part]] - arrays.used[rows[part]]
        keys = vectorized.gpu_keys(arrays, rows[part], free, spread=spread)
        order = np.where(ready[part], keys, np.iinfo(np.int64).max).argsort(axis=1, kind="stable")
        mine = np.zeros_like(ready[part])
        np.put_along_axis(mine, order[:, : shape.gpus], True, axis=1)
        result[part] = mine
    return result
