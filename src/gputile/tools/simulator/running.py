"""Finds the pods of manifests that already run in a cluster: applying a manifest again makes no second copy.

A pod of the cluster is one of an object's if its controller is the object, or a ReplicaSet or Job that the object made,
or if it carries the labels that identify such pods. A pod whose requests differ from the object's template is replaced,
as its controller would do when the template changes.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from gputile.api.core import Container, Pod
from gputile.api.well_known import GPU_COUNT_LABEL, GPU_RESOURCES
from gputile.core.kube_predicates.disks import disks
from gputile.core.kube_predicates.host_ports import host_ports
from gputile.core.kube_predicates.inter_pod import hard_spread
from gputile.core.kube_predicates.pod_requests import pod_requests
from gputile.tools.simulator.notes import Note
from gputile.tools.simulator.scenario import Scenario
from gputile.tools.simulator.workloads import Owner

# Labels with which the controllers of Deployments and Rollouts name the ReplicaSets that they make: NAME-<hash>.
_HASHES: Final = ("pod-template-hash", "rollouts-pod-template-hash")
_IMMUTABLE: Final = ("Pod", "Job")  # their requests cannot be changed after they are created


class ImmutableObject(ValueError):
    """An object that is in the cluster would have to change, and an API server refuses that."""


@dataclass(slots=True)
class _Found:
    """The pods of one object: those in the manifests, and those in the cluster."""

    asked: list[Pod] = field(default_factory=list)
    live: list[Pod] = field(default_factory=list)


def recognise(scenario: Scenario, live: Iterable[Pod], owned: Mapping[Owner, Mapping[str, str]]) -> None:
    """Add the ``live`` pods of a cluster to a scenario, and remove from ``pending`` the pods that they already are.

    ``owned`` are the labels by which the pods of an object are known where their controller is another object. A live
    pod that is one of those asked for and has no node yet takes the place of its copy in ``pending``.

    Raises:
        ImmutableObject: a pod or Job is in the cluster and asks for something else.
    """
    live, objects = list(live), dict[Owner, _Found]()
    there = {pod.key for pod in live}
    scenario.bound = [pod for pod in scenario.bound if pod.key not in there]  # printed from this cluster before
    for pod in scenario.pending:
        objects.setdefault(owner_of(pod), _Found()).asked.append(pod)
    for pod in live:
        owner = None if pod.finished or pod.metadata.deletion_timestamp else _known(pod, objects, owned)
        if owner is not None:
            objects[owner].live.append(pod)
        else:
            (scenario.bound if pod.spec.node_name else scenario.waiting).append(pod)
    pending: list[Pod] = []
    for owner, found in objects.items():
        pending += _still_asked(owner, found, scenario)
    order = {pod.key: i for i, pod in enumerate(scenario.pending)}
    scenario.pending = sorted(pending, key=lambda pod: order.get(pod.key, -1))


def _still_asked(owner: Owner, found: _Found, scenario: Scenario) -> list[Pod]:
    """Return the pods of an object that are still to be decided; put those that run into the scenario."""
    if not found.live:
        return found.asked
    asked = Counter(map(_demand, found.asked))
    kept: list[Pod] = []
    replaced = 0
    for pod in sorted(found.live, key=lambda pod: not pod.spec.node_name):  # those that run stay, before others
        demand = _demand(pod)
        if demand in asked:
            asked[demand] -= 1
            kept.append(pod)
        else:
            _refuse_change(owner, pod, found.asked)
            replaced += 1
    missing = _missing(found.asked, kept)
    scenario.bound += [pod for pod in kept if pod.spec.node_name]
    running = sum(1 for pod in kept if pod.spec.node_name)
    said = f"{owner[0]} {owner[1]}/{owner[2]}: {running} of its {len(found.asked)} pods run already"
    if replaced:
        said += f"; {replaced} that ask for something else are replaced"
    if running > len(found.asked):
        said += "; more than are asked for: all of them count"
    scenario.notes.append(Note(said))
    return [pod for pod in kept if not pod.spec.node_name] + missing


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
    if owner[0] in _IMMUTABLE and _gpu_demand(pod) not in map(_gpu_demand, asked):
        what = "spec" if owner[0] == "Pod" else "spec.template"
        raise ImmutableObject(
            f"{owner[0]} {owner[1]}/{owner[2]}: {what}: Forbidden: it is in the cluster and asks for other GPUs, which "
            f"cannot be changed in a {owner[0]}: delete it first, or give it another name"
        )


def owner_of(pod: Pod) -> Owner:
    """Return the object that a pod of the manifests comes from; a Pod is its own."""
    for owner in pod.metadata.owner_references:
        if owner.controller:
            return owner.kind, pod.metadata.namespace, owner.name
    return "Pod", pod.metadata.namespace, pod.metadata.name


def _known(pod: Pod, objects: Mapping[Owner, _Found], owned: Mapping[Owner, Mapping[str, str]]) -> Owner | None:
    """Return the object of the manifests that a pod of the cluster belongs to, None if there is none."""
    for candidate in _owners(pod):
        if candidate in objects:
            return candidate
    for key, labels in owned.items():
        if key in objects and key[1] == pod.metadata.namespace and labels.items() <= pod.metadata.labels.items():
            return key
    return None


def _owners(pod: Pod) -> Iterable[Owner]:
    """Yield the objects that a pod may come from: its controller, and the controller's own creator."""
    kind, namespace, name = owner_of(pod)
    yield kind, namespace, name
    if kind == "ReplicaSet":
        for label in _HASHES:
            suffix = f"-{pod.metadata.labels.get(label, '')}"
            if suffix != "-" and name.endswith(suffix):
                yield ("Deployment" if label == _HASHES[0] else "Rollout"), namespace, name.removesuffix(suffix)
    if kind == "Job":
        base, _, minute = name.rpartition("-")
        if base and minute.isdecimal():
            yield "CronJob", namespace, base


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
