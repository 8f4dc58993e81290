"""Expands workloads into the pods that their controllers would create.

This module validates kinds, amounts, and the names and types of fields, and admits the pods. All
other validation is left to the API server. Names and UIDs of pods are the same in every run.

The pods of a workload share one spec object. Give a pod a new spec instead of modifying its spec.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import msgspec

from gputile.api.core import Node, ObjectMeta, Pod
from gputile.api.kubernetes import kubernetes_kinds
from gputile.api.wording import broken_label_name, nearest, shown
from gputile.api.workloads import POD_GROUP_API
from gputile.tools.simulator.controllers import (
    AS_IF_RESUMED,
    CONTROLLERS,
    MAKERS,
    ControllerInput,
    PodMaker,
    common_labels,
    template_path,
    workload_of,
)
from gputile.tools.simulator.fields import POD_TEMPLATE, broken_fields
from gputile.tools.simulator.foreign_words import foreign_gang_note, uncounted_quota
from gputile.tools.simulator.gpu_fields import asks_for_gpus
from gputile.tools.simulator.intake import MISSING, MOST_OF_AN_OBJECT, Intake, IntakeChecks
from gputile.tools.simulator.manifests import (
    BUILT_BY_HELM,
    BUILT_BY_KUSTOMIZE,
    KUSTOMIZE_GROUP,
    Manifest,
    ManifestError,
    Note,
    Origin,
    check_name,
    decode,
    generated_name,
    make_uid,
    suffixes,
)
from gputile.tools.simulator.pod_kinds import PodKind
from gputile.tools.simulator.pod_shapes import DEFINITIONS, is_suspended, pods_by_shape
from gputile.tools.simulator.shape_search import NOT_JUDGED, Group, is_manifest_with_gpus

MOST_PODS: Final = 200_000
POD_GROUP: Final = (f"{POD_GROUP_API}/v1alpha1", "PodGroup")
# Kinds of Kubernetes' own gangs, without pods. Pods that refer to them get a note.
_NATIVE_GANGS: Final = (("scheduling.k8s.io", "PodGroup"), ("scheduling.k8s.io", "Workload"))
# Former or mistaken API groups of the kinds that create pods. An unknown kind in one of these
# groups is probably a kind of Kubernetes.
_THEIR_GROUPS: Final = ("", "apps", "batch", "extensions")
# The kinds of gputile's own files that are not manifests, and the options that read these files.
_NAMED_BY: Final = {
    "Configuration": "--config",
    "PodKinds": "--kinds",
    "NodePool": "gputile nodepool -f",
}
_METADATA: Final = "meta.v1.ObjectMeta"
_MOST_SHOWN: Final = 50
_LONGEST_NAME: Final = 253
_NO_MACHINE: Final = "it makes no room: no kubelet runs there; the nodes are those of the cluster"
_RUNS: Final = (
    "it has a UID and a node, so it counts as running there, and is not validated; remove both to "
    "simulate a new pod"
)


class Owner(NamedTuple):
    """An object that owns pods, or a Pod without a controller. The core ``group`` is ""."""

    group: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def owner_of(pod: Pod) -> Owner:
    """Return the controller of a pod, or the pod itself if the pod has no controller."""
    for owner in pod.metadata.owner_references:
        if owner.controller:
            return Owner(
                owner.api_version.rpartition("/")[0], owner.kind, pod.metadata.namespace, owner.name
            )
    return Owner("", "Pod", pod.metadata.namespace, pod.metadata.name)


class _OnlyMetadata(msgspec.Struct):
    """An object of any kind, of which only the metadata is decoded."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


@dataclass(slots=True)
class Expansion:
    pods: list[Pod] = field(default_factory=list)  # in the order of creation
    notes: list[Note] = field(default_factory=list)  # what was simplified or omitted
    # The labels of an object's running pods, if the controller of these pods is another object.
    owned: dict[Owner, Mapping[str, str]] = field(default_factory=dict)
    completions: dict[Owner, int] = field(default_factory=dict)  # the total number of a Job's pods
    # The intake that was used. It knows the namespaces and PriorityClasses among the objects.
    intake: Intake = field(default_factory=Intake)


