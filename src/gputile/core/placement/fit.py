"""Decides whether a request fits a node and which GPUs it gets, and explains why it does not fit.

``choose_gpus`` chooses among the free GPUs of a node. (GPUs that have to be freed by preemption are
chosen in ``scheduling.freeable_gpus``.) The node label ``ack.node.gpu.placement`` sets the policy.
``binpack``, the default, fills one GPU before the next. ``spread`` uses the least used GPU, so that
a failing GPU affects fewer pods. ``packing`` uses the GPU that costs later pods the least. On a
node that serves claims, the fitting GPUs with the lowest indices are chosen, as kube-scheduler
does.

Among equally good GPUs, such as free whole GPUs, the best-connected set is chosen. This applies in
every mode, not only with ``ack.node.gpu.schedule=topology`` (T2). These criteria decide, in order:

- the highest minimum bandwidth between two GPUs of the set
- the best set that remains for another pod of the same size
- the highest total bandwidth between the remaining GPUs
- the lowest indices

With more than ``MOST_COMPARED`` free GPUs the comparison would take too long, so the first GPUs are
used.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations

import numpy as np
import numpy.typing as npt

from gputile.api.well_known import GPU_CORE, GPU_MEMORY, ISOLATION, Mode
from gputile.api.wording import memory_text
from gputile.core.devices.allocation import assign_whole
from gputile.core.devices.inventory import model_label_value
from gputile.core.devices.request import RequestKind, Shape, effective
from gputile.core.ledger.node_arrays import NO_GROUP, NodeArrays, Rows, group_number
from gputile.core.ledger.node_info import GpuState, NodeInfo, NodeState, ServingMode
from gputile.core.placement.packing_scores import remnants, value_keys
from gputile.core.placement.prices import thousandths
from gputile.core.placement.vectorized import gpu_keys
from gputile.core.refusal import FitRule, Refusal

Float64 = npt.NDArray[np.float64]
Matrix = tuple[tuple[float, ...], ...]

# Short reasons for many nodes. The texts name no node, so kube-scheduler can count equal texts.
SUMMARY = {
    FitRule.NO_GPUS: "node(s) without usable GPUs",
    FitRule.BROKEN: "node(s) without usable GPUs",
    FitRule.UNPLACED: "node(s) with a pod on unknown GPUs",
    FitRule.MODE: "node(s) whose GPU mode does not serve the pod's GPU resource",
    FitRule.UNIT: "node(s) whose memory unit is not the pod's",
    FitRule.TOO_FEW: "node(s) with fewer GPUs than the pod needs",
    FitRule.TOO_LARGE: "node(s) whose GPUs are smaller than the pod needs",
    FitRule.GPUS_TAKEN: "node(s) without enough free on their GPUs",
}
# Rules that evictions cannot satisfy, since the request would not even fit the empty node
UNRESOLVABLE = frozenset(
    {
        FitRule.NO_GPUS,
        FitRule.BROKEN,
        FitRule.MODE,
        FitRule.UNIT,
        FitRule.TOO_FEW,
        FitRule.TOO_LARGE,
    }
)
UNKNOWN = Refusal(FitRule.NO_GPUS, "the node is not known to gputile yet")
_SERVES_TEXT = {
    Mode.EXCLUSIVE: f"whole GPUs ({RequestKind.WHOLE.value})",
    Mode.TOPOLOGY: f"whole GPUs by topology ({RequestKind.TOPOLOGY.value})",
    Mode.CORE_MEM: f"{GPU_MEMORY} together with {GPU_CORE}",
}


def serves(serving_mode: ServingMode, shape: Shape) -> bool:
    """Return whether a node of ``serving_mode`` serves requests like ``shape`` (M1, M2, M8, T3)."""
    if shape.kind is RequestKind.WHOLE:
        return serving_mode in (ServingMode.WHOLE, ServingMode.SLICED, ServingMode.OTHER_PLUGIN)
    if shape.kind is RequestKind.TOPOLOGY:
        return serving_mode is ServingMode.TOPOLOGY
    return serving_mode is (ServingMode.MEMORY_AND_CORE if shape.percent else ServingMode.MEMORY)


def same_resource(node_info: NodeInfo, shape: Shape) -> bool:
    """Return whether the node offers GPUs in the form in which the pod requests them.

    Node and pod must both use claims, or both use extended resources. Shared GPUs need the same
    memory unit: the kubelet counts units, so with another unit it would not allocate the amount
    that is booked in the ledger (B1).
    """
    alike = shape.kind is not RequestKind.SHARED or node_info.unit_mib == shape.unit_mib
    return alike and node_info.by_claims == shape.by_claims


def is_of_model(gpu: GpuState, shape: Shape) -> bool:
    return not shape.models or model_label_value(gpu.gpu.model) in shape.models


def refusal(node: NodeState, shape: Shape) -> Refusal[FitRule] | None:
    """Return why a request does not fit a node, or None if the request fits."""
    node_info = node.info
    if node_info.problem:
        return Refusal(FitRule.BROKEN, node_info.problem)
    if node.blocked_by:
        remedy = "the node's agent has to report them, or the pod has to end"
        text = f"pod {node.blocked_by[0]} is on unknown GPUs; {remedy}"
        return Refusal(FitRule.UNPLACED, text, about=node.blocked_by[0])
    if not node.gpus and node.serving_mode is not ServingMode.OTHER_PLUGIN:
        return Refusal(
            FitRule.NO_GPUS, "it has no GPUs that gputile knows; is gputile's agent running there?"
        )
    if not serves(node.serving_mode, shape) or node_info.by_claims != shape.by_claims:
        return Refusal(FitRule.MODE, _mode_text(node_info, shape))
    if shape.isolated and not node_info.isolates_memory:
        text = f"memory is not limited on its GPUs ({_way(node_info)}); the pod has {ISOLATION}"
        return Refusal(FitRule.MODE, text)
    if node.serving_mode is ServingMode.OTHER_PLUGIN:
        text = f"another device plugin manages its GPUs; the pod needs {_models(shape)}"
        return Refusal(FitRule.MODE, text) if shape.models else None
    if not same_resource(node_info, shape):
        wanted, there = shape.unit_mib, node_info.unit_mib
        return Refusal(FitRule.UNIT, _unit_text(node_info, shape), wanted=wanted, there=there)
    if node_info.sliced and shape.containers:
        return _too_few_slices(node, shape)
    healthy = [gpu for gpu in node.gpus if gpu.gpu.healthy]
    if shape.models:
        named, healthy = len(healthy), [gpu for gpu in healthy if is_of_model(gpu, shape)]
        if len(healthy) < shape.gpus:
            text = f"{len(healthy)} of its {_gpus(named)} {_are(len(healthy))} {_models(shape)}; "
            text += f"the pod needs {shape.gpus}"
            return Refusal(FitRule.TOO_FEW, text, wanted=shape.gpus, there=len(healthy))
    if len(healthy) < shape.gpus:
        broken = len(node.gpus) - len(healthy)
        unhealthy = f", {broken} of them unhealthy" if broken else ""
        different = " different ones" if node_info.sliced else ""
        text = f"it has {_gpus(len(node.gpus))}{unhealthy}; the pod needs {shape.gpus}{different}"
        return Refusal(FitRule.TOO_FEW, text, wanted=shape.gpus, there=len(healthy))
    if shape.kind is not RequestKind.SHARED and not node_info.sliced:
        left = sum(gpu.empty for gpu in healthy)
        if left >= shape.gpus:
            return None
        text = f"{left} of {_gpus(len(healthy))} {_are(left)} free; the pod needs {shape.gpus}"
        return Refusal(FitRule.GPUS_TAKEN, text, wanted=shape.gpus, there=left)
    small = [gpu for gpu in healthy if gpu.total < shape.mib]
    if len(healthy) - len(small) < shape.gpus:
        return _too_large(healthy, small, shape)
    return _shortage(healthy, shape, node_info)


def _too_large(healthy: list[GpuState], small: list[GpuState], shape: Shape) -> Refusal[FitRule]:
    """Return a refusal that names the largest of the ``small`` GPUs."""
    large, largest = len(healthy) - len(small), max(small, key=lambda gpu: gpu.total)
    has = memory_text(largest.total)
    need = f"the pod needs {memory_text(shape.mib)} {_on_gpus(shape)}"
    text = f"its largest GPU has {has}; {need}"
    if large:
        enough = f"{large} of its {len(healthy)} GPUs {_are(large)} large enough"
        text = f"{enough}, GPU {largest.gpu.index} has {has}; {need}"
    return Refusal(
        FitRule.TOO_LARGE, text, gpu=largest.gpu.index, wanted=shape.mib, there=largest.total
    )


def _too_few_slices(node: NodeState, shape: Shape) -> Refusal[FitRule] | None:
    """Return why the containers do not get a time slice of each GPU they need, or None."""
    left = _slices_left(node, shape)
    if assign_whole(shape.containers, left) is not None:
        return None
    need = f"the pod needs {shape.gpus}"
    if (most := max(container.gpus for container in shape.containers)) > 1:
        need += f", and different GPUs for the {most} of one container"
    usable = [gpu for gpu in node.gpus if gpu.gpu.healthy and is_of_model(gpu, shape)]
    total = len(usable) * node.info.replicas
    slices = dict.fromkeys(range(len(usable)), node.info.replicas)
    if assign_whole(shape.containers, slices) is None:
        text = f"it has {total} time slices on {_gpus(len(usable))} that the pod can use; {need}"
        return Refusal(FitRule.TOO_FEW, text, wanted=shape.gpus, there=total)
    if not left:
        return _shortage(usable, shape, node.info)
    there = sum(left.values())
    text = f"{there} of the {total} time slices of its GPUs {_are(there)} left for it; {need}"
    return Refusal(FitRule.GPUS_TAKEN, text, wanted=shape.gpus, there=there)


def _slices_left(node: NodeState, shape: Shape) -> dict[int, int]:
    """Return, by position, how many time slices of each suitable GPU are left."""
    return {
        i: node.info.max_pods_per_gpu - gpu.pods
        for i, gpu in enumerate(node.gpus)
        if next(gpu_shortages(gpu, shape, node.info), None) is None
    }


def _shortage(
    healthy: list[GpuState], shape: Shape, node_info: NodeInfo
) -> Refusal[FitRule] | None:
    """Return a refusal for the GPU with the fewest shortages, or None if enough GPUs have room."""
    lacking = [(gpu, list(gpu_shortages(gpu, shape, node_info))) for gpu in healthy]
    refused = [(gpu, shortages) for gpu, shortages in lacking if shortages]
    left = len(healthy) - len(refused)
    if left >= shape.gpus:
        return None
    gpu, shortages = min(
        (pair for pair in refused if pair[0].total >= shape.mib),
        key=lambda pair: (len(pair[1]), -pair[0].free, pair[0].gpu.index),
    )
    shortage = shortages[0]
    text = f"GPU {gpu.gpu.index} {shortage.text}"
    if shape.gpus > 1:
        text += f" ({left} of {len(healthy)} GPUs have room for it)"
    return Refusal(
        FitRule.GPUS_TAKEN, text, gpu=gpu.gpu.index, wanted=shortage.wanted, there=shortage.there
    )


def gpu_shortages(gpu: GpuState, shape: Shape, node_info: NodeInfo) -> Iterator[Refusal[FitRule]]:
    """Yield every reason why ``gpu`` cannot be one of the pod's GPUs.

    Each text continues after the name of the GPU, as in "has 3 GiB of 15 GiB free; ...".
    """
    index, where = gpu.gpu.index, _on_gpus(shape)
    if not gpu.gpu.healthy:
        yield Refusal(FitRule.TOO_FEW, "is unhealthy", gpu=index)
        return
    if not is_of_model(gpu, shape):
        yield Refusal(FitRule.TOO_FEW, f"is a {gpu.gpu.model}", gpu=index)
        return
    if shape.kind is not RequestKind.SHARED and not node_info.sliced:
        if not gpu.empty:
            yield Refusal(FitRule.GPUS_TAKEN, "is in use", gpu=index)
        return
    if gpu.free < shape.mib:
        rule, has = FitRule.GPUS_TAKEN, f"{memory_text(gpu.free)} of {memory_text(gpu.total)} free"
        if gpu.total < shape.mib:
            rule, has = FitRule.TOO_LARGE, memory_text(gpu.total)
        text = f"has {has}; the pod needs {memory_text(shape.mib)} {where}"
        yield Refusal(rule, text, gpu=index, wanted=shape.mib, there=gpu.free)
    if shape.percent and gpu.percent + shape.percent > 100:
        left = max(0, 100 - gpu.percent)
        text = f"has {left} of 100 percent of compute free; the pod needs {shape.percent} {where}"
        yield Refusal(FitRule.GPUS_TAKEN, text, gpu=index, wanted=shape.percent, there=left)
    if gpu.pods >= node_info.max_pods_per_gpu:
        most = node_info.max_pods_per_gpu
        text = f"holds {gpu.pods} pods, the most that a GPU may hold here ({most})"
        if node_info.sliced:
            text = f"has no time slice left ({gpu.pods} are in use)"
        yield Refusal(FitRule.GPUS_TAKEN, text, gpu=index, wanted=1)
    if node_info.grouped and gpu.group not in (NO_GROUP, group_number(shape.trust_group)):
        text = (
            f"is used by pods of another trust group, and {_way(node_info)} does not isolate memory"
        )
        yield Refusal(FitRule.GPUS_TAKEN, text, gpu=index)


def _mode_text(node_info: NodeInfo, shape: Shape) -> str:
    if node_info.mode is None:
        return node_info.problem
    if node_info.by_claims != shape.by_claims:
        by = ("extended resources", "claims")
        offered, wanted = by[node_info.by_claims], by[shape.by_claims]
        return f"it offers its GPUs by {offered}; the pod requests them by {wanted}"
    served = _SERVES_TEXT.get(node_info.mode, f"{GPU_MEMORY} alone")
    asked = f"{GPU_MEMORY} and {GPU_CORE}" if shape.percent else shape.kind.value
    return f"its mode {node_info.mode.value} serves {served}; the pod asks for {asked}"


def _unit_text(node_info: NodeInfo, shape: Shape) -> str:
    """Explain whether the pod or the node has the older unit, and the remedy (U5)."""
    if shape.unit_mib == node_info.configured_unit_mib:
        return (
            f"its memory unit is still {node_info.unit_mib} MiB; the pod's unit is the configured "
            f"{shape.unit_mib} MiB, which the node's agent has not applied yet"
        )
    units = -(-shape.mib // node_info.unit_mib) * shape.gpus
    return (
        f"its memory unit is {node_info.unit_mib} MiB; the pod's unit is {shape.unit_mib} MiB, "
        f"which was in force when it was created: create it again with {units} units for its "
        f"{shape.mib * shape.gpus} MiB"
    )


def _way(node_info: NodeInfo) -> str:
    """Return a phrase that states why memory is not isolated on the node."""
    if node_info.serving_mode is ServingMode.OTHER_PLUGIN:
        return "another device plugin's GPUs"
    return "time-slicing" if node_info.sliced else f"mode {Mode.SHARE.value}"


def _models(shape: Shape) -> str:
    return " or ".join(sorted(shape.models))


def _on_gpus(shape: Shape) -> str:
    return "on one GPU" if shape.gpus == 1 else f"on each of {shape.gpus} GPUs"


def _gpus(number: int) -> str:
    return f"{number} GPU" if number == 1 else f"{number} GPUs"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def choose_gpus(
    arrays: NodeArrays, row: int, node: NodeState, shape: Shape, value: Float64 | None = None
) -> tuple[GpuState, ...]:
    """Choose the GPUs that the pod gets on ``node``. The request must fit the node.

    ``row`` is the row of the node. The GPUs are sorted by index, and a GPU is repeated for each
    time slice that the pod gets. The result is empty if another device plugin manages the GPUs. The
    policy ``packing`` needs ``value``, the value of each remnant (``Prices.value``). Without
    ``value``, it fills one GPU before the next.
    """
    if node.serving_mode is ServingMode.OTHER_PLUGIN:
        return ()
    left = _slices_left(node, shape)
    if node.info.sliced and shape.containers:
        assigned = assign_whole(shape.containers, left) or {}
        on = {i: [each for each in shape.containers if i in assigned[each.name]] for i in left}
        counts = {i: effective(users, lambda _: 1) for i, users in on.items()}
        return tuple(node.gpus[i] for i, count in counts.items() for _ in range(count))
    ready = list(left)
    if node.info.by_claims:
        return tuple(node.gpus[i] for i in ready[: shape.gpus])
    if shape.kind is RequestKind.SHARED or node.serving_mode is ServingMode.SLICED:
        keys = _keys(arrays, np.array([row]), shape, value)
        best = sorted(keys[i] for i in ready)[: shape.gpus]
        ready = [i for i in ready if keys[i] in best]
        if best[0] != best[-1]:  # the GPUs are not equally good, so bandwidth does not matter
            ready = sorted(ready, key=lambda i: (keys[i], i))[: shape.gpus]
    positions = best_set(node.info.inventory.bandwidth, tuple(sorted(ready)), shape.gpus)
    return tuple(node.gpus[i] for i in positions)


def _keys(arrays: NodeArrays, rows: Rows, shape: Shape, value: Float64 | None) -> list[float]:
    """Return sort keys for the shared GPUs of a node. The GPU with the smallest key is used first.

    Bandwidth decides ties. ``rows`` has only the row of this node.
    """
    if arrays.serving_mode[rows[0]] == ServingMode.SLICED:  # the GPUs with the fewest pods first
        keys: list[float] = arrays.pods[rows[0]].tolist()
    elif value is None or not arrays.packed[rows[0]]:
        keys = gpu_keys(arrays, rows)[0].tolist()
    else:
        free, total = remnants(arrays, rows), arrays.total[rows].astype(np.int64)
        taken = thousandths(shape.mib, shape.percent, total)
        keys = value_keys(value, free, np.maximum(free - taken, 0))[0].tolist()
    return keys


MOST_COMPARED = 16  # free GPUs
# Bandwidths are added as integers, in 1/1024 GB/s, so that the order of addition does not matter.
_GRAIN = 1024


@lru_cache(maxsize=4096)
def best_set(bandwidth: Matrix, free: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return the best ``size`` positions among ``free``. Both tuples are in ascending order.

    ``bandwidth`` is symmetric, in GB/s. If ``bandwidth`` is empty, it was not measured, and the
    first positions are returned.
    """
    if not bandwidth or size >= len(free) or len(free) > MOST_COMPARED:
        return free[:size]
    links = np.array(bandwidth)[np.ix_(free, free)]
    grains = np.rint(_GRAIN * links).astype(np.int64)
    np.fill_diagonal(grains, 0)
    sets = np.array(list(combinations(range(len(free)), size)))
    masks = (1 << sets).sum(axis=1)
    next_best = _best_within(links, min(size, len(free) - size))
    left = next_best[(1 << len(free)) - 1 - masks]
    inner = sum(grains[sets[:, i], sets[:, j]] for i, j in combinations(range(size), 2))
    lost = grains.sum(axis=1)[sets].sum(axis=1) - inner
    # The sort is stable, so the first of equal sets is used
    best = np.lexsort((lost, -left, -_slowest(links, sets)))[0]
    return tuple(free[position] for position in sets[best].tolist())


def _slowest(links: Float64, sets: npt.NDArray[np.int64]) -> Float64:
    """Return the smallest bandwidth in each of ``sets``, which is infinity for a set of one GPU."""
    slowest = np.full(len(sets), np.inf)
    for i, j in combinations(range(sets.shape[1]), 2):
        slowest = np.minimum(slowest, links[sets[:, i], sets[:, j]])
    return slowest


def _best_within(links: Float64, size: int) -> Float64:
    """Return, for each set of GPUs, the bandwidth of its best subset of ``size`` GPUs.

    The index is the bit mask of the set. Sets of fewer than ``size`` GPUs have -infinity.
    """
    gpus = len(links)
    sets = np.array(list(combinations(range(gpus), size)))
    best = np.full(1 << gpus, -np.inf)
    best[(1 << sets).sum(axis=1)] = _slowest(links, sets)
    for gpu in range(gpus):  # a set is as good as its best subset with one GPU less
        by_gpu = best.reshape(-1, 2, 1 << gpu)
        np.maximum(by_gpu[:, 1], by_gpu[:, 0], out=by_gpu[:, 1])
    return best
