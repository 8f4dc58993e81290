"""Scores nodes under ``packing``: a pod is bound where later pods lose the least.

The value of a node is what later pods can use of the node. It is the sum of the prices of the
shares that still fit its GPUs. Value that later pods cannot use for lack of CPU is subtracted. A
premium is added for capacity that few other nodes have. A pod is bound to the node whose value
decreases the least. ``fit.choose_gpus`` chooses the GPU there.

``prices`` computes the prices of shares. All values are in GPUs. A remnant is the free part of a
GPU, in thousandths. ``build`` and ``scores`` read the ledger's arrays. The scores are integers.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gputile.core.devices.inventory import model_number
from gputile.core.devices.request import RequestKind, Shape
from gputile.core.kube_predicates.pod_requests import HostResources
from gputile.core.ledger.node_arrays import NodeArrays, Rows
from gputile.core.ledger.node_info import ServingMode
from gputile.core.placement import vectorized
from gputile.core.placement.prices import CPU_GRAIN, SELECTIVE, WHOLE_GPU, Need, Prices, thousandths

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

GPU_STEP = 0.05
"""Gains are rounded down to multiples of this, in GPUs. The first of equal nodes is used."""
CPU_STEP = 0.0125
"""The same as ``GPU_STEP``, for pods without GPUs."""
FINISHED = 0.5
"""A node whose GPUs are worth less than this is finished: nearly only its CPU is left."""
TIGHT_FINISH = 0.12
"""The gain from using the last CPU of a finished node if CPU is as scarce as GPUs."""
SCARCITY_POWER = 8
FINISH_REWARD = 0.5
"""The part of ``TIGHT_FINISH`` for using a node's last GPU, before idle CPU is subtracted."""
NEED_WEIGHT = 0.05
"""The worth per GPU of capacity for a rare need if exactly enough capacity remains."""
NEED_POWER = 4
_NEGLIGIBLE = 1e-3


@dataclass(frozen=True, slots=True)
class PackingState:
    """Prices, and the scarcity of CPU and models in the cluster.

    The state is rebuilt periodically.
    """

    prices: Prices
    needs: tuple[tuple[Need, float], ...]
    """The needs with scarce capacity, and the worth of this capacity per GPU."""
    hosts: Bool
    """Whether each node has a suitable model for each scarce need. Shape [needs, nodes]."""
    finish: float
    """The worth of using the last CPU of a finished node."""
    spare_cpu: float
    """The milli-CPU that the last pod on a node is assumed to leave unused."""
    served: Float64
    """By n, the part of the demand from the n kinds that need the least CPU. Shape [kinds + 1]."""
    hungry: Float64
    """By n, the value of a milli-CPU for all other kinds together. Shape [kinds + 1]."""


def packing_state(
    prices: Prices, cpu: Int64, free: Int64, models: Int64, total: tuple[float, float]
) -> PackingState:
    """Compute what is scarce in the whole cluster.

    ``cpu`` is the free milli-CPU of each node. ``free`` has the free thousandths of each GPU, in
    the shape [nodes, GPUs]. ``models`` has the number of each node's GPU model. ``total`` has the
    milli-CPU and the GPUs of the cluster.
    """
    value = prices.value[free].sum(axis=1)
    whole = (free >= WHOLE_GPU).sum(axis=1)
    remaining = float(free.sum()) / WHOLE_GPU
    needs, hosts = [], []
    for need in prices.needs:
        host = allowed(need.models, models)
        room = float((places(need, cpu, whole, value) * host).sum())
        # Reserve capacity for at least one pod, even if the need's share of the cluster is less
        wanted = max(need.share * remaining, need.gpus)
        worth = NEED_WEIGHT * min(wanted / max(room, 1e-9), 1.0) ** NEED_POWER
        if worth > _NEGLIGIBLE:
            needs.append((need, worth))
            hosts.append(host)
    scarcity = prices.cpu_per_gpu * total[1] / max(total[0], 1.0)
    finish = TIGHT_FINISH * min(scarcity, 1.0) ** SCARCITY_POWER if len(prices.idle_cpu) else 0.0
    # Filling nodes is useless if full nodes have more CPU left than pods without GPUs request.
    left_over = float(cpu[value < FINISHED].sum())
    wanted = max(prices.cpu_without_gpu * remaining, 1.0)
    finish *= min(1.0, max(0.0, 2 * (1 - left_over / wanted)))
    spare = prices.least_cpu * min(1.0, max(0.0, 1 - 4 * (scarcity - 1)))
    served = np.concatenate([[0.0], prices.portion.cumsum()])
    hungry = np.concatenate([(prices.portion / prices.density)[::-1].cumsum()[::-1], [0.0]])
    found = np.array(hosts, np.bool_).reshape(len(hosts), len(cpu))
    return PackingState(prices, tuple(needs), found, finish, spare, served, hungry)


