"""Checks names and labels in a pod's affinities and topology spread as the API server does.

``api_rules`` of the core checks operators and numbers, together with the rest of what the predicates read.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gputile.api.names import broken_label_name
from gputile.api.wording import shown
from gputile.tools.simulator.rules.values.fields import Broken
from gputile.tools.simulator.rules.values.names import (
    broken_label_value,
    broken_labels,
    broken_qualified_name,
    broken_subdomain,
)

Json = Mapping[str, Any]
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")
_MOST_WEIGHT: Final = 100
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def broken_affinity(path: str, spec: Json) -> Iterator[Broken]:
    """Yield what is wrong with the names in the affinities and topology spread of the spec at ``path``."""
    affinity = spec.get("affinity", {})
    node = affinity.get("nodeAffinity", {})
    for i, term in enumerate(node.get(_REQUIRED, {}).get("nodeSelectorTerms", ())):
        where = f"{path}.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms[{i}]"
        yield from _expressions(where, term)
        yield from _node_names(where, term)
    for i, weighted in enumerate(node.get(_PREFERRED, ())):
        where, term = f"{path}.affinity.nodeAffinity.{_PREFERRED}[{i}].preference", weighted.get("preference", {})
        yield from _expressions(where, term, any_value=True)
        yield from _node_names(where, term)
    for kind in ("podAffinity", "podAntiAffinity"):
        rules = affinity.get(kind, {})
        for i, term in enumerate(rules.get(_REQUIRED, ())):
            yield from _of_pods(f"{path}.affinity.{kind}.{_REQUIRED}[{i}]", term)
        for i, weighted in enumerate(rules.get(_PREFERRED, ())):
            where = f"{path}.affinity.{kind}.{_PREFERRED}[{i}].podAffinityTerm"
            yield from _of_pods(where, weighted["podAffinityTerm"])
            if not 1 <= weighted["weight"] <= _MOST_WEIGHT:
                said = f"Invalid value: {weighted['weight']}: must be in the range 1-{_MOST_WEIGHT}"
                yield f"{path}.affinity.{kind}.{_PREFERRED}[{i}].weight", said
    yield from _spread(f"{path}.topologySpreadConstraints", spec.get("topologySpreadConstraints", ()))


def broken_own_labels(path: str, labels: Mapping[str, str], spec: Json) -> Iterator[Broken]:
    """Yield rules of the spec at ``path`` that name a label twice once the pod's own ``labels`` are filled in.

    A cluster adds the values of matchLabelKeys to the selector when it makes a pod. So an API server may take a
    template, and refuse each of its pods.
    """
    for i, constraint in enumerate(spec.get("topologySpreadConstraints", ())):
        yield from _named_twice(f"{path}.topologySpreadConstraints[{i}]", labels, constraint)
    affinity = spec.get("affinity", {})
    for kind in ("podAffinity", "podAntiAffinity"):
        rules = affinity.get(kind, {})
        for i, term in enumerate(rules.get(_REQUIRED, ())):
            yield from _named_twice(f"{path}.affinity.{kind}.{_REQUIRED}[{i}]", labels, term)
        for i, weighted in enumerate(rules.get(_PREFERRED, ())):
            where = f"{path}.affinity.{kind}.{_PREFERRED}[{i}].podAffinityTerm"
            yield from _named_twice(where, labels, weighted["podAffinityTerm"])


def _named_twice(path: str, labels: Mapping[str, str], rule: Json) -> Iterator[Broken]:
    selector = rule.get("labelSelector", {})
    named = Counter[str](list(selector.get("matchLabels", ())))
    named.update(each["key"] for each in selector.get("matchExpressions", ()))
    for i, key in enumerate(rule.get("matchLabelKeys", ())):
        if named[key] + (key in labels) > 1:
            said = f"Invalid value: {shown(key)}: exists in both matchLabelKeys and labelSelector"
            yield f"{path}.matchLabelKeys[{i}]", said


def broken_selector(path: str, selector: Json) -> Iterator[Broken]:
    """Yield what is wrong with the labels that a selector names."""
    yield from broken_labels(f"{path}.matchLabels", selector.get("matchLabels", {}))
    yield from _expressions(path, selector)


def broken_label_selector(path: str, selector: Json) -> Iterator[Broken]:
    """Yield all that is wrong with a selector: labels, operators, and values that an operator needs or forbids."""
    yield from broken_selector(path, selector)
    for i, expression in enumerate(selector.get("matchExpressions", ())):
        where, operator = f"{path}.matchExpressions[{i}]", expression["operator"]
        if operator not in _OPERATORS:
            yield f"{where}.operator", f"Invalid value: {shown(operator)}: not a valid selector operator"
        elif operator in ("In", "NotIn") and not expression.get("values"):
            yield f"{where}.values", "Required value: must be specified when `operator` is 'In' or 'NotIn'"
        elif operator not in ("In", "NotIn") and expression.get("values"):
            yield f"{where}.values", "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"


def _node_names(path: str, term: Json) -> Iterator[Broken]:
    for i, field in enumerate(term.get("matchFields", ())):
        for j, name in enumerate(field.get("values", ())):
            if why := broken_subdomain(name):
                yield f"{path}.matchFields[{i}].values[{j}]", why


def _of_pods(path: str, term: Json) -> Iterator[Broken]:
    if why := broken_qualified_name(term["topologyKey"]):
        yield f"{path}.topologyKey", why
    for field in ("labelSelector", "namespaceSelector"):
        yield from broken_label_selector(f"{path}.{field}", term.get(field, {}))
    for i, namespace in enumerate(term.get("namespaces", ())):
        if why := broken_label_name(namespace):
            yield f"{path}.namespaces[{i}]", why
    yield from _keys(path, term, ("matchLabelKeys", "mismatchLabelKeys"))
    mismatched = set(term.get("mismatchLabelKeys", ()))
    for i, key in enumerate(term.get("matchLabelKeys", ())):
        if key in mismatched:
            yield f"{path}.matchLabelKeys[{i}]", f"Invalid value: {shown(key)}: is in mismatchLabelKeys too"


def _spread(path: str, constraints: Any) -> Iterator[Broken]:
    rules: set[tuple[str, str]] = set()
    for i, constraint in enumerate(constraints):
        where = f"{path}[{i}]"
        yield from broken_label_selector(f"{where}.labelSelector", constraint.get("labelSelector", {}))
        yield from _keys(where, constraint, ("matchLabelKeys",))
        if "minDomains" in constraint and constraint["whenUnsatisfiable"] != "DoNotSchedule":
            said = f"Invalid value: {constraint['minDomains']}"
            yield f"{where}.minDomains", f"{said}: can only be used where whenUnsatisfiable is DoNotSchedule"
        rule = (constraint["topologyKey"], constraint["whenUnsatisfiable"])
        if rule in rules:
            said = shown(", ".join(rule))
            yield (
                where,
                f"Duplicate value: {said}: there is another constraint with this topologyKey and whenUnsatisfiable",
            )
        rules.add(rule)


def _keys(path: str, owner: Json, fields: tuple[str, ...]) -> Iterator[Broken]:
    """Yield what is wrong with labels whose values are taken from the pod itself."""
    for field in fields:
        for i, key in enumerate(owner.get(field, ())):
            if why := broken_qualified_name(key):
                yield f"{path}.{field}[{i}]", why
        if owner.get(field) and "labelSelector" not in owner:
            yield f"{path}.{field}", "Forbidden: must not be specified when labelSelector is not set"


def _expressions(path: str, term: Json, *, any_value: bool = False) -> Iterator[Broken]:
    for i, expression in enumerate(term.get("matchExpressions", ())):
        where = f"{path}.matchExpressions[{i}]"
        if why := broken_qualified_name(expression["key"]):
            yield f"{where}.key", why
        if expression["operator"] in ("In", "NotIn") and not any_value:
            for j, value in enumerate(expression.get("values", ())):
                if why := broken_label_value(value):
                    yield f"{where}.values[{j}]", why
