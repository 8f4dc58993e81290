"""Checks ResourceQuotas and LimitRanges as the API server does."""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, Final

from gputile.api.quantity import parse_quantity
from gputile.api.wording import shown
from gputile.tools.simulator.rules.pods.containers import broken_container_resource, is_extended, is_overcommitted
from gputile.tools.simulator.rules.values.fields import Broken, Json
from gputile.tools.simulator.rules.values.names import broken_qualified_name
from gputile.tools.simulator.rules.values.numbers import one_of

_COUNTED: Final = (
    *("configmaps", "persistentvolumeclaims", "pods", "replicationcontrollers", "resourcequotas", "secrets"),
    *("services", "services.loadbalancers", "services.nodeports"),
)
_OF_PODS: Final = ("cpu", "memory", "ephemeral-storage")
_OF_QUOTAS: Final = (
    *_COUNTED,
    *_OF_PODS,
    *(f"{kind}.{name}" for kind in ("limits", "requests") for name in _OF_PODS),
    "requests.storage",
)
_STANDARD: Final = (*_OF_QUOTAS, "storage")
_HUGE_PAGES: Final = ("hugepages-", "requests.hugepages-")
_COMPUTE: Final = ("cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory")
_IN_SCOPE: Final[dict[str, tuple[str, ...]]] = {
    "BestEffort": ("pods",),
    **dict.fromkeys(
        ("CrossNamespacePodAffinity", "NotBestEffort", "NotTerminating", "PriorityClass", "Terminating"),
        ("pods", *_COMPUTE),
    ),
    "VolumeAttributesClass": ("persistentvolumeclaims", "requests.storage"),
}
_WITHOUT_VALUES: Final = ("BestEffort", "CrossNamespacePodAffinity", "NotBestEffort", "NotTerminating", "Terminating")
_OPPOSITES: Final = (("BestEffort", "NotBestEffort"), ("NotTerminating", "Terminating"))
_LIMITED: Final = ("Container", "PersistentVolumeClaim", "Pod")
_AMOUNTS: Final = ("min", "max", "default", "defaultRequest", "maxLimitRequestRatio")
# Which amount must not be above which other one.
_ORDERED: Final = (
    *(("min", "max"), ("min", "defaultRequest"), ("defaultRequest", "max")),
    *(("defaultRequest", "default"), ("min", "default"), ("default", "max")),
)


def broken_quota(body: Json) -> Iterator[Broken]:
    """Yield what is wrong with a ResourceQuota."""
    spec = body.get("spec", {})
    hard = spec.get("hard", {})
    for name, written in hard.items():
        where, amount = f"spec.hard[{shown(name)}]", parse_quantity(written)
        if why := _broken_resource(name, _OF_QUOTAS, "must be a standard resource for quota"):
            yield where, why
        if amount < 0:
            yield where, f"Invalid value: {shown(str(written))}: must be greater than or equal to 0"
        elif (name in _COUNTED or is_extended(name)) and amount.denominator != 1:
            yield where, f"Invalid value: {shown(str(written))}: must be an integer"
    yield from _scopes("spec.scopes", spec.get("scopes", ()), hard)
    expressions = spec.get("scopeSelector", {}).get("matchExpressions", ())
    where = "spec.scopeSelector.matchExpressions"
    yield from _scopes(where, [each["scopeName"] for each in expressions], hard)
    for i, expression in enumerate(expressions):
        yield from _scope_expression(f"{where}[{i}]", expression)


def broken_limit_range(body: Json) -> Iterator[Broken]:
    """Yield what is wrong with a LimitRange."""
    kinds: set[str] = set()
    for i, limit in enumerate(body.get("spec", {}).get("limits", ())):
        path, kind = f"spec.limits[{i}]", limit["type"]
        if why := broken_qualified_name(kind):
            yield f"{path}.type", why
        elif "/" not in kind and kind not in _LIMITED:
            yield f"{path}.type", f"Invalid value: {shown(kind)}: must be a standard limit type or fully qualified"
        if kind in kinds:
            yield f"{path}.type", f"Duplicate value: {shown(kind)}"
        kinds.add(kind)
        yield from _limits(path, limit)


