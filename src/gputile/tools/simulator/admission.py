"""Admits a new pod as a cluster would, as far as admission affects which GPUs the pod gets.

This module sets a pod's priority from its PriorityClass, and the host ports of a pod with
``hostNetwork``. It also changes and refuses pods as gputile's webhook and policies would, using
the webhook's code.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.api.webhooks import AdmissionRequest, GroupVersionKind
from gputile.api.well_known import (
    GPU_RESOURCES,
    LEGACY_AFFINITY_ANNOTATION,
    MIG_PREFIX,
    UNSAFE_ACCESS_LABEL,
)
from gputile.api.wording import shown
from gputile.api.workloads import ListedPriorityClass
from gputile.core.admission.completion import DEFAULT_SCHEDULER
from gputile.core.admission.legacy_forms import apply_patch
from gputile.core.admission.review import (
    AdmissionPolicy,
    UnreadableReview,
    Verdict,
    mutate,
    unreadable,
)
from gputile.core.devices.request import requests_gpu
from gputile.core.refusal import AdmissionRule, Refusal
from gputile.tools.simulator.fields import Json
from gputile.tools.simulator.manifests import Manifest, ManifestError, Note, Origin, decode

_POD = GroupVersionKind(version="v1", kind="Pod")
_PREEMPTING: Final = "PreemptLowerPriority"
# The rules that the CEL policies enforce for every pod. The webhook enforces all other rules, but
# only for pods that name a GPU resource, have ResourceClaims or have the legacy affinity annotation
# (examples/webhook/webhook.yaml, matchConditions).
_OF_ALLOCATIONS: Final = frozenset({AdmissionRule.FORGED, AdmissionRule.COUNT_CHANGED})
_OF_POLICIES: Final = _OF_ALLOCATIONS | frozenset(
    {
        *(AdmissionRule.ENVIRONMENT, AdmissionRule.PRIVILEGED, AdmissionRule.HOST_NAMESPACE),
        *(AdmissionRule.HOST_PATH, AdmissionRule.MOUNT),
        *(AdmissionRule.DEVICE_ANNOTATION, AdmissionRule.NODE_NAME),
    }
)


class PriorityClass(NamedTuple):
    value: int
    preemption: str = _PREEMPTING
    is_default: bool = False  # whether it applies to pods that name no PriorityClass


PriorityClasses = Mapping[str, PriorityClass]

# Kubernetes' built-in PriorityClasses.
SYSTEM_CLASSES: Final[PriorityClasses] = MappingProxyType(
    {
        "system-cluster-critical": PriorityClass(2_000_000_000),
        "system-node-critical": PriorityClass(2_000_001_000),
    }
)


def listed_classes(listed: Iterable[ListedPriorityClass]) -> PriorityClasses:
    """Return the ``listed`` PriorityClasses and Kubernetes' built-in PriorityClasses, by name."""
    found = (
        (
            each.metadata.name,
            PriorityClass(each.value, each.preemption_policy or _PREEMPTING, each.global_default),
        )
        for each in listed
    )
    return {**SYSTEM_CLASSES, **dict(found)}


