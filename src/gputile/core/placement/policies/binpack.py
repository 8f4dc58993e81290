"""Fill one GPU before the next (``ack.node.gpu.placement=binpack``, the default)."""

from gputile.core.ledger.snapshot import GpuState


def gpu_key(gpu: GpuState) -> tuple[int, int, int]:
    """Order the GPUs that fit: the one with the least memory free first, then the least compute free."""
    return (gpu.total - gpu.used, -min(gpu.percent, 100), gpu.gpu.index)


def node_score(gpu_used: int, gpu_total: int, node_used: int, node_total: int) -> int:
    """Return 0 to 1000 for a node after the pod is placed: fuller is better.

    Half of it is how full the pod's fullest GPU gets, so that a started GPU goes before an empty one elsewhere;
    half is how full the node gets.
    """
    return 500 * gpu_used // gpu_total + 500 * node_used // node_total
