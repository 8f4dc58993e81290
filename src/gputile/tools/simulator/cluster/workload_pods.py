"""Expands workload objects into the pods that their controllers would make.

Names and UIDs never change.

Pods of one workload share the spec of its template: replace a spec to change it, and never write into it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from types import MappingProxyType
from typing import Annotated, Any, Final

import msgspec

from gputile.api.core import Node, ObjectMeta, OwnerReference, Pod, PodSpec
from gputile.api.names import broken_label_name
from gputile.core.devices.gang_membership import gang_of, labelled_size
from gputile.tools.simulator.admission.chain import checked
from gputile.tools.simulator.admission.quotas import exceeded, unnamed
from gputile.tools.simulator.admission.service_allocations import allocated_twice
from gputile.tools.simulator.cluster.autoscaled import scaled, written_bounds
from gputile.tools.simulator.cluster.controller_labels import COMPLETION_INDEX, POD_INDEX, POD_NAME, common_labels
from gputile.tools.simulator.cluster.daemon_pods import choose, pinned
from gputile.tools.simulator.cluster.intake import Intake
from gputile.tools.simulator.cluster.made_objects import (
    Made,
    ephemeral_claims,
    made_claims,
    made_jobs,
    made_once,
    taken_claims,
    written_claims,
)
from gputile.tools.simulator.cluster.order import order_notes
from gputile.tools.simulator.documents.generated_names import generated_name, make_uid, suffixes
from gputile.tools.simulator.documents.manifests import Manifest, ManifestError, Origin, decode
from gputile.tools.simulator.documents.notes import Note
from gputile.tools.simulator.rules.pods.startable import doubts
from gputile.tools.simulator.rules.values.names import check_name
from gputile.tools.simulator.rules.workloads.kinds import template_path
from gputile.tools.simulator.rules.workloads.pod_kinds import (
    TEMPLATES_REFERRED,
    PodKind,
    Reference,
    groups,
    is_suspended,
    template_reference,
    used_instead,
    with_template,
)

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
MOST_REPLICAS = 100_000
MOST_PODS = 200_000
_MOST_SHOWN = 50
_LONGEST_NAME = 253

Owner = tuple[str, str, str]  # kind, namespace, name

_Replicas = Annotated[int, msgspec.Meta(ge=0, le=MOST_REPLICAS)]


class _Ordinals(msgspec.Struct):
    start: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0


class _WorkloadSpec(msgspec.Struct, rename="camel"):
    """The fields of all workload kinds that decide how many pods there are, and what they are called."""

    replicas: _Replicas = 1
    parallelism: _Replicas = 1
    completions: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    completion_mode: str = ""
    suspend: bool = False
    paused: bool = False
    pod_management_policy: str = ""
    manual_selector: bool = False
    ordinals: _Ordinals = msgspec.field(default_factory=_Ordinals)


class _OnlyMetadata(msgspec.Struct):
    """Any object, of which only its metadata is read."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


class _WorkloadManifest(msgspec.Struct):
    spec: _WorkloadSpec
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


class _CronJobSpec(msgspec.Struct, rename="camel"):
    job_template: _WorkloadManifest
    suspend: bool = False


class _CronJob(msgspec.Struct):
    spec: _CronJobSpec
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


