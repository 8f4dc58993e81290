"""Plans node pools of Azure AKS: ``az aks nodepool add`` in three ways.

Sources: az aks nodepool add (``--gpu-driver``, since Azure CLI 2.72.2; ``--aks-custom-headers``; ``--tags``);
"Use the NVIDIA GPU Operator on AKS" (``--gpu-driver none``); Azure/AKS issue 4472 (the GPU image is retired);
cluster-autoscaler, cloudprovider/azure/README.md (tags of the scale set, "_" for "/").
"""

from typing import Final

from gputile.api.well_known import WHOLE_GPU
from gputile.tools.nodepool.hints import advertised, node_labels, sum_note, taint
from gputile.tools.nodepool.pool import NodePool
from gputile.tools.nodepool.setup import GPU_OPERATOR, PoolSetup, command, words, written

TEMPLATE: Final = "k8s.io_cluster-autoscaler_node-template_resources_"
_WAY_OPTIONS: Final = {
    "own-plugin": (),
    "gpu-image": (("--aks-custom-headers", "UseGPUDedicatedVHD=true"),),
    "gpu-operator": (("--gpu-driver", "none"),),
}


def setup(pool: NodePool) -> PoolSetup:
    """Return the node pool."""
    tags = {TEMPLATE + name.replace("/", "_"): str(count) for name, count in advertised(pool).items()}
    add = command(
        "az aks nodepool add",
        ("--resource-group", pool.resource_group),
        ("--cluster-name", pool.cluster),
        ("--name", pool.name),
        ("--node-vm-size", pool.instance_type),
        *_WAY_OPTIONS[pool.way],
        f"--labels {words(node_labels(pool))}",
        ("--node-taints", taint()),
        f"--tags {words(tags)}",
        "--enable-cluster-autoscaler",
        f"--min-count {pool.min_nodes} --max-count {pool.max_nodes} --node-count {pool.min_nodes}",
    )
    operator = GPU_OPERATOR if pool.way == "gpu-operator" else ()
    return PoolSetup(
        (add, *operator),
        written((_retired(pool), _autoscaler_note(pool), sum_note(pool))),
        ("agent.runtimeClassName=nvidia",) if operator else (),
    )


def _retired(pool: NodePool) -> str | None:
    if pool.way != "gpu-image":
        return None
    return (
        "Azure has retired the GPU image on 10 January 2025 and creates no new pools with it: use own-plugin, or "
        "gpu-operator. Where an old pool still runs it, its own device plugin serves nvidia.com/gpu, and gputile's "
        "agent stands back on that node."
    )


def _autoscaler_note(pool: NodePool) -> str | None:
    if pool.min_nodes or set(advertised(pool)) == {WHOLE_GPU}:
        return None
    return (
        "The tags are what the open-source cluster autoscaler reads from a scale set. AKS does not promise that its "
        "managed autoscaler reads them: where a pool of no nodes does not grow, set minNodes to 1; it learns from the "
        "node."
    )
