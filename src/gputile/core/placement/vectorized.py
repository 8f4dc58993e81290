"""Computes fit and score of many nodes at once, on the ledger's arrays.

The fit rules repeat ``fit.refusal`` and are about a hundred times faster. Tests check that both
agree. ``gpu_keys`` orders the GPUs of a node, and ``fit.choose_gpus`` chooses. Scores compare nodes
by the cluster's policy. With ``binpack``, a node scores higher if the pod's GPU and the node become
fuller. It scores lower if its free GPUs are out of balance with its free CPU or memory. With
``spread``, the node that stays emptiest scores highest.
"""

import numpy as np
import numpy.typing as npt

from gputile.core.devices.allocation import assign_whole
from gputile.core.devices.inventory import model_number
from gputile.core.devices.request import RequestKind, Shape
from gputile.core.kube_predicates.pod_requests import HostResources
from gputile.core.ledger.node_arrays import NO_GROUP, NodeArrays, Rows, group_number
from gputile.core.ledger.node_info import ServingMode
from gputile.core.refusal import FitRule

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]
Which = Rows | slice

UNFIT = -1
OWN_GPU, NODE, STRANDED_GPU, STRANDED_HOST = 20, 10, 15, 2
"""The weights of a score, tuned on the openb trace. The first two are for the fullness of the pod's
GPU and of the node. STRANDED_GPU is for free GPUs without CPU or memory to use them. STRANDED_HOST
is for free CPU and memory without GPUs, which pods without GPUs can still use."""
GRAIN = 5
"""Scores are integers, so differences of the weighted sum below this are ignored."""
HIGHEST_BINPACK = 1000 * (OWN_GPU + NODE + STRANDED_GPU) // GRAIN
HIGHEST_SPREAD = 2000
"""The highest score of a node; the lowest is 0."""
_FRACTIONS = 1 << 20  # the used fraction of a GPU is counted in this many steps
_MANY = 1 << 31
_FAR = np.iinfo(np.int64).max


def scores(
    arrays: NodeArrays, shape: Shape, host: HostResources, rows: Which, *, emptier: bool
) -> Int64:
    """Return the score of each of ``rows``.

    The score is 0 or more, or ``UNFIT`` if the request does not fit. ``host`` is the pod's request
    for CPU and memory. With ``emptier`` (the policy ``spread``), emptier nodes score higher. A
    slice of rows is read in place, and an array of rows is copied first.
    """
    fit, gpus = ready(arrays, shape, rows)
    result = np.full(len(fit), UNFIT, np.int64)
    # Fullness is defined only for rows that fit. Their GPUs have memory and are not overbooked.
    part = np.flatnonzero(fit)
    lines = positions(rows, part)
    if shape.kind is RequestKind.SHARED:
        gpu_used, node_used = _fullness(arrays, shape, lines, gpus[part])
    else:
        gpu_used = np.full(len(part), 1000)
        used = _count(arrays.pods[lines] > 0) + shape.gpus
        node_used = 1000 * used // np.maximum(_count(arrays.total[lines] > 0), 1)
    result[part] = _node_scores(gpu_used, node_used, arrays, lines, host, emptier=emptier)
    if shape.kind is RequestKind.WHOLE:
        result[counted_by_others(arrays, shape, rows)] = 0
    return result


def scores_without_gpus(arrays: NodeArrays, rows: Which, host: HostResources) -> Int64:
    """Return the binpack score of each of ``rows`` for a pod without GPUs.

    A node without GPUs has the highest score, since GPU pods could use none of its resources.
    """
    total = arrays.total[rows]
    with_gpus = (total > 0).any(axis=1)
    used = (
        np.minimum(arrays.used[rows], total).sum(axis=1) * 1000 // np.maximum(total.sum(axis=1), 1)
    )
    result = _node_scores(np.zeros(len(total), np.int64), used, arrays, rows, host, emptier=False)
    result[~with_gpus] = HIGHEST_BINPACK
    return result


def positions(rows: Which, part: Rows) -> Rows:
    """Convert ``part``, which are positions within ``rows``, to rows of the arrays."""
    found: Rows = part + (rows.start or 0) if isinstance(rows, slice) else rows[part]
    return found