@dataclass(slots=True)
class Expansion:
    """The pods in the order of their creation; ``notes`` say what was read loosely or left out.

    ``owned`` are the labels that identify the running pods of an object (kind, namespace, name) whose controller is
    another object. ``intake`` is how the objects were taken in, with what they say of each other, and ``manifests`` are
    those objects. ``made`` is what controllers make of them beside pods.
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
    expander.expansion.notes += order_notes(manifests)
    wrong: list[str] = []
    for manifest in manifests:
        try:
            expander.take(manifest)
        except ManifestError as error:
            wrong += str(error).split("\n")
    if not wrong:
        everything, pods = [*there.manifests, *manifests], [*there.pods, *expander.expansion.pods]
        made = [*there.made, *expander.expansion.made]
        twice = allocated_twice(everything, taken.services)
        wrong += map(str, (*twice, *exceeded(everything, pods, made), *unnamed(everything, pods)))
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
        self._manifests = manifests
        self._seen: dict[tuple[str, str, str, str], Origin] = {}
        self._names: set[str] = set()
        self._uids: dict[str, str] = {}
        self._claims = written_claims(manifests)
        self._bounds = written_bounds([*intake.autoscalers, *manifests])

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
        if kind == "CronJob":
            cron = manifest.decode(_CronJob)
            owner, workload = cron.metadata, _WorkloadManifest(cron.spec.job_template.spec)
            workload.spec.suspend |= cron.spec.suspend
        else:
            workload = manifest.decode(_WorkloadManifest)
            owner = workload.metadata
        owner = self._owner(manifest, owner)
        steps = template_path(kind)
        written: Any = manifest.body
        for step in steps:
            written = written.get(step, {})
        template = self._template(origin, ".".join(steps), written, owner.namespace)
        make = _Maker(kind, owner, template, common_labels(kind, owner, template, workload.spec.manual_selector))
        spec = decode(origin, ".".join(steps), written, Pod).spec
        gangs = self._intake.admission.configuration.admission.gangs
        work = _Work(origin, manifest.stored, gangs, workload.spec, spec, make, self._nodes, self.expansion.notes)
        pods = list(_EXPAND[kind](work))
        self._beside(manifest, ".".join((*steps, "spec")), written["spec"], pods)
        if not manifest.stored:
            made = made_once(manifest, owner.namespace), made_claims(manifest, owner.namespace, pods, self._claims)
            self.expansion.made += chain.from_iterable(made)
        yield from pods

    def _beside(self, manifest: Manifest, path: str, spec: Mapping[str, Any], pods: Sequence[Pod]) -> None:
        """Take notice of the claims of ephemeral volumes; ``spec``, which stands at ``path``, is that of the pods.

        Raises:
            ManifestError: there is a claim of such a name that is another one.
        """
        if manifest.stored:
            return
        if taken := list(islice(taken_claims(manifest, path, spec, pods, self._claims), _MOST_SHOWN)):
            raise ManifestError("\n".join(map(str, taken)))
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
            self.expansion.owned[manifest.kind, owner.namespace, owner.name] = known
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
            make = _Maker(manifest.kind, owner, template, dict(template.metadata.labels))
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
        found = self._referenced(manifest, reference)
        if found is not None:
            return with_template(manifest, kind, found)
        named = f"{reference.kind}/{reference.name} of the namespace {place_of(manifest)[0]}"
        why = f"no file has {named}, whose template its pods have"
        if not self._intake.ignore_unknown:
            remedy = f"add its file, or --ignore-unknown leaves the {manifest.kind} out"
            raise manifest.origin.error(kind.template_of, f"{why}: {remedy}")
        self.expansion.notes.append(Note(f"ignored: {why}", manifest.origin))
        return None

    def _referenced(self, manifest: Manifest, reference: Reference) -> Mapping[str, Any] | None:
        """Return the template of what an object refers to, None where no file has it."""
        return self._templates.get((reference.group, reference.kind, place_of(manifest)[0], reference.name))

    @cached_property
    def _templates(self) -> Mapping[tuple[str, str, str, str], Mapping[str, Any]]:
        """The templates of the objects that others can refer to, by API group, kind, namespace and name."""
        found = {}
        for other in self._manifests:
            template: Any = other.body
            steps = TEMPLATES_REFERRED.get((other.group, other.kind), ())
            for step in steps:
                template = template.get(step) if isinstance(template, dict) else None
            if steps and isinstance(template, dict):
                found[other.group, other.kind, *place_of(other)] = template
        return found

    def _owner(self, manifest: Manifest, written: ObjectMeta) -> ObjectMeta:
        owner = _complete(manifest, written)
        key = (manifest.group, manifest.kind, owner.namespace, owner.name)
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
        if node := admitted.spec.node_name:
            rule = f"{node} passes kube-scheduler by, so whether the pod fits there is not judged: use nodeSelector"
            raise origin.error(f"{path}.spec.nodeName".lstrip("."), rule)
        return admitted


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
    """What an expander gets: the workload, the ``written`` spec of its pods, their maker, and the cluster's nodes."""

    origin: Origin
    stored: bool
    gangs: bool
    spec: _WorkloadSpec
    written: PodSpec
    make: _Maker
    nodes: Sequence[Node]
    notes: list[Note]

    def note(self, text: str) -> None:
        """Say something of the workload that a user should know."""
        self.notes.append(Note(text, self.origin))


def _replicated(work: _Work) -> Iterator[Pod]:
    return (work.make.generated(i) for i in range(work.spec.replicas))


def _deployed(work: _Work) -> Iterator[Pod]:
    if work.spec.paused:
        work.note("is paused, so its controller makes no pods of this template")
        return iter(())
    return _replicated(work)


def _stateful(work: _Work) -> Iterator[Pod]:
    template = work.make.template
    gang = gang_of(template) if work.gangs and not work.stored else None
    one_by_one = work.spec.replicas > 1 and work.spec.pod_management_policy != "Parallel"
    if gang is not None and one_by_one and (gang.by_object or labelled_size(template) > 1):
        rule = (
            "pods of a gang start together, and those of a StatefulSet one after the other, each when the last is ready"
        )
        raise work.origin.error("spec.podManagementPolicy", f"{rule}: the gang never starts: set it to Parallel")
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
    """Yield a pod for each node that the controller chooses, pinned there as the controller does it."""
    admitted = work.make.template.spec
    choice = choose(work.written, admitted, work.nodes)
    missed = choice.why_missed()
    if missed is not None and not choice.nodes and not work.stored:
        raise work.origin.error("spec.template.spec", f"the DaemonSet never makes a pod: {missed}")
    if missed is not None:
        work.note(f"it makes no pod for {missed}")
    elif not choice.nodes:
        work.note("there is no node that it may run on")
    for i, node in enumerate(choice.nodes):
        yield work.make.generated(i, spec=pinned(admitted, node.metadata.name))


_EXPAND: dict[str, Callable[[_Work], Iterator[Pod]]] = {
    "Deployment": _deployed,
    "ReplicaSet": _replicated,
    "ReplicationController": _replicated,
    "StatefulSet": _stateful,
    "DaemonSet": _daemons,
    "Job": _job,
    "CronJob": _job,
}


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


def place_of(manifest: Manifest) -> tuple[str, str]:
    """Return an object's namespace and name, "" where it has none."""
    metadata = manifest.body.get("metadata")
    found = metadata if isinstance(metadata, dict) else {}
    return str(found.get("namespace") or "default"), str(found.get("name") or "")


def _shortened(name: str) -> str:
    """Return a name that is made of others, cut to what a name may be."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 6].rstrip('-.')}-{suffixes(name)(0)}"
