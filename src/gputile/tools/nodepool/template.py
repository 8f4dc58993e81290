"""Builds the node that a pool would add, as the cluster would see it when its agent has reported."""

from gputile.api.core import Node, NodeSpec, NodeStatus, ObjectMeta, ResourceList, Taint
from gputile.api.well_known import INVENTORY_ANNOTATION, WHOLE_GPU
from gputile.core.devices.inventory import Inventory, encode_inventory
from gputile.tools.nodepool.hints import TAINT_EFFECT, TAINT_VALUE, advertised, template_labels
from gputile.tools.nodepool.labels import HOSTNAME, told
from gputile.tools.nodepool.pool import NodePool

# The description says nothing of them, so they decide nothing.
_AMPLE = {"cpu": "100000", "memory": "1Pi", "ephemeral-storage": "1Pi", "pods": "1000000"}


def empty_node(pool: NodePool) -> Node:
    """Return an empty node of the pool."""
    resources: ResourceList = {**_AMPLE, **{name: str(count) for name, count in advertised(pool).items()}}
    inventory = Inventory(gpus=pool.devices, mode=pool.mode.value, unit_mib=pool.unit_mib)
    providers = {key: each.value for key, each in told(pool).items() if each.value is not None}
    name = f"a-new-node-of-{pool.name}"
    return Node(
        metadata=ObjectMeta(
            name=name,
            labels={**providers, **template_labels(pool), HOSTNAME: name},
            annotations={INVENTORY_ANNOTATION: encode_inventory(inventory)},
        ),
        spec=NodeSpec(taints=(Taint(key=WHOLE_GPU, value=TAINT_VALUE, effect=TAINT_EFFECT),)),
        status=NodeStatus(capacity=resources, allocatable=resources),
    )
