"""Uses the GPU that is less used (``ack.node.gpu.placement=spread``).

One failing GPU then hurts fewer pods.
"""

from gputile.core.ledger.snapshot import GpuState

SCALE = 1 << 20
HIGHEST = 2000
"""The highest score of a node; the lowest is 0."""


def gpu_key(gpu: GpuState) -> tuple[int, int, int]:
    """Order the GPUs that fit: the smallest used fraction of memory first, then the least compute in use.

    The fraction is an integer in steps of 2**-20, so that scalar and array code agree exactly.
    """
    return (gpu.used * SCALE // gpu.total, min(gpu.percent, 100), gpu.gpu.index)


def node_score(gpu_used: int, node_used: int, _host_free: int) -> int:
    """Return 0 to 2000 for a node after the pod is placed: emptier is better. See ``binpack.node_score``."""
    return HIGHEST - gpu_used - node_used
