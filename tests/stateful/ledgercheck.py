"""What a ledger holds, in terms that two ledgers can be compared by, and when a GPU holds too much."""

from typing import Any

from gputile.api.well_known import Mode
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_info import GpuState, NodeState

GPU_ARRAYS = ("total", "used", "percent", "pods", "group", "usable")
NODE_ARRAYS = ("serving_mode", "max_pods_per_gpu", "unit", "spread", "grouped")


def image(ledger: Ledger) -> dict[str, Any]:
    """Return all that a ledger holds by names: rows may differ between ledgers."""
    nodes = {}
    for row, node_info in ledger.nodes():
        gpus = len(node_info.inventory.gpus)
        arrays = {name: getattr(ledger.node_arrays, name)[row].tolist() for name in NODE_ARRAYS}
        for name in GPU_ARRAYS:
            values = getattr(ledger.node_arrays, name)[row].tolist()
            assert not any(values[gpus:]), f"{name} of GPUs that do not exist"
            arrays[name] = values[:gpus]
        nodes[node_info.name] = (node_info, arrays)
    return {"nodes": nodes, "bookings": {booking.uid: booking for booking in ledger.bookings()}}


def unused_rows_are_empty(ledger: Ledger) -> bool:
    used = set(ledger.row_of.values())
    return all(
        not array[row].any() for array in vars(ledger.node_arrays).values() for row in set(range(len(array))) - used
    )


def states(ledger: Ledger) -> dict[str, NodeState]:
    return {name: state for name in ledger.row_of if (state := ledger.state(name)) is not None}


def overfull(ledger: Ledger, node: NodeState, gpu: GpuState) -> str:
    """Return what a GPU has more of than it may, "" where all is well."""
    held = list(ledger.on_gpu(node.info.name, gpu.gpu.uuid))
    if gpu.used > gpu.total and not any(booking.whole for booking in held):
        return f"{gpu.used} of {gpu.total} MiB"
    if node.info.mode is Mode.CORE_MEM and gpu.percent > 100:
        return f"{gpu.percent} percent"
    if gpu.pods > node.info.max_pods_per_gpu:
        return f"{gpu.pods} of {node.info.max_pods_per_gpu} pods"
    if node.info.mode is Mode.SHARE and len({booking.trust_group for booking in held}) > 1:
        return "two trust groups"
    if any(booking.whole for booking in held) and len(held) > 1:
        return "a whole GPU given twice"
    return ""
