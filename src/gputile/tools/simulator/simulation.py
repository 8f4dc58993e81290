"""Simulates the scheduling of a scenario pod by pod, with the live ledger and placement code.

Each pod goes through the steps of a live cluster: in-tree predicates, scores of the placement
engine, and choice of the GPUs. The ledger then reads the annotation that the Binding would
write. If gangs are enabled, the live gang search places the pods of a gang. If a pod fits no node,
pods of lower priority are preempted, as in a cluster.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.api.resource_claims import ResourceClaim
from gputile.core.devices.allocation import Allocation
from gputile.core.devices.gang_membership import GangName, gang_size, needed_members, together_text
from gputile.core.devices.request import Request, RequestError
from gputile.core.kube_predicates.inter_pod import affinity_terms, hard_spread
from gputile.core.kube_predicates.node_answers import NodeRefusals
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.ledger.ledger import Ledger
from gputile.core.placement.prices import prices
from gputile.core.placement.vectorized import UNFIT
from gputile.core.refusal import FitRule, Refusal
from gputile.core.scheduling.gang_plan import GangCandidate, plan_gang
from gputile.core.scheduling.gang_victims import GangVictims
from gputile.core.scheduling.placement_engine import Decision, PlacementEngine
from gputile.core.scheduling.pod_filter import rank_pod_with_claims
from gputile.tools.simulator.claims import MIXED_GPUS, KnownClaims, allocate_claims
from gputile.tools.simulator.controller_rules import (
    PodBatch,
    PodGroups,
    Victim,
    VictimFinder,
    incomplete,
    member_of,
    pod_batches,
    started_by_gang,
    victims_text,
)
from gputile.tools.simulator.node_reports import gates_text
from gputile.tools.simulator.refusals import FITS, JudgedNodes, Refusals, fits_nowhere_text
from gputile.tools.simulator.scenario import Scenario

# The weight of one rank relative to kube-scheduler's own scores (examples/extender/scheduler.yaml).
# One rank outweighs all these scores together.
RANK_WEIGHT = 2000
_MOST_ROUNDS = 32  # the longest supported chain of pods, each with affinity to a later one
_NO_CLAIMS = "pods of gangs must use extended resources, because claims are allocated pod by pod"
_NONE_RUNNING: Mapping[GangName, int] = {}


@dataclass(frozen=True, slots=True)
class PodOutcome:
    """The outcome of one pod, and its reason. ``node`` is None if the pod was refused."""

    pod: Pod
    node: str | None
    allocation: Allocation | None
    reason: str


def _refused(pod: Pod, reason: str) -> PodOutcome:
    return PodOutcome(pod, None, None, reason)


class Simulation:
    """A simulated cluster with the placed pods. ``victims`` are the pods that were preempted."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.victims: list[Victim] = []
        self.ledger = Ledger(configuration)
        self.engine = PlacementEngine(self.ledger)
        self._predicates = Predicates(())
        self._nodes = JudgedNodes((), {})
        self._refusals = Refusals(self.engine)
        self._groups = PodGroups()
        self._claims = KnownClaims()
        self._placed_pods = 0
        # The reasons of refusals since the last pod was placed, by the pod's spec and request.
        self._refusal_cache: dict[Hashable, str] = {}
        self._victim_finder: VictimFinder | None = None  # None unless ``run`` is active

    def run(self, scenario: Scenario, clock_ns: Callable[[], int]) -> Iterator[PodOutcome]:
        """Yield each pending pod's outcome in kube-scheduler's order: by priority, then creation.

        The pods of a gang are decided together, at the position of the gang's last pod. Refused
        pods with affinity or spread constraints are tried again at the end. ``clock_ns`` returns
        Unix time in nanoseconds.
        """
        self._predicates = Predicates(scenario.nodes)
        self._groups = scenario.groups
        self._claims = scenario.claims
        self.ledger.set_time(clock_ns())
        for node in scenario.nodes:
            self.ledger.apply_node(node)
        self._nodes = JudgedNodes(self._predicates.node_names, self.ledger.row_of)
        self.ledger.replace_claims([*scenario.claims.claims.values()])
        for pod in scenario.bound:
            self.ledger.apply_pod(pod)
            self._predicates.place(pod, pod.spec.node_name)
        for pod in scenario.waiting:
            self.ledger.apply_pod(pod)
        pods = [*scenario.bound, *scenario.waiting]
        self._victim_finder = VictimFinder(
            self.engine, self._predicates, scenario.nodes, pods, scenario.budgets, scenario.groups
        )
        yield from self.decide(scenario.pending, clock_ns, started_by_gang(scenario.bound))
        self._victim_finder = None

    def decide(
        self,
        pods: Iterable[Pod],
        clock_ns: Callable[[], int],
        running: Mapping[GangName, int] = _NONE_RUNNING,
    ) -> Iterator[PodOutcome]:
        """Place or refuse each of ``pods``. Pods are preempted only while ``run`` is active.

        ``running`` is the number of running pods of each gang.
        """
        # The second item is the number of pods that were placed before the pod was refused.
        waiting: list[tuple[PodOutcome, int]] = []
        running = Counter(running)
        for batch in pod_batches(pods, gangs=self.configuration.admission.gangs):
            for outcome in self._decide_batch(batch, running, clock_ns()):
                if (
                    outcome.node is not None
                    and batch.gang is None
                    and (gang := member_of(outcome.pod)) is not None
                ):
                    running[gang] += 1
                depends = affinity_terms(outcome.pod) or hard_spread(outcome.pod)
                if outcome.node is None and batch.gang is None and depends:
                    waiting.append((outcome, self._placed_pods))
                else:
                    yield outcome
        yield from self._retry(waiting, clock_ns)

    def _decide_batch(
        self, batch: PodBatch, running: Mapping[GangName, int], now_ns: int
    ) -> Iterator[PodOutcome]:
        if batch.gang is not None:
            outcomes = self._decide_gang(batch.gang, batch.pods, running.get(batch.gang, 0), now_ns)
        else:
            outcomes = [self._decide(pod, now_ns) for pod in batch.pods]
        for outcome in outcomes:
            self._add_to_predicates(outcome)
            yield outcome

    def _add_to_predicates(self, outcome: PodOutcome) -> None:
        if outcome.node is not None:
            self._predicates.place(outcome.pod, outcome.node)
            self._placed_pods += 1
            self._refusal_cache.clear()

    def _retry(
        self, waiting: list[tuple[PodOutcome, int]], clock_ns: Callable[[], int]
    ) -> Iterator[PodOutcome]:
        """Retry refused pods after other pods have been placed, as kube-scheduler's queue does."""
        for _ in range(_MOST_ROUNDS):
            refused: list[tuple[PodOutcome, int]] = []
            for outcome, placed_before in waiting:
                if placed_before == self._placed_pods:
                    refused.append((outcome, placed_before))
                    continue
                retried = self._decide(outcome.pod, clock_ns())
                self._add_to_predicates(retried)
                if retried.node is not None:
                    yield retried
                else:
                    refused.append((retried, self._placed_pods))
            placed_any, waiting = len(refused) < len(waiting), refused
            if not placed_any:
                break
        yield from (outcome for outcome, _ in waiting)

    def _decide_gang(
        self, gang: GangName, pods: list[Pod], running: int, now_ns: int
    ) -> list[PodOutcome]:
        """Place the needed pods of a gang together, and as many of its other pods as fit.

        If the needed pods do not fit, no pod of the gang is placed.
        """
        if any(pod.spec.resource_claims for pod in pods):
            return [_refused(pod, f"gang {gang.name}: {_NO_CLAIMS}") for pod in pods]
        size = gang_size(gang, pods, self._groups.sizes)
        if (why := incomplete(gang, size, running, len(pods), self._groups)) is not None:
            return [_refused(pod, why) for pod in pods]
        try:
            members = [GangCandidate(pod, self.engine.request(pod)) for pod in pods]
        except RequestError as error:
            return [_refused(pod, f"gang {gang.name}: {error}") for pod in pods]
        for member in members:
            self._observe_demand(member.pod, member.request)
        needed = needed_members(size, running)
        plan = plan_gang(members, needed, self.engine, self._predicates, now_ns)
        together, places = together_text(gang, needed), plan.places
        if not plan.fits:
            found = self._preempt(members, needed if running < size else 0, now_ns)
            if found is None:
                return [
                    _refused(pod, f"{together} wait: there is room for {plan.room}") for pod in pods
                ]
            together, places = f"{together}; {self._preemption_text(found)}", found.places
        outcomes = []
        for member in members:
            place = places.get(member.pod.metadata.uid)
            if place is None:
                outcomes.append(_refused(member.pod, f"{together} without it; {plan.lacking}"))
            elif member.request is None:
                outcomes.append(
                    self._recorded(member.pod, place.node, f"{together}; asks for no GPU")
                )
            else:
                outcomes.append(self._placed(member.pod, place, together))
        return outcomes

    def _decide(self, pod: Pod, now_ns: int) -> PodOutcome:
        """Place or refuse one pod. A pod with GPUs is placed on the node with the best score.

        Among nodes with equal scores, the node that was added to the ledger first is chosen.
        kube-scheduler's own scores are ignored, because a difference of one in the extender's rank
        outweighs their sum. If a pod with the same spec has been refused since the last placement,
        this pod is refused for the same reason.
        """
        predicates = self._predicates
        if (waiting := gates_text(pod)) is not None:
            return _refused(pod, waiting)
        if pod.spec.resource_claims:
            return self._decide_by_claims(pod)
        try:
            request = self.engine.request(pod)
        except RequestError as error:
            return _refused(pod, str(error))
        self._observe_demand(pod, request)
        if predicates.concerns_others(pod):
            return self._decide_among(pod, request, predicates.refusals(pod), now_ns)
        cache_key = id(pod.spec), request.shape if request is not None else None
        if (why := self._refusal_cache.get(cache_key)) is not None:
            return _refused(pod, why)
        outcome = self._decide_among(pod, request, predicates.refusals_alone(pod), now_ns)
        if outcome.node is None:
            self._refusal_cache[cache_key] = outcome.reason
        return outcome

    def _decide_among(
        self, pod: Pod, request: Request | None, in_tree: NodeRefusals, now_ns: int
    ) -> PodOutcome:
        """Place a pod on the best node that passes the in-tree predicates, preempting if needed."""
        names, rows = self._nodes.names, self._nodes.rows
        if request is None:
            open_to_pod = np.flatnonzero(in_tree.open)
            if not len(open_to_pod):
                return _refused(pod, self._nowhere_text(None, in_tree))
            best = int(open_to_pod[self._predicates.scores(pod, open_to_pod).argmax()])
            reason = f"fits {len(open_to_pod)} of {len(names)} node(s); asks for no GPU"
            return self._recorded(pod, names[best], reason)
        open_rows = rows[in_tree.open & (rows >= 0)]
        scores = self.engine.scores(request.shape, request.host)[open_rows]
        feasible = int((scores != UNFIT).sum())
        info = (
            self.ledger.node_info(int(open_rows[scores == scores.max()].min()))
            if feasible
            else None
        )
        if info is None:
            found = self._preempt([GangCandidate(pod, request)], 1, now_ns)
            if found is None:
                return _refused(pod, self._nowhere_text(request, in_tree))
            return self._placed(pod, found.places[pod.metadata.uid], self._preemption_text(found))
        decision = self.engine.decide(request, info.name, now_ns)
        if isinstance(decision, Refusal):
            raise AssertionError(f"{info.name} fitted {pod.key} and then did not: {decision.text}")
        return self._placed(pod, decision, f"fits {feasible} of {len(names)} node(s)")

    def _decide_by_claims(self, pod: Pod) -> PodOutcome:
        """Place a pod with claims on the best node where kube-scheduler can allocate the claims."""
        pod, made = self._claims.create_from_templates(pod)
        for claim in made:
            self.ledger.apply_claim(claim)
        in_tree = self._predicates.refusals(pod)
        open_rows = np.flatnonzero(in_tree.open)
        open_to_pod = [self._nodes.names[row] for row in open_rows.tolist()]
        try:
            if self.engine.request(pod) is not None:
                return _refused(pod, MIXED_GPUS)
            refusal_of: dict[str, Refusal[FitRule]] = {}
            found_ranks, _ = rank_pod_with_claims(self.engine, pod, open_to_pod)
            ranks = dict(zip(open_to_pod, found_ranks, strict=True))
            scores = dict(
                zip(open_to_pod, self._predicates.scores(pod, open_rows).tolist(), strict=True)
            )
            for node in sorted(
                open_to_pod, key=lambda name: -(ranks[name] * RANK_WEIGHT + scores[name])
            ):
                found = allocate_claims(self.engine, pod, node)
                if not isinstance(found, Refusal):
                    return self._allocated(pod, node, found)
                refusal_of[node] = found
        except RequestError as error:
            return _refused(pod, str(error))
        refusals = list(dict.fromkeys(refusal_of.values()))
        index_of = {name: refusals.index(refusal) for name, refusal in refusal_of.items()}
        by_gpu = np.array([index_of.get(name, FITS) for name in self._nodes.names], np.intp)
        return _refused(pod, fits_nowhere_text(self._nodes, in_tree, refusals, by_gpu))

    def _allocated(self, pod: Pod, node: str, claims: Sequence[ResourceClaim]) -> PodOutcome:
        """Place a pod on a node, and record its allocated ``claims``."""
        for claim in claims:
            self.ledger.apply_claim(claim)
        bookings = (
            self.ledger.booking(claim.metadata.uid) for claim in self.ledger.claims.of_pod(pod)
        )
        allocations = [
            each.allocation for each in bookings if each is not None and each.allocation is not None
        ]
        if not allocations:
            return self._recorded(pod, node, "its claims ask for no GPU")
        shares = tuple(share for each in allocations for share in each.gpus)
        allocation = msgspec.structs.replace(
            allocations[0], gpus=shares, whole=all(each.whole for each in allocations)
        )
        return self._recorded(
            pod, node, f"by claims: {Decision(node, (), allocation).text()}", allocation
        )

    def _preempt(
        self, members: Sequence[GangCandidate], needed: int, now_ns: int
    ) -> GangVictims | None:
        """Remove pods of lower priority so that ``needed`` of ``members`` fit.

        Return None, and remove no pods, if that is impossible.
        """
        finder = self._victim_finder
        found = finder.find(members, needed, now_ns) if finder is not None else None
        if finder is None or found is None:
            return None
        preemptors = tuple(
            member.pod.key for member in members if member.pod.metadata.uid in found.places
        )
        for uid in (*found.evicted, *found.withdrawn):
            self.ledger.remove_pod(uid)
            self._predicates.remove(uid)
            self.victims.append(Victim(finder.pods[uid], preemptors))
        return found

    def _preemption_text(self, found: GangVictims) -> str:
        victims = self.victims[-len(found.evicted + found.withdrawn) :]
        return f"preempts {victims_text(each.pod for each in victims)}"

    def _recorded(
        self, pod: Pod, node: str, reason: str, allocation: Allocation | None = None
    ) -> PodOutcome:
        """Record a placed pod in the ledger without an annotation for its GPUs."""
        bound = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))
        self.ledger.apply_pod(bound)
        return PodOutcome(pod, node, allocation, reason)

    def _placed(self, pod: Pod, decision: Decision, reason: str) -> PodOutcome:
        """Record a placed pod in the ledger as the API server would store it after the Binding."""
        annotations = pod.metadata.annotations | decision.annotations(pod)
        bound = msgspec.structs.replace(
            pod,
            metadata=msgspec.structs.replace(pod.metadata, annotations=annotations),
            spec=msgspec.structs.replace(pod.spec, node_name=decision.node),
        )
        self.ledger.apply_pod(bound)
        info = self.ledger.info_of(decision.node)
        policy = (
            info.placement if info and decision.allocation and not decision.allocation.whole else ""
        )
        text = f"{reason}; {policy + ': ' if policy else ''}{decision.text()}"
        return PodOutcome(pod, decision.node, decision.allocation, text)

    def _observe_demand(self, pod: Pod, request: Request | None) -> None:
        """Record a request for the policy ``packing``, if it is in use, and update the prices."""
        demand = self.engine.demand
        if demand is not None:
            demand.observe(pod, request)
            if demand.due():
                self.engine.reprice(prices(demand.demand()))

    def _nowhere_text(self, request: Request | None, in_tree: NodeRefusals) -> str:
        refusals: Sequence[Refusal[FitRule]] = ()
        by_gpu = np.full(len(self._nodes.rows), FITS, np.intp)
        if request is not None:
            gpus_are_short = np.array([*(reason.lacks_gpus for reason in in_tree.distinct), True])[
                in_tree.codes
            ]
            refusals, by_gpu[gpus_are_short] = self._refusals.lookup(
                request, self._nodes.rows[gpus_are_short]
            )
        return fits_nowhere_text(self._nodes, in_tree, refusals, by_gpu)
