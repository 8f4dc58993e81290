"""Computes the prices of GPU shares: dual prices of a cutting-stock problem over the demand.

A GPU that is cut into shares leaves remnants. The demand determines which remnants are useful. For
each GPU of total demand, let there be D_s requests for share s and D_1 requests for whole GPUs.
Then, to cut as few GPUs as possible,

    maximise theta   subject to   sum_p y_p + theta D_1 <= 1,   theta D_s <= sum_p a_ps y_p   for
    every share s,

over patterns p, the multisets of shares that fit one GPU (a_ps times share s). The dual price of a
share, divided by the price of a GPU, is what the share costs the cluster. Patterns are generated
when they are needed (Gilmore and Gomory, 1961): a knapsack over the current prices finds the
pattern that helps most.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

WHOLE_GPU = 1000
"""Shares and remnants are in thousandths of a GPU."""
SELECTIVE = 2.5
"""The factor by which free CPU lasts longer than at the mean demand. Some pods need less CPU."""
_QUANTILE = 0.1
_USED_WELL = 0.5
CPU_GRAIN = 100
"""The step, in milli-CPU, of tables that are indexed by free CPU."""
_CPU_LIMIT = 128000
_RARE = 0.02
_ROUNDS = 60
_EPSILON = 1e-9


def thousandths(mib: int, percent: int, sizes: Int64) -> Int64:
    """Return how many thousandths a request uses of GPUs that have ``sizes`` MiB of memory.

    The request is for ``mib`` MiB and ``percent`` of compute. The larger of memory and compute
    counts, rounded up. The request does not fit a GPU if the result is above ``WHOLE_GPU``.
    """
    memory = -(-mib * WHOLE_GPU // np.maximum(sizes, 1))
    result: Int64 = np.maximum(memory, percent * WHOLE_GPU // 100)
    return result


@dataclass(frozen=True, slots=True)
class Demand:
    """What pods request. Each array has one entry for each kind of request."""

    gpus: Int64
    """The number of GPUs, which is 0 for pods without GPUs."""
    milli: Int64
    """The larger part of memory and compute on each GPU, in thousandths. It is 0 without GPUs."""
    cpu: Int64
    """Milli-CPU."""
    models: tuple[frozenset[str], ...]
    """The suitable GPU models. An empty set means all models."""
    weight: Float64
    """The number of pods, or their rate. Only proportions matter."""
    cpu_per_mib: float = 0.0
    """The milli-CPU that GPU pods request for each MiB of the machine's memory. 0 is unknown."""


@dataclass(frozen=True, slots=True)
class Need:
    """Requests that only some nodes can host: several GPUs with their CPU, or specific models.

    ``share`` is the part of all GPU demand that these requests make up, measured in GPUs. It also
    counts the requests that are harder to host than this need, since they need the same nodes.
    """

    gpus: int
    cpu: int
    models: frozenset[str]
    share: float


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices by which placements are scored. The value of a whole free GPU is at least 1."""

    value: Float64
    """The value of a remnant of a GPU, by the remnant's size in thousandths. Shape [1001]."""
    density: Float64
    """The milli-CPU that each kind of pod needs for a value of 1, ascending. Shape [kinds]."""
    portion: Float64
    """The part of the demand for GPUs that each kind of pod has. The sum is 1. Shape [kinds]."""
    least_cpu: float
    """The milli-CPU below which hardly any GPU pod fits."""
    idle_cpu: Float64
    """The part of a node's free milli-CPU that pods without GPUs cannot use.

    The index is the free CPU in steps of ``CPU_GRAIN``. Without demand from pods without GPUs, the
    array is empty."""
    mean_cpu: float
    """The mean milli-CPU of a pod."""
    cpu_per_gpu: float
    """The milli-CPU that all pods together request for each requested GPU."""
    cpu_without_gpu: float
    """The part of ``cpu_per_gpu`` that pods without GPUs request."""
    needs: tuple[Need, ...]
    cpu_per_mib: float
    """The same as ``Demand.cpu_per_mib``."""
    cpu_asked: Int64
    """The distinct CPU requests of pods with one GPU, in milli-CPU, ascending."""
    unused: Float64
    """The part of a remnant's value that hardly any pod will use. Shape [len(cpu_asked) + 1, 1001].

    The first index is how many of ``cpu_asked`` do not exceed the node's free CPU. The second index
    is the remnant."""


