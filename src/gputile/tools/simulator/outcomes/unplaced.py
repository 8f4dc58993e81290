"""Explains why pods have no place after a simulation, and what would help (B4)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.api.well_known import ALLOCATION_ANNOTATION
from gputile.core.devices.allocation import encode_allocation
from gputile.core.devices.gang_membership import gang_of
from gputile.core.devices.request import RequestError
from gputile.tools.simulator.cluster.scenario import Scenario
from gputile.tools.simulator.explanation.node_reports import Subject, waiting_for
from gputile.tools.simulator.explanation.remedies import Remedy, remedies
from gputile.tools.simulator.scheduling.simulation import PodOutcome


@dataclass(frozen=True, slots=True)
class Advice:
    """The nodes' reasons against a pod, the closest node first, and what would make a place for it."""

    nodes: dict[str, list[str]]
    remedies: list[Remedy]


def advice(
    pods: Sequence[Pod], scenario: Scenario, outcomes: Iterable[PodOutcome], configuration: Configuration, now_ns: int
) -> dict[str, Advice]:
    """Return the advice for each of ``pods`` by its UID, once all others are where ``outcomes`` put them.

    The result leaves out pods that no change of the cluster helps, pods of gangs, and pods that wait for something else
    than free capacity. ``now_ns`` is Unix time in nanoseconds.
    """
    there = [
        *scenario.bound,
        *scenario.waiting,
        *(_bound(each, each.node) for each in outcomes if each.node is not None),
    ]
    found: dict[str, Advice] = {}
    subject: Subject | None = None
    for pod in pods:
        if waiting_for(pod) is not None or (configuration.admission.gangs and gang_of(pod) is not None):
            continue
        try:
            subject = subject.instead(pod) if subject else Subject(pod, scenario.nodes, there, configuration, now_ns)
        except RequestError:
            continue
        reports = subject.reports()
        if any(report.fits for report in reports):
            continue  # it waits for a pod that came after it
        nodes: dict[str, list[str]] = {}
        for report in reports:
            nodes.setdefault(report.text, []).append(report.name)
        found[pod.metadata.uid] = Advice(nodes, remedies(subject, reports))
    return found


def _bound(outcome: PodOutcome, node: str) -> Pod:
    """Return a pod as it is when its Binding to ``node`` has been executed."""
    pod, annotations = outcome.pod, outcome.pod.metadata.annotations
    if outcome.allocation is not None:
        annotations = annotations | {ALLOCATION_ANNOTATION: encode_allocation(outcome.allocation)}
    return msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(pod.metadata, annotations=annotations),
        spec=msgspec.structs.replace(pod.spec, node_name=node),
    )
