"""Writes a simulation as the record that ``gputile simulate -o json`` prints."""

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from gputile.cli.output.answers import ComparedAnswer, DecidedGpu, DecisionAnswer, FitAnswer, SimulateAnswer
from gputile.tools.simulator.outcomes import ToldOutcome, together

if TYPE_CHECKING:
    from gputile.cli.output.simulation import SimulationResult
    from gputile.core.devices.allocation import Allocation


def simulate_answer(result: "SimulationResult", other: "SimulationResult | None") -> SimulateAnswer:
    """Return the answer: the decisions of ``result`` and, compared with them, those of another placement policy."""
    answer = SimulateAnswer(decisions=_decisions(result), nodes=result.nodes, fit=_fit(result))
    if other is None:
        return answer
    decisions, fit = _decisions(other), _fit(other)
    compared = ComparedAnswer(placement=other.placement, decisions=decisions, nodes=other.nodes, fit=fit)
    return msgspec.structs.replace(answer, compared=compared)


def _fit(result: "SimulationResult") -> FitAnswer | UnsetType:
    count = result.count
    if count is None:
        return UNSET
    nodes, stopped_by = dict(sorted(count.nodes.items())), count.stopped_by or None
    return FitAnswer(copies=count.copies, pods=count.pods, nodes=nodes, stopped_by=stopped_by)


def _decisions(result: "SimulationResult") -> list[DecisionAnswer]:
    return [_decision(told) for told in together(result.outcomes)]


def _decision(told: ToldOutcome) -> DecisionAnswer:
    outcome = told.outcome
    meta = outcome.pod.metadata
    return DecisionAnswer(
        namespace=meta.namespace,
        pod=meta.name,
        node=outcome.node,
        gpus=_gpus(outcome.allocation) if outcome.allocation else [],
        reason=outcome.reason,
        others=list(told.others) or UNSET,
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
