"""Tells an autoscaler what a node will have that does not exist yet: labels, taint, resources (U8).

The resources are computed by what the agent computes them by, so that hint and node agree at every unit.
"""

import json
from collections.abc import Mapping
from typing import Final

from gputile.api.well_known import GPU_MEMORY, WHOLE_GPU
from gputile.core.devices.inventory import resources_for_mode
from gputile.tools.nodepool.labels import INSTANCE_TYPE, Told, agents, joining
from gputile.tools.nodepool.pool import NodePool

TAINT_VALUE: Final = "present"  # as GKE sets it
TAINT_EFFECT: Final = "NoSchedule"


def node_labels(pool: NodePool) -> dict[str, str]:
    """Return the labels that the nodes join with (M11), those of their model included where it is described."""
    return _present(joining(pool)) | pool.labels


def template_labels(pool: NodePool) -> dict[str, str]:
    """Return the labels of a node that gputile and the description give it, for pods to select by."""
    return node_labels(pool) | _present(agents(pool))


def advertised(pool: NodePool) -> dict[str, int]:
    """Return what a node will advertise, of which there is any."""
    return {n: c for n, c in resources_for_mode(pool.mode, pool.devices, pool.unit_mib).items() if c}


def units_of_a_gpu(pool: NodePool) -> int:
    """Return the most units of GPU memory that one pod can get on one GPU."""
    return pool.devices[0].mib // pool.unit_mib


def taint() -> str:
    """Return the taint of GPU nodes (G7) as command lines take it."""
    return f"{WHOLE_GPU}={TAINT_VALUE}:{TAINT_EFFECT}"


def sum_note(pool: NodePool) -> str | None:
    """Return what no autoscaler's hint can say: how much one GPU holds."""
    if not pool.mode.shared or pool.gpus.count == 1:
        return None
    total, each = advertised(pool)[GPU_MEMORY], units_of_a_gpu(pool)
    return (
        f"An autoscaler sees the sum of a node, {total} units of {pool.gpu_memory_unit}, and not that one GPU has "
        f"{each}. Without autoscaling.nodeTypes a pod that asks for more than {each} on one GPU would bring a node in "
        "vain: check such pods with gputile nodepool --pod FILE."
    )


def node_type_note(pool: NodePool) -> str:
    """Return the pool's entry in gputile's configuration, by which the controller asks the autoscaler for its nodes."""
    key, value = _pool_label(pool)
    entry = {
        "label": f"{key}={value}",
        "gpus": {"count": pool.gpus.count, "memory": pool.gpus.memory},
        "mode": pool.mode.value,
        "labels": template_labels(pool) | {INSTANCE_TYPE: pool.instance_type},
    }
    return f"The pool's entry in autoscaling.nodeTypes of gputile's chart: [{json.dumps(entry)}]"


def _pool_label(pool: NodePool) -> tuple[str, str]:
    """Return the label by which the provider or Karpenter names the pool of a node."""
    keys = {"eks": "eks.amazonaws.com/nodegroup", "aks": "kubernetes.azure.com/agentpool"}
    key = keys.get(pool.provider, "cloud.google.com/gke-nodepool")
    return "karpenter.sh/nodepool" if pool.autoscaler == "karpenter" else key, pool.name


def _present(labels: Mapping[str, Told]) -> dict[str, str]:
    return {key: each.value for key, each in labels.items() if each.value is not None}
