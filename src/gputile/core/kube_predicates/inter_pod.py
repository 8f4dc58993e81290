"""Checks a pod against placed pods: affinity, anti-affinity and topology spread.

A check is created once for a pod. It counts pods by topology domain, is updated for each added or
removed pod, and is evaluated for each node. Rules of one type are ignored if they have more than
``MOST_PARTS`` parts, so that other pods are not delayed.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol

from gputile.api.affinity import (
    LabelSelector,
    LabelSelectorRequirement,
    PodAffinityTerm,
    TopologySpreadConstraint,
)
from gputile.api.core import Node, Pod
from gputile.core.kube_predicates.node_fit import matches_node, selects, untolerated_taints
from gputile.core.refusal import PredicateRule, Refusal, refusal_by

AFFINITY = refusal_by(PredicateRule.AFFINITY)
ANTI_AFFINITY = refusal_by(PredicateRule.ANTI_AFFINITY)
EXISTING_ANTI_AFFINITY = refusal_by(PredicateRule.EXISTING_ANTI_AFFINITY)
SPREAD = refusal_by(PredicateRule.SPREAD)
SPREAD_LABEL = refusal_by(PredicateRule.SPREAD_LABEL)
NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"
"""The label with a namespace's name, set by the API server. Other labels are unknown here."""
MOST_PARTS = 256
"""The limit for the terms of a pod and their parts. Above the limit, no term is checked."""

Labels = Mapping[str, str]


class Check(Protocol):
    """One rule of a pod about other pods."""

    def count(self, other: Pod, node: Node, sign: int) -> None:
        """Add a pod on a node (1), or remove it (-1)."""

    def reason(self, labels: Labels) -> Refusal[PredicateRule] | None:
        """Return why the pod may not run on a node with these labels, or None if it may."""


def interpod_checks(pod: Pod, nodes: Iterable[Node]) -> list[Check]:
    """Return the checks that ``pod`` needs, in kube-scheduler's order, with no pods counted yet."""
    constraints = hard_spread(pod)
    known = list(nodes) if constraints else []
    checks: list[Check] = [_Spread(pod, constraint, known) for constraint in constraints]
    if terms := affinity_terms(pod):
        checks.append(_AffinityTerms(pod, terms))
    if anti_affinity_terms(pod):
        checks.append(_AntiAffinity(pod, existing=False))
    checks.append(_AntiAffinity(pod, existing=True))
    return checks


def hard_spread(pod: Pod) -> Sequence[TopologySpreadConstraint]:
    """Return the spread constraints that must hold."""
    hard = [
        c for c in pod.spec.topology_spread_constraints if c.when_unsatisfiable == "DoNotSchedule"
    ]
    return () if _too_many_parts(hard) else hard


def anti_affinity_terms(pod: Pod) -> Sequence[PodAffinityTerm]:
    """Return the required anti-affinity terms. They also apply to pods that are placed later."""
    anti_affinity = pod.spec.affinity.pod_anti_affinity if pod.spec.affinity is not None else None
    terms = anti_affinity.required if anti_affinity is not None else ()
    return () if _too_many_parts(terms) else terms


def affinity_terms(pod: Pod) -> Sequence[PodAffinityTerm]:
    affinity = pod.spec.affinity.pod_affinity if pod.spec.affinity is not None else None
    terms = affinity.required if affinity is not None else ()
    return () if _too_many_parts(terms) else terms


def _too_many_parts(terms: Sequence[PodAffinityTerm] | Sequence[TopologySpreadConstraint]) -> bool:
    """Return whether the terms have more than ``MOST_PARTS`` parts, and so are not evaluated."""
    parts = (part for term in terms for part in _parts(term))
    return next(islice(parts, MOST_PARTS, None), None) is not None


def _parts(term: PodAffinityTerm | TopologySpreadConstraint) -> Iterator[object]:
    yield term
    yield from term.match_label_keys
    selectors = [term.label_selector]
    if isinstance(term, PodAffinityTerm):
        yield from term.namespaces
        yield from term.mismatch_label_keys
        selectors.append(term.namespace_selector)
    for selector in selectors:
        if selector is not None:
            yield from selector.match_labels
            for expression in selector.match_expressions:
                yield expression
                yield from expression.values


def has_pod_rules(pod: Pod) -> bool:
    return bool(hard_spread(pod) or anti_affinity_terms(pod) or affinity_terms(pod))


def term_matches(term: PodAffinityTerm, owner: Pod, other: Pod) -> bool:
    """Return whether a term of ``owner`` selects ``other``.

    Only the name label of a namespace is known. So a namespaceSelector is evaluated as if
    namespaces had no other labels.
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


def _with_keys(
    selector: LabelSelector | None, keys: tuple[str, ...], operator: str, own: Labels
) -> LabelSelector | None:
    """Add requirements to ``selector`` for the pod's own values of ``keys`` (matchLabelKeys)."""
    if selector is None or not keys:
        return selector
    extra = tuple(
        LabelSelectorRequirement(key=key, operator=operator, values=(own[key],))
        for key in keys
        if key in own
    )
    return LabelSelector(
        match_labels=selector.match_labels, match_expressions=selector.match_expressions + extra
    )


