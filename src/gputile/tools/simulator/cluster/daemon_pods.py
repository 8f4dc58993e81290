"""Decides which nodes get a pod of a DaemonSet, as its controller does (k8s.io/kubernetes, daemon).

The controller looks at the template as it is written. What admission adds, it adds to pods, and these are made only for
the nodes that the controller has chosen.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from gputile.api.affinity import Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from gputile.api.core import Node, PodSpec, Toleration
from gputile.core.kube_predicates.node_fit import matches_node, untolerated_taints
from gputile.core.placement.fit_refusal import told_of

_UNTOLERATED = "node(s) had untolerated taint"
_UNSELECTED = "node(s) didn't match the template's node affinity/selector"
_REMEDY = "without what admission adds to pods: write the toleration or the selector into the template"
# What the controller adds to its pods.
_TOLERATIONS = tuple(
    Toleration(key=f"node.kubernetes.io/{condition}", operator="Exists", effect=effect)
    for condition, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
)


@dataclass(frozen=True, slots=True)
class Choice:
    """The nodes that get a pod, and by the reason the names of others that admission would let a pod on."""

    nodes: list[Node]
    missed: dict[str, list[str]]

    def why_missed(self) -> str | None:
        """Return why those others get none, None where there are none."""
        if not self.missed:
            return None
        why = "; ".join(told_of(names, reason) for reason, names in self.missed.items())
        return f"{why}: its controller chooses nodes by the template as it is written, {_REMEDY}"


def choose(written: PodSpec, admitted: PodSpec, nodes: Iterable[Node]) -> Choice:
    """Return the choice for a template as it is ``written``; ``admitted`` is what admission makes of it."""
    asked, allowed = _tolerant(written), _tolerant(admitted)
    choice = Choice([], {})
    for node in nodes:
        reason = _obstacle(asked, node)
        if reason is None:
            choice.nodes.append(node)
        elif _obstacle(allowed, node) is None:
            choice.missed.setdefault(reason, []).append(node.metadata.name)
    return choice


def pinned(admitted: PodSpec, node: str) -> PodSpec:
    """Return the spec of the pod for a node."""
    field = NodeSelectorRequirement(key="metadata.name", operator="In", values=(node,))
    required = NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(field,)),))
    old = admitted.affinity or Affinity()
    preferred = old.node_affinity.preferred if old.node_affinity else ()
    affinity = msgspec.structs.replace(old, node_affinity=NodeAffinity(required=required, preferred=preferred))
    return msgspec.structs.replace(_tolerant(admitted), affinity=affinity)


def _tolerant(spec: PodSpec) -> PodSpec:
    return msgspec.structs.replace(spec, tolerations=(*spec.tolerations, *_TOLERATIONS))


def _obstacle(spec: PodSpec, node: Node) -> str | None:
    """Return why the controller makes no pod for a node, None where it makes one."""
    taint = next(untolerated_taints(spec, node), None)
    if taint is not None:
        return f"{_UNTOLERATED} {{{taint.key}: {taint.value}}}"
    return None if matches_node(spec, node) else _UNSELECTED
