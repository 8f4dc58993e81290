"""Decides whether a request fits a node, and if not, why: the GPU, what it has, and what is missing."""

from gputile.core.devices.request import Request, RequestKind, Shape
from gputile.core.ledger.node_arrays import NO_GROUP
from gputile.core.ledger.node_info import NodeInfo, ServingMode
from gputile.core.ledger.snapshot import GpuState, NodeState
from gputile.core.placement.fit_refusal import FitRefusal, FitRule, gpu_shortages


def serves(serving_mode: ServingMode, shape: Shape) -> bool:
    """Return whether a node of ``serving_mode`` takes requests like ``shape`` at all (M1, M2, M8, T3)."""
    if shape.kind is RequestKind.WHOLE:
        return serving_mode in (ServingMode.WHOLE, ServingMode.SLICED, ServingMode.OTHER_PLUGIN)
    if shape.kind is RequestKind.TOPOLOGY:
        return serving_mode is ServingMode.TOPOLOGY
    return serving_mode is (ServingMode.MEMORY_AND_CORE if shape.percent else ServingMode.MEMORY)


def same_unit(node_info: NodeInfo, shape: Shape) -> bool:
    """Return whether the pod and the node count memory alike.

    The kubelet counts units: if the pod's unit differed from the node's, it would give other bytes than the ledger
    books (B1).
    """
    return shape.kind is not RequestKind.SHARED or node_info.unit_mib == shape.unit_mib


def gpu_fits(gpu: GpuState, shape: Shape, node_info: NodeInfo, group: int) -> bool:
    """Return whether one of the pod's GPUs can be ``gpu``; ``group`` is the number of its trust group."""
    if not gpu.gpu.healthy:
        return False
    company = gpu.pods < node_info.max_pods_per_gpu and (
        not node_info.grouped or gpu.group == NO_GROUP or (group != NO_GROUP and gpu.group == group)
    )
    if shape.kind is not RequestKind.SHARED:
        return company if node_info.sliced else gpu.empty
    compute = not shape.percent or gpu.percent + shape.percent <= 100
    return gpu.total - gpu.used >= shape.mib and compute and company


def fits(node: NodeState, shape: Shape, group: int) -> bool:
    if not serves(node.serving_mode, shape) or not same_unit(node.info, shape):
        return False
    if node.serving_mode is ServingMode.OTHER_PLUGIN:
        return True
    return sum(gpu_fits(gpu, shape, node.info, group) for gpu in node.gpus) >= shape.gpus


def refusal(node: NodeState, request: Request, group: int) -> FitRefusal | None:
    shape, node_info = request.shape, node.info
    if fits(node, shape, group):
        return None
    if node_info.problem:
        return FitRefusal(FitRule.BROKEN, shape, node_info)
    if node.blocked_by:
        return FitRefusal(FitRule.UNPLACED, shape, node_info, blocked_by=node.blocked_by[0])
    if not node.gpus and node.serving_mode is not ServingMode.OTHER_PLUGIN:
        return FitRefusal(FitRule.NO_GPUS, shape, node_info)
    if not serves(node.serving_mode, shape):
        return FitRefusal(FitRule.MODE, shape, node_info)
    if not same_unit(node_info, shape):
        return FitRefusal(FitRule.UNIT, shape, node_info)
    healthy = [gpu for gpu in node.gpus if gpu.gpu.healthy]
    if len(healthy) < shape.gpus:
        return FitRefusal(FitRule.TOO_FEW, shape, node_info, len(node.gpus) - len(healthy), len(node.gpus))
    if shape.kind is not RequestKind.SHARED and not node_info.sliced:
        return FitRefusal(FitRule.GPUS_TAKEN, shape, node_info, sum(not gpu.empty for gpu in healthy), len(healthy))
    small = [gpu for gpu in healthy if gpu.total < shape.mib]
    if len(healthy) - len(small) < shape.gpus:
        largest = max(small, key=lambda gpu: gpu.total)
        return FitRefusal(FitRule.TOO_LARGE, shape, node_info, len(small), len(healthy), largest)
    return _taken(healthy, shape, node_info, group)


def _taken(healthy: list[GpuState], shape: Shape, node_info: NodeInfo, group: int) -> FitRefusal:
    """Return the refusal with the GPU that comes closest: the one that breaks the fewest rules."""
    lacking = [(gpu, list(gpu_shortages(gpu, shape, node_info, group))) for gpu in healthy]
    refused = [(gpu, shortages) for gpu, shortages in lacking if shortages]
    gpu, shortages = min(
        (pair for pair in refused if pair[0].total >= shape.mib),
        key=lambda pair: (len(pair[1]), -pair[0].free, pair[0].gpu.index),
    )
    return FitRefusal(FitRule.GPUS_TAKEN, shape, node_info, len(refused), len(healthy), gpu, shortages[0])
