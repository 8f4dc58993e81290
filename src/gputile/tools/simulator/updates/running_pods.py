"""Finds the pods of manifests that already run in a cluster.

Applying a manifest again makes no second copy.

A pod of the cluster is one of an object's if its controller is the object, or a ReplicaSet or Job that the object made,
or if it carries the labels that identify such pods. Pods are replaced where the template of their object changes, as
its controller would do it. Where nobody knows the object as the cluster has it, or its pods are of an earlier
template, pods are compared by what a scheduler reads: what they ask of a node, what they tolerate, gates and labels.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from gputile.api.core import Container, Pod, Toleration
from gputile.api.quantity import parse_quantity
from gputile.api.well_known import GANG_GATE, GPU_COUNT_LABEL, GPU_RESOURCES
from gputile.core.kube_predicates.inter_pod import hard_spread
from gputile.core.kube_predicates.pod_requests import pod_requests
from gputile.core.kube_predicates.ports_and_disks import disks, host_ports
from gputile.tools.simulator.cluster.autoscaled import targets
from gputile.tools.simulator.cluster.intake import MAKERS
from gputile.tools.simulator.cluster.owners import Owner, owner_in, owner_of
from gputile.tools.simulator.cluster.rolling_update import Replacement, RollingUpdate, rolling_update
from gputile.tools.simulator.cluster.scenario import Scenario
from gputile.tools.simulator.cluster.workload_pods import Expansion
from gputile.tools.simulator.documents.manifests import Manifest
from gputile.tools.simulator.documents.notes import Note
from gputile.tools.simulator.rules.workloads.controllers_labels import CONTROLLERS_LABELS
from gputile.tools.simulator.updates.gated_pods import applied

# Labels with which controllers name the ReplicaSets that they make, NAME-<hash>, and whose controllers these are.
_HASHES: Final = {
    "pod-template-hash": ("apps", "Deployment"),
    "rollouts-pod-template-hash": ("argoproj.io", "Rollout"),
}
_TOLERATED_ANYWAY: Final = ("node.kubernetes.io/", *GPU_RESOURCES)
# Kinds by their API groups. The requests of the first cannot be changed after they are created.
_IMMUTABLE: Final = (("", "Pod"), ("batch", "Job"))
_SCALED_DOWN: Final = (("apps", "Deployment"), ("apps", "ReplicaSet"), ("", "ReplicationController"))
_NUMBERED: Final = ("apps", "StatefulSet")
_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_LONGEST_COST: Final = 11  # a number of 32 bits with its sign


class ImmutableObject(ValueError):
    """An object that is in the cluster would have to change, and an API server refuses that."""


@dataclass(slots=True)
class _Found:
    """The pods of one object: those in the manifests, those in the cluster, and of these the ones that are replaced."""

    asked: list[Pod] = field(default_factory=list)
    live: list[Pod] = field(default_factory=list)
    replaced: list[Pod] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class KnownWorkloads:
    """What is known of the manifests' objects in the cluster.

    ``changed`` says whether their pods' template becomes another one. Of those that are in ``left`` the cluster makes
    only so many pods more at a time: a Job that has ended makes none.
    """

    changed: Mapping[Owner, bool] = field(default_factory=dict)
    left: Mapping[Owner, int] = field(default_factory=dict)


_UNKNOWN: Final = KnownWorkloads()


def recognise(
    scenario: Scenario, live: Iterable[Pod], expansion: Expansion, workloads: KnownWorkloads = _UNKNOWN
) -> None:
    """Add the ``live`` pods of a cluster to a scenario, and remove from ``pending`` the pods that they already are.

    ``expansion`` is how the pods of the scenario were made. A live pod that is one of those asked for and has no node
    yet takes the place of its copy in ``pending``. One that has ended is not made again.

    Raises:
        ImmutableObject: a pod or Job is in the cluster and asks for something else.
    """
    live, objects = list(live), dict[Owner, _Found]()
    there = {pod.key for pod in live}
    scenario.bound = [pod for pod in scenario.bound if pod.key not in there]  # printed from this cluster before
    for pod in scenario.pending:
        objects.setdefault(owner_of(pod), _Found()).asked.append(pod)
    _leave_out_ended(scenario, live, objects, workloads.left)
    for pod in live:
        owner = None if pod.finished or pod.metadata.deletion_timestamp else _known(pod, objects, expansion.owned)
        if owner is not None:
            objects[owner].live.append(pod)
        else:
            (scenario.bound if pod.spec.node_name else scenario.waiting).append(pod)
    pending: list[Pod] = []
    held = targets([*expansion.intake.autoscalers, *expansion.manifests])
    for owner, found in objects.items():
        pending += _still_asked(owner, found, scenario, workloads.changed.get(owner), scaled=owner in held)
    updates = _rolling_updates(expansion.manifests)
    for owner, found in objects.items():
        if (update := updates.get(owner)) is not None and found.replaced:
            old = sorted(found.replaced, key=lambda pod: pod.metadata.creation_timestamp or "")
            scenario.replacements.append(Replacement(owner, update, tuple(old)))
    order = {pod.key: i for i, pod in enumerate(scenario.pending)}
    scenario.pending = sorted(pending, key=lambda pod: order.get(pod.key, -1))


def _leave_out_ended(
    scenario: Scenario, live: Iterable[Pod], objects: dict[Owner, _Found], left: Mapping[Owner, int]
) -> None:
    """Leave out pods that a cluster does not make again: those of Jobs that have made theirs, and Pods that ended."""
    for pod in live:
        alone = Owner("", "Pod", pod.metadata.namespace, pod.metadata.name)
        if pod.finished and objects.pop(alone, None) is not None:
            said = f"Pod {pod.key}: it has ended in the cluster ({pod.status.phase}): applied again, it does not start"
            scenario.notes.append(Note(said))
    for owner, most in left.items():
        found = objects.get(owner)
        if found is not None and len(found.asked) > most:
            found.asked = found.asked[:most]
            more = f"{most} of its pods are" if most else "none of its pods is"
            scenario.notes.append(Note(f"{owner}: {more} still to be made in the cluster"))


def _rolling_updates(manifests: Iterable[Manifest]) -> dict[Owner, RollingUpdate]:
    found = {
        owner_in(each): rolling_update(each.kind, each.body.get("spec", {}))
        for each in manifests
        if each.api_version == MAKERS.get(each.kind)
    }
    return {owner: update for owner, update in found.items() if update is not None}


def _still_asked(owner: Owner, found: _Found, scenario: Scenario, changed: bool | None, *, scaled: bool) -> list[Pod]:
    """Return the pods of an object that are still to be decided; put those that run into the scenario.

    ``scaled`` says that an autoscaler asks for as many pods as there are.
    """
    if not found.live:
        return found.asked
    asked = Counter(map(_demand, found.asked))
    kept: list[Pod] = []
    replaced = 0
    same = changed is False and owner[:2] in _IMMUTABLE  # else it would have been refused
    guessed = changed is None and _is_kubernetes_own(owner)
    for pod in sorted(found.live, key=lambda pod: not pod.spec.node_name):  # those that run stay, before others
        demand = _demand(pod)
        differs = changed or (guessed and _looks_otherwise(owner, pod, found.asked))
        if same or (demand in asked and not differs):
            asked[demand] -= 1
            kept.append(pod)
        else:
            _refuse_change(owner, pod, found.asked)
            replaced += 1
            if pod.spec.node_name:
                found.replaced.append(pod)
    known = len(kept)
    if changed is not None and not scaled:
        kept = _staying(owner, kept, found.asked)
    left = known - len(kept)
    missing = _missing(found.asked, kept)
    scenario.bound += [pod for pod in kept if pod.spec.node_name]
    running = sum(1 for pod in kept if pod.spec.node_name)
    said = f"{owner}: {running} of its {len(found.asked)} pods run already"
    if replaced:
        said += f"; {replaced} {'of another template' if changed else 'that ask for something else'} are replaced"
    if left:
        said += f"; {left} more than are asked for leave"
    elif running > len(found.asked):
        said += "; more than are asked for: all of them count"
    scenario.notes.append(Note(said))
    waiting = [pod for pod in kept if not pod.spec.node_name]
    if owner.kind == "Pod" and found.asked:
        waiting = [applied(pod, found.asked[0]) for pod in waiting]
    return waiting + missing


def _staying(owner: Owner, kept: list[Pod], asked: Sequence[Pod]) -> list[Pod]:
    """Return which of an object's pods stay where it asks for fewer: of a StatefulSet those with its numbers.

    Of others those without a node leave first, then those of low deletion cost, then those beside most others, then
    the newest (pkg/controller of Kubernetes, ``ActivePodsWithRanks``, without readiness).
    """
    if owner[:2] == _NUMBERED:
        names = {pod.key for pod in asked}
        return [pod for pod in kept if pod.key in names]
    if owner[:2] not in _SCALED_DOWN:
        return kept
    beside = Counter(pod.spec.node_name for pod in kept)

    def stays_sooner(pod: Pod) -> tuple[bool, int, int, str]:
        node, created = pod.spec.node_name, pod.metadata.creation_timestamp or ""
        return not node, -_deletion_cost(pod), beside[node], created

    return sorted(kept, key=stays_sooner)[: len(asked)]


def _deletion_cost(pod: Pod) -> int:
    written = pod.metadata.annotations.get(_DELETION_COST, "0")
    return int(written) if len(written) <= _LONGEST_COST and written.removeprefix("-").isdecimal() else 0


def _missing(asked: Sequence[Pod], kept: Sequence[Pod]) -> list[Pod]:
    """Return the pods of the manifests that none of the kept pods stands for, by name or else by equal requests."""
    names = {pod.key for pod in kept}
    copies = {pod.key for pod in asked}
    others = Counter(_demand(pod) for pod in kept if pod.key not in copies)
    missing = []
    for pod in asked:
        demand = _demand(pod)
        if pod.key in names:
            continue
        if others[demand] > 0:
            others[demand] -= 1
            continue
        missing.append(pod)
    return missing


def _refuse_change(owner: Owner, pod: Pod, asked: Sequence[Pod]) -> None:
    other = "other GPUs" if _gpu_demand(pod) not in map(_gpu_demand, asked) else "something else"
    if owner[:2] in _IMMUTABLE and (other == "other GPUs" or _contradicts(pod, asked)):
        what = "spec" if owner.kind == "Pod" else "spec.template"
        raise ImmutableObject(
            f"{owner}: {what}: Forbidden: it is in the cluster and asks for {other}, which "
            f"cannot be changed in a {owner.kind}: delete it first, or give it another name"
        )


def _contradicts(pod: Pod, asked: Sequence[Pod]) -> bool:
    """Return whether a pod lacks what the template of those asked for says; others may have given it more."""
    template = asked[0].spec if asked else pod.spec
    given = {each.name: each.resources for each in (*pod.spec.containers, *pod.spec.init_containers)}
    for each in (*template.containers, *template.init_containers):
        has = given.get(each.name)
        if has is None or any(
            name not in amounts or parse_quantity(amounts[name]) != parse_quantity(amount)
            for wanted, amounts in ((each.resources.limits, has.limits), (each.resources.requests, has.requests))
            for name, amount in wanted.items()
        ):
            return True
    return not template.node_selector.items() <= pod.spec.node_selector.items()


def _looks_otherwise(owner: Owner, pod: Pod, asked: Sequence[Pod]) -> bool:
    """Return whether a pod tolerates something else than those asked for, has other gates, or lacks their labels.

    What API servers, webhooks and controllers add is no difference, and a Pod's own labels may change.
    """
    template = asked[0] if asked else pod
    wanted, given = (set(map(_tolerated, each.spec.tolerations)) for each in (template, pod))
    other = any(not key.startswith(_TOLERATED_ANYWAY) for key, *_ in given ^ wanted)
    gates = {each.name for each in template.spec.scheduling_gates} - {each.name for each in pod.spec.scheduling_gates}
    labels = template.metadata.labels.items() - pod.metadata.labels.items() if owner.kind != "Pod" else ()
    own = any(key not in CONTROLLERS_LABELS for key, _ in labels)
    return other or own or bool(gates - {GANG_GATE})


def _tolerated(toleration: Toleration) -> tuple[str, str, str, str]:
    return toleration.key or "*", toleration.operator, toleration.value, toleration.effect


def _is_kubernetes_own(owner: Owner) -> bool:
    """Return whether an object is of one of Kubernetes' own kinds that make pods."""
    version = MAKERS.get(owner.kind)
    return version is not None and version.rpartition("/")[0] == owner.group