def prices(demand: Demand) -> Prices:
    """Compute the prices of a demand.

    Raises:
        ValueError: the demand has no GPU pods.
    """
    gpu = (demand.gpus > 0) & (demand.weight > 0)
    if not gpu.any():
        raise ValueError("a demand without GPU pods has no prices")
    gpus, milli, cpu, weight = (
        array[gpu] for array in (demand.gpus, demand.milli, demand.cpu, demand.weight)
    )
    asked = gpus * milli / WHOLE_GPU * weight
    total = float(asked.sum())
    sizes: Int64
    sizes, inverse = np.unique(milli, return_inverse=True)
    rates = np.bincount(inverse, weights=gpus * weight) / total
    priced = share_prices(sizes, rates)
    value = remnant_values(sizes, priced)
    worth = np.maximum(gpus * priced[inverse], _EPSILON)
    density = np.maximum(cpu / worth, 1.0)
    order = np.argsort(density, kind="stable")
    one = gpus == 1
    by_cpu = np.argsort(cpu, kind="stable")
    least = int(np.searchsorted(asked[by_cpu].cumsum(), _QUANTILE * total))
    return Prices(
        value,
        density[order],
        asked[order] / total,
        float(cpu[by_cpu][least]),
        idle_cpu(demand.cpu[demand.gpus == 0], demand.weight[demand.gpus == 0]),
        float((demand.cpu * demand.weight).sum() / demand.weight.sum()),
        float((demand.cpu * demand.weight).sum() / total),
        float((demand.cpu * demand.weight)[~gpu].sum() / total),
        tuple(_needs(demand, total)),
        demand.cpu_per_mib,
        *unused_values(milli[one], cpu[one], priced[inverse][one], weight[one], value),
    )