def allowed(wanted: frozenset[str], models: Int64) -> Bool:
    """Return which of the ``models`` are wanted. An empty ``wanted`` allows all models."""
    numbers = [model_number(model) for model in wanted]
    return np.isin(models, numbers) if numbers else np.ones(len(models), np.bool_)


def usable_cpu(cpu: Int64, memory: Int64, cpu_per_mib: float) -> Int64:
    """Return the part of each node's CPU that pods can use before the node's memory runs out.

    ``memory`` is in MiB. ``cpu_per_mib`` is the milli-CPU that pods request per MiB. If it is 0,
    the ratio is unknown, and memory is ignored.
    """
    if cpu_per_mib <= 0:
        return cpu
    usable: Int64 = np.minimum(cpu, (memory * cpu_per_mib).astype(np.int64))
    return usable


def places(need: Need, cpu: Int64, whole: Int64, value: Float64) -> Float64:
    """Return how many GPUs of each node could serve a need."""
    if need.gpus == 1:
        return value
    count = np.minimum(whole // need.gpus, cpu // max(need.cpu, 1))
    return (need.gpus * np.maximum(count, 0)).astype(np.float64)


def stranded(state: PackingState, cpu: Int64, value: Float64) -> Float64:
    """Return how much of each node's ``value`` will stay unused for lack of CPU.

    If only pods of kind m came, the CPU would serve cpu / density_m of the value. (density_m is the
    milli-CPU that such pods request per GPU of value.) A node gets the pods that suit it, so its
    CPU serves ``SELECTIVE`` times as much. The result is the mean over the kinds, weighted by their
    portion of the demand.
    """
    usable = SELECTIVE * np.maximum(cpu - state.spare_cpu * np.minimum(value, 1.0), 0.0)
    # sum_m portion_m min(value, usable / density_m). Kinds up to ``usable / value`` are all served.
    full = np.searchsorted(state.prices.density, usable / np.maximum(value, 1e-9), side="right")
    result: Float64 = value - (state.served[full] * value + state.hungry[full] * usable)
    return result


def unused(prices: Prices, cpu: Int64, free: Int64) -> Float64:
    """Return how much of each node's remnant value hardly any pod can use, for lack of CPU.

    ``stranded`` treats pods as divisible. Here a pod needs all of its CPU on one node. ``free`` has
    the free thousandths of each GPU, in the shape [nodes, GPUs].
    """
    level = np.searchsorted(prices.cpu_asked, cpu, side="right")
    result = np.zeros(len(cpu))
    short = np.flatnonzero(level < len(prices.cpu_asked))
    if len(short):
        cells = level[short, None] * (WHOLE_GPU + 1) + free[short]
        result[short] = prices.unused.ravel().take(cells).sum(axis=1)
    return result


@dataclass(frozen=True, slots=True)
class Trial:
    """A pod that requests ``gpus`` GPUs and is tried on several nodes.

    ``host`` is the pod's request for CPU and memory. ``free`` is the free thousandths of each GPU.
    ``later`` is what remains free if the pod gets the GPU. A negative value means that the pod
    cannot use the GPU. The shape of both arrays is [nodes, GPUs].
    """

    gpus: int
    host: HostResources
    free: Int64
    later: Int64


def score(
    state: PackingState, trial: Trial, cpu: Int64, used_cpu: int | Int64, hosts: Bool
) -> Float64:
    """Return by how much the pod changes the value of each node, in GPUs.

    The pod must fit all nodes. ``cpu`` is the usable milli-CPU (``usable_cpu``). ``used_cpu`` is
    the part that the pod uses, which may differ by node. ``hosts`` has the shape [needs, nodes],
    and states which nodes have a model for each scarce need.
    """
    prices = state.prices
    free, worth = trial.free, prices.value[trial.free]
    before, whole = worth.sum(axis=1), (free >= WHOLE_GPU).sum(axis=1)
    change, whole_after, free_after = _with_pod(prices, worth, whole, trial)
    after, left = before + change, cpu - used_cpu
    other = np.maximum(stranded(state, cpu, before), unused(prices, cpu, free))
    other -= np.maximum(stranded(state, left, after), unused(prices, left, free_after))
    if state.finish:
        other += state.finish * (_finish(prices, left, after) - _finish(prices, cpu, before))
    if state.needs:
        other += _need_value(state, left, whole_after, after, hosts) - _need_value(
            state, cpu, whole, before, hosts
        )
    step = GPU_STEP if trial.gpus else CPU_STEP
    opened = whole - whole_after
    result: Float64 = change + np.floor(other / step + 1e-9) * step - opened / STEPS_PER_GPU
    return result


def _with_pod(
    prices: Prices, worth: Float64, whole: Int64, trial: Trial
) -> tuple[Float64, Int64, Int64]:
    """Return each node's state with the pod on its best GPU.

    The first array is the change in the value of each node's remnants. The second array is each
    node's number of unused GPUs. The third array has the free thousandths of each GPU, in the shape
    [nodes, GPUs]. A pod that needs several GPUs gets the first GPUs that it can use.
    """
    gpus, free, later = trial.gpus, trial.free, trial.later
    if gpus == 0:
        return np.zeros(len(free)), whole, free
    if gpus == 1:
        change_of = np.where(
            later >= 0, np.round(prices.value[np.maximum(later, 0)] - worth, 4), -np.inf
        )
        # Use the best GPU, and of equal GPUs the fullest.
        lines = np.arange(len(free))
        gpu = (change_of - 1e-8 * free).argmax(axis=1)
        then = free.copy()
        then[lines, gpu] = np.maximum(later[lines, gpu], 0)
        return change_of[lines, gpu], whole - (free[lines, gpu] >= WHOLE_GPU), then
    cut = np.where(later >= 0, prices.value[np.maximum(later, 0)] - worth, 0.0)
    chosen = (later >= 0) & ((later >= 0).cumsum(axis=1) <= gpus)
    change = np.round((cut * chosen).sum(axis=1), 4)
    unused_gpus = whole - (chosen & (free >= WHOLE_GPU)).sum(axis=1)
    return change, unused_gpus, np.where(chosen, later, free)


def _need_value(
    state: PackingState, cpu: Int64, whole: Int64, value: Float64, hosts: Bool
) -> Float64:
    """Return the value of each node for scarce needs.

    It is the sum of two maxima: the highest value for a need of several GPUs, and the highest value
    for a need of specific models.
    """
    several, model = np.zeros(len(cpu)), np.zeros(len(cpu))
    for (need, worth), host in zip(state.needs, hosts, strict=True):
        best = several if need.gpus > 1 else model
        np.maximum(best, worth * host * places(need, cpu, whole, value), out=best)
    return several + model


def _finish(prices: Prices, cpu: Int64, value: Float64) -> Float64:
    """Return the bonus for nearly full nodes. Idle CPU reduces the bonus, which may be negative."""
    done = np.maximum(0.0, 1 - value / FINISHED)
    idle = prices.idle_cpu[np.minimum(cpu // CPU_GRAIN, len(prices.idle_cpu) - 1)]
    result: Float64 = done * (FINISH_REWARD - idle / prices.mean_cpu)
    return result


STEPS_PER_GPU = 2500
"""Scores are integers, in steps of 1/2500 GPU. Smaller differences are ignored."""
FULLNESS_STEPS = 64
"""For whole GPUs, the fullest of equally good nodes scores highest. For shares this would allocate
one percent less, so for shares an unused GPU costs only one step more than a GPU in use."""
_WIDEST = 4.0  # changes in value are clipped to this many GPUs
# For each ``ServingMode``, whether a node offers whole GPUs, and whether gputile books its GPUs
_WHOLE = np.array([each in (ServingMode.WHOLE, ServingMode.TOPOLOGY) for each in ServingMode])
_BOOKED = np.array([each.blocks and each is not ServingMode.BLOCKED for each in ServingMode])


def build(arrays: NodeArrays, prices: Prices) -> PackingState:
    """Compute the packing state of the cluster in ``arrays`` with ``prices``."""
    exists = arrays.total > 0
    rows = np.flatnonzero(exists.any(axis=1))
    first = arrays.model[rows, :1]
    alike = ((arrays.model[rows] == first) | ~exists[rows]).all(axis=1)
    found = packing_state(
        prices,
        np.maximum(arrays.cpu[rows], 0),
        remnants(arrays, rows),
        np.where(alike, first[:, 0], 0),
        (float(arrays.all_cpu[rows].sum()), float(exists.sum())),
    )
    hosts = np.zeros((len(found.needs), arrays.rows), np.bool_)
    hosts[:, rows] = found.hosts
    return replace(found, hosts=hosts)


def remnants(arrays: NodeArrays, rows: Rows) -> Int64:
    """Return how many thousandths of each GPU of ``rows`` can still be booked."""
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
    left *= _BOOKED[serving_mode][:, None] & arrays.usable[rows]
    result: Int64 = np.maximum(left, 0)
    return result


def scores(
    arrays: NodeArrays,
    shape: Shape,
    host: HostResources,
    rows: vectorized.Which,
    state: PackingState,
) -> Int64:
    """Return the score of each of ``rows``. A higher score is better.

    The score is ``UNFIT`` if the request does not fit. ``host`` is the pod's request for CPU and
    memory.
    """
    fit, gpus = vectorized.ready(arrays, shape, rows)
    result = np.full(len(fit), vectorized.UNFIT, np.int64)
    if shape.kind is RequestKind.WHOLE:
        result[vectorized.counted_by_others(arrays, shape, rows)] = 0
    part = np.flatnonzero(fit)
    if not len(part):
        return result
    lines = vectorized.positions(rows, part)
    free, ready = remnants(arrays, lines), gpus[part]
    if shape.kind is RequestKind.SHARED:
        requested = thousandths(shape.mib, shape.percent, arrays.total[lines].astype(np.int64))
        ready = ready if arrays.packed[lines].all() else _chosen(arrays, shape, lines, ready)
    else:
        requested = np.full(free.shape, WHOLE_GPU)
    later = np.where(ready, np.maximum(free - requested, 0), -1)
    if shape.gpus > 1:
        order = value_keys(state.prices.value, free, later).argsort(axis=1, kind="stable")
        free = np.take_along_axis(free, order, axis=1)
        later = np.take_along_axis(later, order, axis=1)
    change = _change(arrays, lines, state, Trial(shape.gpus, host, free, later))
    result[part] = _stepped(change + shape.gpus)
    if shape.kind is not RequestKind.SHARED:
        most = WHOLE_GPU * np.maximum(arrays.usable[lines].sum(axis=1), 1)
        fullness = -(-(FULLNESS_STEPS - 1) * (most - free.sum(axis=1)) // most)
        result[part] = result[part] * FULLNESS_STEPS + fullness
    return result


def scores_without_gpus(
    arrays: NodeArrays, host: HostResources, rows: vectorized.Which, state: PackingState
) -> Int64:
    """Return the score of each of ``rows`` for a pod without GPUs.

    The score is higher if GPUs lose less value. A node without GPUs has the highest score.
    """
    with_gpus: Bool = np.any(arrays.total[rows] > 0, axis=1)
    part = np.flatnonzero(with_gpus)
    result = np.full(len(with_gpus), int(2 * _WIDEST * STEPS_PER_GPU), np.int64)
    lines = vectorized.positions(rows, part)
    free = remnants(arrays, lines)
    result[part] = _stepped(_change(arrays, lines, state, Trial(0, host, free, free)))
    return result


def _change(arrays: NodeArrays, lines: Rows, state: PackingState, trial: Trial) -> Float64:
    """Return by how much the pod changes the value of the nodes in ``lines``, in GPUs."""
    host = trial.host
    hosts = np.zeros((len(state.hosts), len(lines)), np.bool_)
    known = lines < state.hosts.shape[1]
    hosts[:, known] = state.hosts[:, lines[known]]
    # kube-scheduler itself excludes a node with too little CPU or memory.
    cpu, mib = np.maximum(arrays.cpu[lines], host.cpu), np.maximum(arrays.host_mib[lines], host.mib)
    cpu_per_mib = state.prices.cpu_per_mib
    usable = usable_cpu(cpu, mib, cpu_per_mib)
    used_cpu = usable - usable_cpu(cpu - host.cpu, mib - host.mib, cpu_per_mib)
    return score(state, trial, usable, used_cpu, hosts)


def _stepped(change: Float64) -> Int64:
    """Convert the changes in the nodes' value to non-negative integer scores."""
    stepped: Int64 = np.rint((np.clip(change, -_WIDEST, _WIDEST) + _WIDEST) * STEPS_PER_GPU).astype(
        np.int64
    )
    return stepped


def value_keys(value: Float64, free: Int64, later: Int64) -> Float64:
    """Return a sort key for each GPU in ``free``.

    The GPU whose value decreases least comes first. Of equal GPUs, the fullest comes first.
    ``free`` is how much of each GPU is free, in thousandths. ``later`` is how much would be free
    with the pod. If ``later`` is negative, the pod cannot use the GPU, and the key is infinity.
    """
    change = np.round(value[np.maximum(later, 0)] - value[free], 4)
    return np.where(later >= 0, 1e-8 * free - change, np.inf)


def _chosen(arrays: NodeArrays, shape: Shape, rows: Rows, ready: Bool) -> Bool:
    """Return the candidate GPUs. Without ``packing``, the policy of the node selects them (M9)."""
    result = ready.copy()
    part = np.flatnonzero(~arrays.packed[rows])
    keys = vectorized.gpu_keys(arrays, rows[part])
    order = np.where(ready[part], keys, np.iinfo(np.int64).max).argsort(axis=1, kind="stable")
    mine = np.zeros_like(ready[part])
    np.put_along_axis(mine, order[:, : shape.gpus], True, axis=1)
    result[part] = mine
    return result