def expand(
    manifests: Sequence[Manifest], nodes: Sequence[Node], intake: Intake | None = None
) -> Expansion:
    """Expand ``manifests`` into pods. A DaemonSet gets a pod for each node that it selects.

    Raises:
        ManifestError: objects are invalid, or have the same name. Each mistake is on its own line.
    """
    given = intake or Intake()
    expander = _Expander(replace(given, admission=given.admission.with_objects(manifests)), nodes)
    errors: list[str] = []
    for manifest in manifests:
        try:
            expander.add(manifest)
        except ManifestError as error:
            errors += str(error).split("\n")
    if errors:
        more = (
            [f"and {len(errors) - _MOST_SHOWN:,} more mistakes"]
            if len(errors) > _MOST_SHOWN
            else []
        )
        raise ManifestError("\n".join([*errors[:_MOST_SHOWN], *more]))
    return expander.expansion


class _Expander:
    """Expands objects one after the other, and collects their pods in ``expansion``."""

    def __init__(self, intake: Intake, nodes: Sequence[Node]) -> None:
        self.expansion = Expansion(intake=intake)
        self._intake = intake
        self._nodes = nodes
        self._checks = IntakeChecks(intake, nodes, self.expansion.notes)
        self._seen: dict[Owner, Origin] = {}
        self._names: set[str] = set()

    def add(self, manifest: Manifest) -> None:
        """Validate an object, and add its pods.

        Raises:
            ManifestError: the object is invalid.
        """
        for pod in self._pods(manifest):
            if pod.key in self._names:
                raise manifest.origin.error("metadata.name", f"there is already a pod {pod.key}")
            if len(self._names) == MOST_PODS:
                raise manifest.origin.error("", f"with it there are more than {MOST_PODS:,} pods")
            self._names.add(pod.key)
            self.expansion.pods.append(pod)

    def _pods(self, manifest: Manifest) -> Iterator[Pod]:
        kind = manifest.kind
        own = kubernetes_kinds().kinds.get(manifest.api_version, {})
        if kind in own:
            if own[kind]:
                self._checks.refuse(manifest, broken_fields(own[kind], manifest.body))
            else:
                self._check_metadata(manifest)
            if kind == "Node" and not manifest.described:
                self._note(_NO_MACHINE, manifest)
            if kind == "ResourceQuota":
                for text in uncounted_quota(manifest.body):
                    self._note(text, manifest)
            if kind == "ConfigMap":
                for key, text in manifest.body.get("data", {}).items():
                    if is_manifest_with_gpus(text):
                        self._note(f'data["{key}"] {NOT_JUDGED}', manifest)
            if kind not in MAKERS:
                return iter(())
            return self._single_pod(manifest) if kind == "Pod" else self._pods_of_workload(manifest)
        self._check_metadata(manifest)
        if (manifest.api_version, kind) == POD_GROUP or (manifest.group, kind) in _NATIVE_GANGS:
            return iter(())
        found = self._intake.kinds.find(manifest)
        if found is not None or _may_be_custom(manifest):
            return self._pods_of_custom_resource(manifest, found)
        unknown = self._unknown_kind(manifest)
        if self._intake.ignore_unknown and kind not in MAKERS:
            self._note(f"ignored: {unknown}", manifest)
            return iter(())
        raise manifest.origin.error("", unknown)

    def _single_pod(self, manifest: Manifest) -> Iterator[Pod]:
        meta = _complete(manifest, manifest.decode(_OnlyMetadata).metadata)
        if not manifest.is_validated:
            if not manifest.described:
                self._note(_RUNS, manifest)
            yield msgspec.structs.replace(manifest.decode(Pod), metadata=meta)
            return
        # A new pod has no status, because only kubelets write it.
        body = {key: value for key, value in manifest.body.items() if key != "status"}
        body["metadata"] = body["metadata"] | {
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
        }
        yield self._checks.admit(manifest.origin, "", body)

    def _pods_of_workload(self, manifest: Manifest) -> Iterator[Pod]:
        origin, kind = manifest.origin, manifest.kind
        metadata, workload = workload_of(manifest)
        owner = self._owner(manifest, metadata)
        if gang := foreign_gang_note(manifest.body):
            self._note(gang, manifest)
        if kind == "Job" and workload.completions is not None:
            self.expansion.completions[Owner("batch", kind, owner.namespace, owner.name)] = (
                workload.completions
            )
        steps = template_path(kind)
        written: Any = manifest.body
        for step in steps:
            written = written.get(step, {})
        template = self._checks.template(origin, ".".join(steps), written, owner.namespace)
        labels = common_labels(kind, owner, template)
        make = PodMaker(manifest, owner, template, labels)
        spec = decode(origin, ".".join(steps), written, Pod).spec
        gangs = self._intake.admission.configuration.admission.gangs
        workload_input = ControllerInput(
            origin, manifest.stored, gangs, workload, spec, make, self._nodes, self.expansion.notes
        )
        yield from CONTROLLERS[kind](workload_input)

    def _pods_of_custom_resource(self, manifest: Manifest, kind: PodKind | None) -> Iterator[Pod]:
        """Yield the pods of a custom resource, with notes on pods that the table does not cover.

        Raises:
            ManifestError: the object requests GPUs outside of pods, or its pods are invalid.
        """
        if kind is not None and not kind.pods:
            return
        inner = list[Manifest]()
        if kind is None and not manifest.kind.endswith(DEFINITIONS):
            body = self._without_workloads(manifest.body, manifest, inner)
            manifest = replace(manifest, body=body)
        # If the object is stored in a cluster, the workloads in it are stored too.
        for each in () if manifest.stored else inner:
            self._note(f"{each.origin.kind}/{each.origin.name} in it is read separately", manifest)
            yield from self._pods(each)
        found = pods_by_shape(manifest, kind)
        if inner and not found.groups and not found.unassigned:
            return
        for text in found.notes:
            self._note(f"by its shape: {text}", manifest)
        if found.unassigned:
            where = ", ".join(found.unassigned[:MOST_OF_AN_OBJECT])
            remedy = BUILT_BY_HELM if manifest.kind == "HelmRelease" else self._intake.kinds_hint
            text = f"it asks for GPUs, but for which pods is unknown: {remedy}"
            if not self._intake.ignore_unknown:
                raise manifest.origin.error(where, text)
            self._note(f"ignored: {where}: {text}", manifest)
        if not found.groups:
            return
        if gang := foreign_gang_note(manifest.body):
            self._note(gang, manifest)
        owner = self._owner(manifest, manifest.decode(_OnlyMetadata).metadata)
        suspended = kind is not None and is_suspended(manifest, kind)
        if suspended:
            self._note(
                "is suspended and makes no pods" if manifest.stored else AS_IF_RESUMED, manifest
            )
        if kind is not None and kind.owned:
            known = {
                label: text.replace("{name}", owner.name) for label, text in kind.owned.items()
            }
            self.expansion.owned[
                Owner(manifest.group, manifest.kind, owner.namespace, owner.name)
            ] = known
        for group in found.groups:
            count = 0 if suspended and manifest.stored else group.count
            try:
                yield from self._pods_of_group(manifest, owner, group, count)
            except ManifestError as error:
                if group.rule is not None or asks_for_gpus(group.template["spec"]):
                    raise
                self._note(f"by its shape: ignored: {error}", manifest)

    def _without_workloads(self, value: Any, manifest: Manifest, inner: list[Manifest]) -> Any:
        """Return ``value`` without the workloads in it, and append the workloads to ``inner``."""
        match value:
            case list():
                return [self._without_workloads(each, manifest, inner) for each in value]
            case {"apiVersion": str(version), "kind": str(kind), "metadata": {"name": str(name)}}:
                origin = replace(manifest.origin, kind=kind, name=name)
                found = Manifest(origin, version, kind, value).within(manifest.namespaced_name[0])
                table = self._intake.kinds.find(found)
                own = kind in MAKERS and kind in kubernetes_kinds().kinds.get(version, {})
                if value is not manifest.body and (own or (table is not None and table.pods)):
                    inner.append(found)
                    return {}
        if not isinstance(value, dict):
            return value
        return {key: self._without_workloads(each, manifest, inner) for key, each in value.items()}

    def _pods_of_group(
        self, manifest: Manifest, owner: ObjectMeta, group: Group, count: int
    ) -> Iterator[Pod]:
        self._checks.refuse(manifest, broken_fields(POD_TEMPLATE, group.template, group.path))
        template = self._checks.template(
            manifest.origin, group.path, group.template, owner.namespace
        )
        make = PodMaker(manifest, owner, template, dict(template.metadata.labels))
        for number in range(count):
            name = _shortened(group.name(owner.name, number))
            check_name(manifest.origin, "metadata.name", name)
            yield make.pod(name, labels=group.labels(owner.name, number))

    def _owner(self, manifest: Manifest, written: ObjectMeta) -> ObjectMeta:
        owner = _complete(manifest, written)
        key = Owner(manifest.group, manifest.kind, owner.namespace, owner.name)
        if key in self._seen:
            raise manifest.origin.error(
                "metadata.name", f"the same {manifest.kind} is already in {self._seen[key]}"
            )
        self._seen[key] = manifest.origin
        return owner

    def _check_metadata(self, manifest: Manifest) -> None:
        self._checks.refuse(
            manifest, broken_fields(_METADATA, manifest.body.get("metadata", {}), "metadata")
        )

    def _unknown_kind(self, manifest: Manifest) -> str:
        """Return the error for an unknown kind, with a suggestion if possible."""
        kind, version = manifest.kind, manifest.api_version
        text = f"no matches for kind {shown(kind)} in version {shown(version)}"
        if manifest.group == KUSTOMIZE_GROUP:
            return f"{text}; {BUILT_BY_KUSTOMIZE}"
        if manifest.group == "gputile.io" and kind in _NAMED_BY:
            return f"{text}; a file of this kind is for {_NAMED_BY[kind]}"
        known, table = kubernetes_kinds().kinds, self._intake.kinds
        own = [each for each, names in known.items() if kind in names]
        others = [*table.of_kind(kind), *([POD_GROUP[0]] if kind == POD_GROUP[1] else ())]
        elsewhere = own if own and manifest.group in _THEIR_GROUPS else sorted({*own, *others})
        names = set(known.get(version, ())) | {
            name for each, name in table.kinds if each == version
        }
        if elsewhere:
            return f"{text}; {kind} is in {' and '.join(elsewhere)}"
        return text + nearest(kind, names or MAKERS)

    def _note(self, text: str, manifest: Manifest) -> None:
        self.expansion.notes.append(Note(text, manifest.origin))


