"""Use the GPU that is less used (``ack.node.gpu.placement=spread``): one failing GPU hurts fewer pods."""

from gputile.core.ledger.snapshot import GpuState
from gputile.core.placement.policies import binpack

SCALE = 1 << 20


def gpu_key(gpu: GpuState) -> tuple[int, int, int]:
    """Order the GPUs that fit: the smallest used fraction of memory first, then the least compute in use.

    The fraction is an integer in steps of 2**-20, so that scalar and array code agree exactly.
    """
    return (gpu.used * SCALE // gpu.total, min(gpu.percent, 100), gpu.gpu.index)


def node_score(gpu_used: int, gpu_total: int, node_used: int, node_total: int) -> int:
    """Return 0 to 1000 for a node after the pod is placed: emptier is better."""
    return 1000 - binpack.node_score(gpu_used, gpu_total, node_used, node_total)
