"""Finds values that the API server does not take in their field, by the types of its objects.

``field_rules.toml`` says which values a field takes. What depends on several fields stands in the modules of the kinds.
"""

import functools
import pkgutil
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from gputile.api.kubernetes import kubernetes_kinds
from gputile.api.wording import broken_label_name, shown, supported
from gputile.tools.simulator.rules.values import addresses, names, numbers, paths, windows
from gputile.tools.simulator.rules.values.fields import MISSING, POD_TEMPLATE, Broken

_Check = Callable[[Any], str | None]
_OF_THEIR_OWN: Final = (POD_TEMPLATE, "batch.v1.JobTemplateSpec")  # which their kinds' modules complete and judge
_NOT_READ: Final = (("autoscaling.v2.MetricIdentifier", "selector"),)
_LABELS: Final = "labels"
_REQUIREMENT: Final = "meta.v1.LabelSelectorRequirement"
_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")
_CHECKS: Final[Mapping[str, _Check]] = {
    "": lambda _: None,
    "absolute-path": paths.broken_absolute_path,
    "address": addresses.broken_address,
    "count": functools.partial(numbers.outside, least=0),
    "csi-driver": names.broken_csi_driver,
    "endpoint": addresses.broken_endpoint,
    "file-mode": numbers.broken_file_mode,
    "file-path": paths.broken_file_path,
    "finalizer": names.broken_finalizer,
    "header": names.broken_header,
    "host": names.broken_host,
    "id": functools.partial(numbers.outside, least=0, most=2**31 - 1),
    "iscsi-name": names.broken_iscsi_name,
    "label-name": broken_label_name,
    "label-value": names.broken_label_value,
    "partition": functools.partial(numbers.outside, least=1, most=255),
    "path-below": paths.broken_path_below,
    "path-segment": names.broken_path_segment,
    "port": numbers.broken_port,
    "port-name": names.broken_port_name,
    "port-or-name": lambda port: (names.broken_port_name if isinstance(port, str) else numbers.broken_port)(port),
    "positive": functools.partial(numbers.outside, least=1),
    "qualified-name": names.broken_qualified_name,
    "search-domain": names.broken_search_domain,
    "share": numbers.broken_share,
    "subdomain": names.broken_subdomain,
    "sysctl": names.broken_sysctl,
    "variable": names.broken_variable,
    "windows-credential": windows.broken_credential,
    "windows-user": windows.broken_user,
    "without-dots": paths.broken_steps,
}


def broken_values(type_name: str, value: Any, path: str = "") -> Iterator[Broken]:
    """Yield what is wrong with single values of an object at ``path``, whose fields are of their types.

    Its templates of pods and Jobs are left out, and what the server writes itself (``status``).
    """
    if type_name.startswith("[]"):
        for i, item in enumerate(value):
            yield from broken_values(type_name[2:], item, f"{path}[{i}]")
    if type_name == _REQUIREMENT:
        yield from _requirement(path, value)
    fields = {} if type_name in _OF_THEIR_OWN else kubernetes_kinds().types.get(type_name, {})
    rules = field_rules().get(type_name, {})
    for name in (name for name, rule in rules.items() if rule.__class__ is str and rule.endswith("!")):
        if not value.get(name):
            yield (f"{path}.{name}" if path else name), MISSING
    for name, item in value.items() if fields else ():
        where = f"{path}.{name}" if path else name
        if where == "status" or (type_name, name) in _NOT_READ:
            continue
        rule = rules.get(name)
        if rule == _LABELS:
            yield from names.broken_labels(where, item)
        elif rule is not None:
            yield from _broken(where, item, rule)
        yield from broken_values(fields.get(name, "").rstrip("!"), item, where)


def _requirement(path: str, expression: Mapping[str, Any]) -> Iterator[Broken]:
    """Yield what is wrong with the operator and the values of a selector's requirement."""
    operator, values = expression["operator"], expression.get("values", ())
    if operator not in _OPERATORS:
        yield f"{path}.operator", f"Invalid value: {shown(operator)}: not a valid selector operator"
    elif operator not in ("In", "NotIn") and values:
        yield f"{path}.values", "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
    elif operator in ("In", "NotIn"):
        yield from _broken(f"{path}.values", values, "label-value")
        if not values:
            yield f"{path}.values", "Required value: must be specified when `operator` is 'In' or 'NotIn'"


def _broken(path: str, value: Any, rule: Any) -> Iterator[Broken]:
    places = [(f"{path}[{i}]", each) for i, each in enumerate(value)] if isinstance(value, list) else [(path, value)]
    for where, each in places:
        if why := _why_not(each, rule):
            yield where, why


def _why_not(value: Any, rule: Any) -> str | None:
    """Return why a value is not what a rule of the table takes, None where it is."""
    if isinstance(rule, list):
        return None if value in rule else f"Unsupported value: {shown(value)}: {supported(rule)}"
    if isinstance(rule, dict):
        return numbers.outside(value, rule["min"], rule["max"], rule.get("unit", ""))
    return _CHECKS[rule.rstrip("?!")](value) if value or rule[-1] not in "?!" else None


@functools.cache
def field_rules() -> Mapping[str, Mapping[str, Any]]:
    """Return the rules of fields, by their objects' type and their name."""
    return tomllib.loads((pkgutil.get_data(__name__, "field_rules.toml") or b"").decode())
