"""Checks objects and expands workloads into the pods that their controllers would make.

It checks what affects GPUs: kinds, names and types of fields, amounts, and gputile's own admission.
Everything else is left to the API server. The same input always yields the same pod names and UIDs.

Pods of one workload share the spec of its template: replace a pod's spec to change it, and never
modify it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec

from gputile.api.core import Node, ObjectMeta, Pod
from gputile.api.kubernetes import kubernetes_kinds
from gputile.api.quantity import count_of
from gputile.api.well_known import GPU_MEMORY, SMALLEST_UNIT_MIB
from gputile.api.wording import broken_label_name, memory_text, nearest, shown
from gputile.api.workloads import POD_GROUP_API
from gputile.core.devices.request import RequestError, RequestKind, parse_request
from gputile.tools.simulator.admission import Admission
from gputile.tools.simulator.claims import KnownClaims
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
from gputile.tools.simulator.described_cluster import inventory_of
from gputile.tools.simulator.fields import (
    POD_TEMPLATE,
    Broken,
    Json,
    MistypedResources,
    UnknownFields,
    broken_amounts,
    broken_fields,
    mistyped_mode,
)
from gputile.tools.simulator.foreign_words import (
    asked_of_others,
    uncounted_quota,
    words_of_gang,
    words_of_others,
)
from gputile.tools.simulator.manifests import (
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
from gputile.tools.simulator.pod_kinds import PodKind, PodKinds, known_kinds
from gputile.tools.simulator.pod_shapes import Group, asks_for_gpus, is_suspended, pods_by_shape

MOST_PODS: Final = 200_000
MISSING: Final = "Required value"
_USUAL_UNITS: Final = (1024, 128, 1)  # MiB
POD_GROUP: Final = (f"{POD_GROUP_API}/v1alpha1", "PodGroup")
# Former or mistaken API groups of the kinds that create pods: an unknown kind in one is probably
# Kubernetes' own.
_THEIR_GROUPS: Final = ("", "apps", "batch", "extensions")
# gputile's own files that are no manifests, and what reads them
_NAMED_BY: Final = {
    "Configuration": "--config",
    "PodKinds": "--kinds",
    "NodePool": "gputile nodepool -f",
}
_METADATA: Final = "meta.v1.ObjectMeta"
_MOST_SHOWN: Final = 50
_MOST_OF_AN_OBJECT: Final = 20
_LONGEST_NAME: Final = 253
_NO_MACHINE: Final = "it makes no room: no kubelet runs there; the nodes are those of the cluster"
_RUNS: Final = (
    "it has a UID and a node, so it counts as running there, and is not judged: without both it is "
    "judged as a new one"
)


class Owner(NamedTuple):
    """An object that owns pods, or a Pod without a controller.

    ``group`` is its API group, "" for the core group.
    """

    group: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def owner_of(pod: Pod) -> Owner:
    """Return the controller of a pod, or the pod itself if it has none."""
    for owner in pod.metadata.owner_references:
        if owner.controller:
            return Owner(
                owner.api_version.rpartition("/")[0], owner.kind, pod.metadata.namespace, owner.name
            )
    return Owner("", "Pod", pod.metadata.namespace, pod.metadata.name)


@dataclass(frozen=True, slots=True)
class Intake:
    """How objects are checked and admitted; ``kinds`` is the table of kinds not in Kubernetes.

    ``accepted`` are objects that an API server accepted in a dry run, so their unknown fields are
    ignored. With ``ignore_unknown``, objects of unknown kinds are left out. ``tell_kinds`` tells
    the user how to describe an unknown kind. ``claims`` are those that pods may reference.
    """

    admission: Admission = field(default_factory=Admission)
    kinds: PodKinds = field(default_factory=known_kinds)
    unknown_fields: UnknownFields = UnknownFields.REFUSED
    ignore_unknown: bool = False
    accepted: frozenset[Origin] = frozenset()
    claims: KnownClaims = field(default_factory=KnownClaims)
    tell_kinds: str = (
        "--kinds FILE says where the templates are, and --ignore-unknown leaves it out"
    )


class _OnlyMetadata(msgspec.Struct):
    """Any object; only its metadata is decoded."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


@dataclass(slots=True)
class Expansion:
    """The pods in the order of creation; ``notes`` tell the user what was simplified or omitted.

    ``owned`` are, by object, the labels of its running pods if their controller is another object.
    ``completions`` is the total number of pods of each Job. ``intake`` is the intake that was used,
    extended by the namespaces and classes among the objects.
    """

    pods: list[Pod] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    owned: dict[Owner, Mapping[str, str]] = field(default_factory=dict)
    completions: dict[Owner, int] = field(default_factory=dict)
    intake: Intake = field(default_factory=Intake)


