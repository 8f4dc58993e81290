"""Applies what gputile's webhook and policies do to a pod, by the code that the webhook runs.

Before that the rules of ``rules.workloads`` tell whether the API server itself would accept the pod.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from gputile.api.admission import AdmissionRequest, GroupVersionKind
from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.api.well_known import GPU_RESOURCES, LEGACY_AFFINITY_ANNOTATION, MIG_PREFIX, UNSAFE_ACCESS_LABEL
from gputile.core.admission.completion import DEFAULT_SCHEDULER
from gputile.core.admission.gpu_requests import asks_for_gpu
from gputile.core.admission.review import AdmissionPolicy, UnreadableReview, Verdict, mutate, unreadable, validate
from gputile.core.admission.verdict import AdmissionRefusal, AdmissionRule, apply_patch
from gputile.core.kube_predicates.api_rules import broken_rule
from gputile.tools.simulator.admission.defaults import with_defaults
from gputile.tools.simulator.admission.limit_ranges import (
    NamespaceLimits,
    RangeLimits,
    check_together,
    with_limits,
    written_limits,
)
from gputile.tools.simulator.admission.priority_classes import (
    SYSTEM_CLASSES,
    PriorityClasses,
    with_priority,
    with_written_classes,
)
from gputile.tools.simulator.admission.runtime_classes import RuntimeClasses, with_runtime, written_runtimes
from gputile.tools.simulator.documents.manifests import Manifest, ManifestError, Origin, decode
from gputile.tools.simulator.documents.notes import Note

_POD = GroupVersionKind(version="v1", kind="Pod")
# What policies demand of every pod; all else is the webhook's, which is asked about pods that name a GPU resource, and
# about those with the affinity annotation (examples/webhook/webhook.yaml, matchConditions).
_OF_ALLOCATIONS: Final = frozenset({AdmissionRule.FORGED, AdmissionRule.COUNT_CHANGED})
_OF_POLICIES: Final = _OF_ALLOCATIONS | frozenset(
    {
        *(AdmissionRule.ENVIRONMENT, AdmissionRule.PRIVILEGED, AdmissionRule.HOST_NAMESPACE),
        *(AdmissionRule.HOST_PATH, AdmissionRule.MOUNT),
        *(AdmissionRule.DEVICE_ANNOTATION, AdmissionRule.NODE_NAME),
    }
)


@dataclass(frozen=True, slots=True)
class Admission:
    """The admission of a cluster with this ``configuration``.

    ``enforced`` says whether gputile's webhook and policies are installed. Pods of the namespaces ``unsafe`` may reach
    GPUs past the ledger, as the namespaces' labels say. ``priorities`` and ``runtimes`` are PriorityClasses and
    RuntimeClasses, by name, and ``limits`` what LimitRanges say of containers, by namespace. ``all_priorities`` and
    ``all_runtimes`` say that there are no other classes of the kind. The policies about access to GPUs do not hold in
    the namespace ``installed_in``, where gputile's own pods are.
    """

    configuration: Configuration = field(default_factory=Configuration)
    enforced: bool = True
    unsafe: frozenset[str] = frozenset()
    priorities: PriorityClasses = field(default_factory=lambda: SYSTEM_CLASSES)
    all_priorities: bool = False
    runtimes: RuntimeClasses = field(default_factory=dict)
    all_runtimes: bool = False
    installed_in: str = ""
    limits: RangeLimits = field(default_factory=dict)

    def beside(self, manifests: Iterable[Manifest]) -> "Admission":
        """Return this admission with the namespaces, classes and LimitRanges among ``manifests`` added.

        Raises:
            ManifestError: a PriorityClass cannot be used.
        """
        manifests = list(manifests)
        written = (manifest.body.get("metadata") for manifest in manifests if _is_namespace(manifest))
        named = (
            metadata for metadata in written if isinstance(metadata, dict) and isinstance(metadata.get("name"), str)
        )
        labels = {metadata["name"]: metadata.get("labels", {}) for metadata in named}
        allowed = {name for name, found in labels.items() if _is_unsafe(found)}
        priorities = with_written_classes(self.priorities, manifests)
        runtimes = {**self.runtimes, **written_runtimes(manifests)}
        unsafe = self.unsafe - labels.keys() | allowed
        written_here = written_limits(manifests)
        names = dict.fromkeys((*self.limits, *written_here))
        none = NamespaceLimits()
        limits = {name: self.limits.get(name, none).beside(written_here.get(name, none)) for name in names}
        return replace(self, unsafe=unsafe, priorities=priorities, runtimes=runtimes, limits=limits)

    def admit(self, origin: Origin, path: str, pod: Mapping[str, Any], notes: list[Note]) -> Pod:
        """Return a new pod as a cluster stores it; ``path`` is where its fields stand ("", "spec.template").

        Raises:
            ManifestError: it is refused; each broken rule is a line.
        """
        prefix = f"{path}." if path else ""
        pod = with_limits(origin, prefix, with_defaults(pod), self.limits)
        pod = with_priority(origin, prefix, pod, self.priorities, notes, complete=self.all_priorities)
        pod = with_runtime(origin, prefix, pod, self.runtimes, notes, complete=self.all_runtimes)
        if self.enforced:
            pod = self._reviewed(origin, prefix, pod, notes)
        check_together(origin, prefix, pod, self.limits)
        admitted = checked(origin, path, decode(origin, path, pod, Pod))
        scheduler = admitted.spec.scheduler_name
        if scheduler not in ("", DEFAULT_SCHEDULER, self.configuration.scheduler_name):
            gpu = ", and to ask gputile which GPU the pod gets" if asks_for_gpu(admitted) else ""
            said = f"{scheduler[:80]} is believed to decide as kube-scheduler does{gpu}"
            notes.append(Note(f"{prefix}spec.schedulerName: {said}", origin))
        return admitted

    def _reviewed(self, origin: Origin, prefix: str, pod: Mapping[str, Any], notes: list[Note]) -> Mapping[str, Any]:
        namespace = pod["metadata"]["namespace"]
        found = self._asked(pod, namespace, changing=True)
        if not _is_webhooks(pod):
            held = _OF_ALLOCATIONS if namespace == self.installed_in else _OF_POLICIES
            found = Verdict(refusals=tuple(each for each in found.refusals if each.rule in held))
        if not found.refusals and found.operations:
            # An API server asks its own plugins once more about what a webhook has changed.
            pod = with_limits(origin, prefix, apply_patch(found.operations, pod), self.limits)
            found = replace(found, refusals=self._asked(pod, namespace, changing=False).refusals)
        if found.refusals:
            lines = (f"{origin}: {_placed(prefix, refusal.text)} [{refusal.rule}]" for refusal in found.refusals)
            raise ManifestError("\n".join(lines))
        notes += [Note(_placed(prefix, warning), origin) for warning in found.warnings]
        return pod

    def rewritten(self, pod: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a new Pod as the webhook hands it on, itself where it refuses the pod or changes nothing."""
        if not self.enforced or "metadata" not in pod or not _is_webhooks(pod):
            return pod
        namespace = pod["metadata"].get("namespace") or "default"
        found = self._asked(pod, namespace, changing=True)
        return apply_patch(found.operations, pod) if found.operations and not found.refusals else pod

    def _asked(self, pod: Mapping[str, Any], namespace: str, *, changing: bool) -> Verdict:
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
        )
        try:
            return (mutate if changing else validate)(request, policy)
        except UnreadableReview as error:
            refusal: AdmissionRefusal = unreadable(error)
            return Verdict(refusals=(refusal,))