def _known(pod: Pod, objects: Mapping[Owner, _Found], owned: Mapping[Owner, Mapping[str, str]]) -> Owner | None:
    """Return the object of the manifests that a pod of the cluster belongs to, None if there is none."""
    for candidate in _owners(pod):
        if candidate in objects:
            return candidate
    for key, labels in owned.items():
        if key in objects and key.namespace == pod.metadata.namespace and labels.items() <= pod.metadata.labels.items():
            return key
    return None


def _owners(pod: Pod) -> Iterable[Owner]:
    """Yield the objects that a pod may come from: its controller, and the controller's own creator."""
    owner = owner_of(pod)
    yield owner
    if owner[:2] == ("apps", "ReplicaSet"):
        for label, (group, kind) in _HASHES.items():
            suffix = f"-{pod.metadata.labels.get(label, '')}"
            if suffix != "-" and owner.name.endswith(suffix):
                yield Owner(group, kind, owner.namespace, owner.name.removesuffix(suffix))
    if owner[:2] == ("batch", "Job"):
        base, _, minute = owner.name.rpartition("-")
        if base and minute.isdecimal():
            yield Owner("batch", "CronJob", owner.namespace, base)


def _demand(pod: Pod) -> Hashable:
    """Return what a pod asks of a node, in a form that is equal for pods that ask for the same."""
    spec = pod.spec
    affinity = msgspec.json.encode(spec.affinity) if spec.affinity is not None else b"{}"
    selector = tuple(sorted(spec.node_selector.items()))
    spread = tuple((each.topology_key, each.max_skew) for each in hard_spread(pod))
    taken = tuple(sorted(pod_requests(spec).items())), host_ports(spec), disks(spec)
    return _gpu_demand(pod), taken, selector, affinity, spread


def _gpu_demand(pod: Pod) -> Hashable:
    spec = pod.spec
    containers = tuple(map(_gpus, spec.containers)), tuple(map(_gpus, spec.init_containers))
    return containers, pod.metadata.labels.get(GPU_COUNT_LABEL)


def _gpus(container: Container) -> Hashable:
    limits = container.resources.limits
    return tuple((name, str(limits[name])) for name in GPU_RESOURCES if name in limits)