@dataclass(frozen=True, slots=True)
class Admission:
    configuration: Configuration = field(default_factory=Configuration)
    enforced: bool = True  # whether gputile's webhook and policies are installed
    # Namespaces with the label gputile.io/unsafe-gpu-access. Their pods may access GPUs directly.
    unsafe: frozenset[str] = frozenset()
    priorities: PriorityClasses = field(default_factory=lambda: SYSTEM_CLASSES)
    # The namespace of gputile's own pods, where the policies on access to GPUs do not apply.
    installed_in: str = ""

    def with_objects(self, manifests: Iterable[Manifest]) -> "Admission":
        """Return a copy with the namespaces and PriorityClasses in ``manifests`` added."""
        unsafe, priorities = set(self.unsafe), dict(self.priorities)
        for manifest in manifests:
            metadata = manifest.body.get("metadata")
            name = metadata.get("name") if isinstance(metadata, dict) else None
            if not isinstance(metadata, dict) or not isinstance(name, str):
                continue  # the validation of the object refuses it later
            if (manifest.kind, manifest.group) == ("Namespace", ""):
                labels = metadata.get("labels")
                allowed = isinstance(labels, dict) and labels.get(UNSAFE_ACCESS_LABEL) == "allowed"
                (unsafe.add if allowed else unsafe.discard)(name)
            elif (manifest.kind, manifest.group) == ("PriorityClass", "scheduling.k8s.io"):
                value = manifest.body.get("value", 0)
                preemption = manifest.body.get("preemptionPolicy", _PREEMPTING)
                if isinstance(value, int) and name not in SYSTEM_CLASSES:
                    is_default = manifest.body.get("globalDefault") is True
                    priorities[name] = PriorityClass(int(value), str(preemption), is_default)
        return replace(self, unsafe=frozenset(unsafe), priorities=priorities)

    def admit(self, origin: Origin, path: str, pod: Json, notes: list[Note]) -> Pod:
        """Return a new pod as the API server would store it.

        ``path`` is the path of the pod in its object, such as "spec.template", or "" for a Pod.

        Raises:
            ManifestError: the pod is refused. The message has one line for each broken rule.
        """
        prefix = f"{path}." if path else ""
        pod = self._with_priority(origin, prefix, _with_host_ports(pod), notes)
        if self.enforced:
            pod = self._admitted(origin, prefix, pod, notes)
        admitted = decode(origin, path, pod, Pod)
        scheduler = admitted.spec.scheduler_name
        if scheduler not in ("", DEFAULT_SCHEDULER, self.configuration.scheduler_name):
            gpu = " and calls gputile's extender" if requests_gpu(admitted) else ""
            text = f"it is assumed that {scheduler[:80]} decides as kube-scheduler{gpu}"
            notes.append(Note(f"{prefix}spec.schedulerName: {text}", origin))
        return admitted

    def _with_priority(self, origin: Origin, prefix: str, pod: Json, notes: list[Note]) -> Json:
        """Set the pod's priority from its PriorityClass. Add a note if the class is unknown."""
        spec = pod["spec"]
        default = next((name for name, each in self.priorities.items() if each.is_default), "")
        name = spec.get("priorityClassName") or default
        found = self.priorities.get(name)
        if found is None:
            if name and "priority" not in spec:
                text = f"the PriorityClass {shown(name)} is unknown: its value is assumed to be 0"
                notes.append(Note(f"{prefix}spec.priorityClassName: {text}", origin))
            return pod
        priority = {
            "priorityClassName": name,
            "priority": found.value,
            "preemptionPolicy": found.preemption,
        }
        return {**pod, "spec": {**spec, **priority}}

    def _admitted(self, origin: Origin, prefix: str, pod: Json, notes: list[Note]) -> Json:
        namespace = pod["metadata"]["namespace"]
        found = self._verdict(pod, namespace)
        claims = self.configuration.features.claims and bool(pod["spec"].get("resourceClaims"))
        if not claims and not _is_sent_to_webhook(pod):
            rules = _OF_ALLOCATIONS if namespace == self.installed_in else _OF_POLICIES
            found = Verdict(refusals=tuple(each for each in found.refusals if each.rule in rules))
        if found.refusals:
            lines = (
                f"{origin}: {_with_path(prefix, refusal.text)} [{refusal.rule}]"
                for refusal in found.refusals
            )
            raise ManifestError("\n".join(lines))
        notes += [Note(_with_path(prefix, warning), origin) for warning in found.warnings]
        return apply_patch(found.operations, pod) if found.operations else pod

    def _verdict(self, pod: Json, namespace: str) -> Verdict:
        request = AdmissionRequest(
            uid="",
            kind=_POD,
            namespace=namespace,
            operation="CREATE",
            object=msgspec.Raw(msgspec.json.encode(pod)),
        )
        configuration = self.configuration
        policy = AdmissionPolicy(
            configuration.unit_mib,
            configuration.admission.trusted_users,
            configuration.admission.gangs,
            namespace in self.unsafe,
            configuration.scheduler_name,
            configuration.gpu_time,
            claims=configuration.features.claims,
            isolation=configuration.admission.isolation,
        )
        try:
            return mutate(request, policy)
        except UnreadableReview as error:
            refusal: Refusal[AdmissionRule] = unreadable(error)
            return Verdict(refusals=(refusal,))


def _with_host_ports(pod: Json) -> Json:
    """If the pod uses ``hostNetwork``, set each missing host port to the container port.

    The API server sets the same default (k8s.io/kubernetes, pkg/apis/core/v1, defaults.go).
    """
    spec = pod["spec"]
    if not spec.get("hostNetwork"):
        return pod
    opened = {
        kind: [{**each, "ports": list(map(_opened, each.get("ports", ())))} for each in spec[kind]]
        for kind in ("initContainers", "containers")
        if kind in spec
    }
    return {**pod, "spec": {**spec, **opened}}


def _opened(port: Json) -> Json:
    return port if port.get("hostPort") else {**port, "hostPort": port["containerPort"]}


def _is_sent_to_webhook(pod: Json) -> bool:
    """Return whether a new pod's resources or annotations make the API server call the webhook.

    The webhook is called for GPU resources, even if the amount is 0, and for the legacy affinity
    annotation.
    """
    spec = pod.get("spec", {})
    resources = (
        each.get("resources", {})
        for each in (*spec.get("containers", ()), *spec.get("initContainers", ()))
    )
    named = (
        name for each in resources for kind in ("limits", "requests") for name in each.get(kind, {})
    )
    annotations = pod.get("metadata", {}).get("annotations", {})
    return LEGACY_AFFINITY_ANNOTATION in annotations or any(
        name in GPU_RESOURCES or name.startswith(MIG_PREFIX) for name in named
    )


def _with_path(prefix: str, text: str) -> str:
    """Prefix a message about a pod with the path of the pod template in the workload."""
    names_a_field = text.startswith(("spec.", "metadata."))
    return f"{prefix}{text}" if names_a_field or not prefix else f"{prefix.rstrip('.')}: {text}"