def ready(arrays: NodeArrays, shape: Shape, rows: Which) -> tuple[Bool, Bool]:
    """Return which of ``rows`` the request fits, and which GPUs in ``rows`` have room for it.

    Nodes with time-sliced GPUs or with GPUs of another device plugin are excluded. For these nodes,
    see ``counted_by_others``.
    """
    if shape.kind is not RequestKind.SHARED:
        free_gpus = _suitable(arrays, shape, rows) & (arrays.pods[rows] == 0)
        return serving(arrays, shape, rows) & (_count(free_gpus) >= shape.gpus), free_gpus
    gpus = _suitable(arrays, shape, rows) & (arrays.total[rows] - arrays.used[rows] >= shape.mib)
    if shape.percent:
        gpus &= arrays.percent[rows] <= 100 - shape.percent
    gpus &= _shareable_gpus(arrays, shape, rows)
    takes = serving(arrays, shape, rows) & (arrays.unit[rows] == shape.unit_mib)
    return takes & (_count(gpus) >= shape.gpus), gpus


def counted_by_others(arrays: NodeArrays, shape: Shape, rows: Which) -> Bool:
    """Return which of ``rows`` have enough GPUs that gputile does not book.

    These GPUs are time-sliced, or managed by another device plugin. It is unknown which model
    another plugin allocates, and whether the plugin isolates memory.
    """
    serving_mode = arrays.serving_mode[rows]
    if shape.by_claims or shape.isolated:
        return np.zeros(len(serving_mode), np.bool_)
    other_plugin: Bool = (serving_mode == ServingMode.OTHER_PLUGIN) & (not shape.models)
    sliced = serving_mode == ServingMode.SLICED
    if sliced.any():
        gpus = _suitable(arrays, shape, rows) & _shareable_gpus(arrays, shape, rows)
        left = arrays.max_pods_per_gpu[rows, None] - arrays.pods[rows]
        other_plugin |= sliced & _have_slices(shape, gpus * left, sliced)
    return other_plugin


def _have_slices(shape: Shape, left: Int32, sliced: Bool) -> Bool:
    """Return which nodes have enough time slices. ``left`` has the slices left of each GPU."""
    if not shape.containers:
        return _count(left > 0) >= shape.gpus
    found = np.zeros(len(left), np.bool_)
    for row in np.flatnonzero(sliced):
        assigned = assign_whole(shape.containers, dict(enumerate(left[row].tolist())))
        found[row] = assigned is not None
    return found


def _suitable(arrays: NodeArrays, shape: Shape, rows: Which) -> Bool:
    """Return which GPUs in ``rows`` are healthy and of a model that the request accepts."""
    usable: Bool = arrays.usable[rows]
    if shape.models:
        usable = usable & np.isin(
            arrays.model[rows], [model_number(model) for model in shape.models]
        )
    return usable


def _shareable_gpus(arrays: NodeArrays, shape: Shape, rows: Which) -> Bool:
    """Return which GPUs in ``rows`` may have one more pod of the request's trust group.

    With time-slicing, these GPUs have a time slice left.
    """
    gpus: Bool = arrays.pods[rows] < arrays.max_pods_per_gpu[rows, None]
    grouped = arrays.grouped[rows]
    if grouped.any():
        held = arrays.group[rows]
        gpus &= (held == NO_GROUP) | (held == group_number(shape.trust_group)) | ~grouped[:, None]
    return gpus


