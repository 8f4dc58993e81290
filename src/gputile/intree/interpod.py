"""What the in-tree scheduler checks of a pod against the pods that are placed: affinity, anti-affinity, spread.

The reasons are in kube-scheduler's own words. A question is prepared once for a pod, then asked of each node.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gputile.api.affinity import LabelSelector, LabelSelectorRequirement, PodAffinityTerm, TopologySpreadConstraint
from gputile.api.core import Node, Pod
from gputile.intree.nodefit import matches_node, selects, untolerated_taint

AFFINITY = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
EXISTING_ANTI_AFFINITY = "node(s) didn't satisfy existing pods anti-affinity rules"
SPREAD = "node(s) didn't match pod topology spread constraints"
SPREAD_LABEL = f"{SPREAD} (missing required label)"

Labels = Mapping[str, str]
Check = Callable[[Labels], str | None]


@dataclass(frozen=True, slots=True)
class Placed:
    """A pod and the node that it is on."""

    pod: Pod
    node: Node


def interpod_checks(
    pod: Pod, placed: Sequence[Placed], repelling: Iterable[Placed], nodes: Sequence[Node]
) -> list[Check]:
    """Return the checks that ``pod`` calls for, each from a node's labels to a reason or None.

    ``repelling`` are those of ``placed`` that have anti-affinity terms.
    """
    affinity = pod.spec.affinity
    checks = [_spread_check(pod, c, placed, nodes) for c in hard_spread(pod)]
    existing = _existing_anti_affinity(pod, repelling)
    if existing:
        checks.append(lambda labels: EXISTING_ANTI_AFFINITY if any(labels.get(k) == v for k, v in existing) else None)
    if affinity is not None and affinity.pod_anti_affinity is not None:
        checks += [_anti_affinity_check(pod, term, placed) for term in affinity.pod_anti_affinity.required]
    if affinity is not None and affinity.pod_affinity is not None and affinity.pod_affinity.required:
        checks.append(_affinity_check(pod, affinity.pod_affinity.required, placed))
    return checks


def hard_spread(pod: Pod) -> list[TopologySpreadConstraint]:
    """Return the spread constraints that must hold."""
    return [c for c in pod.spec.topology_spread_constraints if c.when_unsatisfiable == "DoNotSchedule"]


def repels(pod: Pod) -> bool:
    """Return whether the pod has anti-affinity terms, which hold against pods that come later too."""
    affinity = pod.spec.affinity
    return affinity is not None and affinity.pod_anti_affinity is not None and bool(affinity.pod_anti_affinity.required)


def term_matches(term: PodAffinityTerm, owner: Pod, other: Pod) -> bool:
    """Return whether ``other`` is one of the pods that ``owner``'s term speaks of.

    Labels of namespaces are not known here: a namespaceSelector that is not empty selects no namespace.
    """
    everywhere = term.namespace_selector is not None and term.namespace_selector == LabelSelector()
    listed = term.namespaces or (() if term.namespace_selector is not None else (owner.metadata.namespace,))
    if not everywhere and other.metadata.namespace not in listed:
        return False
    own = owner.metadata.labels
    selector = _with_keys(term.label_selector, term.match_label_keys, "In", own)
    selector = _with_keys(selector, term.mismatch_label_keys, "NotIn", own)
    return selects(selector, other.metadata.labels)


def _with_keys(
    selector: LabelSelector | None, keys: tuple[str, ...], operator: str, own: Labels
) -> LabelSelector | None:
    """Return ``selector`` with the pod's own values of ``keys`` added to it."""
    if selector is None or not keys:
        return selector
    extra = tuple(
        LabelSelectorRequirement(key=key, operator=operator, values=(own[key],)) for key in keys if key in own
    )
    return LabelSelector(match_labels=selector.match_labels, match_expressions=selector.match_expressions + extra)


def _domains(pod: Pod, term: PodAffinityTerm, placed: Iterable[Placed]) -> set[str]:
    """Return the values of the term's topology key where a pod runs that the term speaks of."""
    return {
        p.node.metadata.labels[term.topology_key]
        for p in placed
        if term.topology_key in p.node.metadata.labels and term_matches(term, pod, p.pod)
    }


def _anti_affinity_check(pod: Pod, term: PodAffinityTerm, placed: Sequence[Placed]) -> Check:
    taken = _domains(pod, term, placed)
    return lambda labels: ANTI_AFFINITY if labels.get(term.topology_key) in taken else None


def _existing_anti_affinity(pod: Pod, repelling: Iterable[Placed]) -> set[tuple[str, str]]:
    """Return the topology domains that pods placed before keep ``pod`` out of."""
    closed: set[tuple[str, str]] = set()
    for other in repelling:
        affinity = other.pod.spec.affinity
        for term in affinity.pod_anti_affinity.required if affinity and affinity.pod_anti_affinity else ():
            value = other.node.metadata.labels.get(term.topology_key)
            if value is not None and (term.topology_key, value) not in closed and term_matches(term, other.pod, pod):
                closed.add((term.topology_key, value))
    return closed


def _affinity_check(pod: Pod, terms: tuple[PodAffinityTerm, ...], placed: Sequence[Placed]) -> Check:
    """Check that each term has a pod in the node's domain; the first pod of a group that seeks itself is let in."""
    together = [p for p in placed if all(term_matches(term, pod, p.pod) for term in terms)]
    domains = [_domains(pod, term, together) for term in terms]
    first = not any(domains) and all(term_matches(term, pod, pod) for term in terms)

    def check(labels: Labels) -> str | None:
        if any(term.topology_key not in labels for term in terms):
            return AFFINITY
        if first or all(labels[t.topology_key] in known for t, known in zip(terms, domains, strict=True)):
            return None
        return AFFINITY

    return check


def _spread_check(
    pod: Pod, constraint: TopologySpreadConstraint, placed: Sequence[Placed], nodes: Sequence[Node]
) -> Check:
    key, namespace = constraint.topology_key, pod.metadata.namespace
    selector = _with_keys(constraint.label_selector, constraint.match_label_keys, "In", pod.metadata.labels)
    # As countPodsMatchSelector of kube-scheduler's podtopologyspread: pods that are being deleted do not count, and an
    # empty selector counts nobody, although it selects the pod itself.
    counting = None if selector == LabelSelector() else selector
    keys = [c.topology_key for c in hard_spread(pod)]
    counted = {node.metadata.name for node in nodes if _counts(pod, constraint, keys, node)}
    counts = Counter({node.metadata.labels[key]: 0 for node in nodes if node.metadata.name in counted})
    for p in placed:
        meta = p.pod.metadata
        if p.node.metadata.name in counted and meta.namespace == namespace and not meta.deletion_timestamp:
            counts[p.node.metadata.labels[key]] += selects(counting, meta.labels)
    least = min(counts.values(), default=0)
    if constraint.min_domains is not None and len(counts) < constraint.min_domains:
        least = 0
    own = int(selects(selector, pod.metadata.labels))

    def check(labels: Labels) -> str | None:
        if key not in labels:
            return SPREAD_LABEL
        return SPREAD if counts[labels[key]] + own - least > constraint.max_skew else None

    return check


def _counts(pod: Pod, constraint: TopologySpreadConstraint, keys: Iterable[str], node: Node) -> bool:
    """Return whether the constraint looks at the node: it has all keys, and the pod could go there."""
    if any(key not in node.metadata.labels for key in keys):
        return False
    if constraint.node_affinity_policy == "Honor" and not matches_node(pod.spec, node):
        return False
    return constraint.node_taints_policy != "Honor" or untolerated_taint(pod.spec, node) is None
