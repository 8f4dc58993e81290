"""Says what of a pod an empty node of a pool decides: the node that the pool would add, and the pod's rules that its
description knows enough for (U8).

A pod is never said to have no place for a label of which the description tells nothing, nor for a rule about other
pods, since what else runs is not described.
"""

import msgspec

from gputile.api.affinity import Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from gputile.api.core import Node, NodeSpec, NodeStatus, ObjectMeta, Pod, ResourceList, Taint
from gputile.api.well_known import INVENTORY_ANNOTATION, WHOLE_GPU
from gputile.core.devices.inventory import Inventory, encode_inventory
from gputile.tools.nodepool.hints import TAINT_EFFECT, TAINT_VALUE, advertised, template_labels
from gputile.tools.nodepool.labels import HOSTNAME, may_hold, told
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


def decidable(pool: NodePool, pod: Pod) -> Pod:
    """Return the pod without the rules that some node of the pool may meet for all that is known."""
    selector = {
        key: value
        for key, value in pod.spec.node_selector.items()
        if not may_hold(pool, NodeSelectorRequirement(key=key, operator="In", values=(value,)))
    }
    spec = msgspec.structs.replace(
        pod.spec,
        node_selector=selector,
        affinity=_affinity(pool, pod.spec.affinity.node_affinity if pod.spec.affinity else None),
        topology_spread_constraints=[],
    )
    return msgspec.structs.replace(pod, spec=spec)


def _affinity(pool: NodePool, rules: NodeAffinity | None) -> Affinity | None:
    if rules is None or rules.required is None:
        return None
    terms = [_term(pool, term) for term in rules.required.node_selector_terms]
    if None in terms:
        return None
    left = tuple(term for term in terms if term is not None)
    return Affinity(node_affinity=NodeAffinity(required=NodeSelector(node_selector_terms=left)))


def _term(pool: NodePool, term: NodeSelectorTerm) -> NodeSelectorTerm | None:
    """Return what can be decided of a term; None where that is nothing, so that the term may hold."""
    left = tuple(each for each in term.match_expressions if not may_hold(pool, each))
    if term.match_expressions and not left and not term.match_fields:
        return None
    return msgspec.structs.replace(term, match_expressions=left)
