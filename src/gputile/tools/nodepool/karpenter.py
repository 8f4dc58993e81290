"""Plans Karpenter on EKS: a NodePool with labels and taint, and a NodeOverlay with the resources.

Sources: Karpenter, "NodePools" (karpenter.sh/v1) and "NodeOverlays" (karpenter.sh/v1alpha1, alpha: extended resources
by ``spec.capacity``; the feature gate is ``settings.featureGates.nodeOverlay`` of its chart).
"""

from typing import Any

from gputile.api.well_known import WHOLE_GPU
from gputile.tools.nodepool.hints import TAINT_EFFECT, TAINT_VALUE, advertised, node_labels, sum_note
from gputile.tools.nodepool.labels import INSTANCE_TYPE
from gputile.tools.nodepool.pool import NodePool
from gputile.tools.nodepool.setup import File, PoolSetup, ShellCommand, written


def setup(pool: NodePool, before: tuple[ShellCommand, ...], values: tuple[str, ...]) -> PoolSetup:
    """Return Karpenter's objects of a pool."""
    name = f"{pool.name}.karpenter.yaml"
    overlay = _overlay(pool)
    return PoolSetup(
        (*before, File(name, (_node_pool(pool), *overlay)), ShellCommand(f"kubectl apply -f {name}")),
        written(
            (
                "NodeOverlay is alpha: install Karpenter with --set settings.featureGates.nodeOverlay=true, or it does "
                "not know what the nodes will advertise, and adds none."
                if overlay
                else None,
                f"The NodePool uses the EC2NodeClass {pool.name}, which has to be there: its image decides the driver.",
                f"Karpenter has no least number of nodes; minNodes {pool.min_nodes} is not expressed."
                if pool.min_nodes
                else None,
                f"limits holds the pool to {pool.max_nodes} nodes by their GPUs.",
                sum_note(pool),
            )
        ),
        values,
    )


def _node_pool(pool: NodePool) -> dict[str, Any]:
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": pool.name},
        "spec": {
            "limits": {WHOLE_GPU: str(pool.max_nodes * pool.gpus.count)},
            "template": {
                "metadata": {"labels": node_labels(pool)},
                "spec": {
                    "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": pool.name},
                    "requirements": [{"key": INSTANCE_TYPE, "operator": "In", "values": [pool.instance_type]}],
                    "taints": [{"key": WHOLE_GPU, "value": TAINT_VALUE, "effect": TAINT_EFFECT}],
                },
            },
        },
    }


def _overlay(pool: NodePool) -> tuple[dict[str, Any], ...]:
    """Return the overlay; whole GPUs Karpenter knows by itself."""
    capacity = {name: str(count) for name, count in advertised(pool).items() if name != WHOLE_GPU}
    if not capacity:
        return ()
    requirements = [
        {"key": "karpenter.sh/nodepool", "operator": "In", "values": [pool.name]},
        {"key": INSTANCE_TYPE, "operator": "In", "values": [pool.instance_type]},
    ]
    return (
        {
            "apiVersion": "karpenter.sh/v1alpha1",
            "kind": "NodeOverlay",
            "metadata": {"name": pool.name},
            "spec": {"requirements": requirements, "capacity": capacity},
        },
    )
