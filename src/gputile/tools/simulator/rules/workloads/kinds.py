"""Checks the kinds that make pods (k8s.io/kubernetes, pkg/apis/apps and batch, validation)."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from gputile.api.kubernetes import kubernetes_kinds
from gputile.api.wording import broken_label_name, shown
from gputile.tools.simulator.documents.generated_names import generated_name
from gputile.tools.simulator.documents.manifests import Manifest
from gputile.tools.simulator.rules.objects.kinds import broken_beside_workloads
from gputile.tools.simulator.rules.pods.affinity import broken_own_labels
from gputile.tools.simulator.rules.pods.annotations import broken_pod_annotations
from gputile.tools.simulator.rules.pods.claims import broken_claim
from gputile.tools.simulator.rules.pods.pod import broken_copied_metadata, broken_metadata, broken_pod_spec
from gputile.tools.simulator.rules.pods.volume_modes import is_block, used_otherwise
from gputile.tools.simulator.rules.pods.volumes import broken_claim_names
from gputile.tools.simulator.rules.values.cron_schedule import broken_schedule, broken_time_zone, never_comes
from gputile.tools.simulator.rules.values.field_rules import broken_values
from gputile.tools.simulator.rules.values.fields import Broken, Json
from gputile.tools.simulator.rules.values.names import broken_path_segment, broken_subdomain, is_version
from gputile.tools.simulator.rules.values.numbers import broken_least
from gputile.tools.simulator.rules.workloads.controllers_labels import JOB_NAMES, JOB_UIDS, OVERWRITTEN
from gputile.tools.simulator.rules.workloads.jobs import (
    broken_job_labels,
    broken_job_name,
    broken_job_spec,
)
from gputile.tools.simulator.rules.workloads.rollouts import (
    broken_daemon_set_rollout,
    broken_deployment_rollout,
    broken_revision,
    broken_stateful_set_rollout,
)

TEMPLATES: Final = {"CronJob": ("spec", "jobTemplate", "spec", "template")}
TEMPLATE: Final = ("spec", "template")
_SELECTOR: Final = "meta.v1.LabelSelector"
_OF_ANY_NAME: Final = ("ClusterRole", "ClusterRoleBinding", "PodDisruptionBudget", "Role", "RoleBinding")
_OF_PLAIN_FINALIZERS: Final = ("PodDisruptionBudget", "RuntimeClass")
_OF_ANY_PREFIX: Final = ("PodDisruptionBudget", "ReplicationController")
_NAMED_BY_ITSELF: Final = ("LimitRange",)  # the API server names one that has no name
_NAMED_BY_LABELS: Final = ("Namespace", "Service", "StatefulSet")
_NAMES: Final = {
    **dict.fromkeys(_OF_ANY_NAME, broken_path_segment),
    **dict.fromkeys(_NAMED_BY_LABELS, broken_label_name),
}
_LONGEST_CRON_JOB: Final = 52
_A_MINUTE: Final = "29000000"  # since 1970, which a CronJob adds to the names of its Jobs; it has 8 digits until 2160
# The API server takes longer names of these kinds, and refuses what their controllers then make. That of Deployments
# has cut their names since Kubernetes 1.34.
_REPLICA_SET: Final = "its ReplicaSet adds up to 11 characters, and a name has no more than 253"
_LONGEST_DEPLOYMENT: Final = 242
_REVISION: Final = "the label controller-revision-hash adds up to 11, and a label's value has no more than 63"
_LONGEST_STATEFUL_SET: Final = 52
_NEVER_MAKES_A_JOB: Final = "never makes a Job, although an API server takes it"
_GENERATED: Final = "\0"  # an identity that is not known yet, and that no label has


def template_path(kind: str) -> tuple[str, ...]:
    """Return where a kind of Kubernetes keeps the template of its pods; () for a Pod, which is one itself."""
    return () if kind == "Pod" else TEMPLATES.get(kind, TEMPLATE)


def broken_object(manifest: Manifest) -> Iterator[Broken]:
    """Yield what is wrong with an object of a kind that makes pods, whose fields are right."""
    body = manifest.body
    yield from broken_identity(manifest.kind, body.get("metadata", {}))
    if manifest.kind != "Pod":
        yield from broken_values(_type_of(manifest), body)
    if not body.get("spec"):
        yield ("spec.containers" if manifest.kind == "Pod" else "spec"), "Required value"
    elif manifest.kind == "Pod":
        yield from broken_pod_spec("spec", body["spec"])
        yield from broken_claim_names("spec.volumes", body.get("metadata", {}).get("name", ""), body["spec"])
        yield from _of_both("", body)
    else:
        if manifest.kind == "Job":
            metadata = body.get("metadata", {})
            yield from broken_job_name(_stored_name(metadata), body["spec"])
            yield from broken_job_labels("spec", body["spec"], _stored_name(metadata))
            yield from _generated(metadata.get("name", ""), body["spec"])
        elif manifest.kind == "CronJob":
            yield from _made_job(_stored_name(body.get("metadata", {})), body["spec"])
        yield from broken_revision(manifest.kind, body.get("metadata", {}).get("annotations", {}))
        yield from _KINDS[manifest.kind](body["spec"])


def broken_beside(manifest: Manifest) -> Iterator[Broken]:
    """Yield what is wrong with an object of a kind that makes no pods, as it stands beside those that do."""
    yield from broken_identity(manifest.kind, manifest.body.get("metadata", {}))
    if manifest.kind == "PodTemplate":
        yield from broken_template("template", manifest.body.get("template", {}))
    else:
        yield from broken_values(_type_of(manifest), manifest.body)
        yield from broken_beside_workloads(manifest.kind, manifest.body)


def _type_of(manifest: Manifest) -> str:
    return kubernetes_kinds().kinds[manifest.api_version][manifest.kind]


def broken_template(path: str, template: Json) -> Iterator[Broken]:
    """Yield what is wrong with the template of pods that stands at ``path``."""
    if not template.get("spec"):
        yield f"{path}.spec.containers", "Required value"
    yield from broken_copied_metadata(f"{path}.metadata", template.get("metadata", {}))
    spec = template.get("spec", {})
    yield from broken_pod_spec(f"{path}.spec", spec if spec.get("overhead") else _without(spec, "overhead"))
    yield from _of_both(f"{path}.", template)


def broken_job_template(path: str, template: Json) -> Iterator[Broken]:
    """Yield what is wrong with the template of Jobs that stands at ``path``."""
    job = template.get("spec")
    if job is None:
        yield f"{path}.spec", "Required value"
    else:
        # a Job has the labels and annotations of its template, and nothing else of its metadata
        yield from broken_copied_metadata(f"{path}.metadata", _without(template.get("metadata", {}), "finalizers"))
        yield from broken_values("batch.v1.JobSpec", job, f"{path}.spec")
        yield from _job(job, f"{path}.spec")


def _without(fields: Json, *names: str) -> Json:
    """Return a mapping without some of its keys."""
    return {name: value for name, value in fields.items() if name not in names}


def _of_both(prefix: str, pod: Json) -> Iterator[Broken]:
    """Yield where the metadata and the spec of a pod or a template do not go together."""
    metadata, spec = pod.get("metadata", {}), pod.get("spec", {})
    yield from broken_pod_annotations(f"{prefix}metadata.annotations", metadata.get("annotations", {}), spec)
    yield from broken_own_labels(f"{prefix}spec", metadata.get("labels", {}), spec)


def broken_identity(kind: str, metadata: Json) -> Iterator[Broken]:
    """Yield what is wrong with the metadata of an object; some kinds allow every name that a URL path allows."""
    name, prefix = metadata.get("name", ""), metadata.get("generateName", "")
    if not name and not prefix and kind not in _NAMED_BY_ITSELF:
        yield "metadata.name", "Required value: name or generateName is required"
    where, stored = ("metadata.name", name) if name else ("metadata.generateName", _stored_name(metadata))
    if prefix and (why := _broken_prefix(kind, prefix)):
        yield "metadata.generateName", why
    elif stored and (why := _NAMES.get(kind, broken_subdomain)(stored)):
        yield where, why
    if kind == "CronJob" and len(stored) > _LONGEST_CRON_JOB:
        rule = f"must be no more than {_LONGEST_CRON_JOB} characters"
        yield where, f"Invalid value: {shown(stored)}: {rule}"
    if kind == "StatefulSet" and len(stored) > _LONGEST_STATEFUL_SET:
        said = f"a StatefulSet whose name has more than {_LONGEST_STATEFUL_SET} characters never makes a pod"
        yield where, f"Invalid value: {shown(stored)}: {said}: {_REVISION}"
    if metadata.get("namespace") and (why := broken_label_name(metadata["namespace"])):
        yield "metadata.namespace", why
    yield from broken_least("metadata", metadata, 0, "generation")
    if is_version(metadata.get("resourceVersion")) and not metadata.get("uid"):
        yield "metadata.resourceVersion", "Forbidden: should not be set on objects to be created: leave it out"
    yield from broken_metadata("metadata", metadata, plain_finalizers=kind in _OF_PLAIN_FINALIZERS)


def doubted_name(kind: str, metadata: Json) -> str | None:
    """Return in which clusters an object never makes a pod because of its name, None where there is none."""
    if kind != "Deployment" or len(_stored_name(metadata)) <= _LONGEST_DEPLOYMENT:
        return None
    said = f"before Kubernetes 1.34 a Deployment whose name has more than {_LONGEST_DEPLOYMENT} characters makes no pod"
    return f"metadata.name: {said}: {_REPLICA_SET}"


def broken_made_name(kind: str, name: str) -> str | None:
    """Return why no pods are made by a StatefulSet called ``name``, or a ReplicaSet of the owner ``name``."""
    of_set = _LONGEST_STATEFUL_SET, _REVISION
    most, why = of_set if kind == "StatefulSet" else (_LONGEST_DEPLOYMENT, _REPLICA_SET)
    if len(name) > most:
        return f"Invalid value: {shown(name)}: must be no more than {most} characters: {why}"
    return _NAMES.get(kind, broken_subdomain)(name)


def _stored_name(metadata: Json) -> str:
    """Return the name under which an object is stored; "" where it has neither a name nor a part of one."""
    name, prefix = metadata.get("name", ""), metadata.get("generateName", "")
    return str(name or (generated_name(prefix, "") if prefix else ""))


def _broken_prefix(kind: str, prefix: str) -> str | None:
    """Return why names of a kind cannot begin with ``prefix``; None where they can."""
    if kind in _OF_ANY_PREFIX:
        return broken_path_segment(f"{prefix}x")
    return _NAMES.get(kind, broken_subdomain)(prefix.rstrip("-") or prefix)


def _template_of(path: str, spec: Json, *, job: bool = False) -> Iterator[Broken]:
    """Yield what is wrong with the template of a spec; ``job`` says that it is a Job's."""
    template = spec.get("template")
    if template is None:
        yield f"{path}.template", "Required value"
        return
    yield from broken_template(f"{path}.template", template)
    yield from broken_restarts(f"{path}.template", template, job=job)


