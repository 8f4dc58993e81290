"""Chooses which GPUs of a node a pod gets.

The label ``ack.node.gpu.placement`` says which GPU of a node a pod gets: ``binpack``, the default, fills one GPU before
the next; ``spread`` uses the GPU that is less used, so that one failing GPU hurts fewer pods. Under ``packing`` a pod
gets the GPU whose remnant loses the least of what later pods will want. Of equally good GPUs, as free whole ones are, a
pod gets the set that ``topology`` finds. On a node that gives its GPUs by claims it gets the first that fits, by index:
there kube-scheduler chooses.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gputile.core.devices.request import RequestKind, Shape
from gputile.core.ledger.node_info import ServingMode
from gputile.core.ledger.snapshot import GpuState, NodeState
from gputile.core.placement.fit import fits, gpu_fits
from gputile.core.placement.prices import WHOLE_GPU, thousandths
from gputile.core.placement.topology import best_set

Float64 = npt.NDArray[np.float64]

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
    ready = [i for i, gpu in enumerate(node.gpus) if gpu_fits(gpu, shape, node.info, group)]
    if node.info.by_claims:
        return tuple(node.gpus[i] for i in ready[: shape.gpus])
    if shape.kind is RequestKind.SHARED or node.serving_mode is ServingMode.SLICED:
        key_of = _order(node, shape, value)
        keys = {i: key_of(node.gpus[i]) for i in ready}
        best = sorted(keys.values())[: shape.gpus]
        ready = [i for i in ready if keys[i] in best]
        if best[0] != best[-1]:  # not all are equally good: connections do not decide
            ready = sorted(ready, key=lambda i: (keys[i], i))[: shape.gpus]
    positions = best_set(node.info.inventory.bandwidth, tuple(sorted(ready)), shape.gpus)
    return tuple(node.gpus[i] for i in positions)


def _order(node: NodeState, shape: Shape, value: Float64 | None) -> Callable[[GpuState], tuple[float, float]]:
    """Return the key of GPUs that several pods share: the smallest first, and of equals the best connected."""
    if node.serving_mode is ServingMode.SLICED:  # different GPUs first, those that the fewest share
        return lambda gpu: (gpu.pods, 0)
    if node.info.placement == "packing" and value is not None:
        return lambda gpu: packing_key(node, gpu, shape, value)
    return spread_key if node.spread else binpack_key


def binpack_key(gpu: GpuState) -> tuple[int, int]:
    """Order the GPUs that fit: the one with the least memory free first, then the least compute free."""
    return (gpu.total - gpu.used, -min(gpu.percent, 100))


def spread_key(gpu: GpuState) -> tuple[int, int]:
    """Order the GPUs that fit: the smallest used fraction of memory first, then the least compute in use."""
    return (gpu.used * FRACTIONS // gpu.total, min(gpu.percent, 100))


def packing_key(node: NodeState, gpu: GpuState, shape: Shape, value: Float64) -> tuple[float, int]:
    """Order the GPUs that fit: the one whose worth falls least, then the fullest.

    ``value`` is what a remnant is worth, in GPUs, by its thousandths: shape [1001].
    """
    free = gpu.free * WHOLE_GPU // max(gpu.total, 1)
    if node.serving_mode is ServingMode.MEMORY_AND_CORE:
        free = min(free, max(0, 100 - gpu.percent) * (WHOLE_GPU // 100))
    taken = int(thousandths(shape.mib, shape.percent, np.array([gpu.total]))[0])
    change = float(np.round(value[max(free - taken, 0)] - value[free], 4))
    return (-change, free)