def _may_be_custom(manifest: Manifest) -> bool:
    """Return whether an unknown kind may be a custom resource, judging by its API group."""
    group = manifest.group
    if group == POD_GROUP_API:
        return manifest.kind == "ElasticQuota"
    if "." not in group or group in (KUSTOMIZE_GROUP, "gputile.io"):
        return False
    return group not in {version.rpartition("/")[0] for version in kubernetes_kinds().kinds}


def _complete(manifest: Manifest, meta: ObjectMeta) -> ObjectMeta:
    """Set the name, namespace and UID in ``meta`` as the API server would do."""
    origin, kind = manifest.origin, manifest.kind
    namespace = meta.namespace or "default"
    if not meta.name and not meta.generate_name:
        raise origin.error("metadata.name", f"{MISSING}: name or generateName is required")
    name = meta.name or generated_name(
        meta.generate_name, f"{origin.file}/{origin.document}/{origin.item}"
    )
    if why := broken_label_name(namespace):
        raise origin.error("metadata.namespace", why)
    check_name(origin, "metadata.name", name)
    uid = meta.uid or make_uid(kind, namespace, name)
    return msgspec.structs.replace(meta, name=name, namespace=namespace, uid=uid)


def _shortened(name: str) -> str:
    """Shorten a composed name to the maximum length. A suffix makes shortened names distinct."""
    return (
        name
        if len(name) <= _LONGEST_NAME
        else f"{name[: _LONGEST_NAME - 6].rstrip('-.')}-{suffixes(name)(0)}"
    )
