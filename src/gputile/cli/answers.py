"""Defines the records that ``-o json`` prints, with camelCase keys as in Kubernetes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import UNSET, UnsetType

from gputile.api.wording import described
from gputile.tools.views.inspect import NodeSummary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gputile.api.well_known import Mode
    from gputile.core.devices.allocation import Allocation
    from gputile.tools.simulator.outcomes import OutcomeText
    from gputile.tools.simulator.scenario import Scenario
    from gputile.tools.simulator.simulation import PodOutcome, Simulation
    from gputile.tools.simulator.what_if import Fit


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The result of a simulation."""

    simulation: "Simulation"
    scenario: "Scenario"
    outcomes: "list[PodOutcome]"
    count: "Fit | None" = None  # how many more copies of the pods of --fit fit
    before: "Sequence[NodeSummary] | None" = None  # the nodes before --mode is applied
    mode: "Mode | None" = None

    @property
    def placement(self) -> str:
        return self.simulation.configuration.placement

    @property
    def placed(self) -> int:
        return sum(outcome.node is not None for outcome in self.outcomes)

    @property
    def nodes(self) -> "list[NodeSummary]":
        """The nodes after the simulation, with the pods on their GPUs."""
        from gputile.tools.views.inspect import ledger_summaries

        return ledger_summaries(self.simulation.ledger)


class VersionAnswer(msgspec.Struct, frozen=True, rename="camel"):
    version: Annotated[str, described("The version of gputile.")]


class InspectAnswer(msgspec.Struct, frozen=True, rename="camel"):
    unit_mib: Annotated[int, described("The memory unit of the table, in MiB.")]
    nodes: Annotated[list[NodeSummary], described("The GPU nodes.")]


class DecidedGpu(msgspec.Struct, frozen=True, rename="camel"):
    index: Annotated[int, described("The number of the GPU on its node.")]
    uuid: Annotated[str, described("The GPU's UUID.")]
    mib: Annotated[int, described("The pod's memory on this GPU, in MiB.")]
    units: Annotated[int, described("The pod's memory on this GPU, in memory units.")]
    percent: Annotated[
        int | UnsetType,
        described(
            "The pod's percentage of the GPU's compute. Absent if the GPU's compute is not divided."
        ),
    ] = UNSET


class DecisionAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The decision about a pod, and about other pods of the same workload with the same result."""

    namespace: Annotated[str, described("The pod's namespace.")]
    pod: Annotated[str, described("The pod's name.")]
    node: Annotated[str | None, described("The node, or null if the pod was not placed.")]
    gpus: Annotated[list[DecidedGpu], described("The pod's shares of GPUs.")]
    reason: Annotated[str, described("The reason for the decision.")]
    others: Annotated[
        list[str] | UnsetType,
        described(
            "The names of other pods of the same workload with the same result. Absent if there "
            "are none."
        ),
    ] = UNSET


class FitAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    copies: Annotated[int, described("How many more copies of the pods fit.")]
    pods: Annotated[int, described("The number of pods in one copy.")]
    nodes: Annotated[
        dict[str, int], described("The number of further pods on each node, by node name.")
    ]
    stopped_by: Annotated[
        str | None, described("Why no further copy fits, or null if counting stopped at the limit.")
    ]


class VictimAnswer(msgspec.Struct, frozen=True, rename="camel"):
    namespace: Annotated[str, described("The pod's namespace.")]
    pod: Annotated[str, described("The pod's name.")]
    priority: Annotated[int, described("The pod's priority.")]
    node: Annotated[
        str | None, described("The pod's node, or null if the pod loses only a reservation.")
    ]
    preemptors: Annotated[
        list[str], described("The pods that preempt this pod, as namespace/name.")
    ]


class ComparedAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The result of the same simulation with another placement policy."""

    placement: Annotated[str, described("The other placement policy.")]
    decisions: Annotated[list[DecisionAnswer], described("The decisions with that policy.")]
    nodes: Annotated[list[NodeSummary], described("The nodes after the simulation.")]
    fit: Annotated[FitAnswer | UnsetType, described("How many more pods fit with that policy.")] = (
        UNSET
    )


class SimulateAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    decisions: Annotated[list[DecisionAnswer], described("The decision for each pod.")]
    nodes: Annotated[list[NodeSummary], described("The nodes after the simulation.")]
    fit: Annotated[FitAnswer | UnsetType, described("With --fit: how many more pods fit.")] = UNSET
    compared: Annotated[
        ComparedAnswer | UnsetType, described("With --compare: the result with the other policy.")
    ] = UNSET
    preempted: Annotated[
        list[VictimAnswer] | UnsetType,
        described(
            "The pods that are preempted by pods of higher priority. Absent if there are none."
        ),
    ] = UNSET
    before: Annotated[
        list[NodeSummary] | UnsetType,
        described("With --mode: the nodes and their pods before the mode was changed."),
    ] = UNSET


def simulate_answer(result: SimulationResult, other: SimulationResult | None) -> SimulateAnswer:
    """Return the JSON output for ``result``. ``other`` is the result of ``--compare``."""
    answer = SimulateAnswer(decisions=_decisions(result), nodes=result.nodes, fit=_fit(result))
    if result.simulation.victims:
        victims = (
            (each.pod.metadata, each.pod.spec, each.preemptors)
            for each in result.simulation.victims
        )
        preempted = [
            VictimAnswer(
                meta.namespace,
                meta.name,
                spec.priority or 0,
                spec.node_name or None,
                list(preemptors),
            )
            for meta, spec, preemptors in victims
        ]
        answer = msgspec.structs.replace(answer, preempted=preempted)
    if result.before is not None:
        answer = msgspec.structs.replace(answer, before=list(result.before))
    if other is None:
        return answer
    decisions, fit = _decisions(other), _fit(other)
    compared = ComparedAnswer(
        placement=other.placement, decisions=decisions, nodes=other.nodes, fit=fit
    )
    return msgspec.structs.replace(answer, compared=compared)


def _fit(result: SimulationResult) -> FitAnswer | UnsetType:
    count = result.count
    if count is None:
        return UNSET
    nodes, stopped_by = dict(sorted(count.nodes.items())), count.stopped_by or None
    return FitAnswer(copies=count.copies, pods=count.pods, nodes=nodes, stopped_by=stopped_by)


def _decisions(result: SimulationResult) -> list[DecisionAnswer]:
    from gputile.tools.simulator.outcomes import merged_outcomes

    return [_decision(each) for each in merged_outcomes(result.outcomes)]


def _decision(text: "OutcomeText") -> DecisionAnswer:
    outcome = text.outcome
    meta = outcome.pod.metadata
    return DecisionAnswer(
        namespace=meta.namespace,
        pod=meta.name,
        node=outcome.node,
        gpus=_gpus(outcome.allocation) if outcome.allocation else [],
        reason=outcome.reason,
        others=list(text.others) or UNSET,
    )


def _gpus(allocation: "Allocation") -> list[DecidedGpu]:
    return [
        DecidedGpu(
            share.index,
            share.uuid,
            share.mib,
            share.mib // allocation.unit_mib,
            share.percent if share.percent and not allocation.whole else UNSET,
        )
        for share in allocation.gpus
    ]