def capacity_bound(arrays: NodeArrays, shape: Shape, rows: Rows) -> Int64:
    """Return, for each of ``rows``, an upper bound on how many pods of ``shape`` fit.

    The bound is ``_MANY`` for whole GPUs that are time-sliced or that another plugin manages.
    """
    fit, gpus = ready(arrays, shape, rows)
    parts = gpus.astype(np.int64)
    if shape.kind is RequestKind.SHARED:
        parts *= arrays.max_pods_per_gpu[rows, None].astype(np.int64) - arrays.pods[rows]
        if shape.mib:
            parts = np.minimum(
                parts, np.where(gpus, (arrays.total[rows] - arrays.used[rows]) // shape.mib, 0)
            )
        if shape.percent:
            parts = np.minimum(
                parts, np.where(gpus, (100 - arrays.percent[rows]) // shape.percent, 0)
            )
    result: Int64 = np.where(fit, parts.sum(axis=1) // shape.gpus, 0)
    if shape.kind is not RequestKind.SHARED:
        result[
            np.isin(arrays.serving_mode[rows], (ServingMode.OTHER_PLUGIN, ServingMode.SLICED))
        ] = _MANY
    return result


def serving(arrays: NodeArrays, shape: Shape, rows: Which = slice(None)) -> Bool:
    """Return which of ``rows`` serve requests like ``shape`` at all."""
    result: Bool = (arrays.by_claims[rows] == shape.by_claims) & (
        arrays.serving_mode[rows] == _wanted(shape)
    )
    return result & ~arrays.grouped[rows] if shape.isolated else result


def _node_scores(
    gpu_used: Int64,
    node_used: Int64,
    arrays: NodeArrays,
    rows: Which,
    host: HostResources,
    *,
    emptier: bool,
) -> Int64:
    """Return a score from 0 to ``HIGHEST_BINPACK`` for each of ``rows``.

    With ``emptier``, the highest score is ``HIGHEST_SPREAD``. ``gpu_used`` is how full the pod's
    GPU becomes, in thousandths. ``node_used`` is how full all GPUs of the node together become.
    ``host`` is the pod's request for CPU and memory.
    """
    if emptier:
        emptiness: Int64 = HIGHEST_SPREAD - gpu_used - node_used
        return emptiness
    left = (arrays.cpu[rows] - host.cpu) * 1000 // np.maximum(arrays.all_cpu[rows], 1)
    left = np.minimum(
        left, (arrays.host_mib[rows] - host.mib) * 1000 // np.maximum(arrays.all_host_mib[rows], 1)
    )
    lopsided = 1000 - node_used - np.clip(left, 0, 1000)
    full = OWN_GPU * gpu_used + NODE * node_used + 1000 * STRANDED_GPU
    stranded = STRANDED_GPU * np.maximum(lopsided, 0) + STRANDED_HOST * np.maximum(-lopsided, 0)
    result: Int64 = (full - stranded) // GRAIN
    return result


def gpu_keys(arrays: NodeArrays, rows: Rows) -> Int64:
    """Return a sort key for each GPU in ``rows``, by the placement policy of the GPU's node.

    The GPU with the smallest key is used first. Ties go to the lowest index. On nodes that offer
    GPUs by claims, the index is the only criterion.
    """
    percent = np.minimum(arrays.percent[rows], 100)
    key: Int64 = arrays.total[rows] - arrays.used[rows]
    key *= 128
    key -= percent
    spread = np.flatnonzero(arrays.spread[rows])
    if len(spread):
        lines = rows[spread]
        key[spread] = (
            arrays.used[lines] * _FRACTIONS // np.maximum(arrays.total[lines], 1) * 128
            + percent[spread]
        )
    key[arrays.by_claims[rows]] = np.arange(key.shape[1])
    return key


def _fullness(arrays: NodeArrays, shape: Shape, rows: Rows, gpus: Bool) -> tuple[Int64, Int64]:
    """Return how full, in thousandths, the pod's first GPU and the node become on each row."""
    first = np.where(gpus, gpu_keys(arrays, rows), _FAR).argmin(axis=1)
    total, used = arrays.total[rows], arrays.used[rows]
    line = np.arange(len(rows))
    gpu_used, gpu_total = used[line, first] + shape.mib, total[line, first]
    node_used = np.minimum(used, total).sum(axis=1) + shape.gpus * shape.mib
    return 1000 * gpu_used // gpu_total, 1000 * node_used // total.sum(axis=1)


def rules(arrays: NodeArrays, shape: Shape, rows: Which) -> Int64:
    """Return the ``FitRule`` that the request breaks on each of ``rows``.

    The request must fit none of ``rows``. BROKEN is reported as NO_GPUS: only ``fit.refusal``,
    which checks one node at a time, distinguishes the two.
    """
    serving_mode, usable = arrays.serving_mode[rows], _suitable(arrays, shape, rows)
    large = usable & (arrays.total[rows] >= shape.mib)
    result = np.full(len(serving_mode), FitRule.GPUS_TAKEN, np.int64)
    if shape.mib:
        result[_count(large) < shape.gpus] = FitRule.TOO_LARGE
    few = _count(usable) < shape.gpus
    sliced = serving_mode == ServingMode.SLICED
    if shape.containers and sliced.any():
        slices = usable * arrays.max_pods_per_gpu[rows, None]
        few = np.where(sliced, ~_have_slices(shape, slices, sliced), few)
    result[few] = FitRule.TOO_FEW
    if shape.kind is RequestKind.SHARED:
        result[arrays.unit[rows] != shape.unit_mib] = FitRule.UNIT
    whole = shape.kind is RequestKind.WHOLE and not shape.by_claims and not shape.isolated
    result[~serving(arrays, shape, rows) & ~(whole & sliced)] = FitRule.MODE
    result[serving_mode == ServingMode.BLOCKED] = FitRule.UNPLACED
    result[serving_mode == ServingMode.NOTHING] = FitRule.NO_GPUS
    return result


def _wanted(shape: Shape) -> ServingMode:
    if shape.kind is RequestKind.TOPOLOGY:
        return ServingMode.TOPOLOGY
    if shape.kind is RequestKind.WHOLE:
        return ServingMode.WHOLE
    return ServingMode.MEMORY_AND_CORE if shape.percent else ServingMode.MEMORY


def _count(gpus: Bool) -> Int64:
    counts: Int64 = gpus.sum(axis=1, dtype=np.int64)
    return counts
