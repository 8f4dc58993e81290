"""Chooses which GPUs of a node a pod gets, and tells how good the node is for it.

The label ``ack.node.gpu.placement`` says which GPU of a node a pod gets: ``binpack``, the default, fills one GPU before
the next; ``spread`` uses the GPU that is less used, so that one failing GPU hurts fewer pods. The cluster's policy
chooses the node by ``binpack_score`` or ``spread_score``. Under ``packing`` a pod gets the GPU whose remnant loses the
least of what later pods will want.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gputile.core.devices.request import RequestKind, Shape
from gputile.core.kube_predicates.pod_requests import HostResources
from gputile.core.ledger.node_info import ServingMode
from gputile.core.ledger.snapshot import GpuState, NodeState
from gputile.core.placement.fit import fits, gpu_fits
from gputile.core.placement.prices import WHOLE_GPU, thousandths
from gputile.core.placement.topology import best_set

Float64 = npt.NDArray[np.float64]

OWN_GPU, NODE, STRANDED_GPU, STRANDED_HOST = 20, 10, 15, 2
"""What counts how much: how full the pod's GPU gets and how full the node gets; GPUs that lack CPU or memory of the
machine, and CPU and memory without GPUs, which pods without GPUs can still use. Tried out on the openb trace."""
GRAIN = 5
"""Scores are integers: less than this of the weighted sum makes no difference."""
HIGHEST_BINPACK = 1000 * (OWN_GPU + NODE + STRANDED_GPU) // GRAIN
HIGHEST_SPREAD = 2000
"""The highest score of a node; the lowest is 0."""
FRACTIONS = 1 << 20
"""The used fraction of a GPU is an integer in steps of 2**-20, so that scalar and array code agree exactly."""


def choose_gpus(node: NodeState, shape: Shape, group: int, value: Float64 | None = None) -> tuple[GpuState, ...] | None:
    """Return the GPUs that the pod gets on ``node``, by index; None where it does not fit.

    Empty on a node whose GPUs another device plugin hands out. ``value`` is the worth of remnants for packing
    (``PackingState.value``); without it, packing fills one GPU before the next.
    """
    if not fits(node, shape, group):
        return None
    if node.serving_mode is ServingMode.OTHER_PLUGIN:
        return ()
    ready = [(i, gpu) for i, gpu in enumerate(node.gpus) if gpu_fits(gpu, shape, node.info, group)]
    if shape.kind is RequestKind.SHARED:
        if node.info.placement == "packing" and value is not None:
            by_worth = [(packing_key(node, gpu, shape, value), gpu) for _, gpu in ready]
            chosen = [gpu for _, gpu in sorted(by_worth, key=lambda pair: pair[0])[: shape.gpus]]
        else:
            chosen = sorted((gpu for _, gpu in ready), key=_gpu_key(node))[: shape.gpus]
        return tuple(sorted(chosen, key=lambda gpu: gpu.gpu.index))
    if shape.kind is RequestKind.TOPOLOGY:
        positions = best_set(node.info.inventory.bandwidth, tuple(i for i, _ in ready), shape.gpus)
        return tuple(node.gpus[i] for i in positions)
    if node.serving_mode is ServingMode.SLICED:  # different GPUs first, those that the fewest share
        least = sorted((gpu for _, gpu in ready), key=lambda gpu: (gpu.pods, gpu.gpu.index))[: shape.gpus]
        return tuple(sorted(least, key=lambda gpu: gpu.gpu.index))
    return tuple(gpu for _, gpu in ready[: shape.gpus])


def node_score(node: NodeState, shape: Shape, group: int, policy_name: str, host: HostResources) -> int | None:
    """Return a score of 0 or more for ``node``, higher is better; None where the pod does not fit.

    ``host`` is what the pod asks for beside GPUs. ``policy_name`` is the cluster's policy, which compares nodes; a
    node's own label only compares its GPUs (M9). So the scores of all nodes are comparable.
    """
    chosen = choose_gpus(node, shape, group)
    if chosen is None:
        return None
    if node.serving_mode in (ServingMode.OTHER_PLUGIN, ServingMode.SLICED):
        return 0  # below the nodes that give a GPU to the pod alone
    score, host_free = spread_score if policy_name == "spread" else binpack_score, _host_free(node, host)
    if shape.kind is not RequestKind.SHARED:
        used = sum(not gpu.empty for gpu in node.gpus) + shape.gpus
        return score(1000, 1000 * used // len(node.gpus), host_free)
    first = min(chosen, key=_gpu_key(node))
    used, total = sum(gpu.held for gpu in node.gpus), sum(gpu.total for gpu in node.gpus)
    node_used = 1000 * (used + shape.gpus * shape.mib) // total
    return score(1000 * (first.used + shape.mib) // first.total, node_used, host_free)


def _host_free(node: NodeState, host: HostResources) -> int:
    """Return what the pod leaves of the machine's CPU or memory, whichever is less, in thousandths."""
    left, whole = node.host_left, node.info.host
    cpu = (left.cpu - host.cpu) * 1000 // max(whole.cpu, 1)
    return min(max(min(cpu, (left.mib - host.mib) * 1000 // max(whole.mib, 1)), 0), 1000)


def _gpu_key(node: NodeState) -> Callable[[GpuState], tuple[int, int, int]]:
    return spread_key if node.spread else binpack_key


def binpack_key(gpu: GpuState) -> tuple[int, int, int]:
    """Order the GPUs that fit: the one with the least memory free first, then the least compute free."""
    return (gpu.total - gpu.used, -min(gpu.percent, 100), gpu.gpu.index)


def spread_key(gpu: GpuState) -> tuple[int, int, int]:
    """Order the GPUs that fit: the smallest used fraction of memory first, then the least compute in use."""
    return (gpu.used * FRACTIONS // gpu.total, min(gpu.percent, 100), gpu.gpu.index)


def packing_key(node: NodeState, gpu: GpuState, shape: Shape, value: Float64) -> tuple[float, int, int]:
    """Order the GPUs that fit: the one whose worth falls least, then the fullest, then the lowest index.

    ``value`` is what a remnant is worth, in GPUs, by its thousandths: shape [1001].
    """
    free = gpu.free * WHOLE_GPU // max(gpu.total, 1)
    if node.serving_mode is ServingMode.MEMORY_AND_CORE:
        free = min(free, max(0, 100 - gpu.percent) * (WHOLE_GPU // 100))
    taken = int(thousandths(shape.mib, shape.percent, np.array([gpu.total]))[0])
    change = float(np.round(value[max(free - taken, 0)] - value[free], 4))
    return (-change, free, gpu.gpu.index)


def binpack_score(gpu_used: int, node_used: int, host_free: int) -> int:
    """Return 0 to ``HIGHEST_BINPACK`` for a node after the pod is placed: fuller is better, GPUs and machine alike.

    The imbalance between the GPUs and the machine's CPU or memory that remain is subtracted. In thousandths: how full
    the pod's fullest GPU gets, how full all GPUs of the node get, and what is left of the machine's CPU or memory,
    whichever is less.
    """
    lopsided = 1000 - node_used - host_free
    full = OWN_GPU * gpu_used + NODE * node_used
    return (1000 * STRANDED_GPU + full - STRANDED_GPU * max(lopsided, 0) - STRANDED_HOST * max(-lopsided, 0)) // GRAIN


def spread_score(gpu_used: int, node_used: int, _host_free: int) -> int:
    """Return 0 to ``HIGHEST_SPREAD`` for a node after the pod is placed, as ``binpack_score``: emptier is better."""
    return HIGHEST_SPREAD - gpu_used - node_used
