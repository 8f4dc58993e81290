"""Explains pods and simulates manifests, as ``gputile explain`` and ``gputile simulate`` do."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeVar

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod
from gputile.api.resource_claims import ResourceClaim
from gputile.api.workloads import PodDisruptionBudget
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.ledger import Ledger
from gputile.tools.simulator.admission import Admission
from gputile.tools.simulator.controller_rules import PodGroups
from gputile.tools.simulator.described_nodes import nodes_of_text
from gputile.tools.simulator.explanation import ExplainAnswer, explain_answer, explain_pod
from gputile.tools.simulator.intake import Intake
from gputile.tools.simulator.manifests import ManifestError, merged_notes, parse_manifests
from gputile.tools.simulator.node_reports import memory_warning
from gputile.tools.simulator.scenario import make_pods, match_live_pods, read_scenario
from gputile.tools.simulator.simulation import PodOutcome, Simulation
from gputile.tools.web.records import TileShare

T = TypeVar("T")
MOST_NODES: Final = 100  # nodes in an explanation, beginning with those that fit best
MOST_SECONDS: Final = 20.0  # the time limit for placing the pods of a manifest
MOST_ADDED: Final = 200  # the largest number of nodes that one description can add


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The cluster at one moment.

    ``unsafe`` contains the namespaces in which pods may bypass isolation. ``namespace`` is the
    default namespace of manifests. ``budgets`` is None if unknown.
    """

    nodes: Sequence[Node]
    pods: Sequence[Pod]
    configuration: Configuration
    groups: PodGroups = field(default_factory=PodGroups)
    unsafe: frozenset[str] = frozenset()
    namespace: str = "default"
    budgets: Sequence[PodDisruptionBudget] | None = None
    claims: Sequence[ResourceClaim] = ()


class TooManyQuestions(Exception):
    """Too many questions wait for an answer, in total or from one viewer."""


class QuestionQueue:
    """Answers questions about the cluster one at a time, in a thread.

    At most ``most`` questions may wait for an answer. If viewers log in, at most ``most_of_one``
    of these questions may come from one viewer.
    """

    def __init__(
        self, snapshot: Callable[[], Awaitable[ClusterSnapshot]], most: int, most_of_one: int
    ) -> None:
        self._snapshot = snapshot
        self._most = most
        self._most_of_one = most_of_one
        self._turn = asyncio.Lock()
        self._waiting: Counter[str] = Counter()

    async def ask(self, answer: Callable[[ClusterSnapshot], T], viewer: str) -> T:
        """Return ``answer(snapshot)``. ``viewer`` is the user's name, or "" if there is no login.

        Raises:
            TooManyQuestions: too many questions are waiting.
            KubeError: the API server cannot be read.
        """
        if self._waiting.total() >= self._most or (
            viewer and self._waiting[viewer] >= self._most_of_one
        ):
            raise TooManyQuestions
        self._waiting[viewer] += 1
        try:
            snapshot = await self._snapshot()
            async with self._turn:
                return await asyncio.to_thread(answer, snapshot)
        finally:
            self._waiting[viewer] -= 1
            self._waiting += Counter()  # removes viewers without questions


class WhatIfPod(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The simulated placement of a pod of the manifest. ``node`` is "" if no node fits."""

    namespace: str
    name: str
    reason: str
    node: str = ""
    shares: tuple[TileShare, ...] = ()
    whole: bool = False


class WhatIf(msgspec.Struct, frozen=True, rename="camel"):
    """The simulated placement of a manifest. If the manifest is invalid, ``error`` says why."""

    pods: list[WhatIfPod] = []
    notes: list[str] = []
    error: str = ""


def explanation(pod: Pod, snapshot: ClusterSnapshot) -> ExplainAnswer:
    """Explain a pod as ``gputile explain`` does, with at most ``MOST_NODES`` nodes."""
    found = explain_pod(
        pod, snapshot.nodes, snapshot.pods, snapshot.configuration, time.time_ns(), snapshot.claims
    )
    return explain_answer(found, MOST_NODES)


def what_if(manifest: bytes, snapshot: ClusterSnapshot, added: Sequence[str] = ()) -> WhatIf:
    """Simulate the placement of a manifest, as ``gputile simulate --from-cluster`` does.

    ``added`` are descriptions of further nodes in the format of ``--with-node``.
    """
    groups = PodGroups(
        dict(snapshot.groups.sizes), dict(snapshot.groups.unreadable), snapshot.groups.absent
    )
    try:
        scenario = read_scenario(
            (),
            parse_manifests("the pasted manifest", manifest),
            nodes=snapshot.nodes,
            groups=groups,
            configured_mib=snapshot.configuration.unit_mib,
            namespace=snapshot.namespace,
        )
        scenario.claims.claims |= {each.key: each for each in snapshot.claims}
        for number, text in enumerate(added, 1):
            nodes = nodes_of_text(text, number, snapshot.configuration.unit_mib, "added nodes")
            scenario.nodes += islice(nodes, MOST_ADDED)
        admission = Admission(snapshot.configuration, unsafe=snapshot.unsafe)
        expansion = make_pods(
            scenario, Intake(admission, kinds_hint="use gputile simulate --kinds FILE")
        )
        match_live_pods(scenario, snapshot.pods, expansion)
        scenario.budgets += snapshot.budgets or ()
    except ManifestError as error:
        return WhatIf(error=str(error))
    decided = []
    notes = list(merged_notes(scenario.notes))
    ends = time.monotonic() + MOST_SECONDS
    simulation = Simulation(snapshot.configuration)
    for outcome in simulation.run(scenario, time.time_ns):
        decided.append(_decided(outcome, simulation.ledger))
        if time.monotonic() > ends:
            left = len(scenario.pending) - len(decided)
            notes.append(
                f"stopped after {MOST_SECONDS:g} s: {left} pods are not decided; gputile simulate "
                f"has no time limit"
            )
            break
    if simulation.victims and snapshot.budgets is None:
        notes.append(
            "the PodDisruptionBudgets are unknown; it is assumed that they allow the evictions of "
            "the preempted pods"
        )
    unlimited = memory_warning(simulation.ledger, (each.node for each in decided if each.shares))
    notes += filter(None, [unlimited])
    if not decided and not notes:
        notes.append("the manifest creates no pods")
    return WhatIf(decided, notes)


def _decided(outcome: PodOutcome, ledger: Ledger) -> WhatIfPod:
    meta, booking = outcome.pod.metadata, ledger.booking(outcome.pod.metadata.uid)
    return WhatIfPod(
        namespace=meta.namespace,
        name=meta.name,
        reason=outcome.reason,
        node=outcome.node or "",
        shares=_shares(booking, ledger) if booking is not None else (),
        whole=booking is not None and booking.whole,
    )


def _shares(booking: Booking, ledger: Ledger) -> tuple[TileShare, ...]:
    """Return a booking's shares of GPUs, in the same format as for bound pods."""
    info = ledger.node_info(ledger.row_of[booking.node])
    if info is None:
        return ()
    return tuple(TileShare(index, *each) for index, each in booking.amounts_on(info).items())
