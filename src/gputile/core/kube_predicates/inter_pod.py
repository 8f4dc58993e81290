"""Checks a pod against the pods that are placed: affinity, anti-affinity and topology spread.

A check is prepared once for a pod: it counts pods by topology domain, is
told of each pod that comes or goes, and is then asked of each node.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from gputile.api.affinity import LabelSelector, LabelSelectorRequirement, PodAffinityTerm, TopologySpreadConstraint
from gputile.api.core import Node, Pod
from gputile.core.kube_predicates.node_fit import (
    matches_node,
    selects,
    untolerated_taints,
)
from gputile.core.refusal import PredicateRule, Refusal, refusal_by

AFFINITY = refusal_by(PredicateRule.AFFINITY)
ANTI_AFFINITY = refusal_by(PredicateRule.ANTI_AFFINITY)
EXISTING_ANTI_AFFINITY = refusal_by(PredicateRule.EXISTING_ANTI_AFFINITY)
SPREAD = refusal_by(PredicateRule.SPREAD)
SPREAD_LABEL = refusal_by(PredicateRule.SPREAD_LABEL)
NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"
"""The label that the API server gives each namespace: its name. Others are not known here."""

Labels = Mapping[str, str]


class Placed(msgspec.Struct, frozen=True, gc=False):
    """A pod and the node that it is on."""

    pod: Pod
    node: Node


class Check(Protocol):
    """One rule of a pod about others."""

    def count(self, placed: Placed, sign: int) -> None:
        """Take notice of a pod that came (1), or went (-1)."""

    def reason(self, labels: Labels) -> Refusal[PredicateRule] | None:
        """Return why the pod may not go to a node with these labels, None where it may."""


def interpod_checks(pod: Pod, nodes: Iterable[Node]) -> list[Check]:
    """Return the checks that ``pod`` calls for, in the order of kube-scheduler's; they have counted nobody yet."""
    checks: list[Check] = []
    constraints = hard_spread(pod)
    if constraints:
        known = list(nodes)
        checks += [_Spread(pod, constraint, known) for constraint in constraints]
    if terms := affinity_terms(pod):
        checks.append(_AffinityTerms(pod, terms))
    if repelling := anti_affinity_terms(pod):
        checks.append(_AntiAffinity(pod, repelling))
    checks.append(_ExistingAntiAffinity(pod))
    return checks


def hard_spread(pod: Pod) -> list[TopologySpreadConstraint]:
    return [c for c in pod.spec.topology_spread_constraints if c.when_unsatisfiable == "DoNotSchedule"]


def anti_affinity_terms(pod: Pod) -> Sequence[PodAffinityTerm]:
    """Return the anti-affinity terms that must hold; they hold against pods that come later too."""
    affinity = pod.spec.affinity
    return (
        affinity.pod_anti_affinity.required if affinity is not None and affinity.pod_anti_affinity is not None else ()
    )


def affinity_terms(pod: Pod) -> Sequence[PodAffinityTerm]:
    affinity = pod.spec.affinity
    return affinity.pod_affinity.required if affinity is not None and affinity.pod_affinity is not None else ()


def looks_at_pods(pod: Pod) -> bool:
    return bool(pod.spec.topology_spread_constraints and hard_spread(pod)) or bool(
        anti_affinity_terms(pod) or affinity_terms(pod)
    )


def may_follow(pod: Pod) -> bool:
    """Return whether a pod without a place may get one because another pod is placed: by affinity, or by spread."""
    return bool(affinity_terms(pod) or hard_spread(pod))


def term_matches(term: PodAffinityTerm, owner: Pod, other: Pod) -> bool:
    """Return whether ``other`` is one of the pods that ``owner``'s term speaks of.

    Of the labels of namespaces only the name is known: a namespaceSelector selects as if there were no others.
    """
    namespace, selector = other.metadata.namespace, term.namespace_selector
    listed = term.namespaces or (() if selector is not None else (owner.metadata.namespace,))
    selected = selector is not None and selects(selector, {NAMESPACE_NAME_LABEL: namespace})
    if not selected and namespace not in listed:
        return False
    own = owner.metadata.labels
    matching = _with_keys(term.label_selector, term.match_label_keys, "In", own)
    matching = _with_keys(matching, term.mismatch_label_keys, "NotIn", own)
    return selects(matching, other.metadata.labels)


def needs_namespace_labels(pod: Pod) -> bool:
    """Return whether a rule of the pod about others selects namespaces by labels that are not known."""
    selectors = (term.namespace_selector for term in (*affinity_terms(pod), *anti_affinity_terms(pod)))
    keys = (
        key
        for each in selectors
        if each is not None
        for key in (*each.match_labels, *(requirement.key for requirement in each.match_expressions))
    )
    return any(key != NAMESPACE_NAME_LABEL for key in keys)


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


