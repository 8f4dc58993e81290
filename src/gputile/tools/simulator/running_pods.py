"""Finds pods of manifests that already run in a cluster: a second apply makes no copy.

A pod of the cluster is one of an object's if its controller is the object, or a ReplicaSet or Job that the object made,
or if it carries the labels that identify such pods. It stays if it asks a node for what one of the pods in the files
asks for, and takes that one's place; otherwise it is replaced. So none counts twice. Pods that stay are never fewer
than run, also where the files ask for fewer: how many an autoscaler wants is not known here.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from gputile.api.core import Pod
from gputile.api.well_known import GPU_COUNT_LABEL
from gputile.core.kube_predicates.pod_requests import pod_requests
from gputile.tools.simulator.manifests import Note
from gputile.tools.simulator.scenario import Scenario
from gputile.tools.simulator.workloads import Expansion, Owner, owner_of

# Labels with which controllers name the ReplicaSets that they make, NAME-<hash>, and whose controllers these are.
_HASHES: Final = {
    "pod-template-hash": ("apps", "Deployment"),
    "rollouts-pod-template-hash": ("argoproj.io", "Rollout"),
}
_POD: Final = ("", "Pod")
_JOB: Final = ("batch", "Job")


def recognise(scenario: Scenario, live: Iterable[Pod], expansion: Expansion) -> None:
    """Add the ``live`` pods of a cluster to a scenario, and remove from ``pending`` the pods that they already are.

    ``expansion`` is how the pods of the scenario were made. A live pod that is one of those asked for and has no node
    yet takes the place of its copy in ``pending``. One that has ended is not made again.
    """
    live = list(live)
    there = {pod.key for pod in live}
    scenario.bound = [pod for pod in scenario.bound if pod.key not in there]  # printed from this cluster before
    asked: dict[Owner, list[Pod]] = {}
    for pod in scenario.pending:
        asked.setdefault(owner_of(pod), []).append(pod)
    found: dict[Owner, list[Pod]] = {}
    for pod in live:
        owner = None if pod.metadata.deletion_timestamp else _owner_among(pod, asked, expansion.owned)
        if owner is not None:
            found.setdefault(owner, []).append(pod)
        else:
            (scenario.bound if pod.spec.node_name else scenario.waiting).append(pod)
    order = {pod.key: i for i, pod in enumerate(scenario.pending)}
    pending: list[Pod] = []
    for owner, pods in asked.items():
        most = expansion.completions.get(owner, len(pods))
        pending += _still_pending(owner, pods, found[owner], scenario, most) if owner in found else pods
    scenario.pending = sorted(pending, key=lambda pod: order.get(pod.key, -1))


def _still_pending(
    owner: Owner, asked: Sequence[Pod], live: Sequence[Pod], scenario: Scenario, completions: int
) -> list[Pod]:
    """Return the pods of an object that are still to be decided; put those that run into the scenario.

    A Job makes as many pods as its ``completions`` in all.
    """
    fixed = owner[:2] in (_POD, _JOB)  # what their pods ask for cannot be changed
    demands = set(map(_demand, asked))
    alive = [pod for pod in live if not pod.finished]
    kept = [pod for pod in alive if fixed or _demand(pod) in demands]
    names, copies = {pod.key for pod in kept}, {pod.key for pod in asked}
    others = [pod for pod in kept if pod.key not in copies]
    missing = [pod for pod in asked if pod.key not in names]
    if fixed:
        ended = sum(pod.finished and (owner[:2] == _POD or pod.status.phase == "Succeeded") for pod in live)
        missing = missing[len(others) :][: max(0, completions - ended - len(kept))]
        if ended:
            scenario.notes.append(Note(f"{owner}: {ended} of its pods have ended, and are not started again"))
    else:
        missing = _without(missing, Counter(map(_demand, others)))
    running = [pod for pod in kept if pod.spec.node_name]
    scenario.bound += running
    if alive:
        said = f"{owner}: {len(running)} of its {len(asked)} pods run already"
        if replaced := len(alive) - len(kept):
            said += f"; {replaced} that ask for something else are replaced"
        if len(running) > len(asked):
            said += "; more than are asked for: all of them count"
        scenario.notes.append(Note(said))
    return [*(pod for pod in kept if not pod.spec.node_name), *missing]


def _without(pods: Sequence[Pod], others: Counter[Hashable]) -> list[Pod]:
    """Return the pods for which none of the ``others`` stands, which are counted by what they ask for."""
    left = []
    for pod in pods:
        demand = _demand(pod)
        if others[demand] > 0:
            others[demand] -= 1
        else:
            left.append(pod)
    return left


def _owner_among(
    pod: Pod, objects: Mapping[Owner, Sequence[Pod]], owned: Mapping[Owner, Mapping[str, str]]
) -> Owner | None:
    """Return the object of the manifests that a pod of the cluster belongs to, None if there is none."""
    for candidate in owners_of(pod):
        if candidate in objects:
            return candidate
    for key, labels in owned.items():
        if key in objects and key.namespace == pod.metadata.namespace and labels.items() <= pod.metadata.labels.items():
            return key
    return None


def owners_of(pod: Pod) -> Iterable[Owner]:
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
    affinity = msgspec.json.encode(spec.affinity) if spec.affinity is not None else b""
    taken = tuple(sorted(pod_requests(spec).items()))
    return taken, pod.metadata.labels.get(GPU_COUNT_LABEL), tuple(sorted(spec.node_selector.items())), affinity
