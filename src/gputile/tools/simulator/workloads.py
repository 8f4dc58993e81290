"""Workload objects become the pods that their controllers would make, with names and UIDs that never change.

Pods of one workload share the spec of its template: to change one, replace it, do not write into it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Final

import msgspec

from gputile.api.affinity import Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from gputile.api.core import Node, ObjectMeta, OwnerReference, Pod, PodSpec, Toleration
from gputile.core.kube_predicates.node_fit import static_reason
from gputile.tools.simulator.admission import admit
from gputile.tools.simulator.controller_labels import COMPLETION_INDEX, POD_INDEX, POD_NAME, common_labels
from gputile.tools.simulator.manifests import Manifest, Origin, check_name
from gputile.tools.simulator.naming import make_uid, suffixes

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
MOST_REPLICAS = 100_000
MOST_PODS = 200_000
_GROUPS = {
    "Pod": ("",),
    "ReplicationController": ("",),
    "Deployment": ("apps", "extensions"),
    "ReplicaSet": ("apps", "extensions"),
    "DaemonSet": ("apps", "extensions"),
    "StatefulSet": ("apps",),
    "Job": ("batch",),
    "CronJob": ("batch",),
}
_NO_PODS = frozenset(
    (
        *("ClusterRole", "ClusterRoleBinding", "ConfigMap", "CustomResourceDefinition", "DeviceClass", "Endpoints"),
        *("EndpointSlice", "Event", "HorizontalPodAutoscaler", "Ingress", "Lease", "LimitRange", "Namespace"),
        *("NetworkPolicy", "PersistentVolume", "PersistentVolumeClaim", "PodDisruptionBudget", "PriorityClass"),
        *("ResourceQuota", "Role", "RoleBinding", "RuntimeClass", "Secret", "Service", "ServiceAccount"),
        "StorageClass",
    )
)
# What the DaemonSet controller adds to its pods.
_DAEMON_TOLERATIONS = [
    Toleration(key=f"node.kubernetes.io/{condition}", operator="Exists", effect=effect)
    for condition, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
]

_Replicas = Annotated[int, msgspec.Meta(ge=0, le=MOST_REPLICAS)]


class _Ordinals(msgspec.Struct):
    start: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0


class _WorkloadSpec(msgspec.Struct, rename="camel"):
    """The fields of all workload kinds that decide how many pods there are, and what they are called."""

    template: Pod
    replicas: _Replicas = 1
    parallelism: _Replicas = 1
    completions: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    completion_mode: str = ""
    suspend: bool = False
    manual_selector: bool = False
    ordinals: _Ordinals = msgspec.field(default_factory=_Ordinals)


class _Workload(msgspec.Struct):
    spec: _WorkloadSpec
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


class _CronJobSpec(msgspec.Struct, rename="camel"):
    job_template: _Workload
    suspend: bool = False


class _CronJob(msgspec.Struct):
    spec: _CronJobSpec
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


@dataclass(slots=True)
class Expansion:
    """The pods in the order of their creation; ``notes`` say what was read loosely or left out."""

    pods: list[Pod] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def expand(manifests: Sequence[Manifest], nodes: Sequence[Node]) -> Expansion:
    """Return the pods of ``manifests``; ``nodes`` are those that DaemonSets put theirs on.

    Raises:
        ManifestError: an object breaks a rule, or there are two of one name.
    """
    expansion = Expansion()
    seen: dict[tuple[str, str, str], Origin] = {}
    names: set[str] = set()
    for manifest in manifests:
        if manifest.group not in _GROUPS.get(manifest.kind, ()):
            expansion.notes.append(_ignored(manifest))
            continue
        for pod in _pods_of(manifest, nodes, seen, expansion.notes):
            if pod.key in names:
                raise manifest.origin.error("metadata.name", f"there is already a pod {pod.key}")
            if len(names) == MOST_PODS:
                raise manifest.origin.error("", f"with it there are more than {MOST_PODS:,} pods")
            names.add(pod.key)
            expansion.pods.append(pod)
    return expansion


def _ignored(manifest: Manifest) -> str:
    if manifest.kind in _NO_PODS:
        return f"{manifest.origin}: ignored, as a {manifest.kind} carries no pods"
    return f"{manifest.origin}: ignored, as {manifest.api_version} {manifest.kind} is not a kind that is expanded here"


def _pods_of(
    manifest: Manifest, nodes: Sequence[Node], seen: dict[tuple[str, str, str], Origin], notes: list[str]
) -> Iterator[Pod]:
    origin, kind = manifest.origin, manifest.kind
    if kind == "Pod":
        yield _single_pod(manifest, notes)
        return
    if kind == "CronJob":
        cron = manifest.decode(_CronJob)
        owner, workload = cron.metadata, _Workload(cron.spec.job_template.spec)
        workload.spec.suspend |= cron.spec.suspend
    else:
        workload = manifest.decode(_Workload)
        owner = workload.metadata
    owner = _complete(origin, kind, owner, notes)
    key = (kind, owner.namespace, owner.name)
    if key in seen:
        raise origin.error("metadata.name", f"the same {kind} is already in {seen[key]}")
    seen[key] = origin
    path = "spec.jobTemplate.spec.template" if kind == "CronJob" else "spec.template"
    template = admit(origin, path, workload.spec.template, notes)
    make = _Maker(kind, owner, template, common_labels(kind, owner, template, workload.spec.manual_selector))
    yield from _EXPAND[kind](_Work(workload.spec, make, nodes, lambda text: notes.append(f"{origin}: {text}")))


class _Maker:
    """Makes the pods of one workload out of its template."""

    def __init__(self, kind: str, owner: ObjectMeta, template: Pod, labels: dict[str, str]) -> None:
        self.name = owner.name
        self.template = template
        self._labels = labels
        self._namespace = owner.namespace
        self._owners = (OwnerReference(kind=kind, name=owner.name, uid=owner.uid, controller=True),)
        self._suffix = suffixes(owner.uid)

    def pod(
        self,
        name: str,
        spec: PodSpec | None = None,
        labels: Mapping[str, str] = NOTHING,
        annotations: Mapping[str, str] = NOTHING,
    ) -> Pod:
        """Return the pod called ``name``; its own labels and annotations go before those that all pods have."""
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
        """Return the pod number ``number``, its name ending in five characters."""
        return self.pod(f"{self.name}-{self._suffix(number)}", spec)

    def indexed(self, index: int) -> Pod:
        """Return the pod of an Indexed Job that does the part ``index``."""
        said = {COMPLETION_INDEX: str(index)}
        return self.pod(f"{self.name}-{index}-{self._suffix(index)}", labels=said, annotations=said)

    def numbered(self, ordinal: int) -> Pod:
        """Return the pod of a StatefulSet with the number ``ordinal``."""
        name = f"{self.name}-{ordinal}"
        return self.pod(name, labels={POD_NAME: name, POD_INDEX: str(ordinal)})


@dataclass(frozen=True, slots=True)
class _Work:
    """What an expander needs: the workload, who makes its pods, the cluster's nodes, and where to say what is odd."""

    spec: _WorkloadSpec
    make: _Maker
    nodes: Sequence[Node]
    note: Callable[[str], None]


