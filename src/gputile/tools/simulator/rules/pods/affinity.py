"""Checks a pod's affinities and topology spread where more than one field counts.

``api_rules`` of the core checks what the predicates read, ``field_rules`` single names.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gputile.api.wording import shown
from gputile.tools.simulator.rules.values.fields import Broken, Json
from gputile.tools.simulator.rules.values.names import broken_label_value, broken_qualified_name, broken_subdomain

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
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
    for where, term in _pod_terms(path, affinity):
        yield from _of_pods(where, term)
    yield from _spread(f"{path}.topologySpreadConstraints", spec.get("topologySpreadConstraints", ()))


def broken_own_labels(path: str, labels: Mapping[str, str], spec: Json) -> Iterator[Broken]:
    """Yield rules of the spec at ``path`` that name a label twice once the pod's own ``labels`` are filled in.

    A cluster adds the values of matchLabelKeys to the selector when it makes a pod. So an API server may take a
    template, and refuse each of its pods.
    """
    for i, constraint in enumerate(spec.get("topologySpreadConstraints", ())):
        yield from _named_twice(f"{path}.topologySpreadConstraints[{i}]", labels, constraint)
    for where, term in _pod_terms(path, spec.get("affinity", {})):
        yield from _named_twice(where, labels, term)


def _pod_terms(path: str, affinity: Json) -> Iterator[tuple[str, Json]]:
    """Yield each term of affinities and anti-affinities to pods of the spec at ``path``, with its place."""
    for kind in ("podAffinity", "podAntiAffinity"):
        rules = affinity.get(kind, {})
        for i, term in enumerate(rules.get(_REQUIRED, ())):
            yield f"{path}.affinity.{kind}.{_REQUIRED}[{i}]", term
        for i, weighted in enumerate(rules.get(_PREFERRED, ())):
            yield f"{path}.affinity.{kind}.{_PREFERRED}[{i}].podAffinityTerm", weighted["podAffinityTerm"]


def _named_twice(path: str, labels: Mapping[str, str], rule: Json) -> Iterator[Broken]:
    selector = rule.get("labelSelector", {})
    named = Counter[str](list(selector.get("matchLabels", ())))
    named.update(each["key"] for each in selector.get("matchExpressions", ()))
    for i, key in enumerate(rule.get("matchLabelKeys", ())):
        if named[key] + (key in labels) > 1:
            said = f"Invalid value: {shown(key)}: exists in both matchLabelKeys and labelSelector"
            yield f"{path}.matchLabelKeys[{i}]", said


def _node_names(path: str, term: Json) -> Iterator[Broken]:
    for i, field in enumerate(term.get("matchFields", ())):
        for j, name in enumerate(field.get("values", ())):
            if why := broken_subdomain(name):
                yield f"{path}.matchFields[{i}].values[{j}]", why


def _of_pods(path: str, term: Json) -> Iterator[Broken]:
    yield from _keys(path, term, ("matchLabelKeys", "mismatchLabelKeys"))
    mismatched = set(term.get("mismatchLabelKeys", ()))
    for i, key in enumerate(term.get("matchLabelKeys", ())):
        if key in mismatched:
            yield f"{path}.matchLabelKeys[{i}]", f"Invalid value: {shown(key)}: is in mismatchLabelKeys too"


def _spread(path: str, constraints: Any) -> Iterator[Broken]:
    rules: set[tuple[str, str]] = set()
    for i, constraint in enumerate(constraints):
        where = f"{path}[{i}]"
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
    """Yield labels whose values are taken from the pod itself, and that no selector has."""
    for field in fields:
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
