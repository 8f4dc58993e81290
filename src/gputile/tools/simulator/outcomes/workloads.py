"""Sums up each workload: nodes and GPUs of its placed pods, and why the others have no place."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gputile.api.core import Pod
from gputile.api.well_known import GPU_RESOURCES
from gputile.core.devices.allocation import Allocation
from gputile.core.kube_predicates.pod_requests import pod_requests
from gputile.tools.simulator.cluster.owners import Owner, owner_of
from gputile.tools.simulator.scheduling.simulation import PodOutcome

_HASH = "pod-template-hash"


@dataclass(slots=True)
class WorkloadOutcome:
    """One workload: its pods by node, what each of them got, and the pods without a place by the reason."""

    owner: Owner
    nodes: Counter[str] = field(default_factory=Counter)
    gets: Counter[str] = field(default_factory=Counter)
    refused: dict[str, list[Pod]] = field(default_factory=dict)

    @property
    def placed(self) -> int:
        """How many of its pods have a place."""
        return self.nodes.total()

    @property
    def pods(self) -> int:
        """How many pods of it were decided."""
        return self.placed + sum(map(len, self.refused.values()))


def workload_outcomes(outcomes: Iterable[PodOutcome]) -> list[WorkloadOutcome]:
    """Return the workloads in the order in which their first pods were decided."""
    found: dict[Owner, WorkloadOutcome] = {}
    for outcome in outcomes:
        owner = workload_of(outcome.pod)
        workload = found.setdefault(owner, WorkloadOutcome(owner))
        if outcome.node is None:
            workload.refused.setdefault(outcome.reason, []).append(outcome.pod)
        else:
            workload.nodes[outcome.node] += 1
            workload.gets[_gets(outcome.pod, outcome.allocation)] += 1
    return list(found.values())


def workload_of(pod: Pod) -> Owner:
    """Return the workload that a pod belongs to: its controller, or the Deployment that made the controller."""
    owner = owner_of(pod)
    suffix = f"-{pod.metadata.labels.get(_HASH, '')}"
    if owner.kind == "ReplicaSet" and suffix != "-" and owner.name.endswith(suffix):
        return owner._replace(kind="Deployment", name=owner.name.removesuffix(suffix))
    return owner


def workload_name(owner: Owner) -> str:
    """Return a workload as kubectl names it: ``deployment/web``."""
    return f"{owner.kind.lower()}/{owner.name}"


def _gets(pod: Pod, allocation: Allocation | None) -> str:
    """Return what a pod got of GPUs, in words."""
    if allocation is None:
        return "GPUs of another plugin" if pod_requests(pod.spec).keys() & GPU_RESOURCES else "no GPU"
    count = len(allocation.gpus)
    if allocation.whole:
        return "1 GPU" if count == 1 else f"{count} GPUs"
    share = allocation.gpus[0]
    units = share.mib // allocation.unit_mib
    amount = f"{units} unit{'' if units == 1 else 's'}"
    if share.percent:
        amount += f" and {share.percent} % of compute"
    return amount if count == 1 else f"{amount} on each of {count} GPUs"