def broken_restarts(path: str, template: Json, *, job: bool) -> Iterator[Broken]:
    """Yield why pods of the template at ``path`` are not started again as those of a Job are, or of other kinds."""
    spec = template.get("spec")
    if not spec:
        return
    if not job and "activeDeadlineSeconds" in spec:
        why = "pods that are always started again have no deadline; a Job's may have one"
        yield f"{path}.spec.activeDeadlineSeconds", f"Forbidden: {why}"
    policy, where = spec.get("restartPolicy", ""), f"{path}.spec.restartPolicy"
    if job and policy in ("", "Always"):
        said = f"Unsupported value: {shown(policy)}: supported values" if policy else "Required value: valid values"
        yield where, f'{said}: "OnFailure", "Never"'
    elif not job and policy not in ("", "Always"):
        yield where, f'Unsupported value: {shown(policy)}: supported values: "Always"'


def broken_selected(spec: Json, kind: str) -> Iterator[Broken]:
    """Yield what is wrong with a selector, and whether it selects the pods of the template."""
    selector = spec["selector"]
    broken = any(broken_values(_SELECTOR, selector))
    if kind != "job" and not selector.get("matchLabels") and not selector.get("matchExpressions"):
        yield "spec.selector", f"Invalid value: {{}}: empty selector is invalid for {kind}"
    elif not broken:
        labels = (spec.get("template") or {}).get("metadata", {}).get("labels", {})
        if not _selects(selector, labels):
            yield "spec.template.metadata.labels", "Invalid value: `selector` does not match template `labels`"
        elif not _selects(selector, {**labels, **dict.fromkeys(OVERWRITTEN.get(kind, ()), _GENERATED)}):
            rule = "the API server takes it, and it selects none of its pods: its controller overwrites such a label"
            yield "spec.selector", f"Invalid value: {rule}"


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


