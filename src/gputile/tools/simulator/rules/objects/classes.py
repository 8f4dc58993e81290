"""Checks classes that other objects name: of storage, priority, runtimes and ingress."""

from collections.abc import Iterator
from typing import Any, Final

from gputile.api.wording import broken_label_name, shown
from gputile.tools.simulator.rules.pods.containers import broken_resources
from gputile.tools.simulator.rules.pods.tolerations import broken_tolerations
from gputile.tools.simulator.rules.values.fields import Broken, Json
from gputile.tools.simulator.rules.values.names import broken_domain_path, broken_qualified_name
from gputile.tools.simulator.rules.values.repeats import repeated

_MOST_PARAMETERS: Final = 512
_LARGEST_PARAMETERS: Final = 256 * 1024  # bytes
_HIGHEST_PRIORITY: Final = 1_000_000_000
_SYSTEM: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_LONGEST_CONTROLLER: Final = 250


def broken_storage_class(body: Json) -> Iterator[Broken]:
    """Yield what is wrong with a StorageClass."""
    if why := broken_qualified_name(body["provisioner"].lower()):
        yield "provisioner", why
    parameters = body.get("parameters", {})
    size = sum(len(key.encode()) + len(value.encode()) for key, value in parameters.items())
    if len(parameters) > _MOST_PARAMETERS or size > _LARGEST_PARAMETERS:
        yield "parameters", f"Too long: may not be more than {_MOST_PARAMETERS} or {_LARGEST_PARAMETERS} bytes"
    if "" in parameters:
        yield "parameters", 'Invalid value: "": field can not be empty'
    yield from _topologies("allowedTopologies", body.get("allowedTopologies", ()))


def _topologies(path: str, terms: Any) -> Iterator[Broken]:
    before: set[frozenset[tuple[str, frozenset[str]]]] = {frozenset()}
    for i, term in enumerate(terms):
        found: dict[str, frozenset[str]] = {}
        for j, expression in enumerate(term.get("matchLabelExpressions", ())):
            where, key, values = f"{path}[{i}].matchLabelExpressions[{j}]", expression["key"], expression["values"]
            if key in found:
                yield f"{where}.key", f"Duplicate value: {shown(key)}"
            for k in repeated(values):
                yield f"{where}.values[{k}]", f"Duplicate value: {shown(values[k])}"
            found[key] = frozenset(values)
        if (whole := frozenset(found.items())) in before:
            yield f"{path}[{i}].matchLabelExpressions", "Duplicate value: there is another term with these"
        before.add(whole)


def broken_priority_class(body: Json) -> Iterator[Broken]:
    """Yield what is wrong with a PriorityClass."""
    name, value = body.get("metadata", {}).get("name", ""), body.get("value", 0)
    if name.startswith("system-"):
        if _SYSTEM.get(name) != value or body.get("globalDefault"):
            yield "metadata.name", f"Forbidden: {shown(name)}: names with 'system-' are reserved for system use only"
    elif value > _HIGHEST_PRIORITY:
        yield "value", f"Forbidden: maximum allowed value of a user defined priority is {_HIGHEST_PRIORITY}"


def broken_runtime_class(body: Json) -> Iterator[Broken]:
    """Yield what is wrong with a RuntimeClass."""
    yield from broken_resources("overhead.podFixed", {"limits": body.get("overhead", {}).get("podFixed", {})})
    tolerations = body.get("scheduling", {}).get("tolerations", ())
    yield from broken_tolerations("scheduling.tolerations", tolerations)
    keys = [tuple(each.get(field, "") for field in ("key", "operator", "value", "effect")) for each in tolerations]
    for i in repeated(keys):
        yield f"scheduling.tolerations[{i}]", "Duplicate value"


def broken_ingress_class(body: Json) -> Iterator[Broken]:
    """Yield what is wrong with an IngressClass."""
    spec = body.get("spec", {})
    controller = spec.get("controller", "")
    if len(controller) > _LONGEST_CONTROLLER:
        yield "spec.controller", f"Too long: may not be more than {_LONGEST_CONTROLLER} bytes"
    if why := broken_domain_path(controller):
        yield "spec.controller", why
    if "parameters" in spec:
        yield from _parameters("spec.parameters", spec["parameters"])


def _parameters(path: str, reference: Json) -> Iterator[Broken]:
    scope = reference.get("scope", "Cluster")
    if scope == "Namespace":
        if why := broken_label_name(reference["namespace"]) if "namespace" in reference else "Required value":
            yield f"{path}.namespace", why
    elif scope == "Cluster" and "namespace" in reference:
        yield f"{path}.namespace", "Forbidden: `parameters.scope` is set to 'Cluster'"
