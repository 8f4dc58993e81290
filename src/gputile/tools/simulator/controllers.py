"""Creates the pods of Kubernetes' own workload kinds as their controllers would.

Pods get the labels that controllers set, because affinities and topology spread constraints may use
these labels. The names of the labels are in k8s.io/api (apps/v1 and batch/v1, types.go). The
controllers that set them are in k8s.io/kubernetes: registry/batch/job/strategy.go, controller/job,
controller/statefulset, controller/daemon and controller/deployment.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Final

import msgspec

from gputile.api.affinity import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
)
from gputile.api.core import Node, ObjectMeta, OwnerReference, Pod, PodSpec, Toleration
from gputile.api.wording import first_of
from gputile.core.devices.gang_membership import gang_of, labelled_size
from gputile.core.kube_predicates.node_fit import matches_node, untolerated_taints
from gputile.tools.simulator.controller_rules import is_gated
from gputile.tools.simulator.manifests import Manifest, Note, Origin, make_uid, suffixes

MOST_REPLICAS: Final = 100_000
# Kubernetes' own kinds whose pods are created here, with their current apiVersion.
MAKERS: Final = {
    "CronJob": "batch/v1",
    "DaemonSet": "apps/v1",
    "Deployment": "apps/v1",
    "Job": "batch/v1",
    "Pod": "v1",
    "ReplicaSet": "apps/v1",
    "ReplicationController": "v1",
    "StatefulSet": "apps/v1",
}
TEMPLATE_HASH: Final = "pod-template-hash"  # Deployment
REVISION_HASH: Final = "controller-revision-hash"  # StatefulSet, DaemonSet
TEMPLATE_GENERATION: Final = "pod-template-generation"  # DaemonSet
POD_NAME: Final = "statefulset.kubernetes.io/pod-name"
POD_INDEX: Final = "apps.kubernetes.io/pod-index"  # StatefulSet
# A label and an annotation of the pods of an Indexed Job.
COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
JOB_NAMES: Final = ("job-name", "batch.kubernetes.io/job-name")
JOB_UIDS: Final = ("controller-uid", "batch.kubernetes.io/controller-uid")
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
AS_IF_RESUMED: Final = "is suspended: judged as if it were resumed"
_BY_TEMPLATE = (
    "its controller chooses nodes by the template as it is written, without what admission adds to "
    "pods: write the toleration or the selector into the template"
)
# The tolerations that the DaemonSet controller adds to its pods.
_TOLERATIONS = tuple(
    Toleration(key=f"node.kubernetes.io/{condition}", operator="Exists", effect=effect)
    for condition, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
)


def common_labels(kind: str, owner: ObjectMeta, template: Pod) -> dict[str, str]:
    """Return the labels that all pods of a workload have, from the template and the controller.

    The pods of a CronJob also have the labels of its Job.
    """
    labels = dict(template.metadata.labels)
    # This hash replaces the hash that the controller would compute.
    digest = hashlib.sha256(msgspec.json.encode(template)).hexdigest()[:10]
    if kind == "Deployment":
        return labels | {TEMPLATE_HASH: digest}
    if kind == "StatefulSet":
        return labels | {REVISION_HASH: f"{owner.name}-{digest}"}
    if kind == "DaemonSet":
        return labels | {REVISION_HASH: digest, TEMPLATE_GENERATION: "1"}
    if kind in ("Job", "CronJob"):
        # The suffix of a real Job is the number of minutes since 1970.
        name = owner.name if kind == "Job" else f"{owner.name}-00000000"
        uid = owner.uid if kind == "Job" else make_uid("Job", owner.namespace, name)
        return dict.fromkeys(JOB_NAMES, name) | dict.fromkeys(JOB_UIDS, uid) | labels
    return labels


class PodMaker:
    """Creates the pods of the workload ``manifest`` from its template."""

    def __init__(
        self, manifest: Manifest, owner: ObjectMeta, template: Pod, labels: dict[str, str]
    ) -> None:
        self.name = owner.name
        self.template = template
        self._labels = labels
        self._namespace = owner.namespace
        kind, version = manifest.kind, manifest.api_version
        self._owners = (
            OwnerReference(
                api_version=version, kind=kind, name=owner.name, uid=owner.uid, controller=True
            ),
        )
        self._suffix = suffixes(owner.uid)

    def pod(
        self,
        name: str,
        spec: PodSpec | None = None,
        labels: Mapping[str, str] = _NOTHING,
        annotations: Mapping[str, str] = _NOTHING,
    ) -> Pod:
        """Return pod ``name``. ``labels`` and ``annotations`` override those of the template."""
        meta = self.template.metadata
        metadata = ObjectMeta(
            name=name,
            namespace=self._namespace,
            uid=make_uid("Pod", self._namespace, name),
            labels={**self._labels, **labels} if labels else self._labels,
            annotations={**meta.annotations, **annotations} if annotations else meta.annotations,
            owner_references=self._owners,
        )
        return Pod(metadata=metadata, spec=spec or self.template.spec)

    def generated(self, number: int, spec: PodSpec | None = None) -> Pod:
        """Return pod ``number``. Its name ends in five generated characters."""
        return self.pod(f"{self.name}-{self._suffix(number)}", spec)

    def indexed(self, index: int) -> Pod:
        """Return the pod of an Indexed Job with the completion index ``index``."""
        entry = {COMPLETION_INDEX: str(index)}
        name = f"{self.name}-{index}-{self._suffix(index)}"
        return self.pod(name, labels=entry, annotations=entry)

    def numbered(self, ordinal: int) -> Pod:
        """Return the pod of a StatefulSet with this ordinal."""
        name = f"{self.name}-{ordinal}"
        return self.pod(name, labels={POD_NAME: name, POD_INDEX: str(ordinal)})


_Replicas = Annotated[int, msgspec.Meta(ge=0, le=MOST_REPLICAS)]


class _Ordinals(msgspec.Struct):
    start: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0


class WorkloadSpec(msgspec.Struct, rename="camel"):
    """The fields of all workload kinds that determine the number and the names of the pods."""

    replicas: _Replicas = 1
    parallelism: _Replicas = 1
    completions: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    completion_mode: str = ""
    suspend: bool = False
    paused: bool = False
    pod_management_policy: str = ""
    ordinals: _Ordinals = msgspec.field(default_factory=_Ordinals)


class _WorkloadManifest(msgspec.Struct):
    spec: WorkloadSpec
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


class _CronJobSpec(msgspec.Struct, rename="camel"):
    job_template: _WorkloadManifest
    suspend: bool = False


class _CronJob(msgspec.Struct):
    spec: _CronJobSpec
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


@dataclass(frozen=True, slots=True)
class ControllerInput:
    """The input of the functions in ``CONTROLLERS``."""

    origin: Origin
    stored: bool  # whether the workload already exists in the cluster
    gangs: bool  # whether the cluster supports gangs
    spec: WorkloadSpec
    written: PodSpec  # the pod spec before admission
    make: PodMaker
    nodes: Sequence[Node]
    notes: list[Note]

    def note(self, text: str) -> None:
        self.notes.append(Note(text, self.origin))


def template_path(kind: str) -> tuple[str, ...]:
    """Return the path of the pod template in an object of a Kubernetes kind, or () for a Pod."""
    if kind == "CronJob":
        return "spec", "jobTemplate", "spec", "template"
    return () if kind == "Pod" else ("spec", "template")


def workload_of(manifest: Manifest) -> tuple[ObjectMeta, WorkloadSpec]:
    """Return an object's metadata, and the fields that determine its pods.

    For a CronJob, the fields are those of its Jobs.

    Raises:
        ManifestError: a field has the wrong type or value.
    """
    if manifest.kind != "CronJob":
        workload = manifest.decode(_WorkloadManifest)
        return workload.metadata, workload.spec
    cron = manifest.decode(_CronJob)
    spec = cron.spec.job_template.spec
    spec.suspend |= cron.spec.suspend
    return cron.metadata, spec


def _replicas(workload: ControllerInput) -> int:
    """Return the number of replicas. In a new workload, 0 counts as 1, so that a pod is checked."""
    if workload.spec.replicas or workload.stored:
        return workload.spec.replicas
    workload.note("has 0 replicas: judged as if it had 1")
    return 1


def _replicated(workload: ControllerInput) -> Iterator[Pod]:
    return (workload.make.generated(i) for i in range(_replicas(workload)))


def _deployed(workload: ControllerInput) -> Iterator[Pod]:
    if workload.spec.paused:
        if workload.stored:
            workload.note("is paused, so its controller makes no pods of this template")
            return iter(())
        workload.note("is paused: judged as if it were resumed")
    return _replicated(workload)


def _stateful(workload: ControllerInput) -> Iterator[Pod]:
    template = workload.make.template
    gang = (
        gang_of(template) if workload.gangs and not workload.stored and is_gated(template) else None
    )
    one_by_one = workload.spec.replicas > 1 and workload.spec.pod_management_policy != "Parallel"
    if gang is not None and one_by_one and (gang.by_object or labelled_size(template) > 1):
        rule = (
            "pods of a gang start together, and those of a StatefulSet one after the other, "
            "each when the last is ready"
        )
        raise workload.origin.error(
            "spec.podManagementPolicy", f"{rule}: the gang never starts: set it to Parallel"
        )
    first = workload.spec.ordinals.start
    return (workload.make.numbered(i) for i in range(first, first + _replicas(workload)))


def _job(workload: ControllerInput) -> Iterator[Pod]:
    """Yield the pods of a Job that run at the same time."""
    spec = workload.spec
    if spec.suspend:
        workload.note("is suspended and makes no pods" if workload.stored else AS_IF_RESUMED)
        if workload.stored:
            return
    count = (
        spec.parallelism if spec.completions is None else min(spec.parallelism, spec.completions)
    )
    if count == 0 and not workload.stored:
        workload.note("has parallelism 0: judged as if it had 1")
        count = 1
    if spec.completions is not None and spec.completions > count:
        workload.note(
            f"runs {count} of its {spec.completions} pods at a time; the first {count} are placed"
        )
    indexed = spec.completion_mode == "Indexed"
    for i in range(count):
        yield workload.make.indexed(i) if indexed else workload.make.generated(i)


def _daemons(workload: ControllerInput) -> Iterator[Pod]:
    """Yield a pod for each node that the controller selects, with an affinity to that node.

    The controller evaluates the template without the changes that admission makes to pods. A note
    reports nodes on which the admitted pod could run, but for which no pod is created.
    """
    admitted = workload.make.template.spec
    chosen = [node for node in workload.nodes if _wants_pod(workload.written, node)]
    missed = [node for node in workload.nodes if node not in chosen and _wants_pod(admitted, node)]
    if missed:
        text = f"{first_of([node.metadata.name for node in missed], 3)}: {_BY_TEMPLATE}"
        if not chosen and not workload.stored:
            raise workload.origin.error(
                "spec.template.spec", f"the DaemonSet never makes a pod for {text}"
            )
        workload.note(f"it makes no pod for {text}")
    elif not chosen:
        workload.note("there is no node that it may run on")
    for i, node in enumerate(chosen):
        yield workload.make.generated(i, spec=_pinned(admitted, node.metadata.name))


def _pinned(admitted: PodSpec, node: str) -> PodSpec:
    """Add the affinity for a node and the tolerations that the DaemonSet controller adds."""
    field = NodeSelectorRequirement(key="metadata.name", operator="In", values=(node,))
    required = NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(field,)),))
    old = admitted.affinity or Affinity()
    preferred = old.node_affinity.preferred if old.node_affinity else ()
    affinity = msgspec.structs.replace(
        old, node_affinity=NodeAffinity(required=required, preferred=preferred)
    )
    return msgspec.structs.replace(_tolerant(admitted), affinity=affinity)


def _tolerant(spec: PodSpec) -> PodSpec:
    return msgspec.structs.replace(spec, tolerations=(*spec.tolerations, *_TOLERATIONS))


def _wants_pod(spec: PodSpec, node: Node) -> bool:
    """Return whether the controller would create a pod with this spec for the node."""
    return next(untolerated_taints(_tolerant(spec), node), None) is None and matches_node(
        spec, node
    )


# The function that creates the pods of each kind. It raises a ManifestError if the controller
# would never create all of them.
CONTROLLERS: Final[Mapping[str, Callable[[ControllerInput], Iterator[Pod]]]] = {
    "Deployment": _deployed,
    "ReplicaSet": _replicated,
    "ReplicationController": _replicated,
    "StatefulSet": _stateful,
    "DaemonSet": _daemons,
    "Job": _job,
    "CronJob": _job,
}
