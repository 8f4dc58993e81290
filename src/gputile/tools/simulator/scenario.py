"""Reads the nodes, running pods and new pods of a simulation from files and live objects."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod
from gputile.api.well_known import DEFAULT_UNIT_MIB, GPU_COUNT_LABEL
from gputile.api.workloads import PodDisruptionBudget, PodGroup
from gputile.core.kube_predicates.inter_pod import (
    NAMESPACE_NAME_LABEL,
    affinity_terms,
    anti_affinity_terms,
)
from gputile.core.kube_predicates.pod_requests import pod_requests
from gputile.core.ledger.node_info import unit_in_force
from gputile.tools.simulator.admission import Admission
from gputile.tools.simulator.claims import KnownClaims
from gputile.tools.simulator.controller_rules import PodGroups
from gputile.tools.simulator.described_cluster import MOST_NODES
from gputile.tools.simulator.described_nodes import described_nodes, described_unit, written_node
from gputile.tools.simulator.intake import Intake
from gputile.tools.simulator.manifests import (
    STDIN_TWICE,
    Manifest,
    ManifestError,
    Note,
    load_manifests,
)
from gputile.tools.simulator.workloads import POD_GROUP, Expansion, Owner, expand, owner_of

DEFAULT_NAMESPACE = "default"
_BUDGET = ("policy/v1", "PodDisruptionBudget")
_NO_LIVE_NODE = "the cluster has no nodes"
_NO_NODE = (
    "no file describes a node: write a kind: Cluster, or give what kubectl get nodes -o yaml prints"
)
_NAMESPACE_LABELS = "it is assumed that namespaces have no labels except the label with their name"
# Labels whose value is the hash in the name of a ReplicaSet (NAME-<hash>), with the API group and
# kind of the ReplicaSet's owner.
_HASHES: Final = {
    "pod-template-hash": ("apps", "Deployment"),
    "rollouts-pod-template-hash": ("argoproj.io", "Rollout"),
}
_POD: Final = ("", "Pod")
_JOB: Final = ("batch", "Job")


@dataclass(slots=True)
class Scenario:
    """A cluster and the pods to be placed on its nodes. Pods are in the order of creation."""

    nodes: list[Node] = field(default_factory=list)
    bound: list[Pod] = field(default_factory=list)  # pods that have a node already
    pending: list[Pod] = field(default_factory=list)  # pods that the simulation decides
    # Other pending pods. The simulation does not decide them, but their reservations count.
    waiting: list[Pod] = field(default_factory=list)
    # Bound pods by UID, without changes for GPUs that gputile does not serve.
    originals: dict[str, Pod] = field(default_factory=dict)
    groups: PodGroups = field(default_factory=PodGroups)
    budgets: list[PodDisruptionBudget] = field(default_factory=list)
    claims: KnownClaims = field(default_factory=KnownClaims)
    unit_mib: int | None = None  # the described memory unit, if any
    manifests: list[Manifest] = field(default_factory=list)  # objects not yet expanded into pods
    namespace: str = DEFAULT_NAMESPACE  # for objects that name no namespace
    notes: list[Note] = field(default_factory=list)  # what was simplified or omitted


def load_scenario(
    cluster: Sequence[str],
    workloads: Sequence[str] = (),
    *,
    nodes: Sequence[Node] | None = None,
    groups: PodGroups | None = None,
    configured_mib: int | None = None,
) -> Scenario:
    """Read a scenario from files, and create its pods with the default configuration.

    Raises:
        ManifestError: a file, an object or their combination is invalid.
    """
    scenario = read_scenario(
        *load_files(cluster, workloads), nodes=nodes, groups=groups, configured_mib=configured_mib
    )
    unit_mib = (
        configured_mib or scenario.unit_mib or unit_in_force(scenario.nodes) or DEFAULT_UNIT_MIB
    )
    make_pods(scenario, Intake(Admission(Configuration(gpu_memory_unit=f"{unit_mib}MiB"))))
    return scenario


def load_files(
    cluster: Sequence[str], workloads: Sequence[str]
) -> tuple[list[Manifest], list[Manifest]]:
    """Return the objects in the ``cluster`` files, and the objects in the ``workloads`` files.

    Raises:
        ManifestError: a file cannot be read, or an object is invalid.
    """
    if "-" in cluster and "-" in workloads:
        raise ManifestError(STDIN_TWICE)
    return load_manifests(cluster, described=True), load_manifests(workloads)


def read_scenario(
    described: Sequence[Manifest],
    workloads: Sequence[Manifest],
    *,
    nodes: Sequence[Node] | None = None,
    groups: PodGroups | None = None,
    configured_mib: int | None = None,
    namespace: str = DEFAULT_NAMESPACE,
) -> Scenario:
    """Build a scenario from objects, and from the ``nodes`` of a live cluster, if there is one.

    ``described`` are the objects that describe a cluster. ``namespace`` is the default namespace of
    ``workloads``. PodGroups in either list replace PodGroups of the same name in ``groups``.
    ``configured_mib`` is the configured memory unit, or None. Described nodes use it by default.

    No pods are created yet, because that requires the configuration, which may depend on the
    result. Objects that may create pods are stored in ``manifests``.

    Raises:
        ManifestError: an object or the combination of objects is invalid.
    """
    manifests = [*described, *(manifest.within(namespace) for manifest in workloads)]
    scenario = Scenario(nodes=list(nodes or ()), groups=groups or PodGroups(), namespace=namespace)
    for manifest in filter(_is_cluster, manifests):
        _set_unit(manifest, scenario, configured_mib)
    default_mib = (
        configured_mib or scenario.unit_mib or unit_in_force(nodes or ()) or DEFAULT_UNIT_MIB
    )
    rest = [manifest for manifest in manifests if not _add_nodes(manifest, scenario, default_mib)]
    if not scenario.nodes:
        raise ManifestError(_NO_LIVE_NODE if nodes is not None else _NO_NODE)
    scenario.manifests = rest
    _add_groups(rest, scenario)
    budgets = (each for each in rest if (each.api_version, each.kind) == _BUDGET and each.stored)
    scenario.budgets += [each.decode(PodDisruptionBudget) for each in budgets]
    for each in rest:
        scenario.claims.add(each)
    return scenario


def make_pods(scenario: Scenario, intake: Intake) -> Expansion:
    """Expand the scenario's manifests into pods, and add the pods to the scenario.

    Raises:
        ManifestError: an object is invalid.
    """
    expansion = expand(scenario.manifests, scenario.nodes, replace(intake, claims=scenario.claims))
    scenario.manifests = []
    scenario.notes += expansion.notes
    known = {node.metadata.name for node in scenario.nodes}
    if guessed := next((pod for pod in expansion.pods if _needs_namespace_labels(pod)), None):
        scenario.notes.append(Note(f"pod {guessed.key}: {_NAMESPACE_LABELS}"))
    for pod in expansion.pods:
        if pod.spec.node_name:
            scenario.bound.append(pod)
            if pod.spec.node_name not in known and not pod.finished:
                scenario.notes.append(
                    Note(f"pod {pod.key} is ignored: there is no node {pod.spec.node_name}")
                )
        elif not pod.finished:
            scenario.pending.append(pod)
    return expansion


def load_pods(paths: Iterable[str], scenario: Scenario, intake: Intake | None = None) -> list[Pod]:
    """Return the unbound pods of files. Add the PodGroups and claims of the files to the scenario.

    Raises:
        ManifestError: a file or object is invalid, or the files have no unbound pod.
    """
    loaded = load_manifests(paths)
    within = [manifest.within(scenario.namespace) for manifest in loaded]
    _add_groups(within, scenario)
    for each in within:
        scenario.claims.add(each)
    expansion = expand(within, scenario.nodes, replace(intake or Intake(), claims=scenario.claims))
    scenario.notes += expansion.notes
    pods = [pod for pod in expansion.pods if not pod.spec.node_name and not pod.finished]
    if not pods:
        raise ManifestError("no file has a pod without a node")
    return pods


def _add_groups(manifests: Iterable[Manifest], scenario: Scenario) -> None:
    """Add the PodGroups in ``manifests`` to the scenario. ``make_pods`` validates them later."""
    for manifest in manifests:
        if (manifest.api_version, manifest.kind) == POD_GROUP:
            scenario.groups.add(manifest.decode(PodGroup))


def _is_cluster(manifest: Manifest) -> bool:
    return manifest.kind == "Cluster" and manifest.group == "gputile.io"


def _set_unit(manifest: Manifest, scenario: Scenario, configured_mib: int | None) -> None:
    """Record a described memory unit. It must not contradict other files or the configuration."""
    unit = described_unit(manifest)
    if unit is None:
        return
    for other, where in (
        (scenario.unit_mib, "another file"),
        (configured_mib, "the configuration"),
    ):
        if other not in (None, unit):
            rule = f"it is {unit} MiB, and {where} has {other} MiB; a cluster has one memory unit"
            raise manifest.origin.error("gpuMemoryUnit", rule)
    scenario.unit_mib = unit


def _add_nodes(manifest: Manifest, scenario: Scenario, default_mib: int) -> bool:
    """Add a manifest's nodes. Return whether the manifest's kind describes nodes."""
    origin = manifest.origin
    if not manifest.described and _is_cluster(manifest):
        raise origin.error(
            "", "a Cluster describes nodes: name its file by --cluster, and not by -f"
        )
    if not manifest.described:
        return False
    if manifest.kind == "Node" and manifest.api_version == "v1":
        found = [written_node(manifest)]
    elif _is_cluster(manifest):
        found = list(described_nodes(manifest, default_mib))
    else:
        return False
    known = {node.metadata.name for node in scenario.nodes}
    for node in found:
        if node.metadata.name in known:
            raise origin.error("", f"there are two nodes with the name {node.metadata.name}")
        known.add(node.metadata.name)
    scenario.nodes += found
    if len(scenario.nodes) > MOST_NODES:
        raise origin.error("", f"with it there are more than {MOST_NODES} nodes")
    return True


def match_live_pods(scenario: Scenario, live: Iterable[Pod], expansion: Expansion) -> None:
    """Add a cluster's ``live`` pods to the scenario, and remove pending pods that exist already.

    A live pod belongs to an object in the files if its controller is this object, or a ReplicaSet
    or Job that this object created. A pod with the labels that identify the object's pods belongs
    to the object too. A live pod that has the same demands as a new pod of its object remains, and
    replaces the new pod. If no new pod has the same demands, the live pod is removed.

    All live pods with matching demands remain, even if the files ask for fewer pods, because an
    autoscaler may have added them. Pods of Pod and Job objects always remain, because their
    requests cannot be changed. Ended Pods and completed pods of Jobs are not created again. A live
    pod that remains is pending if it has no node. ``expansion`` is the result of ``make_pods``.
    """
    live = list(live)
    live_keys = {pod.key for pod in live}
    # Files may contain pods of the same cluster, for example as output of kubectl.
    scenario.bound = [pod for pod in scenario.bound if pod.key not in live_keys]
    new_pods: dict[Owner, list[Pod]] = {}
    for pod in scenario.pending:
        new_pods.setdefault(owner_of(pod), []).append(pod)
    found: dict[Owner, list[Pod]] = {}
    for pod in live:
        owner = (
            None
            if pod.metadata.deletion_timestamp
            else _owner_among(pod, new_pods, expansion.owned)
        )
        if owner is not None:
            found.setdefault(owner, []).append(pod)
        else:
            (scenario.bound if pod.spec.node_name else scenario.waiting).append(pod)
    order = {pod.key: i for i, pod in enumerate(scenario.pending)}
    pending: list[Pod] = []
    for owner, pods in new_pods.items():
        most = expansion.completions.get(owner, len(pods))
        pending += (
            _unmatched_pods(owner, pods, found[owner], scenario, most) if owner in found else pods
        )
    scenario.pending = sorted(pending, key=lambda pod: order.get(pod.key, -1))


def _unmatched_pods(
    owner: Owner, new_pods: Sequence[Pod], live: Sequence[Pod], scenario: Scenario, completions: int
) -> list[Pod]:
    """Return an object's pods that have no node yet, and record its running pods as bound.

    A Job creates ``completions`` pods in total.
    """
    fixed = owner[:2] in (_POD, _JOB)  # the requests of these pods cannot be changed
    demands = set(map(demand, new_pods))
    alive = [pod for pod in live if not pod.finished]
    remaining = [pod for pod in alive if fixed or demand(pod) in demands]
    names, new_names = {pod.key for pod in remaining}, {pod.key for pod in new_pods}
    unnamed = [pod for pod in remaining if pod.key not in new_names]
    missing = [pod for pod in new_pods if pod.key not in names]
    if fixed:
        ended = sum(
            pod.finished and (owner[:2] == _POD or pod.status.phase == "Succeeded") for pod in live
        )
        missing = missing[len(unnamed) :][: max(0, completions - ended - len(remaining))]
        if ended:
            scenario.notes.append(
                Note(f"{owner}: {ended} of its pods have ended, and are not started again")
            )
    else:
        missing = _without_demands(missing, Counter(map(demand, unnamed)))
    running = [pod for pod in remaining if pod.spec.node_name]
    scenario.bound += running
    if alive:
        text = f"{owner}: {len(running)} of its {len(new_pods)} pods run already"
        if replaced := len(alive) - len(remaining):
            text += f"; {replaced} with other requests are replaced"
        if len(running) > len(new_pods):
            text += "; these are more than it asks for, and all of them count"
        scenario.notes.append(Note(text))
    return [*(pod for pod in remaining if not pod.spec.node_name), *missing]


def _without_demands(pods: Sequence[Pod], counts: Counter[Hashable]) -> list[Pod]:
    """Return ``pods`` without the first ``counts[demand]`` pods with each demand."""
    left = []
    for pod in pods:
        if counts[demanded := demand(pod)] > 0:
            counts[demanded] -= 1
        else:
            left.append(pod)
    return left


def _owner_among(
    pod: Pod, objects: Mapping[Owner, Sequence[Pod]], owned: Mapping[Owner, Mapping[str, str]]
) -> Owner | None:
    """Return the object in the files that a live pod belongs to, or None if there is none."""
    for candidate in owners_of(pod):
        if candidate in objects:
            return candidate
    for key, labels in owned.items():
        if (
            key in objects
            and key.namespace == pod.metadata.namespace
            and labels.items() <= pod.metadata.labels.items()
        ):
            return key
    return None


def owners_of(pod: Pod) -> Iterable[Owner]:
    """Yield the objects that may own a pod: its controller, and the owner of that controller."""
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


def demand(pod: Pod) -> Hashable:
    """Return a key that is equal for pods that demand the same resources and nodes."""
    spec = pod.spec
    affinity = msgspec.json.encode(spec.affinity) if spec.affinity is not None else b""
    requests = tuple(sorted(pod_requests(spec).items()))
    return (
        requests,
        pod.metadata.labels.get(GPU_COUNT_LABEL),
        tuple(sorted(spec.node_selector.items())),
        affinity,
    )


def _needs_namespace_labels(pod: Pod) -> bool:
    """Return whether an affinity term selects namespaces by labels other than their name label."""
    selectors = (
        term.namespace_selector for term in (*affinity_terms(pod), *anti_affinity_terms(pod))
    )
    keys = (
        key
        for each in selectors
        if each is not None
        for key in (
            *each.match_labels,
            *(requirement.key for requirement in each.match_expressions),
        )
    )
    return any(key != NAMESPACE_NAME_LABEL for key in keys)
