"""Chooses which GPUs of a node a pod gets, and tells how good the node is for it."""

from types import ModuleType

import numpy as np
import numpy.typing as npt

from gputile.core.devices.request import RequestKind, Shape
from gputile.core.kube_predicates.pod_requests import HostResources
from gputile.core.ledger.node_info import ServingMode
from gputile.core.ledger.snapshot import GpuState, NodeState
from gputile.core.placement.fit import fits, gpu_fits
from gputile.core.placement.policies import binpack, packing, spread
from gputile.core.placement.topology import best_set

Float64 = npt.NDArray[np.float64]
POLICIES: dict[str, ModuleType] = {"binpack": binpack, "spread": spread}


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
            by_worth = [(packing.gpu_key(node, gpu, shape, value), gpu) for _, gpu in ready]
            chosen = [gpu for _, gpu in sorted(by_worth, key=lambda pair: pair[0])[: shape.gpus]]
        else:
            chosen = sorted((gpu for _, gpu in ready), key=_policy(node).gpu_key)[: shape.gpus]
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
    policy, host_free = POLICIES[policy_name], _host_free(node, host)
    if shape.kind is not RequestKind.SHARED:
        used = sum(not gpu.empty for gpu in node.gpus) + shape.gpus
        return int(policy.node_score(1000, 1000 * used // len(node.gpus), host_free))
    first = min(chosen, key=_policy(node).gpu_key)
    used, total = sum(gpu.held for gpu in node.gpus), sum(gpu.total for gpu in node.gpus)
    node_used = 1000 * (used + shape.gpus * shape.mib) // total
    return int(policy.node_score(1000 * (first.used + shape.mib) // first.total, node_used, host_free))


def _host_free(node: NodeState, host: HostResources) -> int:
    """Return what the pod leaves of the machine's CPU or memory, whichever is less, in thousandths."""
    left, whole = node.host_left, node.info.host
    cpu = (left.cpu - host.cpu) * 1000 // max(whole.cpu, 1)
    return min(max(min(cpu, (left.mib - host.mib) * 1000 // max(whole.mib, 1)), 0), 1000)


def _policy(node: NodeState) -> ModuleType:
    return POLICIES.get(node.info.placement, binpack)
