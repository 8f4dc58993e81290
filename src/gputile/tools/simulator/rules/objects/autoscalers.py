"""Checks HorizontalPodAutoscalers (k8s.io/kubernetes, pkg/apis/autoscaling/validation)."""

from collections.abc import Iterator
from typing import Final

from gputile.api.quantity import parse_quantity
from gputile.api.wording import shown
from gputile.tools.simulator.rules.pods.containers import broken_container_resource
from gputile.tools.simulator.rules.values.fields import Broken, Json
from gputile.tools.simulator.rules.values.numbers import one_of

_LONGEST_PERIOD: Final = 1800  # seconds
_METRICS: Final = {
    "ContainerResource": "containerResource",
    "External": "external",
    "Object": "object",
    "Pods": "pods",
    "Resource": "resource",
}


def broken_autoscaler(body: Json) -> Iterator[Broken]:
    """Yield what is wrong with a HorizontalPodAutoscaler."""
    spec = body["spec"]
    if spec["maxReplicas"] < spec.get("minReplicas", 1):
        said = f"Invalid value: {spec['maxReplicas']}: must be greater than or equal to `minReplicas`"
        yield "spec.maxReplicas", said
    yield from _reference("spec.scaleTargetRef", spec["scaleTargetRef"])
    group, slash, _ = spec["scaleTargetRef"].get("apiVersion", "").partition("/")
    if not group or not slash:
        yield "spec.scaleTargetRef.apiVersion", "Invalid value: must have a group, as apps/v1"
    for i, metric in enumerate(spec.get("metrics", ())):
        yield from _metric(f"spec.metrics[{i}]", metric)
    for direction in ("scaleUp", "scaleDown"):
        if direction in spec.get("behavior", {}):
            yield from _scaling(f"spec.behavior.{direction}", spec["behavior"][direction])


def _reference(path: str, reference: Json) -> Iterator[Broken]:
    if reference.get("apiVersion", "").count("/") > 1:
        yield f"{path}.apiVersion", f"Invalid value: {shown(reference['apiVersion'])}: must be GROUP/VERSION"


def _metric(path: str, metric: Json) -> Iterator[Broken]:
    kind = metric["type"]
    if kind not in _METRICS:
        yield from one_of(f"{path}.type", kind, _METRICS)
        return
    source = _METRICS[kind]
    for field in _METRICS.values():
        if field in metric and field != source:
            yield f"{path}.{field}", "Forbidden: must populate the given metric source only"
    if source not in metric:
        yield f"{path}.{source}", "Required value: must populate information for the given metric source"
        return
    yield from _source(f"{path}.{source}", kind, metric[source])


def _source(path: str, kind: str, source: Json) -> Iterator[Broken]:
    target = source["target"]
    where = f"{path}.target"
    yield from _target(where, target)
    if kind == "Object":
        yield from _reference(f"{path}.describedObject", source["describedObject"])
    if kind == "ContainerResource" and (why := broken_container_resource(source["name"])):
        yield f"{path}.name", why
    if kind in ("ContainerResource", "Resource"):
        if "averageUtilization" not in target and "averageValue" not in target:
            yield f"{where}.averageUtilization", "Required value: must set either a raw value or a utilization"
        if "averageUtilization" in target and "averageValue" in target:
            yield f"{where}.averageValue", "Forbidden: may not set both a raw value and a utilization"
    elif "averageValue" not in target and (kind == "Pods" or "value" not in target):
        yield f"{where}.averageValue", "Required value"
    elif kind == "External" and "averageValue" in target and "value" in target:
        yield f"{where}.value", "Forbidden: may not set both a value of the metric and one for each pod"


def _target(path: str, target: Json) -> Iterator[Broken]:
    for field in ("value", "averageValue"):
        if field in target and parse_quantity(target[field]) <= 0:
            yield f"{path}.{field}", f"Invalid value: {shown(str(target[field]))}: must be positive"


def _scaling(path: str, rules: Json) -> Iterator[Broken]:
    if "tolerance" in rules and parse_quantity(rules["tolerance"]) < 0:
        yield f"{path}.tolerance", f"Invalid value: {shown(str(rules['tolerance']))}: must be 0 or more"
    if rules.get("policies") == []:
        yield f"{path}.policies", "Required value: must specify at least one Policy"
    for i, policy in enumerate(rules.get("policies", ())):
        if policy["periodSeconds"] > _LONGEST_PERIOD:
            said = f"Invalid value: {policy['periodSeconds']}: must be no more than {_LONGEST_PERIOD}"
            yield f"{path}.policies[{i}].periodSeconds", said