def share_prices(sizes: Int64, rates: Float64) -> Float64:
    """Return the price of each of the distinct ``sizes``. A whole GPU costs 1.

    Sizes are in thousandths of a GPU, from 1 to 1000. ``rates`` has the number of requests for each
    size, per GPU of total demand.
    """
    import highspy  # imported here, so that only processes that compute prices load it

    whole = sizes == WHOLE_GPU
    shares, count = sizes[~whole].tolist(), int((~whole).sum())
    if count == 0:
        return np.ones(len(sizes))
    model = highspy.Highs()  # type: ignore[no-untyped-call]
    model.setOptionValue("output_flag", False)
    model.setOptionValue("threads", 1)
    model.changeObjectiveSense(highspy.ObjSense.kMaximize)
    infinity = highspy.kHighsInf
    nothing = np.zeros(0, np.int32), np.zeros(0)
    model.addRow(-infinity, 1.0, 0, *nothing)
    for _ in shares:
        model.addRow(-infinity, 0.0, 0, *nothing)
    theta = np.concatenate([[float(rates[whole].sum())], rates[~whole]])
    model.addCol(1.0, 0.0, infinity, count + 1, np.arange(count + 1, dtype=np.int32), theta)
    patterns = [
        np.eye(count, dtype=np.int64)[i] * (WHOLE_GPU // size) for i, size in enumerate(shares)
    ]
    result = np.ones(len(sizes))
    for _ in range(_ROUNDS):
        for pattern in patterns:
            used = np.flatnonzero(pattern)
            rows = np.concatenate([[0], used + 1]).astype(np.int32)
            model.addCol(
                0.0, 0.0, infinity, len(rows), rows, np.concatenate([[1.0], -pattern[used]])
            )
        model.run()
        dual = np.maximum(np.array(model.getSolution().row_dual), 0.0)
        if dual[0] <= _EPSILON:
            break
        result[~whole] = dual[1:] / dual[0]
        best = best_pattern(sizes[~whole], result[~whole])
        if float(best @ result[~whole]) <= 1 + 1e-7:
            break
        patterns = [best]
    return result


def remnant_values(sizes: Int64, priced: Float64) -> Float64:
    """Return, for each remnant from 0 to 1000, the highest total price of shares that fit it.

    The value of a whole GPU is at least 1.
    """
    value = _knapsack(sizes, priced, WHOLE_GPU + 1)
    value[WHOLE_GPU] = max(value[WHOLE_GPU], 1.0)
    return value


def _knapsack(sizes: Int64, priced: Float64, count: int) -> Float64:
    """Solve the unbounded knapsack for each capacity from 0 to ``count - 1``."""
    value = np.zeros(count)
    for size, price in zip(sizes.tolist(), priced.tolist(), strict=True):
        for start in range(size, count, size):
            end = min(start + size, count)
            np.maximum(
                value[start:end], value[start - size : end - size] + price, out=value[start:end]
            )
    return np.maximum.accumulate(value)


def idle_cpu(cpu: Int64, weight: Float64) -> Float64:
    """Return the idle part of each amount of free CPU of a node (``Prices.idle_cpu``).

    Idle CPU is CPU that no combination of the usual pods without GPUs can use. ``cpu`` are the
    requests of pods without GPUs in milli-CPU, with the frequency ``weight``. Rare requests are
    ignored.
    """
    total = weight.sum()
    if total <= 0:
        return np.zeros(0)
    free = np.arange(0, _CPU_LIMIT + 1, CPU_GRAIN, dtype=np.float64)
    sizes, inverse = np.unique(-(-cpu // CPU_GRAIN), return_inverse=True)
    usual = (np.bincount(inverse, weights=weight) >= _RARE * total) & (sizes > 0)
    return free - _knapsack(sizes[usual], sizes[usual] * float(CPU_GRAIN), len(free))


def unused_values(
    milli: Int64, cpu: Int64, priced: Float64, weight: Float64, value: Float64
) -> tuple[Int64, Float64]:
    """Return ``Prices.cpu_asked`` and ``Prices.unused`` for requests of pods with one GPU.

    A remnant is useful to pods that fit it and use at least half of its value. If only a part of
    these pods also fits the node's free CPU, at most ``SELECTIVE`` times this part of the value
    counts as used. ``value`` has the value of each remnant.
    """
    asked, level = np.unique(cpu, return_inverse=True)
    order = np.argsort(level, kind="stable")
    milli, priced, earned = milli[order], priced[order], (weight * priced)[order]
    fits = (milli <= np.arange(WHOLE_GPU + 1)[:, None]) & (
        priced >= _USED_WELL * value[:, None] - _EPSILON
    )
    waited_for = np.concatenate(
        [np.zeros((WHOLE_GPU + 1, 1)), (fits * earned).cumsum(axis=1)], axis=1
    )
    first = np.searchsorted(level[order], np.arange(len(asked) + 1))
    total = waited_for[:, -1:]
    part = np.where(total > _EPSILON, waited_for[:, first] / np.maximum(total, _EPSILON), 1.0)
    return asked, np.ascontiguousarray((value[:, None] * (1 - np.minimum(SELECTIVE * part, 1.0))).T)


def best_pattern(sizes: Int64, priced: Float64) -> Int64:
    """Return how often each size occurs in the most valuable pattern of one GPU."""
    value = _knapsack(sizes, priced, WHOLE_GPU + 1)
    pattern = np.zeros(len(sizes), np.int64)
    left = WHOLE_GPU
    while value[left] > _EPSILON:
        totals = np.where(sizes <= left, priced + value[np.maximum(left - sizes, 0)], -1.0)
        index = int(totals.argmax())
        if totals[index] < value[left] - _EPSILON:
            left -= 1
        else:
            pattern[index] += 1
            left -= int(sizes[index])
    return pattern


def _needs(demand: Demand, total: float) -> Iterator[Need]:
    """Yield the distinct needs for several GPUs or specific models.

    The share of a need also counts the requests that are harder to host than the need itself.
    """
    kinds = list(
        zip(
            demand.gpus.tolist(),
            demand.milli.tolist(),
            demand.cpu.tolist(),
            demand.models,
            strict=True,
        )
    )
    asked = (demand.gpus * demand.milli / WHOLE_GPU * demand.weight).tolist()
    keys = {
        (gpus, cpu if gpus > 1 else 0, models)
        for gpus, _, cpu, models in kinds
        if gpus > 1 or (gpus and models)
    }
    for gpus, cpu, models in sorted(keys, key=lambda key: (key[0], key[1], sorted(key[2]))):
        share = 0.0
        for (own_gpus, _, own_cpu, own_models), own_asked in zip(kinds, asked, strict=True):
            narrower = not models or (own_models and own_models <= models)
            if own_gpus >= gpus and (gpus == 1 or own_cpu >= cpu) and narrower:
                share += own_asked * (gpus / own_gpus if gpus > 1 else 1)
        yield Need(gpus, cpu, models, share / total)