def _is_webhooks(pod: Mapping[str, Any]) -> bool:
    """Return whether an API server asks the webhook about a new pod, whatever amounts it names."""
    spec = pod.get("spec", {})
    resources = (each.get("resources", {}) for each in (*spec.get("containers", ()), *spec.get("initContainers", ())))
    named = (name for each in resources for kind in ("limits", "requests") for name in each.get(kind, {}))
    annotations = pod.get("metadata", {}).get("annotations", {})
    return LEGACY_AFFINITY_ANNOTATION in annotations or any(
        name in GPU_RESOURCES or name.startswith(MIG_PREFIX) for name in named
    )


def _placed(prefix: str, text: str) -> str:
    """Return what is said of a pod as it is said of what stands at ``prefix``."""
    names_a_field = text.startswith(("spec.", "metadata."))
    return f"{prefix}{text}" if names_a_field or not prefix else f"{prefix.rstrip('.')}: {text}"


def checked(origin: Origin, path: str, pod: Pod) -> Pod:
    """Return ``pod`` after a check that the predicates can judge its scheduling rules.

    Raises:
        ManifestError: one of them is not.
    """
    if (broken := broken_rule(pod.spec)) is not None:
        raise origin.error(f"{path}.spec.{broken[0]}".lstrip("."), broken[1])
    return pod


def _is_namespace(manifest: Manifest) -> bool:
    return (manifest.api_version, manifest.kind) == ("v1", "Namespace")


def _is_unsafe(labels: Any) -> bool:
    return isinstance(labels, dict) and labels.get(UNSAFE_ACCESS_LABEL) == "allowed"
