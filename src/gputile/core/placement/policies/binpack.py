"""Fills one GPU before the next (``ack.node.gpu.placement=binpack``, the default).

The label says which GPU of a node a pod gets. ``node_score`` chooses the node: the one where GPU and node get fullest,
minus the imbalance between the GPUs and the machine's CPU or memory that remain.
"""

from gputile.core.ledger.snapshot import GpuState

OWN_GPU, NODE, STRANDED_GPU, STRANDED_HOST = 20, 10, 15, 2
"""What counts how much: how full the pod's GPU gets and how full the node gets; GPUs that lack CPU or memory of the
machine, and CPU and memory without GPUs, which pods without GPUs can still use. Tried out on the openb trace."""
GRAIN = 5
"""Scores are integers: less than this of the weighted sum makes no difference."""
HIGHEST = 1000 * (OWN_GPU + NODE + STRANDED_GPU) // GRAIN
"""The highest score of a node; the lowest is 0."""


def gpu_key(gpu: GpuState) -> tuple[int, int, int]:
    """Order the GPUs that fit: the one with the least memory free first, then the least compute free."""
    return (gpu.total - gpu.used, -min(gpu.percent, 100), gpu.gpu.index)


def node_score(gpu_used: int, node_used: int, host_free: int) -> int:
    """Return 0 to ``HIGHEST`` for a node after the pod is placed: fuller is better, GPUs and machine alike.

    In thousandths: how full the pod's fullest GPU gets, how full all GPUs of the node get, and what is left of the
    machine's CPU or memory, whichever is less.
    """
    lopsided = 1000 - node_used - host_free
    full = OWN_GPU * gpu_used + NODE * node_used
    return (1000 * STRANDED_GPU + full - STRANDED_GPU * max(lopsided, 0) - STRANDED_HOST * max(-lopsided, 0)) // GRAIN
