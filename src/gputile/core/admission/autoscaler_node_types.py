"""Keeps a pod off the node types that could never take it (U8).

Otherwise an autoscaler would add such a node for it.

An autoscaler compares what a pod asks for with the sums of a node: 20 units fit a node of four GPUs with 15 each. Node
affinity is a rule that it understands.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from gputile.api.affinity import Affinity, NodeSelectorRequirement
from gputile.api.core import Pod
from gputile.core.admission.legacy_forms import Rewriting
from gputile.core.admission.verdict import Operation
from gputile.core.devices.node_type import NodeType, worded
from gputile.core.devices.request import RequestError, parse_request

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_MOST_ADDED: Final = 4096  # requirements, over all terms: each is written into the pod
_NODE_AFFINITY: Final = ("spec", "affinity", "nodeAffinity")


def avoid(pod: Pod, types: Sequence[NodeType], unit_mib: int, rewriting: Rewriting) -> None:
    """Write into the pod's node affinity which of ``types`` it cannot use; ``unit_mib`` is the unit in force."""
    try:
        request = parse_request(pod, unit_mib)
    except RequestError:
        return  # it is refused
    if request is None:
        return
    refusals = [(kind, refusal) for kind in types if (refusal := kind.refusal(request)) is not None]
    if len(refusals) == len(types):
        whys = worded({kind.name: refusal for kind, refusal in refusals})
        rewriting.warnings.append(f"no node that the autoscaler can add could take the pod: {whys}")
    wanted = [NodeSelectorRequirement(key=kind.key, operator="NotIn", values=(kind.value,)) for kind, _ in refusals]
    affinity = rewriting.affinity.node_affinity if rewriting.affinity is not None else None
    terms = len(affinity.required.node_selector_terms) if affinity is not None and affinity.required is not None else 1
    if terms * len(wanted) > _MOST_ADDED:
        why = f"its {terms} terms of node affinity are too many: an autoscaler may add nodes that cannot take it"
        rewriting.warnings.append(f"the pod is not kept off node types that could never take it, since {why}")
    elif wanted:
        rewriting.operations += _operations(rewriting.affinity, wanted)


def _operations(affinity: Affinity | None, wanted: Sequence[NodeSelectorRequirement]) -> Iterator[Operation]:
    """Yield what adds the requirements to each of the terms, of which a node has to meet one."""
    required: dict[str, Any] = {"nodeSelectorTerms": [{"matchExpressions": [_as_json(each) for each in wanted]}]}
    if affinity is None:
        yield Operation("add", _NODE_AFFINITY[:2], {"nodeAffinity": {_REQUIRED: required}})
    elif affinity.node_affinity is None:
        yield Operation("add", _NODE_AFFINITY, {_REQUIRED: required})
    elif affinity.node_affinity.required is None:
        yield Operation("add", (*_NODE_AFFINITY, _REQUIRED), required)
    else:
        for i, term in enumerate(affinity.node_affinity.required.node_selector_terms):
            path = (*_NODE_AFFINITY, _REQUIRED, "nodeSelectorTerms", i, "matchExpressions")
            missing = [_as_json(each) for each in wanted if each not in term.match_expressions]
            if term.match_expressions:
                yield from (Operation("add", (*path, "-"), each) for each in missing)
            elif term.match_fields and missing:  # a term without any requirement holds for no node
                yield Operation("add", path, missing)


def _as_json(requirement: NodeSelectorRequirement) -> dict[str, Any]:
    return {"key": requirement.key, "operator": requirement.operator, "values": list(requirement.values)}
