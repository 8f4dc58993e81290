"""What the API server demands of the kinds that make pods (k8s.io/kubernetes, pkg/apis/apps and batch, validation)."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from gputile.api.wording import shown
from gputile.tools.simulator.affinity_rules import broken_selector
from gputile.tools.simulator.fields import Broken
from gputile.tools.simulator.manifests import Manifest
from gputile.tools.simulator.names import broken_label_name, broken_subdomain
from gputile.tools.simulator.pod_rules import broken_metadata, broken_pod_spec

Json = Mapping[str, Any]
TEMPLATES: Final = {"CronJob": ("spec", "jobTemplate", "spec", "template")}
TEMPLATE: Final = ("spec", "template")
_LONGEST_CRON_JOB: Final = 52
_ALWAYS: Final = ("Always",)
_OF_JOB: Final = ("OnFailure", "Never")
_CRON: Final = re.compile(r"@(yearly|annually|monthly|weekly|daily|midnight|hourly|every \S+)|\S+( +\S+){4}", re.ASCII)
_ZERO: Final = ("0", "0%")
_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")


def template_path(kind: str) -> tuple[str, ...]:
    """Return where a kind of Kubernetes keeps the template of its pods; () for a Pod, which is one itself."""
    return () if kind == "Pod" else TEMPLATES.get(kind, TEMPLATE)


def broken_object(manifest: Manifest) -> Iterator[Broken]:
    """Yield what is wrong with an object of a kind that makes pods, whose fields are right."""
    body = manifest.body
    yield from _identity(manifest.kind, body.get("metadata", {}))
    if not body.get("spec"):
        yield ("spec.containers" if manifest.kind == "Pod" else "spec"), "Required value"
    elif manifest.kind == "Pod":
        yield from broken_pod_spec("spec", body["spec"])
    else:
        yield from _KINDS[manifest.kind](body["spec"])


def broken_template(path: str, template: Json) -> Iterator[Broken]:
    """Yield what is wrong with the template of pods that stands at ``path``."""
    yield from broken_metadata(f"{path}.metadata", template.get("metadata", {}))
    yield from broken_pod_spec(f"{path}.spec", template.get("spec", {}))


def _identity(kind: str, metadata: Json) -> Iterator[Broken]:
    name, prefix = metadata.get("name", ""), metadata.get("generateName", "")
    if not name and not prefix:
        yield "metadata.name", "Required value: name or generateName is required"
    elif why := broken_subdomain(name or prefix.rstrip("-") or "-"):
        yield f"metadata.{'name' if name else 'generateName'}", why
    elif kind == "CronJob" and len(name) > _LONGEST_CRON_JOB:
        rule = f"must be no more than {_LONGEST_CRON_JOB} characters"
        yield "metadata.name", f"Invalid value: {shown(name)}: {rule}"
    if metadata.get("namespace") and (why := broken_label_name(metadata["namespace"])):
        yield "metadata.namespace", why
    yield from broken_metadata("metadata", metadata)


def _template_of(path: str, spec: Json, policies: tuple[str, ...]) -> Iterator[Broken]:
    """Yield what is wrong with the template of a spec; ``policies`` are the restartPolicies that its kind takes."""
    template = spec.get("template")
    if template is None:
        yield f"{path}.template", "Required value"
        return
    if not template.get("spec"):
        yield f"{path}.template.spec.containers", "Required value"
        return
    yield from broken_template(f"{path}.template", template)
    policy = template["spec"].get("restartPolicy", "")
    where = f"{path}.template.spec.restartPolicy"
    if policies == _OF_JOB and policy in ("", "Always"):
        said = f"Unsupported value: {shown(policy)}: supported values" if policy else "Required value: valid values"
        yield where, f'{said}: "OnFailure", "Never"'
    elif policies == _ALWAYS and policy not in ("", "Always"):
        yield where, f'Unsupported value: {shown(policy)}: supported values: "Always"'


def _selected(spec: Json, kind: str) -> Iterator[Broken]:
    """Yield what is wrong with a selector, and whether it selects the pods of the template."""
    selector = spec["selector"]
    expressions = selector.get("matchExpressions", ())
    yield from broken_selector("spec.selector", selector)
    wrong = False
    for i, expression in enumerate(expressions):
        where, operator = f"spec.selector.matchExpressions[{i}]", expression["operator"]
        if operator not in _OPERATORS:
            wrong = True
            yield f"{where}.operator", f"Invalid value: {shown(operator)}: not a valid selector operator"
        elif operator in ("In", "NotIn") and not expression.get("values"):
            wrong = True
            yield f"{where}.values", "Required value: must be specified when `operator` is 'In' or 'NotIn'"
        elif operator not in ("In", "NotIn") and expression.get("values"):
            wrong = True
            yield f"{where}.values", "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
    if not selector.get("matchLabels") and not expressions:
        yield "spec.selector", f"Invalid value: {{}}: empty selector is invalid for {kind}"
    elif not wrong:
        labels = (spec.get("template") or {}).get("metadata", {}).get("labels", {})
        if not _selects(selector, labels):
            yield "spec.template.metadata.labels", "Invalid value: `selector` does not match template `labels`"


def _selects(selector: Json, labels: Mapping[str, str]) -> bool:
    matches: dict[str, Callable[[str | None, Any], bool]] = {
        "In": lambda value, values: value in values,
        "NotIn": lambda value, values: value not in values,
        "Exists": lambda value, _: value is not None,
        "DoesNotExist": lambda value, _: value is None,
    }
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        matches[each["operator"]](labels.get(each["key"]), each.get("values", ()))
        for each in selector.get("matchExpressions", ())
    )


def _not_negative(path: str, spec: Json, *fields: str) -> Iterator[Broken]:
    for field in fields:
        if spec.get(field, 0) < 0:
            yield f"{path}.{field}", f"Invalid value: {spec[field]}: must be greater than or equal to 0"


def _deployment(spec: Json) -> Iterator[Broken]:
    yield from _not_negative("spec", spec, "replicas", "minReadySeconds", "revisionHistoryLimit")
    yield from _selected(spec, "deployment")
    strategy = spec.get("strategy", {})
    rolling = strategy.get("rollingUpdate")
    if strategy.get("type") == "Recreate" and rolling is not None:
        yield "spec.strategy.rollingUpdate", "Forbidden: may not be specified when strategy `type` is 'Recreate'"
    elif rolling is not None and all(str(rolling.get(each, 1)) in _ZERO for each in ("maxSurge", "maxUnavailable")):
        where = "spec.strategy.rollingUpdate.maxUnavailable"
        yield where, "Invalid value: 0: may not be 0 when `maxSurge` is 0"
    yield from _template_of("spec", spec, _ALWAYS)


def _replica_set(spec: Json) -> Iterator[Broken]:
    yield from _not_negative("spec", spec, "replicas", "minReadySeconds")
    yield from _selected(spec, "replicaset")
    yield from _template_of("spec", spec, _ALWAYS)


def _replication_controller(spec: Json) -> Iterator[Broken]:
    yield from _not_negative("spec", spec, "replicas", "minReadySeconds")
    labels = (spec.get("template") or {}).get("metadata", {}).get("labels", {})
    selector = spec.get("selector") or labels  # the API server's default
    if not selector:
        yield "spec.selector", "Required value"
    elif any(labels.get(key) != value for key, value in selector.items()):
        yield "spec.template.metadata.labels", "Invalid value: `selector` does not match template `labels`"
    yield from _template_of("spec", spec, _ALWAYS)


def _stateful_set(spec: Json) -> Iterator[Broken]:
    yield from _not_negative("spec", spec, "replicas", "minReadySeconds", "revisionHistoryLimit")
    yield from _not_negative("spec.ordinals", spec.get("ordinals", {}), "start")
    if spec.get("serviceName") and (why := broken_label_name(spec["serviceName"])):
        yield "spec.serviceName", why
    yield from _selected(spec, "statefulset")
    yield from _template_of("spec", _with_claimed_volumes(spec), _ALWAYS)


def _with_claimed_volumes(spec: Json) -> Json:
    """Return a StatefulSet's spec with the volumes that its controller adds to each pod: one for each claim template.

    They stand behind the template's own, so that the paths of those stay right.
    """
    pod = (spec.get("template") or {}).get("spec")
    if not pod:
        return spec
    own = pod.get("volumes", ())
    claims = {each.get("metadata", {}).get("name", "") for each in spec.get("volumeClaimTemplates", ())}
    added = sorted(claims - {each["name"] for each in own} - {""})
    volumes = [*own, *({"name": name, "persistentVolumeClaim": {"claimName": name}} for name in added)]
    return {**spec, "template": {**spec["template"], "spec": {**pod, "volumes": volumes}}}


def _daemon_set(spec: Json) -> Iterator[Broken]:
    yield from _not_negative("spec", spec, "minReadySeconds", "revisionHistoryLimit")
    yield from _selected(spec, "daemonset")
    yield from _template_of("spec", spec, _ALWAYS)


def _job(spec: Json, path: str = "spec") -> Iterator[Broken]:
    yield from _not_negative(
        path, spec, "parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"
    )
    if spec.get("completionMode") == "Indexed" and "parallelism" in spec and "completions" not in spec:
        yield f"{path}.completions", "Required value: when completion mode is Indexed"
    if spec.get("selector") and not spec.get("manualSelector"):
        yield f"{path}.selector", "Invalid value: `selector` not auto-generated: leave it out, or set manualSelector"
    yield from _template_of(path, spec, _OF_JOB)


def _cron_job(spec: Json) -> Iterator[Broken]:
    if not _CRON.fullmatch(spec["schedule"].strip()):
        rule = "expected exactly 5 fields: minute, hour, day of month, month, day of week"
        yield "spec.schedule", f"Invalid value: {shown(spec['schedule'])}: {rule}"
    yield from _not_negative("spec", spec, "startingDeadlineSeconds", "successfulJobsHistoryLimit")
    job = spec["jobTemplate"].get("spec")
    if job is None:
        yield "spec.jobTemplate.spec", "Required value"
    else:
        yield from _job(job, "spec.jobTemplate.spec")


_KINDS: Final[dict[str, Callable[[Json], Iterator[Broken]]]] = {
    "CronJob": _cron_job,
    "DaemonSet": _daemon_set,
    "Deployment": _deployment,
    "Job": _job,
    "ReplicaSet": _replica_set,
    "ReplicationController": _replication_controller,
    "StatefulSet": _stateful_set,
}