class _Domains(Counter[tuple[str, str]]):
    """The number of pods in each topology domain.

    A domain is a key and a value of node labels.
    """

    def add(self, key: str, labels: Labels, sign: int) -> None:
        """Count a pod in its node's domain for ``key``. Ignore a node without this label."""
        value = labels.get(key)
        if value is not None:
            self[key, value] += sign
            if not self[key, value]:
                del self[key, value]

    def have(self, labels: Labels) -> bool:
        """Return whether a counted pod is in one of the domains of a node with these ``labels``."""
        if len(self) <= len(labels):
            return any(labels.get(key) == value for key, value in self)
        return any(label in self for label in labels.items())


class _AntiAffinity:
    """Requires that no anti-affinity term excludes the pod from the node's domain.

    By default, the pod's own terms are checked. A term excludes the domains of the placed pods that
    it selects. With ``existing``, the terms of placed pods are checked instead. Such a term
    excludes the placed pod's own domain if it selects this pod.
    """

    def __init__(self, pod: Pod, *, existing: bool) -> None:
        self._pod = pod
        self._terms = None if existing else anti_affinity_terms(pod)
        self._closed = _Domains()

    def count(self, other: Pod, node: Node, sign: int) -> None:
        owner, selected, terms = self._pod, other, self._terms
        if terms is None:
            owner, selected, terms = other, self._pod, anti_affinity_terms(other)
        for term in terms:
            if term_matches(term, owner, selected):
                self._closed.add(term.topology_key, node.metadata.labels, sign)

    def reason(self, labels: Labels) -> Refusal[PredicateRule] | None:
        if not self._closed.have(labels):
            return None
        return EXISTING_ANTI_AFFINITY if self._terms is None else ANTI_AFFINITY


class _AffinityTerms:
    """Requires a matching pod in the node's domain for each term.

    If the terms select the pod itself, and no matching pod is placed yet, the pod may use any
    domain.
    """

    def __init__(self, pod: Pod, terms: Sequence[PodAffinityTerm]) -> None:
        self._pod = pod
        self._terms = terms
        self._domains = [_Domains() for _ in terms]
        self._seeks_itself = all(term_matches(term, pod, pod) for term in terms)

    def count(self, other: Pod, node: Node, sign: int) -> None:
        if all(term_matches(term, self._pod, other) for term in self._terms):
            for term, domains in zip(self._terms, self._domains, strict=True):
                domains.add(term.topology_key, node.metadata.labels, sign)

    def reason(self, labels: Labels) -> Refusal[PredicateRule] | None:
        if any(term.topology_key not in labels for term in self._terms):
            return AFFINITY
        if self._seeks_itself and not any(self._domains):
            return None
        return None if all(domains.have(labels) for domains in self._domains) else AFFINITY


class _Spread:
    """Requires a skew of at most ``maxSkew``.

    The skew is the number of selected pods in the node's domain minus the number in the emptiest
    domain. As in countPodsMatchSelector of kube-scheduler's podtopologyspread, pods that are being
    deleted do not count. An empty selector counts no pods, although it selects the pod itself.
    """

    def __init__(
        self, pod: Pod, constraint: TopologySpreadConstraint, nodes: Sequence[Node]
    ) -> None:
        selector = _with_keys(
            constraint.label_selector, constraint.match_label_keys, "In", pod.metadata.labels
        )
        keys = [c.topology_key for c in hard_spread(pod)]
        self._constraint = constraint
        self._namespace = pod.metadata.namespace
        self._counting = None if selector == LabelSelector() else selector
        self._own = int(selects(selector, pod.metadata.labels))
        counted = [node for node in nodes if _counts(pod, constraint, keys, node)]
        self._nodes = {node.metadata.name for node in counted}
        self._counts = {node.metadata.labels[constraint.topology_key]: 0 for node in counted}
        self._least: int | None = None

    def count(self, other: Pod, node: Node, sign: int) -> None:
        meta = other.metadata
        if (
            node.metadata.name not in self._nodes
            or meta.namespace != self._namespace
            or meta.deletion_timestamp
        ):
            return
        if selects(self._counting, meta.labels):
            self._counts[node.metadata.labels[self._constraint.topology_key]] += sign
            self._least = None

    def reason(self, labels: Labels) -> Refusal[PredicateRule] | None:
        domain = labels.get(self._constraint.topology_key)
        if domain is None:
            return SPREAD_LABEL
        if self._least is None:
            few = (
                self._constraint.min_domains is not None
                and len(self._counts) < self._constraint.min_domains
            )
            self._least = 0 if few else min(self._counts.values(), default=0)
        skew = self._counts.get(domain, 0) + self._own - self._least
        return SPREAD if skew > self._constraint.max_skew else None


def _counts(
    pod: Pod, constraint: TopologySpreadConstraint, keys: Iterable[str], node: Node
) -> bool:
    """Return whether a node has all topology keys and meets the constraint's node policies."""
    if any(key not in node.metadata.labels for key in keys):
        return False
    if constraint.node_affinity_policy == "Honor" and not matches_node(pod.spec, node):
        return False
    return (
        constraint.node_taints_policy != "Honor"
        or next(untolerated_taints(pod.spec, node), None) is None
    )