def expand(
    manifests: Sequence[Manifest], nodes: Sequence[Node], intake: Intake | None = None
) -> Expansion:
    """Expand ``manifests`` into pods; a DaemonSet gets one per selected node of ``nodes``.

    Raises:
        ManifestError: objects cannot be used, or two have the same name; the text has one line per
            mistake.
    """
    given = intake or Intake()
    expander = _Expander(replace(given, admission=given.admission.beside(manifests)), nodes)
    wrong: list[str] = []
    for manifest in manifests:
        try:
            expander.add(manifest)
        except ManifestError as error:
            wrong += str(error).split("\n")
    if wrong:
        more = (
            [f"and {len(wrong) - _MOST_SHOWN:,} more mistakes"] if len(wrong) > _MOST_SHOWN else []
        )
        raise ManifestError("\n".join([*wrong[:_MOST_SHOWN], *more]))
    return expander.expansion


class _Expander:
    """Expands one object after the other."""

    def __init__(self, intake: Intake, nodes: Sequence[Node]) -> None:
        self.expansion = Expansion(intake=intake)
        self._intake = intake
        self._nodes = nodes
        self._mistyped = MistypedResources(nodes)
        self._seen: dict[Owner, Origin] = {}
        self._names: set[str] = set()

    def add(self, manifest: Manifest) -> None:
        """Check an object, and add its pods.

        Raises:
            ManifestError: it cannot be used.
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
                self._refuse(manifest, broken_fields(own[kind], manifest.body))
            else:
                self._check_metadata(manifest)
            if kind == "Node" and not manifest.described:
                self._note(_NO_MACHINE, manifest)
            if kind == "ResourceQuota":
                for text in uncounted_quota(manifest.body):
                    self._note(text, manifest)
            if kind not in MAKERS:
                return iter(())
            return self._single(manifest) if kind == "Pod" else self._of_workload(manifest)
        self._check_metadata(manifest)
        if (manifest.api_version, kind) == POD_GROUP:
            return iter(())
        found = self._intake.kinds.find(manifest)
        if found is not None or _may_be_custom(manifest):
            return self._of_other(manifest, found)
        unknown = self._unknown(manifest)
        if self._intake.ignore_unknown and kind not in MAKERS:
            self._note(f"ignored: {unknown}", manifest)
            return iter(())
        raise manifest.origin.error("", unknown)

    def _single(self, manifest: Manifest) -> Iterator[Pod]:
        meta = _complete(manifest, manifest.decode(_OnlyMetadata).metadata)
        if not manifest.judged:
            if not manifest.described:
                self._note(_RUNS, manifest)
            yield msgspec.structs.replace(manifest.decode(Pod), metadata=meta)
            return
        # Only kubelets write it.
        body = {key: value for key, value in manifest.body.items() if key != "status"}
        body["metadata"] = body["metadata"] | {
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
        }
        yield self._admitted(manifest.origin, "", body)

    def _of_workload(self, manifest: Manifest) -> Iterator[Pod]:
        origin, kind = manifest.origin, manifest.kind
        metadata, workload = workload_of(manifest)
        owner = self._owner(manifest, metadata)
        if gang := words_of_gang(manifest.body):
            self._note(gang, manifest)
        if kind == "Job" and workload.completions is not None:
            self.expansion.completions[Owner("batch", kind, owner.namespace, owner.name)] = (
                workload.completions
            )
        steps = template_path(kind)
        written: Any = manifest.body
        for step in steps:
            written = written.get(step, {})
        template = self._template(origin, ".".join(steps), written, owner.namespace)
        labels = common_labels(kind, owner, template)
        make = PodMaker(manifest, owner, template, labels)
        spec = decode(origin, ".".join(steps), written, Pod).spec
        gangs = self._intake.admission.configuration.admission.gangs
        given = ControllerInput(
            origin, manifest.stored, gangs, workload, spec, make, self._nodes, self.expansion.notes
        )
        yield from CONTROLLERS[kind](given)

    def _of_other(self, manifest: Manifest, kind: PodKind | None) -> Iterator[Pod]:
        """Yield a custom resource's pods, and note those that the table of kinds does not cover.

        Raises:
            ManifestError: it requests GPUs outside of pods, or its pods are invalid.
        """
        if kind is not None and not kind.pods:
            return
        found = pods_by_shape(manifest, kind)
        for text in found.told:
            self._note(f"by its shape: {text}", manifest)
        if found.unturned:
            where = ", ".join(found.unturned[:_MOST_OF_AN_OBJECT])
            said = (
                f"it asks for GPUs, and which pods ask for them is not known: "
                f"{self._intake.tell_kinds}"
            )
            if not self._intake.ignore_unknown:
                raise manifest.origin.error(where, said)
            self._note(f"ignored: {where}: {said}", manifest)
        if not found.groups:
            return
        if gang := words_of_gang(manifest.body):
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
                yield from self._of_group(manifest, owner, group, count)
            except ManifestError as error:
                if group.rule is not None or asks_for_gpus(group.template["spec"]):
                    raise
                self._note(f"by its shape: ignored: {error}", manifest)

    def _of_group(
        self, manifest: Manifest, owner: ObjectMeta, group: Group, count: int
    ) -> Iterator[Pod]:
        self._refuse(manifest, broken_fields(POD_TEMPLATE, group.template, group.path))
        template = self._template(manifest.origin, group.path, group.template, owner.namespace)
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

    def _template(self, origin: Origin, path: str, template: Json, namespace: str) -> Pod:
        """Return the pod that admission makes of a template; all pods of the template share it.

        Raises:
            ManifestError: the template has no containers, or its pods are refused.
        """
        metadata = template.get("metadata", {}) | {"namespace": namespace}
        return self._admitted(origin, path, {"metadata": metadata, "spec": template.get("spec")})

    def _admitted(self, origin: Origin, path: str, pod: Json) -> Pod:
        prefix, spec = f"{path}." if path else "", pod.get("spec")
        if not spec or not spec.get("containers"):
            raise origin.error(f"{prefix}spec.containers", MISSING)
        pod = self._with_judged_claims(origin, f"{prefix}spec.resourceClaims", pod)
        self._refuse_words_of_others(origin, path, pod)
        admitted = self._intake.admission.admit(origin, path, pod, self.expansion.notes)
        if broken := [origin.error(*each) for each in broken_amounts(f"{prefix}spec", spec)]:
            raise ManifestError("\n".join(map(str, broken[:_MOST_OF_AN_OBJECT])))
        self.expansion.notes += (
            Note(each, origin) for each in self._mistyped.in_spec(prefix, spec)
        )
        if node := admitted.spec.node_name:
            rule = (
                f"{node} passes kube-scheduler by, so whether the pod fits there is not judged: "
                "use nodeSelector"
            )
            raise origin.error(f"{prefix}spec.nodeName", rule)
        for meant in filter(None, (mistyped_mode(admitted), self._other_unit(admitted))):
            self.expansion.notes.append(Note(f"{path}: {meant}" if path else meant, origin))
        return admitted

    def _other_unit(self, pod: Pod) -> str:
        """Return a hint for a memory request above all GPUs or below 1 % of the smallest, or ""."""
        unit = self._intake.admission.configuration.unit_mib
        try:
            request = parse_request(pod, unit)
        except RequestError:
            return ""
        if request is None or request.shape.kind is not RequestKind.SHARED or not self._gpu_sizes:
            return ""
        least, most, asked = self._gpu_sizes[0] // 100, self._gpu_sizes[-1], request.shape.mib
        if least <= asked <= most:
            return ""
        largest = max(count_of(each.resources.limits, GPU_MEMORY) for each in pod.spec.containers)
        if asked > most >= largest * request.unit_mib:
            said = (
                f"its containers get the same GPU and ask for {memory_text(asked)} together, "
                f"and GPUs here have up to"
            )
            return (
                f"{said} {memory_text(most)}; put containers that are to be on different GPUs "
                f"into pods of their own"
            )
        count = asked // request.unit_mib
        others = [other for other in _USUAL_UNITS if least <= count * other <= most]
        if not others:
            return ""
        said = (
            f"it asks for {count} units of {memory_text(request.unit_mib)} on a GPU, and GPUs "
            f"here have up to"
        )
        instead = (
            f"did you mean units of {memory_text(others[0])}, {memory_text(count * others[0])}?"
        )
        if others[0] < SMALLEST_UNIT_MIB:
            instead = (
                f"did you mean {count} MiB? Then write {-(-count // request.unit_mib)} for each GPU"
            )
        return f"{said} {memory_text(most)}; {instead}"

    @cached_property
    def _gpu_sizes(self) -> list[int]:
        """The sizes of the nodes' GPUs in MiB, ascending, as far as they are known."""
        inventories = filter(None, map(inventory_of, self._nodes))
        return sorted({gpu.mib for inventory in inventories for gpu in inventory.gpus})

    def _with_judged_claims(self, origin: Origin, path: str, pod: Json) -> Json:
        """Refuse a pod with a claim that cannot be judged.

        If such claims are ignored, return the pod without them.
        """
        spec, namespace = pod["spec"], pod["metadata"]["namespace"]
        why_not = [
            self._intake.claims.why_not(namespace, each) for each in spec.get("resourceClaims", ())
        ]
        if not any(why_not):
            return pod
        if not self._intake.ignore_unknown:
            raise origin.error(path, next(filter(None, why_not)))
        self.expansion.notes += (Note(f"{path}: ignored: {why}", origin) for why in why_not if why)
        kept = [each for each, why in zip(spec["resourceClaims"], why_not, strict=True) if not why]
        return {**pod, "spec": {**spec, "resourceClaims": kept}}

    def _refuse_words_of_others(self, origin: Origin, path: str, pod: Json) -> None:
        """Refuse a pod that requests other systems' GPUs; note its other settings for them."""
        for where, rule in asked_of_others(path, pod):
            if not self._intake.ignore_unknown:
                raise origin.error(where, f"{rule}; gputile convert writes them")
            self.expansion.notes.append(Note(f"ignored: {where} {rule}", origin))
        unit_mib = self._intake.admission.configuration.unit_mib
        words = words_of_others(path, pod, unit_mib, "; gputile convert writes it")
        self.expansion.notes += (Note(text, origin) for text in words)

    def _check_metadata(self, manifest: Manifest) -> None:
        self._refuse(
            manifest, broken_fields(_METADATA, manifest.body.get("metadata", {}), "metadata")
        )

    def _refuse(self, manifest: Manifest, broken: list[Broken]) -> None:
        if not broken:
            return
        unknown = [each for each in broken if each[1].startswith("unknown field")]
        way = self._intake.unknown_fields
        if manifest.origin in self._intake.accepted:
            way = UnknownFields.IGNORED
        elif manifest.stored and way is UnknownFields.REFUSED:
            way = UnknownFields.NOTED
        if way is UnknownFields.NOTED:
            self.expansion.notes += [
                Note(f"{path}: {rule}", manifest.origin) for path, rule in unknown
            ]
        refused = (
            broken
            if way is UnknownFields.REFUSED
            else [each for each in broken if each not in unknown]
        )
        if refused:
            lines = [str(manifest.origin.error(*each)) for each in refused[:_MOST_OF_AN_OBJECT]]
            raise ManifestError("\n".join(lines))

    def _unknown(self, manifest: Manifest) -> str:
        """Return why an unknown kind cannot be used, and what to do."""
        kind, version = manifest.kind, manifest.api_version
        said = f"no matches for kind {shown(kind)} in version {shown(version)}"
        if manifest.group == KUSTOMIZE_GROUP:
            return f"{said}; {BUILT_BY_KUSTOMIZE}"
        if manifest.group == "gputile.io" and kind in _NAMED_BY:
            return f"{said}; a file of this kind is for {_NAMED_BY[kind]}"
        known, table = kubernetes_kinds().kinds, self._intake.kinds
        own = [each for each, names in known.items() if kind in names]
        others = [*table.of_kind(kind), *([POD_GROUP[0]] if kind == POD_GROUP[1] else ())]
        elsewhere = own if own and manifest.group in _THEIR_GROUPS else sorted({*own, *others})
        names = set(known.get(version, ())) | {
            name for each, name in table.kinds if each == version
        }
        if elsewhere:
            return f"{said}; {kind} is in {' and '.join(elsewhere)}"
        return said + nearest(kind, names or MAKERS)

    def _note(self, text: str, manifest: Manifest) -> None:
        self.expansion.notes.append(Note(text, manifest.origin))


def _may_be_custom(manifest: Manifest) -> bool:
    """Return whether a CRD may define an unknown kind.

    It may not in the API groups of Kubernetes, gputile and kustomize.
    """
    group = manifest.group
    if "." not in group or group in (POD_GROUP_API, KUSTOMIZE_GROUP, "gputile.io"):
        return False
    return group not in {version.rpartition("/")[0] for version in kubernetes_kinds().kinds}


def _complete(manifest: Manifest, meta: ObjectMeta) -> ObjectMeta:
    """Return ``meta`` with the name, namespace and UID that the API server would set."""
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
    """Return a composed name, cut to the maximum length of a name."""
    return (
        name
        if len(name) <= _LONGEST_NAME
        else f"{name[: _LONGEST_NAME - 6].rstrip('-.')}-{suffixes(name)(0)}"
    )