def _replicated(work: _Work) -> Iterator[Pod]:
    return (work.make.generated(i) for i in range(work.spec.replicas))


def _stateful(work: _Work) -> Iterator[Pod]:
    first = work.spec.ordinals.start
    return (work.make.numbered(i) for i in range(first, first + work.spec.replicas))


def _job(work: _Work) -> Iterator[Pod]:
    """Yield the pods that run at the same time."""
    spec = work.spec
    if spec.suspend:
        work.note("is suspended and makes no pods")
        return
    count = spec.parallelism if spec.completions is None else min(spec.parallelism, spec.completions)
    if spec.completions is not None and spec.completions > count:
        work.note(f"runs {count} of its {spec.completions} pods at a time; the first {count} are placed")
    indexed = spec.completion_mode == "Indexed"
    for i in range(count):
        yield work.make.indexed(i) if indexed else work.make.generated(i)


def _daemons(work: _Work) -> Iterator[Pod]:
    """Yield a pod for each node that the template allows, pinned there as the DaemonSet controller does it."""
    template = work.make.template.spec
    tolerant = msgspec.structs.replace(template, tolerations=(*template.tolerations, *_DAEMON_TOLERATIONS))
    eligible = [node for node in work.nodes if static_reason(tolerant, node) is None]
    if not eligible:
        work.note("there is no node that it may run on")
    for i, node in enumerate(eligible):
        affinity = _pinned(tolerant.affinity, node.metadata.name)
        yield work.make.generated(i, spec=msgspec.structs.replace(tolerant, affinity=affinity))


_EXPAND: dict[str, Callable[[_Work], Iterator[Pod]]] = {
    "Deployment": _replicated,
    "ReplicaSet": _replicated,
    "ReplicationController": _replicated,
    "StatefulSet": _stateful,
    "DaemonSet": _daemons,
    "Job": _job,
    "CronJob": _job,
}


def _pinned(affinity: Affinity | None, node: str) -> Affinity:
    field = NodeSelectorRequirement(key="metadata.name", operator="In", values=(node,))
    required = NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(field,)),))
    old = affinity or Affinity()
    preferred = old.node_affinity.preferred if old.node_affinity else ()
    return msgspec.structs.replace(old, node_affinity=NodeAffinity(required=required, preferred=preferred))


def _single_pod(manifest: Manifest, notes: list[str]) -> Pod:
    pod = manifest.decode(Pod)
    pod = msgspec.structs.replace(pod, metadata=_complete(manifest.origin, "Pod", pod.metadata, notes))
    return admit(manifest.origin, "", pod, notes)


def _complete(origin: Origin, kind: str, meta: ObjectMeta, notes: list[str]) -> ObjectMeta:
    """Return ``meta`` with the name, namespace and UID that the API server would have given."""
    namespace = meta.namespace or "default"
    if "." in check_name(origin, "metadata.namespace", namespace):
        raise origin.error("metadata.namespace", f"{namespace!r} may not contain '.'")
    name = meta.name
    if not name:
        place = f"{origin.file}/{origin.document}/{origin.item}"
        base = meta.generate_name or f"{kind.lower()}-"
        name = base + suffixes(place)(0)
        if not meta.generate_name:
            notes.append(f"{origin}: has no metadata.name, which a cluster refuses; it is called {name} here")
    check_name(origin, "metadata.name", name)
    uid = meta.uid or make_uid(kind, namespace, name)
    return msgspec.structs.replace(meta, name=name, namespace=namespace, uid=uid)