def _deployment(spec: Json) -> Iterator[Broken]:
    yield from broken_selected(spec, "deployment")
    yield from broken_deployment_rollout(spec)
    yield from _template_of("spec", spec)


def _replica_set(spec: Json) -> Iterator[Broken]:
    yield from broken_selected(spec, "replicaset")
    yield from _template_of("spec", spec)


def _replication_controller(spec: Json) -> Iterator[Broken]:
    labels = (spec.get("template") or {}).get("metadata", {}).get("labels", {})
    selector = spec.get("selector") or labels  # the API server's default
    if not selector:
        yield "spec.selector", "Required value"
    elif any(labels.get(key) != value for key, value in selector.items()):
        yield "spec.template.metadata.labels", "Invalid value: `selector` does not match template `labels`"
    yield from _template_of("spec", spec)


def _stateful_set(spec: Json) -> Iterator[Broken]:
    yield from broken_selected(spec, "statefulset")
    yield from broken_stateful_set_rollout(spec)
    for i, claim in enumerate(spec.get("volumeClaimTemplates", ())):
        where, name = f"spec.volumeClaimTemplates[{i}]", claim.get("metadata", {}).get("name", "")
        if why := broken_label_name(name) if name else "Required value":
            yield f"{where}.metadata.name", why
        yield from broken_metadata(f"{where}.metadata", claim.get("metadata", {}))  # the claims have a copy of it
        yield from broken_claim(f"{where}.spec", claim.get("spec", {}), template=True)
    made = {each.get("metadata", {}).get("name", ""): each for each in spec.get("volumeClaimTemplates", ())}
    blocks = {name: is_block(each.get("spec")) for name, each in made.items()}
    yield from used_otherwise("spec.template.spec", (spec.get("template") or {}).get("spec", {}), blocks)
    yield from _template_of("spec", _as_its_controller_makes(spec))


