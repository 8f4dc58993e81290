"""Picks the GPU of a node whose remnant loses the least of what later pods will want."""

import numpy as np
import numpy.typing as npt

from gputile.core.devices.request import Shape
from gputile.core.ledger.node_info import ServingMode
from gputile.core.ledger.snapshot import GpuState, NodeState
from gputile.core.placement.packing.prices import WHOLE_GPU
from gputile.core.placement.packing.scoring import thousandths


def gpu_key(node: NodeState, gpu: GpuState, shape: Shape, value: npt.NDArray[np.float64]) -> tuple[float, int, int]:
    """Order the GPUs that fit: the one whose worth falls least, then the fullest, then the lowest index.

    ``value`` is what a remnant is worth, in GPUs, by its thousandths: shape [1001].
    """
    free = gpu.free * WHOLE_GPU // max(gpu.total, 1)
    if node.serving_mode is ServingMode.MEMORY_AND_CORE:
        free = min(free, max(0, 100 - gpu.percent) * (WHOLE_GPU // 100))
    taken = int(thousandths(shape.mib, shape.percent, np.array([gpu.total]))[0])
    change = float(np.round(value[max(free - taken, 0)] - value[free], 4))
    return (-change, free, gpu.gpu.index)
