"""Holds a pod's scheduling fields to the API server's rules.

So no predicate meets what it cannot judge.
"""

from collections.abc import Iterator, Sequence

from gputile.api.affinity import (
    Affinity,
    LabelSelector,
    NodeAffinity,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PodAffinityTerm,
    TopologySpreadConstraint,
)
from gputile.api.core import PodSpec, Toleration
from gputile.core.kube_predicates.node_fit import is_integer

_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_ARITY = {"In": (1, 2**31), "NotIn": (1, 2**31), "Exists": (0, 0), "DoesNotExist": (0, 0), "Gt": (1, 1), "Lt": (1, 1)}
_LABEL_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")

Broken = tuple[str, str]  # the field's path within the spec, and the rule


def broken_rule(spec: PodSpec) -> Broken | None:
    """Return the first rule that ``spec`` breaks, with the field's path; None where it breaks none."""
    return next(_broken_rules(spec), None)


def _broken_rules(spec: PodSpec) -> Iterator[Broken]:
    for i, toleration in enumerate(spec.tolerations):
        yield from _toleration(f"tolerations[{i}]", toleration)
    for i, constraint in enumerate(spec.topology_spread_constraints):
        yield from _spread(f"topologySpreadConstraints[{i}]", constraint)
    if spec.affinity is not None:
        yield from _affinity("affinity", spec.affinity)


def _one_of(path: str, value: str, valid: Sequence[str]) -> Iterator[Broken]:
    if value not in valid:
        yield path, f"{value[:40]!r} is not one of {', '.join(v or '(empty)' for v in valid)}"


def _toleration(path: str, toleration: Toleration) -> Iterator[Broken]:
    yield from _one_of(f"{path}.operator", toleration.operator, ("Equal", "Exists", ""))
    yield from _one_of(f"{path}.effect", toleration.effect, (*_EFFECTS, ""))
    if not toleration.key and toleration.operator != "Exists":
        yield f"{path}.operator", "must be Exists where there is no key"
    if toleration.operator == "Exists" and toleration.value:
        yield f"{path}.value", "must be empty where the operator is Exists"


def _affinity(path: str, affinity: Affinity) -> Iterator[Broken]:
    if affinity.node_affinity is not None:
        yield from _node_affinity(f"{path}.nodeAffinity", affinity.node_affinity)
    for field, rules in (("podAffinity", affinity.pod_affinity), ("podAntiAffinity", affinity.pod_anti_affinity)):
        for i, term in enumerate(rules.required if rules else ()):
            where = f"{path}.{field}.requiredDuringSchedulingIgnoredDuringExecution[{i}]"
            yield from _pod_term(where, term)


def _node_affinity(path: str, affinity: NodeAffinity) -> Iterator[Broken]:
    where = f"{path}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    if affinity.required is not None:
        if not affinity.required.node_selector_terms:
            yield where, "must have at least one term"
        for i, term in enumerate(affinity.required.node_selector_terms):
            yield from _node_term(f"{where}[{i}]", term)
    for i, preferred in enumerate(affinity.preferred):
        where = f"{path}.preferredDuringSchedulingIgnoredDuringExecution[{i}]"
        if not 1 <= preferred.weight <= 100:
            yield f"{where}.weight", f"{preferred.weight} is not in 1 to 100"
        yield from _node_term(f"{where}.preference", preferred.preference, preferred=True)


def _node_term(path: str, term: NodeSelectorTerm, *, preferred: bool = False) -> Iterator[Broken]:
    for i, requirement in enumerate(term.match_expressions):
        where = f"{path}.matchExpressions[{i}]"
        yield from _requirement(where, requirement)
        # A preferred one that is no number is taken, and no node meets it.
        comparing = requirement.operator in ("Gt", "Lt") and not preferred
        if comparing and not is_integer("".join(requirement.values)):
            yield f"{where}.values", f"must be an integer where the operator is {requirement.operator}"
    for i, requirement in enumerate(term.match_fields):
        where = f"{path}.matchFields[{i}]"
        yield from _one_of(f"{where}.key", requirement.key, ("metadata.name",))
        yield from _one_of(f"{where}.operator", requirement.operator, ("In", "NotIn"))
        if len(requirement.values) != 1:
            yield f"{where}.values", "must be one value"


def _requirement(path: str, requirement: NodeSelectorRequirement) -> Iterator[Broken]:
    if not requirement.key:
        yield f"{path}.key", "must be there"
    yield from _one_of(f"{path}.operator", requirement.operator, tuple(_ARITY))
    low, high = _ARITY.get(requirement.operator, (0, 2**31))
    yield from _arity(path, requirement.operator, len(requirement.values), low, high)


def _arity(path: str, operator: str, given: int, low: int, high: int) -> Iterator[Broken]:
    if not low <= given <= high:
        needed = {(0, 0): "empty", (1, 1): "one value"}.get((low, high), "one value or more")
        yield f"{path}.values", f"must be {needed} where the operator is {operator}"


def _pod_term(path: str, term: PodAffinityTerm) -> Iterator[Broken]:
    if not term.topology_key:
        yield f"{path}.topologyKey", "must be there"
    yield from _label_selector(f"{path}.labelSelector", term.label_selector)
    yield from _label_selector(f"{path}.namespaceSelector", term.namespace_selector)


def _label_selector(path: str, selector: LabelSelector | None) -> Iterator[Broken]:
    for i, requirement in enumerate(selector.match_expressions if selector else ()):
        where = f"{path}.matchExpressions[{i}]"
        yield from _one_of(f"{where}.operator", requirement.operator, _LABEL_OPERATORS)
        low, high = _ARITY.get(requirement.operator, (0, 2**31))
        yield from _arity(where, requirement.operator, len(requirement.values), low, high)


def _spread(path: str, constraint: TopologySpreadConstraint) -> Iterator[Broken]:
    if constraint.max_skew < 1:
        yield f"{path}.maxSkew", f"{constraint.max_skew} is not 1 or more"
    if not constraint.topology_key:
        yield f"{path}.topologyKey", "must be there"
    if constraint.min_domains is not None and constraint.min_domains < 1:
        yield f"{path}.minDomains", f"{constraint.min_domains} is not 1 or more"
    yield from _one_of(f"{path}.whenUnsatisfiable", constraint.when_unsatisfiable, ("DoNotSchedule", "ScheduleAnyway"))
    yield from _one_of(f"{path}.nodeAffinityPolicy", constraint.node_affinity_policy, ("Honor", "Ignore"))
    yield from _one_of(f"{path}.nodeTaintsPolicy", constraint.node_taints_policy, ("Honor", "Ignore"))
    yield from _label_selector(f"{path}.labelSelector", constraint.label_selector)
