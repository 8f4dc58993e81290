"""Places each pod where it costs the cluster least of what later pods will want (``packing``).

A node is worth what the pods to come can earn from it: the prices of the shares that still fit its GPUs, less what
will be stranded because its CPU runs out first or is too little for most pods, plus what it spares pods that few other
nodes can host. A pod goes where its placement loses the least. ``prices`` says what shares are worth; everything here
is in GPUs.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gputile.core.placement.packing.prices import CPU_GRAIN, SELECTIVE, WHOLE_GPU, Need, Prices

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

GPU_STEP = 0.05
"""Gains are rounded down to multiples of this, in GPUs: small differences are ties, which the first node wins."""
CPU_STEP = 0.0125
"""The same for pods without GPUs."""
FINISHED = 0.5
"""A node whose GPUs are worth less than this is nearly done: its CPU is what is left."""
TIGHT_FINISH = 0.12
"""Gain from using up the last CPU of such a node where CPU is as scarce as GPUs."""
SCARCITY_POWER = 8
FINISH_REWARD = 0.5
"""Part of that gain that comes with a node's last GPU, before its idle CPU is taken off."""
NEED_WEIGHT = 0.05
"""What a place for a rare need is worth, per GPU, where the places that are left only just suffice."""
NEED_POWER = 4
_NEGLIGIBLE = 1e-3


@dataclass(frozen=True, slots=True)
class PodDemand:
    """What one pod asks for."""

    gpus: int
    cpu: int | Int64
    """Milli-CPU; for each node [nodes] where memory limits how much of it counts (``usable_cpu``)."""


@dataclass(frozen=True, slots=True)
class ScoringContext:
    """Prices, and the scarcity of CPU and models in the current cluster; rebuilt from time to time."""

    prices: Prices
    needs: tuple[tuple[Need, float], ...]
    """Needs that are scarce, and what a place is worth, per GPU."""
    finish: float
    """What using up the CPU of a finished node is worth."""
    spare_cpu: float
    """CPU that the last pod on a node is taken to leave unused, in milli-CPU."""
    served: Float64
    """Part of the demand among the kinds that need the least CPU, by how many kinds: shape [kinds + 1]."""
    hungry: Float64
    """What a milli-CPU earns from all other kinds together, by the same: shape [kinds + 1]."""


def scoring_context(
    prices: Prices, cpu: Int64, free: Int64, models: tuple[str, ...], total: tuple[float, float]
) -> ScoringContext:
    """Look at the whole cluster.

    ``cpu`` is free milli-CPU [nodes], ``free`` thousandths of each GPU [nodes, GPUs], ``models`` the nodes' GPU
    models, ``total`` all the milli-CPU and all the GPUs of the cluster.
    """
    value = prices.value[free].sum(axis=1)
    whole = (free >= WHOLE_GPU).sum(axis=1)
    remaining = float(free.sum()) / WHOLE_GPU
    needs = []
    for need in prices.needs:
        room = float((places(need, cpu, whole, value) * allowed(need.models, models)).sum())
        worth = NEED_WEIGHT * min(need.share * remaining / max(room, 1e-9), 1.0) ** NEED_POWER
        if worth > _NEGLIGIBLE:
            needs.append((need, worth))
    scarcity = prices.cpu_per_gpu * total[1] / max(total[0], 1.0)
    finish = TIGHT_FINISH * min(scarcity, 1.0) ** SCARCITY_POWER if len(prices.idle_cpu) else 0.0
    # If full nodes have more CPU left than pods without GPUs will ask for, filling more nodes gains nothing.
    left_over = float(cpu[value < FINISHED].sum())
    wanted = max(prices.cpu_without_gpu * remaining, 1.0)
    finish *= min(1.0, max(0.0, 2 * (1 - left_over / wanted)))
    spare = prices.least_cpu * min(1.0, max(0.0, 1 - 4 * (scarcity - 1)))
    served = np.concatenate([[0.0], prices.portion.cumsum()])
    hungry = np.concatenate([(prices.portion / prices.density)[::-1].cumsum()[::-1], [0.0]])
    return ScoringContext(prices, tuple(needs), finish, spare, served, hungry)


def allowed(wanted: frozenset[str], models: tuple[str, ...]) -> Bool:
    """Return which nodes have one of the models; any will do when ``wanted`` is empty. Shape [nodes]."""
    return np.array([not wanted or model in wanted for model in models], np.bool_)


