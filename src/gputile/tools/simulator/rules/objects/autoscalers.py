"""Checks HorizontalPodAutoscalers (k8s.io/kubernetes, pkg/apis/autoscaling/validation)."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gputile.api.names import broken_label_name
from gputile.api.quantity import parse_quantity
from gputile.api.wording import shown
from gputile.tools.simulator.rules.pods.containers import broken_container_resource
from gputile.tools.simulator.rules.values.fields import Broken
from gputile.tools.simulator.rules.values.names import broken_path_segment
from gputile.tools.simulator.rules.values.numbers import broken_least, one_of

Json = Mapping[str, Any]
_LONGEST_WINDOW: Final = 3600  # seconds
_LONGEST_PERIOD: Final = 1800  # seconds
_METRICS: Final = {
    "ContainerResource": "containerResource",
    "External": "external",
    "Object": "object",
    "Pods": "pods",
    "Resource": "resource",
}
_TARGETS: Final = ("AverageValue", "Utilization", "Value")


def broken_autoscaler(body: Json) -> Iterator[Broken]:
    """Yield what is wrong with a HorizontalPodAutoscaler."""
    spec = body["spec"]
    least = spec.get("minReplicas", 1)
    yield from broken_least("spec", spec, 1, "minReplicas", "maxReplicas", "targetCPUUtilizationPercentage")
    if spec["maxReplicas"] < least:
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
    for field in ("kind", "name"):
        if why := broken_path_segment(reference[field]):
            yield f"{path}.{field}", why
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
    if "metric" in source and (why := broken_path_segment(source["metric"]["name"])):
        yield f"{path}.metric.name", why
    if kind == "ContainerResource":
        if why := broken_container_resource(source["name"]):
            yield f"{path}.name", why
        if why := broken_label_name(source["container"]):
            yield f"{path}.container", why
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
    yield from one_of(f"{path}.type", target["type"], _TARGETS)
    for field in ("value", "averageValue"):
        if field in target and parse_quantity(target[field]) <= 0:
            yield f"{path}.{field}", f"Invalid value: {shown(str(target[field]))}: must be positive"
    yield from broken_least(path, target, 1, "averageUtilization")


def _scaling(path: str, rules: Json) -> Iterator[Broken]:
    window = rules.get("stabilizationWindowSeconds", 0)
    if not 0 <= window <= _LONGEST_WINDOW:
        rule = f"must be 0 to {_LONGEST_WINDOW} seconds"
        yield f"{path}.stabilizationWindowSeconds", f"Invalid value: {window}: {rule}"
    if "selectPolicy" in rules:
        yield from one_of(f"{path}.selectPolicy", rules["selectPolicy"], ("Disabled", "Max", "Min"))
    if "tolerance" in rules and parse_quantity(rules["tolerance"]) < 0:
        yield f"{path}.tolerance", f"Invalid value: {shown(str(rules['tolerance']))}: must be 0 or more"
    if rules.get("policies") == []:
        yield f"{path}.policies", "Required value: must specify at least one Policy"
    for i, policy in enumerate(rules.get("policies", ())):
        where = f"{path}.policies[{i}]"
        yield from one_of(f"{where}.type", policy["type"], ("Percent", "Pods"))
        yield from broken_least(where, policy, 1, "value", "periodSeconds")
        if policy["periodSeconds"] > _LONGEST_PERIOD:
            said = f"Invalid value: {policy['periodSeconds']}: must be no more than {_LONGEST_PERIOD}"
            yield f"{where}.periodSeconds", said