def _as_its_controller_makes(spec: Json) -> Json:
    """Return a StatefulSet's spec with the volumes that its controller adds to each pod: one for each claim template.

    Each takes the place of the first of the template's own volumes that has its name, or comes after these, so that
    their paths stay right. The pods' names in DNS are the controller's own, whatever the template says.
    """
    pod = (spec.get("template") or {}).get("spec")
    if not pod:
        return spec
    names = {each.get("metadata", {}).get("name", "") for each in spec.get("volumeClaimTemplates", ())} - {""}
    claims = {name: {"name": name, "persistentVolumeClaim": {"claimName": name}} for name in sorted(names)}
    volumes = []
    for each in pod.get("volumes", ()):
        if each["name"] not in names:
            volumes.append(each)
        elif each["name"] in claims:
            volumes.append(claims.pop(each["name"]))
    volumes += claims.values()
    kept = _without(pod, "hostname", "subdomain")
    return {**spec, "template": {**spec["template"], "spec": {**kept, "volumes": volumes}}}


def _daemon_set(spec: Json) -> Iterator[Broken]:
    yield from broken_selected(spec, "daemonset")
    yield from broken_daemon_set_rollout(spec)
    yield from _template_of("spec", spec)


def _job(spec: Json, path: str = "spec") -> Iterator[Broken]:
    yield from broken_job_spec(path, spec)
    counted = "parallelism" in spec or path != "spec"  # a Job that names neither has one of each
    if spec.get("completionMode") == "Indexed" and "completions" not in spec and counted:
        yield f"{path}.completions", "Required value: when completion mode is Indexed"
    if path != "spec" and spec.get("manualSelector"):
        yield f"{path}.manualSelector", 'Unsupported value: true: supported values: "false"'
    elif path != "spec" and "selector" in spec:
        yield f"{path}.selector", "Invalid value: `selector` will be auto-generated: leave it out"
    elif spec.get("manualSelector"):
        if "selector" not in spec:
            yield f"{path}.selector", "Required value: when manualSelector is true"
        else:
            yield from broken_selected(spec, "job")
    yield from _template_of(path, spec, job=True)