def thousandths(mib: int, percent: int, sizes: Int64) -> Int64:
    """Return what a request for ``mib`` of memory and ``percent`` of compute takes of GPUs of these sizes, in MiB.

    The larger of memory and compute counts, rounded up; above ``WHOLE_GPU`` it does not fit. Shape of ``sizes``.
    """
    memory = -(-mib * WHOLE_GPU // np.maximum(sizes, 1))
    result: Int64 = np.maximum(memory, percent * WHOLE_GPU // 100)
    return result


def usable_cpu(cpu: Int64, memory: Int64, cpu_per_mib: float) -> Int64:
    """Return the CPU that pods will get to use before memory runs out, at ``cpu_per_mib`` milli-CPU for each MiB asked.

    Memory in MiB; 0 for ``cpu_per_mib`` means that it is not known, and memory does not count. Shape of ``cpu``.
    """
    if cpu_per_mib <= 0:
        return cpu
    usable: Int64 = np.minimum(cpu, (memory * cpu_per_mib).astype(np.int64))
    return usable


def places(need: Need, cpu: Int64, whole: Int64, value: Float64) -> Float64:
    """Return how many GPUs of a need each node can host: shape of ``cpu``."""
    if need.gpus == 1:
        return value
    count = np.minimum(whole // need.gpus, cpu // max(need.cpu, 1))
    return (need.gpus * np.maximum(count, 0)).astype(np.float64)


def stranded(context: ScoringContext, cpu: Int64, value: Float64) -> Float64:
    """Return how much of ``value`` will never be used for want of CPU. Shape of ``cpu``.

    If only pods of kind m came, the CPU would serve cpu / density_m of the value; a node that may choose among pods
    gets further. Averaged over the kinds by their portion of the demand.
    """
    usable = SELECTIVE * np.maximum(cpu - context.spare_cpu * np.minimum(value, 1.0), 0.0)
    # sum_m portion_m min(value, usable / density_m): kinds up to ``usable / value`` are served in full.
    full = np.searchsorted(context.prices.density, usable / np.maximum(value, 1e-9), side="right")
    result: Float64 = value - (context.served[full] * value + context.hungry[full] * usable)
    return result


def unused(prices: Prices, cpu: Int64, free: Int64) -> Float64:
    """Return how much of the remnants' value hardly any single pod can use, for want of CPU. Shape of ``cpu``.

    ``stranded`` treats pods as divisible; this counts that a pod needs all of its CPU on one node. ``free`` is
    thousandths of each GPU [nodes, GPUs].
    """
    level = np.searchsorted(prices.cpu_asked, cpu, side="right")
    result = np.zeros(len(cpu))
    short = np.flatnonzero(level < len(prices.cpu_asked))
    if len(short):
        cells = level[short, None] * (WHOLE_GPU + 1) + free[short]
        result[short] = prices.unused.ravel().take(cells).sum(axis=1)
    return result


@dataclass(frozen=True, slots=True)
class _WithPod:
    """What each node would be like with the pod, shapes [nodes] and, of ``free``, [nodes, GPUs].

    ``change`` is what its remnants' value changes by, ``whole`` the GPUs nobody uses, and ``free`` the thousandths of
    each GPU.
    """

    change: Float64
    whole: Int64
    free: Int64


def score(
    context: ScoringContext, cpu: Int64, free: Int64, later: Int64, hosts: Bool, pod_demand: PodDemand
) -> Float64:
    """Return what each node's worth changes by when it gets the pod: shape [nodes].

    All nodes fit the pod. ``cpu`` is free milli-CPU [nodes], ``free`` thousandths of each GPU [nodes, GPUs];
    ``later`` is what would be free on each GPU if the pod got it, negative where it cannot. ``hosts`` tells
    for each scarce need which nodes have a model for it [needs, nodes].
    """
    prices = context.prices
    worth = prices.value[free]
    before, whole = worth.sum(axis=1), (free >= WHOLE_GPU).sum(axis=1)
    placed = _placed(prices, worth, free, later, whole, pod_demand.gpus)
    after, left = before + placed.change, cpu - pod_demand.cpu
    other = np.maximum(stranded(context, cpu, before), unused(prices, cpu, free))
    other -= np.maximum(stranded(context, left, after), unused(prices, left, placed.free))
    if context.finish:
        other += context.finish * (_finish(prices, left, after) - _finish(prices, cpu, before))
    if context.needs:
        other += _reserve(context, left, placed.whole, after, hosts) - _reserve(context, cpu, whole, before, hosts)
    step = GPU_STEP if pod_demand.gpus else CPU_STEP
    result: Float64 = placed.change + np.floor(other / step + 1e-9) * step
    return result


def _placed(prices: Prices, worth: Float64, free: Int64, later: Int64, whole: Int64, gpus: int) -> _WithPod:
    """Put a pod with ``gpus`` GPUs on each node: on its best GPU, or on the first ones that it can get."""
    if gpus == 0:
        return _WithPod(np.zeros(len(free)), whole, free)
    if gpus == 1:
        change_of = np.where(later >= 0, np.round(prices.value[np.maximum(later, 0)] - worth, 4), -np.inf)
        # The best GPU; of equals the fullest one.
        lines = np.arange(len(free))
        gpu = (change_of - 1e-8 * free).argmax(axis=1)
        then = free.copy()
        then[lines, gpu] = np.maximum(later[lines, gpu], 0)
        return _WithPod(change_of[lines, gpu], whole - (free[lines, gpu] >= WHOLE_GPU), then)
    cut = np.where(later >= 0, prices.value[np.maximum(later, 0)] - worth, 0.0)
    taken = (later >= 0) & ((later >= 0).cumsum(axis=1) <= gpus)
    change = np.round((cut * taken).sum(axis=1), 4)
    return _WithPod(change, whole - (taken & (free >= WHOLE_GPU)).sum(axis=1), np.where(taken, later, free))


def _reserve(context: ScoringContext, cpu: Int64, whole: Int64, value: Float64, hosts: Bool) -> Float64:
    """Return what each node is worth to the scarce need that values it most. Shape of ``cpu``."""
    several, model = np.zeros(len(cpu)), np.zeros(len(cpu))
    for (need, worth), host in zip(context.needs, hosts, strict=True):
        best = several if need.gpus > 1 else model
        np.maximum(best, worth * host * places(need, cpu, whole, value), out=best)
    return several + model


def _finish(prices: Prices, cpu: Int64, value: Float64) -> Float64:
    """Return the bonus of a node without remaining GPU value: less, and below 0, for idle CPU; 0 for other nodes."""
    done = np.maximum(0.0, 1 - value / FINISHED)
    idle = prices.idle_cpu[np.minimum(cpu // CPU_GRAIN, len(prices.idle_cpu) - 1)]
    result: Float64 = done * (FINISH_REWARD - idle / prices.mean_cpu)
    return result
