"""Decides whether an object can be used: a known kind, existing fields, and valid for the API server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gputile.api.core import Pod
from gputile.api.kubernetes import kubernetes_kinds
from gputile.api.other_groups import POD_GROUP_API
from gputile.api.wording import nearest, shown
from gputile.api.workloads import ListedService
from gputile.tools.simulator.admission.chain import Admission, checked
from gputile.tools.simulator.admission.quotas import has_scopes
from gputile.tools.simulator.documents.manifests import Manifest, ManifestError, decode
from gputile.tools.simulator.documents.notes import Note
from gputile.tools.simulator.documents.unbuilt_files import BUILT_BY_KUSTOMIZE, KUSTOMIZE_GROUP
from gputile.tools.simulator.rules.objects.kinds import values_are_judged
from gputile.tools.simulator.rules.objects.pod_groups import broken_pod_group, unknown_fields
from gputile.tools.simulator.rules.objects.security_levels import enforced_level
from gputile.tools.simulator.rules.values.fields import MISSING, POD_TEMPLATE, Broken, Json, broken_fields
from gputile.tools.simulator.rules.values.object_size import broken_size, doubted_size
from gputile.tools.simulator.rules.values.strictness import Validation
from gputile.tools.simulator.rules.workloads.custom_kinds import broken_custom, broken_group
from gputile.tools.simulator.rules.workloads.dependencies import awaits_completion
from gputile.tools.simulator.rules.workloads.jobs import without_own_identity
from gputile.tools.simulator.rules.workloads.kinds import (
    broken_beside,
    broken_identity,
    broken_object,
    broken_template,
    doubted_name,
)
from gputile.tools.simulator.rules.workloads.known_kinds import PodKinds, known_kinds
from gputile.tools.simulator.rules.workloads.pod_kinds import PodKind
from gputile.tools.simulator.rules.workloads.template_groups import Group

# Kubernetes' own kinds that make pods, and the group that they are in today.
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
POD_GROUP: Final = (f"{POD_GROUP_API}/v1alpha1", "PodGroup")
# Earlier or mistaken groups of these kinds: an object in one is meant to be of Kubernetes' own kind.
_THEIR_GROUPS: Final = ("", "apps", "batch", "extensions")
_METADATA: Final = "meta.v1.ObjectMeta"
_MOST_SHOWN: Final = 20
_FIELDS_ONLY: Final = "the values of this kind are not checked, only its fields are"
_NAME_ONLY: Final = "this kind is not checked, only its metadata is"
_VOLUMES_NODES: Final = "whether the pods that have it are on the nodes of its nodeAffinity is not judged"
_CLASS_NODES: Final = "whether the pods with claims of it are in its allowedTopologies is not judged"
_NEVER_CREATED: Final = ("ComponentStatus",)
# What an API server answers, and does not keep: kubectl apply looks for the object first, and is refused.
_NEVER_KEPT: Final = (
    *("Binding", "LocalSubjectAccessReview", "SelfSubjectAccessReview", "SelfSubjectReview", "SelfSubjectRulesReview"),
    *("SubjectAccessReview", "TokenReview"),
)
_NO_MACHINE: Final = "it makes no room: no kubelet runs there; the nodes are those of --cluster, or of the cluster"
_NOT_APPLIED: Final = "it is checked, and not applied to the pods"
_OF_PODS_ONLY: Final = "only what is in the files is counted"
_OF_PODS_NOT_CLAIMS: Final = "of what it bounds, claims are not judged"
_ONE_POD_ONLY: Final = "ReadWriteOncePod: whether another pod of the cluster has it is not judged"
_AT_ONCE: Final = "Jobs that start when others are complete are placed beside these, as if all ran at once"
_TEMPLATES_ONLY: Final = "of this kind only the metadata and the templates of pods are checked"


@dataclass(frozen=True, slots=True)
class Intake:
    """How objects are checked and accepted. ``kinds`` is the table of kinds that are not Kubernetes' own.

    ``services`` are those of the cluster, as far as they matter, and ``autoscalers`` its HorizontalPodAutoscalers.
    ``block_claims`` says of claims of the cluster, by namespace and name, whether they are of blocks.
    ``suggest`` asks of unknown fields which ones are meant.
    """

    admission: Admission = field(default_factory=Admission)
    kinds: PodKinds = field(default_factory=known_kinds)
    validate: Validation = Validation.STRICT
    ignore_unknown: bool = False
    services: Sequence[ListedService] = ()
    autoscalers: Sequence[Manifest] = ()
    block_claims: Mapping[tuple[str, str], bool] = field(default_factory=dict)
    suggest: bool = True

    def knows(self, manifest: Manifest) -> bool:
        """Return whether the object is of one of Kubernetes' own kinds, or of one of the table."""
        own = kubernetes_kinds().kinds.get(manifest.api_version, {})
        return manifest.kind in own or self.kinds.find(manifest) is not None

    def makes_pods(self, manifest: Manifest, notes: list[Note]) -> bool:
        """Return whether the object is of a kind that makes pods, by the table or by itself.

        Raises:
            ManifestError: the kind is not known, or the API server would refuse an object of one that makes none.
        """
        kind, version = manifest.kind, manifest.api_version
        if manifest.judged and (why := broken_size(kind, manifest.body)):
            raise manifest.origin.error("", why)
        if not manifest.described:
            notes += (Note(each, manifest.origin) for each in doubted_size(kind, manifest.body))
        own = kubernetes_kinds().kinds.get(version, {})
        if kind in own:
            if kind not in MAKERS:
                self._check_beside(manifest, own[kind], notes)
            return kind in MAKERS
        if (version, kind) == POD_GROUP:
            self._check_pod_group(manifest, notes)
            return False
        found = self.kinds.find(manifest)
        if found is not None:
            self._check_metadata(manifest, notes)
            if manifest.judged:
                self._refuse(manifest, list(broken_identity(kind, manifest.body.get("metadata", {}))), notes)
            notes.append(Note(_TEMPLATES_ONLY if found.pods else _NAME_ONLY, manifest.origin))
            return bool(found.pods)
        unknown = self._unknown(manifest)
        if self.ignore_unknown and not (kind in MAKERS and manifest.group in _THEIR_GROUPS):
            notes.append(Note(f"ignored: {unknown}", manifest.origin))
            return False
        raise manifest.origin.error("", unknown)

    def check(self, manifest: Manifest, notes: list[Note]) -> None:
        """Check an object of one of Kubernetes' own kinds that make pods.

        Raises:
            ManifestError: the API server would refuse it; each mistake is a line.
        """
        type_name = kubernetes_kinds().kinds[manifest.api_version][manifest.kind]
        self._refuse(manifest, broken_fields(type_name, manifest.nulls or manifest.body, suggest=self.suggest), notes)
        if manifest.judged:
            self._refuse(manifest, self._broken_values(manifest), notes)
            if doubted := doubted_name(manifest.kind, manifest.body.get("metadata", {})):
                notes.append(Note(doubted, manifest.origin))

    def _broken_values(self, manifest: Manifest) -> list[Broken]:
        """Return what is wrong with an object; a Pod is judged as the webhook hands it on, a template as it stands."""
        if manifest.kind == "Job":
            manifest = replace(manifest, body=dict(without_own_identity(manifest.body)))
        broken = list(broken_object(manifest))
        if not broken or manifest.kind != "Pod":
            return broken
        body = dict(self.admission.rewritten(manifest.body))
        return broken if body == manifest.body else list(broken_object(replace(manifest, body=body)))

    def check_custom(self, manifest: Manifest, kind: PodKind, notes: list[Note]) -> None:
        """Check what is known of the fields of an object whose ``kind`` is not Kubernetes' own.

        Raises:
            ManifestError: its controller or CustomResourceDefinition would refuse it; each mistake is a line.
        """
        if manifest.judged:
            self._refuse(manifest, list(broken_custom(manifest, kind)), notes)
            if awaits_completion(manifest.kind, manifest.body):
                notes.append(Note(_AT_ONCE, manifest.origin))

    def check_group(self, manifest: Manifest, group: Group, owner: str, notes: list[Note]) -> None:
        """Check a template of an object called ``owner``, and what its controller makes of it.

        Raises:
            ManifestError: the API server would refuse its pods; each mistake is a line.
        """
        self._check_template(manifest, group.path, group.template, notes)
        if manifest.judged:
            self._refuse(manifest, list(broken_group(manifest, group, owner)), notes)

    def _check_template(self, manifest: Manifest, path: str, template: Json, notes: list[Note]) -> None:
        self._refuse(manifest, broken_fields(POD_TEMPLATE, template, path, suggest=self.suggest), notes)
        self._refuse(manifest, list(broken_template(path, template)), notes)

    def _check_beside(self, manifest: Manifest, type_name: str, notes: list[Note]) -> None:
        """Check an object of one of Kubernetes' kinds that make no pods, and note what of it is not checked."""
        if manifest.kind in _NEVER_CREATED:
            raise manifest.origin.error("", "MethodNotAllowed: no API server creates an object of this kind")
        if manifest.kind in _NEVER_KEPT:
            raise manifest.origin.error("", "MethodNotAllowed: no API server keeps an object of this kind to apply")
        if manifest.kind == "PersistentVolume" and manifest.body.get("spec", {}).get("nodeAffinity"):
            notes.append(Note(_VOLUMES_NODES, manifest.origin))
        if manifest.kind == "StorageClass" and manifest.body.get("allowedTopologies"):
            notes.append(Note(_CLASS_NODES, manifest.origin))
        if manifest.kind == "Node" and not manifest.described:
            notes.append(Note(_NO_MACHINE, manifest.origin))
        judged = values_are_judged(manifest.kind)
        if type_name:
            broken = broken_fields(type_name, manifest.nulls or manifest.body, suggest=self.suggest)
            self._refuse(manifest, broken if judged else [each for each in broken if each[1] != MISSING], notes)
        else:
            self._check_metadata(manifest, notes)
        if manifest.judged:
            self._refuse(manifest, list(broken_beside(manifest)), notes)
            if manifest.kind == "PodTemplate":
                template = manifest.body["template"]
                checked(manifest.origin, "template", decode(manifest.origin, "template", template, Pod))
        if not judged:
            notes.append(Note(_FIELDS_ONLY if type_name else _NAME_ONLY, manifest.origin))
        elif manifest.kind == "Namespace":
            level = enforced_level(manifest.body["metadata"].get("labels", {}))
            notes += (
                [Note(f"its pods are not judged by the Pod Security level {level}", manifest.origin)] if level else []
            )
        elif manifest.kind == "LimitRange":
            bounded = {each["type"] for each in manifest.body.get("spec", {}).get("limits", ())}
            notes += [Note(_OF_PODS_NOT_CLAIMS, manifest.origin)] if bounded - {"Container", "Pod"} else []
        elif manifest.kind == "ResourceQuota" and has_scopes(manifest):
            notes.append(Note(_NOT_APPLIED, manifest.origin))
        elif manifest.kind == "ResourceQuota":
            notes.append(Note(_OF_PODS_ONLY, manifest.origin))
        elif "ReadWriteOncePod" in manifest.body.get("spec", {}).get("accessModes", ()):
            notes.append(Note(_ONE_POD_ONLY, manifest.origin))

    def _check_pod_group(self, manifest: Manifest, notes: list[Note]) -> None:
        self._check_metadata(manifest, notes)
        self._refuse(manifest, list(unknown_fields(manifest.body)), notes)
        if manifest.judged:
            metadata = manifest.body.get("metadata", {})
            self._refuse(manifest, [*broken_identity(manifest.kind, metadata), *broken_pod_group(manifest.body)], notes)

    def _check_metadata(self, manifest: Manifest, notes: list[Note]) -> None:
        written = (manifest.nulls or manifest.body).get("metadata")
        broken = broken_fields(_METADATA, {} if written is None else written, "metadata", suggest=self.suggest)
        self._refuse(manifest, broken, notes)

    def _refuse(self, manifest: Manifest, broken: list[Broken], notes: list[Note]) -> None:
        unknown = [each for each in broken if each[1].startswith("unknown field")]
        lenient = self.validate is not Validation.STRICT or manifest.stored
        refused = [each for each in broken if each not in unknown] if lenient else broken
        if lenient and self.validate is not Validation.IGNORE:
            notes += [Note(f"{path}: {rule}", manifest.origin) for path, rule in unknown]
        if refused:
            raise ManifestError("\n".join(str(manifest.origin.error(*each)) for each in refused[:_MOST_SHOWN]))

    def _unknown(self, manifest: Manifest) -> str:
        """Return why an unknown kind cannot be used, and what to do."""
        kind, version = manifest.kind, manifest.api_version
        said = f"no matches for kind {shown(kind)} in version {shown(version)}"
        if manifest.group == KUSTOMIZE_GROUP:
            return f"{said}; {BUILT_BY_KUSTOMIZE}"
        known = kubernetes_kinds().kinds
        own = [each for each, names in known.items() if kind in names]
        others = [*self.kinds.of_kind(kind), *([POD_GROUP[0]] if kind == POD_GROUP[1] else ())]
        elsewhere = own if own and manifest.group in _THEIR_GROUPS else sorted({*own, *others})
        names = set(known.get(version, ())) | {name for each, name in self.kinds.kinds if each == version}
        if elsewhere:
            said += f"; {kind} is in {' and '.join(elsewhere)}"
        else:
            said += nearest(kind, names or MAKERS)
        if manifest.group in _THEIR_GROUPS:
            return said
        remedy = "whether it makes pods is told by --kinds FILE, and --ignore-unknown leaves the object out"
        return f"{said}{' ' if said.endswith('?') else '; '}{remedy}"