def _generated(name: str, spec: Json) -> Iterator[Broken]:
    """Yield why a Job's selector does not select the pods that get the labels of the Job ``name``."""
    if spec.get("manualSelector") or "selector" not in spec:
        return
    own = dict.fromkeys(JOB_UIDS, _GENERATED) | dict.fromkeys(JOB_NAMES, name or _GENERATED)
    if not any(broken_values(_SELECTOR, spec["selector"])) and not _selects(spec["selector"], own):
        yield "spec.selector", "Invalid value: `selector` not auto-generated: leave it out, or set manualSelector"
    else:
        yield from broken_selected({**spec, "template": _labelled(spec.get("template", {}), own)}, "job")


def _labelled(template: Json, more: Mapping[str, str]) -> Json:
    """Return a template whose pods have the labels ``more`` beside their own."""
    metadata = template.get("metadata", {})
    return {**template, "metadata": {**metadata, "labels": {**more, **metadata.get("labels", {})}}}


def _made_job(cron_job: str, spec: Json) -> Iterator[Broken]:
    """Yield why the Jobs that a CronJob makes would be refused, each one: for their names, and labels of their pods."""
    job = spec.get("jobTemplate", {}).get("spec") or {}
    yield from broken_job_name(f"{cron_job}-{_A_MINUTE}", job)
    yield from broken_job_labels("spec.jobTemplate.spec", job)


def _cron_job(spec: Json) -> Iterator[Broken]:
    if why := broken_schedule(spec["schedule"]):
        yield "spec.schedule", f"Invalid value: {shown(spec['schedule'])}: {why}"
    elif never_comes(spec["schedule"]):
        rule = f"the CronJob {_NEVER_MAKES_A_JOB}: no month that it names has such a day"
        yield "spec.schedule", f"Invalid value: {shown(spec['schedule'])}: {rule}"
    if "timeZone" in spec and (why := broken_time_zone(spec["timeZone"])):
        yield "spec.timeZone", f"Invalid value: {shown(spec['timeZone'])}: {why}"
    if spec.get("startingDeadlineSeconds") == 0:
        rule = f"the CronJob {_NEVER_MAKES_A_JOB}: each time has passed when its controller looks"
        yield "spec.startingDeadlineSeconds", f"Invalid value: 0: {rule}"
    yield from broken_job_template("spec.jobTemplate", spec["jobTemplate"])


_KINDS: Final[dict[str, Callable[[Json], Iterator[Broken]]]] = {
    "CronJob": _cron_job,
    "DaemonSet": _daemon_set,
    "Deployment": _deployment,
    "Job": _job,
    "ReplicaSet": _replica_set,
    "ReplicationController": _replication_controller,
    "StatefulSet": _stateful_set,
}
