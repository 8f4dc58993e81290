"""Expands workload objects into the pods that their controllers would make.

Names and UIDs never change.

Pods of one workload share the spec of its template: replace a spec to change it, and never write into it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

import msgspec

from gputile.api.core import Node, ObjectMeta, Pod
from gputile.api.wording import broken_label_name
from gputile.tools.simulator.admission.chain import checked
from gputile.tools.simulator.admission.quotas import exceeded, unnamed
from gputile.tools.simulator.admission.service_allocations import allocated_twice
from gputile.tools.simulator.cluster.autoscaled import scaled, written_bounds
from gputile.tools.simulator.cluster.controller_labels import common_labels
from gputile.tools.simulator.cluster.intake import Intake
from gputile.tools.simulator.cluster.made_objects import (
    Made,
    claims_used_otherwise,
    ephemeral_claims,
    made_claims,
    made_jobs,
    made_once,
    taken_claims,
    without_replaced,
    written_claims,
)
from gputile.tools.simulator.cluster.named_keys import missing_keys, written_keys
from gputile.tools.simulator.cluster.order import order_notes
from gputile.tools.simulator.cluster.owners import Owner
from gputile.tools.simulator.cluster.pod_maker import PodMaker
from gputile.tools.simulator.cluster.printed_objects import printed_notes
from gputile.tools.simulator.cluster.single_pod_claims import claimed_twice
from gputile.tools.simulator.cluster.workload_controllers import ControllerInput, controlled_pods, workload_of
from gputile.tools.simulator.documents.generated_names import generated_name, make_uid, suffixes
from gputile.tools.simulator.documents.manifests import Manifest, ManifestError, Origin, decode
from gputile.tools.simulator.documents.notes import Note
from gputile.tools.simulator.rules.pods.mistyped_resources import MistypedResources
from gputile.tools.simulator.rules.pods.startable import doubts
from gputile.tools.simulator.rules.pods.volume_modes import is_block
from gputile.tools.simulator.rules.values.names import check_name
from gputile.tools.simulator.rules.workloads.kinds import template_path
from gputile.tools.simulator.rules.workloads.pod_kinds import PodKind
from gputile.tools.simulator.rules.workloads.template_groups import groups, is_suspended, used_instead
from gputile.tools.simulator.rules.workloads.template_reference import (
    ReferredTemplates,
    template_reference,
    with_template,
)

MOST_PODS = 200_000
_MOST_SHOWN = 50
_MOST_SUGGESTED = 1_000  # notes: to find which fields are meant takes time
_LONGEST_NAME = 253


class _OnlyMetadata(msgspec.Struct):
    """Any object, of which only its metadata is read."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


@dataclass(slots=True)
class Expansion:
    """The pods in the order of their creation; ``notes`` say what was read loosely or left out.

    ``owned`` are the labels that identify the running pods of an object whose controller is another object.
    ``intake`` is how the objects were taken in, with what they say of each other, and ``manifests`` are those objects.
    ``made`` is what controllers make of them beside pods.
    """

    pods: list[Pod] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    owned: dict[Owner, Mapping[str, str]] = field(default_factory=dict)
    intake: Intake = field(default_factory=Intake)
    manifests: Sequence[Manifest] = ()
    made: list[Made] = field(default_factory=list)


def expand(
    manifests: Sequence[Manifest], nodes: Sequence[Node], intake: Intake | None = None, beside: Expansion | None = None
) -> Expansion:
    """Return the pods of ``manifests``; DaemonSets get one on each of ``nodes`` that they select.

    The classes, LimitRanges and ResourceQuotas of ``beside``, an expansion that was made before, apply to them, too.

    Raises:
        ManifestError: objects cannot be used, two want one name, address or port, or a quota is exceeded; each mistake
            is a line.
    """
    there = beside or Expansion(intake=intake or Intake())
    taken = there.intake
    expander = _Expander(replace(taken, admission=taken.admission.beside(manifests)), nodes, manifests)
    expander.expansion.notes += [*order_notes(manifests), *printed_notes(manifests)]
    wrong: list[str] = []
    for manifest in manifests:
        if len(wrong) >= _MOST_SHOWN or len(expander.expansion.notes) >= _MOST_SUGGESTED:
            expander.suggest_no_more()
        try:
            expander.take(manifest)
        except ManifestError as error:
            wrong += str(error).split("\n")
    if not wrong:
        everything, pods = [*there.manifests, *manifests], [*there.pods, *expander.expansion.pods]
        made = [*there.made, *expander.expansion.made]
        twice = allocated_twice(everything, taken.services)
        shared = list(claimed_twice(everything, pods))
        expander.expansion.notes += (each for each in shared if isinstance(each, Note))
        refused = (each for each in shared if isinstance(each, ManifestError))
        wrong += map(str, (*twice, *exceeded(everything, pods, made), *unnamed(everything, pods), *refused))
    if wrong:
        more = [f"and {len(wrong) - _MOST_SHOWN} more mistakes"] if len(wrong) > _MOST_SHOWN else []
        raise ManifestError("\n".join([*wrong[:_MOST_SHOWN], *more]))
    return expander.expansion


