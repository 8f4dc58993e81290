"""Checks a pod against a node, independently of all other pods: labels, names and taints.

This module also checks the operating system. kube-scheduler's plugins ignore it, but the kubelet
rejects a pod for another operating system (pkg/kubelet/lifecycle of Kubernetes). GPUs are not
checked here, but in ``placement.fit``.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gputile.api.affinity import LabelSelector, NodeSelectorRequirement, NodeSelectorTerm
from gputile.api.core import Node, PodSpec, Taint, Toleration
from gputile.core.refusal import PredicateRule, Refusal, refusal_by

UNSCHEDULABLE = refusal_by(PredicateRule.UNSCHEDULABLE)
WRONG_NAME = refusal_by(PredicateRule.WRONG_NAME)
WRONG_LABELS = refusal_by(PredicateRule.WRONG_LABELS)
WRONG_OS = refusal_by(PredicateRule.WRONG_OS)
_OS_LABEL = "kubernetes.io/os"
_UNSCHEDULABLE_TAINT = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def static_reason(spec: PodSpec, node: Node) -> Refusal[PredicateRule] | None:
    """Return the first of ``static_obstacles``: why the pod may not run on the node, or None."""
    return next(static_obstacles(spec, node), None)


def static_obstacles(spec: PodSpec, node: Node) -> Iterator[Refusal[PredicateRule]]:
    if node.spec.unschedulable and not _tolerated(_UNSCHEDULABLE_TAINT, spec.tolerations):
        yield UNSCHEDULABLE
    if spec.node_name and spec.node_name != node.metadata.name:
        yield WRONG_NAME
    for taint in untolerated_taints(spec, node):
        yield refusal_by(PredicateRule.UNTOLERATED_TAINT, about=f"{{{taint.key}: {taint.value}}}")
    if not matches_node(spec, node):
        yield WRONG_LABELS
    if spec.os is not None and node.metadata.labels.get(_OS_LABEL, spec.os.name) != spec.os.name:
        yield WRONG_OS


def static_reasons(spec: PodSpec, nodes: Sequence[Node]) -> list[Refusal[PredicateRule] | None]:
    """Return ``static_reason`` for each node.

    If the affinity names nodes, all other nodes get ``WRONG_LABELS`` without further checks.
    """
    names = _named_nodes(spec)
    if names is None:
        return [static_reason(spec, node) for node in nodes]
    return [
        static_reason(spec, node) if node.metadata.name in names else WRONG_LABELS for node in nodes
    ]


def untolerated_taints(spec: PodSpec, node: Node) -> Iterator[Taint]:
    hard = (taint for taint in node.spec.taints if taint.effect in ("NoSchedule", "NoExecute"))
    return (taint for taint in hard if not _tolerated(taint, spec.tolerations))


def matches_node(spec: PodSpec, node: Node) -> bool:
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in spec.node_selector.items()):
        return False
    affinity = spec.affinity.node_affinity if spec.affinity else None
    if affinity is None or affinity.required is None:
        return True
    return any(_term_holds(term, node) for term in affinity.required.node_selector_terms)


def preferred_weight(spec: PodSpec, node: Node) -> int:
    """Return the sum of the weights of the preferred node affinity terms that the node meets."""
    affinity = spec.affinity.node_affinity if spec.affinity else None
    return (
        sum(p.weight for p in affinity.preferred if _term_holds(p.preference, node))
        if affinity
        else 0
    )


def avoided_taints(spec: PodSpec, node: Node) -> int:
    """Return the number of the node's PreferNoSchedule taints that the pod does not tolerate."""
    soft = [
        toleration
        for toleration in spec.tolerations
        if toleration.effect in ("", "PreferNoSchedule")
    ]
    return sum(
        taint.effect == "PreferNoSchedule" and not _tolerated(taint, soft)
        for taint in node.spec.taints
    )


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector selects ``labels``. The selector None selects nothing."""
    if selector is None:
        return False
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        _compare(labels.get(r.key), r.operator, r.values) for r in selector.match_expressions
    )


def _named_nodes(spec: PodSpec) -> set[str] | None:
    """Return the nodes that the affinity requires by name, or None if it requires none by name.

    The affinity of a DaemonSet's pod names one node.
    """
    affinity = spec.affinity.node_affinity if spec.affinity else None
    if affinity is None or affinity.required is None:
        return None
    names: set[str] = set()
    for term in affinity.required.node_selector_terms:
        named = [field.values for field in term.match_fields if field.operator == "In"]
        if not named:
            return None
        names.update(named[0])
    return names


def _tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    return any(
        (not t.effect or t.effect == taint.effect)
        and (not t.key or t.key == taint.key)
        and (t.operator == "Exists" or t.value == taint.value)
        for t in tolerations
    )


def _term_holds(term: NodeSelectorTerm, node: Node) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    return all(
        _matches(r, node.metadata.labels.get(r.key)) for r in term.match_expressions
    ) and all(_matches(r, node.metadata.name) for r in term.match_fields)


def _matches(requirement: NodeSelectorRequirement, value: str | None) -> bool:
    return _compare(value, requirement.operator, requirement.values)


def _compare(value: str | None, operator: str, values: tuple[str, ...]) -> bool:
    match operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            if (
                value is None
                or len(values) != 1
                or not is_integer(value)
                or not is_integer(values[0])
            ):
                return False
            return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])
    return False


def is_integer(text: str) -> bool:
    """Return whether ``text`` is a 64-bit integer, as the operators Gt and Lt require."""
    digits = text.removeprefix("-")
    return (
        digits.isascii()
        and digits.isdecimal()
        and len(digits) <= 19
        and -(2**63) <= int(text) < 2**63
    )
