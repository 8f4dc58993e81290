"""What a viewer asks about a pod or a manifest, answered by the code that explains and simulates elsewhere."""

import io
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod
from gputile.tools.simulator.admission import Admission
from gputile.tools.simulator.gangs import PodGroups
from gputile.tools.simulator.intake import Intake
from gputile.tools.simulator.manifests import ManifestError
from gputile.tools.simulator.notes import told_together
from gputile.tools.simulator.pod_explanation import ExplainAnswer, explain_answer, explain_pod
from gputile.tools.simulator.running import ImmutableObject, recognise
from gputile.tools.simulator.scenario import ScenarioFiles, make_pods, read_scenario
from gputile.tools.simulator.simulation import Outcome, Simulation
from gputile.tools.web.records import TileShare

MOST_NODES: Final = 100  # of which an explanation tells, the nearest first
MOST_SECONDS: Final = 20.0  # for the decisions about a manifest


@dataclass(frozen=True, slots=True)
class Moment:
    """The cluster at one moment. ``groups`` and ``unsafe`` (namespaces) are as the simulator takes them."""

    nodes: Sequence[Node]
    pods: Sequence[Pod]
    configuration: Configuration
    groups: PodGroups = field(default_factory=PodGroups)
    unsafe: frozenset[str] = frozenset()
    namespace: str = "default"


class WhatIfPod(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Where a pod of the manifest would go: ``node`` is "" where it has no place; ``reason`` says why."""

    namespace: str
    name: str
    reason: str
    node: str = ""
    shares: tuple[TileShare, ...] = ()
    whole: bool = False


class WhatIf(msgspec.Struct, frozen=True, rename="camel"):
    """What would become of a manifest. ``error`` is why it cannot be used, "" where it can."""

    pods: list[WhatIfPod] = []
    notes: list[str] = []
    error: str = ""


def explanation(pod: Pod, moment: Moment) -> ExplainAnswer:
    """Return what ``gputile explain`` says of a pod, with the nodes that come closest."""
    found = explain_pod(pod, moment.nodes, moment.pods, moment.configuration, time.time_ns())
    return explain_answer(found, MOST_NODES)


def what_if(manifest: bytes, moment: Moment) -> WhatIf:
    """Return where the pods of a manifest would go, as ``gputile simulate --from-cluster`` decides it."""
    groups = PodGroups(dict(moment.groups.sizes), dict(moment.groups.unreadable), moment.groups.absent)
    try:
        scenario = read_scenario(
            ScenarioFiles((), ("-",), io.BytesIO(manifest)),
            nodes=moment.nodes,
            groups=groups,
            configured_mib=moment.configuration.unit_mib,
            namespace=moment.namespace,
        )
        expansion = make_pods(scenario, Intake(Admission(moment.configuration, unsafe=moment.unsafe)))
        recognise(scenario, moment.pods, expansion.owned)
    except (ManifestError, ImmutableObject) as error:
        return WhatIf(error=str(error))
    decided = []
    notes = list(told_together(scenario.notes))
    ends = time.monotonic() + MOST_SECONDS
    for outcome in Simulation(moment.configuration).run(scenario, time.time_ns):
        decided.append(_decided(outcome))
        if time.monotonic() > ends:
            left = len(scenario.pending) - len(decided)
            notes.append(f"stopped after {MOST_SECONDS:g} s: {left} pods are not decided; gputile simulate decides all")
            break
    if not decided and not notes:
        notes.append("the manifest asks for no pod, so there is nothing to place")
    return WhatIf(decided, notes)


def _decided(outcome: Outcome) -> WhatIfPod:
    meta, allocation = outcome.pod.metadata, outcome.allocation
    shares = allocation.gpus if allocation is not None else ()
    return WhatIfPod(
        namespace=meta.namespace,
        name=meta.name,
        reason=outcome.reason,
        node=outcome.node or "",
        shares=tuple(TileShare(share.index, share.mib, share.percent) for share in shares),
        whole=allocation is not None and allocation.whole,
    )