class _Expander:
    """Makes pods of one object after the other."""

    def __init__(self, intake: Intake, nodes: Sequence[Node], manifests: Sequence[Manifest]) -> None:
        self.expansion = Expansion(intake=intake, manifests=manifests)
        self._intake = intake
        self._nodes = nodes
        self._mistyped = MistypedResources(nodes)
        self._templates = ReferredTemplates(manifests)
        self._seen: dict[Owner, Origin] = {}
        self._names: set[str] = set()
        self._uids: dict[str, str] = {}
        self._claims = written_claims(manifests)
        self._keys = written_keys(manifests)
        modes = {place: is_block(claim.body.get("spec")) for place, claim in self._claims.items()}
        self._block_claims = {**intake.block_claims, **modes}
        self._bounds = written_bounds([*intake.autoscalers, *manifests])

    def suggest_no_more(self) -> None:
        """Tell of unknown fields without which ones are meant."""
        self._intake = replace(self._intake, suggest=False)

    def take(self, manifest: Manifest) -> None:
        """Add the object's pods.

        Raises:
            ManifestError: it cannot be used.
        """
        if not self._intake.makes_pods(manifest, self.expansion.notes):
            return
        manifest, said = scaled(manifest, self._bounds, self._intake.kinds.find(manifest))
        if said:
            self.expansion.notes.append(Note(said, manifest.origin))
        for pod in self._pods(manifest):
            if pod.key in self._names:
                raise manifest.origin.error("metadata.name", f"there is already a pod {pod.key}")
            if (other := self._uids.setdefault(pod.metadata.uid, pod.key)) != pod.key:
                raise manifest.origin.error("metadata.uid", f"the pod {other} has this UID already")
            if len(self._names) == MOST_PODS:
                raise manifest.origin.error("", f"with it there are more than {MOST_PODS:,} pods")
            self._names.add(pod.key)
            self.expansion.pods.append(pod)

    def _pods(self, manifest: Manifest) -> Iterator[Pod]:
        kind = self._intake.kinds.find(manifest)
        if kind is not None:
            return self._of_other(manifest, kind)
        self._intake.check(manifest, self.expansion.notes)
        return self._single(manifest) if manifest.kind == "Pod" else self._of_workload(manifest)

    def _single(self, manifest: Manifest) -> Iterator[Pod]:
        meta = _complete(manifest, manifest.decode(_OnlyMetadata).metadata)
        if not manifest.judged:
            pod = msgspec.structs.replace(manifest.decode(Pod), metadata=meta)
            yield checked(manifest.origin, "", pod)
            return
        body = {key: value for key, value in manifest.body.items() if key != "status"}  # written by nobody but kubelets
        body["metadata"] = body["metadata"] | {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}
        pods = [self._admitted(manifest.origin, "", body)]
        self._beside(manifest, "spec", body["spec"], pods)
        yield from pods

    def _of_workload(self, manifest: Manifest) -> Iterator[Pod]:
        origin, kind = manifest.origin, manifest.kind
        metadata, workload = workload_of(manifest)
        owner = self._owner(manifest, metadata)
        steps = template_path(kind)
        written: Any = manifest.body
        for step in steps:
            written = written.get(step, {})
        if kind == "StatefulSet":
            written = without_replaced(manifest.body["spec"], written)
        template = self._template(origin, ".".join(steps), written, owner.namespace)
        labels = common_labels(kind, owner, template, workload.manual_selector)
        make = PodMaker(manifest, owner, template, labels)
        spec = decode(origin, ".".join(steps), written, Pod).spec
        gangs = self._intake.admission.configuration.admission.gangs
        given = ControllerInput(origin, manifest.stored, gangs, workload, spec, make, self._nodes, self.expansion.notes)
        pods = list(controlled_pods(kind, given))
        self._beside(manifest, ".".join((*steps, "spec")), written["spec"], pods)
        if not manifest.stored:
            made = made_once(manifest, owner.namespace), made_claims(manifest, owner.namespace, pods, self._claims)
            self.expansion.made += chain.from_iterable(made)
        yield from pods

    def _beside(self, manifest: Manifest, path: str, spec: Mapping[str, Any], pods: Sequence[Pod]) -> None:
        """Take notice of the claims of ephemeral volumes; ``spec``, which stands at ``path``, is that of the pods.

        Raises:
            ManifestError: there is a claim of such a name that is another one, the pods cannot use a claim, or a
                ConfigMap or Secret lacks a key that they name.
        """
        if manifest.stored:
            return
        given = manifest, path, spec, pods
        otherwise = claims_used_otherwise(*given, self._block_claims)
        missing = missing_keys(manifest, path, spec, manifest.namespaced_name[0], self._keys)
        if wrong := list(islice(chain(taken_claims(*given, self._claims), otherwise, missing), _MOST_SHOWN)):
            raise ManifestError("\n".join(map(str, wrong)))
        self.expansion.made += ephemeral_claims(manifest, spec, pods)

    def _of_other(self, manifest: Manifest, kind: PodKind) -> Iterator[Pod]:
        """Yield the pods of an object whose kind the table knows."""
        origin = manifest.origin
        named = manifest.decode(_OnlyMetadata).metadata
        if not named.name and not named.generate_name:
            raise origin.error("metadata.name", "Required value: name or generateName is required")
        owner = self._owner(manifest, named)
        if kind.owned:
            known = {label: text.replace("{name}", owner.name) for label, text in kind.owned.items()}
            self.expansion.owned[Owner(manifest.group, manifest.kind, owner.namespace, owner.name)] = known
        whole = self._with_template(manifest, kind)
        if whole is None:
            return
        suspended = is_suspended(whole, kind)
        if suspended:
            self.expansion.notes.append(Note("is suspended and makes no pods", origin))
        if path := used_instead(whole, kind):
            self.expansion.notes.append(
                Note(f"{path}: its pods are those of another object, and are not placed", origin)
            )
        self._intake.check_custom(whole, kind, self.expansion.notes)
        for group in groups(whole, kind):
            self._intake.check_group(whole, group, owner.name, self.expansion.notes)
            template = self._template(origin, group.path, group.template, owner.namespace)
            make = PodMaker(manifest, owner, template, dict(template.metadata.labels))
            pods = []
            for number in range(0 if suspended else group.count):
                name = _shortened(group.name(owner.name, number))
                check_name(origin, "metadata.name", name)
                pods.append(make.pod(name, labels=group.labels(owner.name, number)))
            self._beside(manifest, f"{group.path}.spec", group.template["spec"], pods)
            if group.rule.job_name and not manifest.stored:
                self.expansion.made.append(made_jobs(manifest, owner.namespace, group.jobs))
            yield from pods

    def _with_template(self, manifest: Manifest, kind: PodKind) -> Manifest | None:
        """Return an object with the template of its pods, None where it is left out because no file has it.

        Raises:
            ManifestError: no file has it, or what names it cannot be used.
        """
        reference = template_reference(manifest, kind)
        if reference is None:
            return manifest
        namespace = manifest.namespaced_name[0]
        found = self._templates.find(reference, namespace)
        if found is not None:
            return with_template(manifest, kind, found)
        named = f"{reference.kind}/{reference.name} of the namespace {namespace}"
        why = f"no file has {named}, whose template its pods have"
        if not self._intake.ignore_unknown:
            remedy = f"add its file, or --ignore-unknown leaves the {manifest.kind} out"
            raise manifest.origin.error(kind.template_of, f"{why}: {remedy}")
        self.expansion.notes.append(Note(f"ignored: {why}", manifest.origin))
        return None

    def _owner(self, manifest: Manifest, written: ObjectMeta) -> ObjectMeta:
        owner = _complete(manifest, written)
        key = Owner(manifest.group, manifest.kind, owner.namespace, owner.name)
        if key in self._seen:
            raise manifest.origin.error("metadata.name", f"the same {manifest.kind} is already in {self._seen[key]}")
        self._seen[key] = manifest.origin
        return owner

    def _template(self, origin: Origin, path: str, template: Mapping[str, Any], namespace: str) -> Pod:
        """Return the stored form that all pods of a template share.

        Raises:
            ManifestError: the template, which may be of an object that is stored and not judged, has no pods.
        """
        if not template.get("spec"):
            raise origin.error(f"{path}.spec.containers", "Required value")
        metadata = template.get("metadata", {}) | {"namespace": namespace}
        return self._admitted(origin, path, {"metadata": metadata, "spec": template["spec"]})

    def _admitted(self, origin: Origin, path: str, pod: Mapping[str, Any]) -> Pod:
        if pod["spec"].get("resourceClaims"):
            rule = "devices of ResourceClaims are allocated by kube-scheduler, and are not judged here"
            raise origin.error(f"{path}.spec.resourceClaims".lstrip("."), rule)
        admitted = self._intake.admission.admit(origin, path, pod, self.expansion.notes)
        prefix = f"{path}." if path else ""
        self.expansion.notes += (Note(each, origin) for each in doubts(prefix, pod["metadata"], pod["spec"]))
        self.expansion.notes += (Note(each, origin) for each in self._mistyped.in_spec(prefix, pod["spec"]))
        if node := admitted.spec.node_name:
            rule = f"{node} passes kube-scheduler by, so whether the pod fits there is not judged: use nodeSelector"
            raise origin.error(f"{path}.spec.nodeName".lstrip("."), rule)
        return admitted


def _complete(manifest: Manifest, meta: ObjectMeta) -> ObjectMeta:
    """Return ``meta`` with the name, namespace and UID that the API server would have given."""
    origin, kind = manifest.origin, manifest.kind
    namespace = meta.namespace or "default"
    name = meta.name or generated_name(meta.generate_name, f"{origin.file}/{origin.document}/{origin.item}")
    if why := broken_label_name(namespace):
        raise origin.error("metadata.namespace", why)
    check_name(origin, "metadata.name", name)
    uid = meta.uid or make_uid(kind, namespace, name)
    return msgspec.structs.replace(meta, name=name, namespace=namespace, uid=uid)


def _shortened(name: str) -> str:
    """Return a name that is made of others, cut to what a name may be."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 6].rstrip('-.')}-{suffixes(name)(0)}"