def _broken_resource(name: str, valid: tuple[str, ...], rule: str) -> str | None:
    """Return why ``name`` is no resource: without a domain it is one of ``valid``, or one of huge pages."""
    if why := broken_qualified_name(name):
        return why
    if "/" in name or name in valid or name.startswith(_HUGE_PAGES):
        return None
    return f"Invalid value: {shown(name)}: {rule}"


def _scopes(path: str, scopes: Any, hard: Json) -> Iterator[Broken]:
    for scope in dict.fromkeys(scopes):
        yield from one_of(path, scope, _IN_SCOPE)
        for name in hard:
            counted = name in _OF_QUOTAS or name.startswith(_HUGE_PAGES)
            if counted and name not in _IN_SCOPE.get(scope, (name,)):
                yield path, f"Invalid value: {shown(scope)}: unsupported scope applied to {name}"
    for pair in _OPPOSITES:
        if set(pair) <= set(scopes):
            yield path, f"Invalid value: conflicting scopes {' and '.join(pair)}"


def _scope_expression(path: str, expression: Json) -> Iterator[Broken]:
    operator, values = expression["operator"], expression.get("values", ())
    if expression["scopeName"] in _WITHOUT_VALUES and operator != "Exists":
        yield f"{path}.operator", f"Invalid value: {shown(operator)}: must be Exists for {expression['scopeName']}"
    if operator in ("In", "NotIn") and not values:
        yield f"{path}.values", "Required value: when `operator` is 'In' or 'NotIn'"
    elif operator not in ("In", "NotIn") and values:
        yield f"{path}.values", "Invalid value: must be no value when `operator` is 'Exists' or 'DoesNotExist'"


def _limits(path: str, limit: Json) -> Iterator[Broken]:
    kind = limit["type"]
    given: dict[str, dict[str, Fraction]] = {}
    for field in _AMOUNTS:
        amounts = limit.get(field, {})
        if kind == "Pod" and field in ("default", "defaultRequest"):
            if amounts:
                yield f"{path}.{field}", "Forbidden: may not be specified when `type` is 'Pod'"
            continue
        for name, written in amounts.items():
            if kind in ("Container", "Pod"):
                why = broken_container_resource(name)
            else:
                why = _broken_resource(name, _STANDARD, "must be a standard resource type or fully qualified")
            if why:
                yield f"{path}.{field}[{shown(name)}]", why
            given.setdefault(name, {})[field] = parse_quantity(written)
    if kind == "PersistentVolumeClaim" and not {"min", "max"} & given.get("storage", {}).keys():
        yield path, "Required value: either minimum or maximum storage value is required"
    for name, amounts_of in given.items():
        yield from _ordered(path, name, _completed(amounts_of) if kind == "Container" else amounts_of)


def _completed(amounts: Mapping[str, Fraction]) -> Mapping[str, Fraction]:
    """Return the amounts for containers of a resource with those that an API server takes for the missing ones."""
    default = {"default": amounts["max"]} if "max" in amounts else {}
    own = {**default, **amounts}
    request = own.get("default", own.get("min"))
    return own if request is None else {"defaultRequest": request, **own}


def _ordered(path: str, name: str, amounts: Mapping[str, Fraction]) -> Iterator[Broken]:
    """Yield the amounts of a resource that contradict each other."""
    for low, high in _ORDERED:
        if low in amounts and high in amounts and amounts[low] > amounts[high]:
            yield f"{path}.{low}[{shown(name)}]", f"Invalid value: {low} is greater than {high}"
    ratio = amounts.get("maxLimitRequestRatio")
    where = f"{path}.maxLimitRequestRatio[{shown(name)}]"
    if ratio is not None and ratio < 1:
        yield where, "Invalid value: ratio is less than 1"
    elif ratio is not None and "max" in amounts and amounts.get("min") and ratio > amounts["max"] / amounts["min"]:
        yield where, "Invalid value: ratio is greater than max/min"
    pair = amounts.get("default"), amounts.get("defaultRequest")
    if None not in pair and pair[0] != pair[1] and not is_overcommitted(name):
        yield f"{path}.defaultRequest[{shown(name)}]", "Invalid value: default must equal defaultRequest"
