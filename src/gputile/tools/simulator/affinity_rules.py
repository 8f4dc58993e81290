"""The names and labels in a pod's rules of scheduling, as the API server takes them.

Which operators and numbers are right is judged with what the predicates read, see ``api_rules`` of the core.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gputile.tools.simulator.fields import Broken
from gputile.tools.simulator.names import broken_label_value, broken_labels, broken_qualified_name

Json = Mapping[str, Any]
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def broken_affinity(path: str, spec: Json) -> Iterator[Broken]:
    """Yield what is wrong with the names in the affinities and topology spread of the spec at ``path``."""
    affinity = spec.get("affinity", {})
    node = affinity.get("nodeAffinity", {})
    for i, term in enumerate(node.get(_REQUIRED, {}).get("nodeSelectorTerms", ())):
        yield from _expressions(f"{path}.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms[{i}]", term)
    for i, weighted in enumerate(node.get(_PREFERRED, ())):
        yield from _expressions(
            f"{path}.affinity.nodeAffinity.{_PREFERRED}[{i}].preference", weighted.get("preference", {})
        )
    for kind in ("podAffinity", "podAntiAffinity"):
        rules = affinity.get(kind, {})
        for i, term in enumerate(rules.get(_REQUIRED, ())):
            yield from _of_pods(f"{path}.affinity.{kind}.{_REQUIRED}[{i}]", term)
        for i, weighted in enumerate(rules.get(_PREFERRED, ())):
            where = f"{path}.affinity.{kind}.{_PREFERRED}[{i}].podAffinityTerm"
            yield from _of_pods(where, weighted["podAffinityTerm"])
    for i, constraint in enumerate(spec.get("topologySpreadConstraints", ())):
        where = f"{path}.topologySpreadConstraints[{i}].labelSelector"
        yield from broken_selector(where, constraint.get("labelSelector", {}))


def broken_selector(path: str, selector: Json) -> Iterator[Broken]:
    """Yield what is wrong with the labels that a selector names."""
    yield from broken_labels(f"{path}.matchLabels", selector.get("matchLabels", {}))
    yield from _expressions(path, selector)


def _of_pods(path: str, term: Json) -> Iterator[Broken]:
    if why := broken_qualified_name(term["topologyKey"]):
        yield f"{path}.topologyKey", why
    for field in ("labelSelector", "namespaceSelector"):
        yield from broken_selector(f"{path}.{field}", term.get(field, {}))


def _expressions(path: str, term: Json) -> Iterator[Broken]:
    for i, expression in enumerate(term.get("matchExpressions", ())):
        where = f"{path}.matchExpressions[{i}]"
        if why := broken_qualified_name(expression["key"]):
            yield f"{where}.key", why
        if expression["operator"] in ("In", "NotIn"):
            for j, value in enumerate(expression.get("values", ())):
                if why := broken_label_value(value):
                    yield f"{where}.values[{j}]", why
