"""Groups pods of one workload that have no place for one reason, so that they are told together."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from gputile.tools.simulator.cluster.owners import Owner
from gputile.tools.simulator.outcomes.workloads import workload_of
from gputile.tools.simulator.scheduling.simulation import PodOutcome


@dataclass(frozen=True, slots=True)
class ToldOutcome:
    """What became of a pod; ``others`` are the names of the pods of its workload with the same outcome."""

    outcome: PodOutcome
    others: list[str] = field(default_factory=list)


def together(outcomes: Iterable[PodOutcome]) -> list[ToldOutcome]:
    """Return ``outcomes`` in their order, each group where its first pod is."""
    told: list[ToldOutcome] = []
    groups: dict[tuple[Owner, str], ToldOutcome] = {}
    for outcome in outcomes:
        if outcome.node is not None:
            told.append(ToldOutcome(outcome))
            continue
        key = workload_of(outcome.pod), outcome.reason
        if key in groups:
            groups[key].others.append(outcome.pod.metadata.name)
        else:
            groups[key] = ToldOutcome(outcome)
            told.append(groups[key])
    return told