class _Domains:
    """The domains that pods are counted in, each a label of nodes."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def count(self, key: str, value: str, sign: int) -> None:
        domain = key, value
        self._counts[domain] += sign
        if not self._counts[domain]:
            del self._counts[domain]

    def have(self, labels: Labels) -> bool:
        counts = self._counts
        if len(counts) <= len(labels):
            return any(labels.get(key) == value for key, value in counts)
        return any(label in counts for label in labels.items())


def _by_key(terms: Iterable[PodAffinityTerm]) -> dict[str, list[PodAffinityTerm]]:
    """Return terms by their topology keys: a node has few labels, and a pod may have thousands of terms."""
    found: dict[str, list[PodAffinityTerm]] = {}
    for term in terms:
        found.setdefault(term.topology_key, []).append(term)
    return found


class _AntiAffinity:
    """No pod that a term speaks of is in the node's domain."""

    def __init__(self, pod: Pod, terms: Sequence[PodAffinityTerm]) -> None:
        self._pod = pod
        self._terms = _by_key(terms)
        self._taken = _Domains()

    def count(self, placed: Placed, sign: int) -> None:
        labels = placed.node.metadata.labels
        for key in self._terms.keys() & labels.keys():
            for term in self._terms[key]:
                if term_matches(term, self._pod, placed.pod):
                    self._taken.count(key, labels[key], sign)

    def reason(self, labels: Labels) -> Refusal[PredicateRule] | None:
        return ANTI_AFFINITY if self._taken.have(labels) else None


class _ExistingAntiAffinity:
    """No pod in one of the node's domains keeps the pod out."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._closed = _Domains()
        self._terms: dict[int, tuple[Sequence[PodAffinityTerm], dict[str, list[PodAffinityTerm]]]] = {}

    def count(self, placed: Placed, sign: int) -> None:
        labels = placed.node.metadata.labels
        terms = self._of(placed.pod)
        for key in terms.keys() & labels.keys():
            for term in terms[key]:
                if term_matches(term, placed.pod, self._pod):
                    self._closed.count(key, labels[key], sign)

    def _of(self, pod: Pod) -> dict[str, list[PodAffinityTerm]]:
        """Return the terms of a pod; those of one template share them."""
        terms = anti_affinity_terms(pod)
        known = self._terms.get(id(terms))
        if known is None:
            known = self._terms[id(terms)] = terms, _by_key(terms)  # with itself, so that its id stays its own
        return known[1]

    def reason(self, labels: Labels) -> Refusal[PredicateRule] | None:
        return EXISTING_ANTI_AFFINITY if self._closed.have(labels) else None


class _AffinityTerms:
    """Each term has a pod in the node's domain; the first pod of a group that seeks itself is let in."""

    def __init__(self, pod: Pod, terms: Sequence[PodAffinityTerm]) -> None:
        self._pod = pod
        self._terms = terms
        self._domains: list[Counter[str]] = [Counter() for _ in terms]
        self._seeks_itself = all(term_matches(term, pod, pod) for term in terms)

    def count(self, placed: Placed, sign: int) -> None:
        if not all(term_matches(term, self._pod, placed.pod) for term in self._terms):
            return
        for term, domains in zip(self._terms, self._domains, strict=True):
            value = placed.node.metadata.labels.get(term.topology_key)
            if value is not None:
                domains[value] += sign
                if not domains[value]:
                    del domains[value]

    def reason(self, labels: Labels) -> Refusal[PredicateRule] | None:
        if any(term.topology_key not in labels for term in self._terms):
            return AFFINITY
        if self._seeks_itself and not any(self._domains):
            return None
        pairs = zip(self._terms, self._domains, strict=True)
        return None if all(labels[term.topology_key] in known for term, known in pairs) else AFFINITY


class _Spread:
    """The node's domain has not too many more of the pods than the emptiest one.

    As countPodsMatchSelector of kube-scheduler's podtopologyspread: pods that are being deleted do not count, and an
    empty selector counts nobody, although it selects the pod itself.
    """

    def __init__(self, pod: Pod, constraint: TopologySpreadConstraint, nodes: Sequence[Node]) -> None:
        selector = _with_keys(constraint.label_selector, constraint.match_label_keys, "In", pod.metadata.labels)
        keys = [c.topology_key for c in hard_spread(pod)]
        self._constraint = constraint
        self._namespace = pod.metadata.namespace
        self._counting = None if selector == LabelSelector() else selector
        self._own = int(selects(selector, pod.metadata.labels))
        counted = [node for node in nodes if _counts(pod, constraint, keys, node)]
        self._nodes = {node.metadata.name for node in counted}
        self._counts = {node.metadata.labels[constraint.topology_key]: 0 for node in counted}
        self._least: int | None = None

    def count(self, placed: Placed, sign: int) -> None:
        meta = placed.pod.metadata
        if placed.node.metadata.name not in self._nodes or meta.namespace != self._namespace or meta.deletion_timestamp:
            return
        if selects(self._counting, meta.labels):
            self._counts[placed.node.metadata.labels[self._constraint.topology_key]] += sign
            self._least = None

    def reason(self, labels: Labels) -> Refusal[PredicateRule] | None:
        domain = labels.get(self._constraint.topology_key)
        if domain is None:
            return SPREAD_LABEL
        if self._least is None:
            few = self._constraint.min_domains is not None and len(self._counts) < self._constraint.min_domains
            self._least = 0 if few else min(self._counts.values(), default=0)
        skew = self._counts.get(domain, 0) + self._own - self._least
        return SPREAD if skew > self._constraint.max_skew else None


def _counts(pod: Pod, constraint: TopologySpreadConstraint, keys: Iterable[str], node: Node) -> bool:
    """Return whether the constraint looks at the node: it has all keys, and the pod could go there."""
    if any(key not in node.metadata.labels for key in keys):
        return False
    if constraint.node_affinity_policy == "Honor" and not matches_node(pod.spec, node):
        return False
    return constraint.node_taints_policy != "Honor" or next(untolerated_taints(pod.spec, node), None) is None
