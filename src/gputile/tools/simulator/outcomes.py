"""Summarizes a simulation by workload and reason, and finds remedies for pods without a node."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from gputile.api.core import Pod
from gputile.api.well_known import ALLOCATION_ANNOTATION, GPU_RESOURCES, MIG_PREFIX
from gputile.api.wording import memory_text
from gputile.core.devices.allocation import Allocation, encode_allocation
from gputile.core.devices.gang_membership import gang_of
from gputile.core.devices.request import RequestError
from gputile.core.kube_predicates.pod_requests import pod_requests
from gputile.tools.simulator.node_reports import Subject, gates_text
from gputile.tools.simulator.remedies import Remedy, remedies
from gputile.tools.simulator.scenario import Scenario, demand, owners_of
from gputile.tools.simulator.simulation import PodOutcome, Simulation
from gputile.tools.simulator.workloads import Owner


@dataclass(slots=True)
class WorkloadOutcome:
    owner: Owner
    nodes: Counter[str] = field(default_factory=Counter)  # placed pods per node
    allocations: Counter[str] = field(default_factory=Counter)  # placed pods per allocation
    refused: dict[str, list[Pod]] = field(default_factory=dict)  # refused pods by reason

    @property
    def placed(self) -> int:
        return self.nodes.total()

    @property
    def pods(self) -> int:
        return self.placed + sum(map(len, self.refused.values()))


def workload_outcomes(outcomes: Iterable[PodOutcome]) -> list[WorkloadOutcome]:
    """Group outcomes by workload. Workloads are in the order of their first outcomes."""
    workloads: dict[Owner, WorkloadOutcome] = {}
    for outcome in outcomes:
        owner = workload_of(outcome.pod)
        workload = workloads.setdefault(owner, WorkloadOutcome(owner))
        if outcome.node is None:
            workload.refused.setdefault(outcome.reason, []).append(outcome.pod)
        else:
            workload.nodes[outcome.node] += 1
            workload.allocations[_allocation_text(outcome.pod, outcome.allocation)] += 1
    return list(workloads.values())


def workload_of(pod: Pod) -> Owner:
    """Return the workload of a pod. This is its controller, or the owner of its ReplicaSet."""
    owner, *others = owners_of(pod)
    return others[0] if others and owner.kind == "ReplicaSet" else owner


def workload_name(owner: Owner) -> str:
    """Return a workload in the form of kubectl's arguments, such as ``deployment/web``."""
    return f"{owner.kind.lower()}/{owner.name}"


def _allocation_text(pod: Pod, allocation: Allocation | None) -> str:
    """Describe the allocation of a pod in words, such as "8 GiB on each of 2 GPUs"."""
    if allocation is None:
        requests = pod_requests(pod.spec)
        if instances := [name for name in requests if name.startswith(MIG_PREFIX)]:
            return ", ".join(f"{requests[name]} x {name}" for name in instances)
        return "GPUs of another plugin" if requests.keys() & GPU_RESOURCES else "no GPU"
    count = len(allocation.gpus)
    different = len({share.uuid for share in allocation.gpus})
    if different < count:
        return f"{count} time slices of {different} GPU{'s' if different > 1 else ''}"
    if allocation.whole:
        return "1 GPU" if count == 1 else f"{count} GPUs"
    share = allocation.gpus[0]
    amount = memory_text(share.mib)
    if share.percent:
        amount += f" and {share.percent} % of compute"
    return amount if count == 1 else f"{amount} on each of {count} GPUs"


@dataclass(frozen=True, slots=True)
class OutcomeText:
    """A pod's outcome. ``others`` are the names of the workload's other pods with this outcome."""

    outcome: PodOutcome
    others: list[str] = field(default_factory=list)


def merged_outcomes(outcomes: Iterable[PodOutcome]) -> list[OutcomeText]:
    """Merge the outcomes of pods of a workload that are refused for the same reason.

    Other outcomes are not merged. The order does not change.
    """
    merged: list[OutcomeText] = []
    groups: dict[tuple[Owner, str], OutcomeText] = {}
    for outcome in outcomes:
        if outcome.node is not None:
            merged.append(OutcomeText(outcome))
            continue
        key = workload_of(outcome.pod), outcome.reason
        if key in groups:
            groups[key].others.append(outcome.pod.metadata.name)
        else:
            groups[key] = OutcomeText(outcome)
            merged.append(groups[key])
    return merged


@dataclass(frozen=True, slots=True)
class Advice:
    nodes: dict[str, list[str]]  # names of nodes by reason, ordered from the closest fit
    remedies: list[Remedy]


def advice(
    pods: Sequence[Pod],
    scenario: Scenario,
    outcomes: Iterable[PodOutcome],
    simulation: Simulation,
    now_ns: int,
) -> dict[str, Advice]:
    """Return advice for each of ``pods``, by UID.

    The advice is for the cluster as it is after ``outcomes``. There is none for pods of gangs, pods
    with claims or scheduling gates, pods whose request can never be served, and pods that now fit.
    ``now_ns`` is Unix time in nanoseconds.
    """
    outcomes, configuration = list(outcomes), simulation.configuration
    pods_now = pods_after(scenario, outcomes, simulation)
    created = Counter(workload_of(each.pod) for each in outcomes)
    placed = Counter(workload_of(each.pod) for each in outcomes if each.node is not None)
    fitting, refused = set[tuple[Owner, Hashable]](), set[tuple[Owner, Hashable]]()
    for each in outcomes:
        demands = refused if each.node is None else fitting
        demands.add((workload_of(each.pod), demand(each.pod)))
    unlike = {owner for owner, _ in refused - fitting}  # no pod like a refused one fits
    advised: dict[str, Advice] = {}
    subject: Subject | None = None
    for pod in pods:
        if (
            pod.spec.resource_claims
            or gates_text(pod) is not None
            or (configuration.admission.gangs and gang_of(pod) is not None)
        ):
            continue
        try:
            subject = (
                subject.with_pod(pod)
                if subject
                else Subject(pod, scenario.nodes, pods_now, configuration, now_ns)
            )
        except RequestError:
            continue
        reports = subject.reports()
        if any(report.fits for report in reports):
            continue  # later decisions have made the pod fit
        nodes: dict[str, list[str]] = {}
        for report in reports:
            nodes.setdefault(report.text, []).append(report.name)
        changes, owner = remedies(subject, reports), workload_of(pod)
        if placed[owner] and owner not in unlike:
            text = f"{workload_name(owner)} makes {placed[owner]} pods instead of {created[owner]}"
            changes.append(Remedy(text, []))
        advised[pod.metadata.uid] = Advice(nodes, changes)
    return advised


def pods_after(
    scenario: Scenario, outcomes: Iterable[PodOutcome], simulation: Simulation
) -> list[Pod]:
    """Return the cluster's pods after a simulation as stored objects, without refused pods."""
    victims = {victim.pod.metadata.uid for victim in simulation.victims}
    return [
        *(pod for pod in (*scenario.bound, *scenario.waiting) if pod.metadata.uid not in victims),
        *(_bound(each, each.node) for each in outcomes if each.node is not None),
    ]


def _bound(outcome: PodOutcome, node: str) -> Pod:
    """Return a pod as the API server would store it after its Binding to ``node``."""
    pod, annotations = outcome.pod, outcome.pod.metadata.annotations
    if outcome.allocation is not None:
        annotations = annotations | {ALLOCATION_ANNOTATION: encode_allocation(outcome.allocation)}
    return msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(pod.metadata, annotations=annotations),
        spec=msgspec.structs.replace(pod.spec, node_name=node),
    )
