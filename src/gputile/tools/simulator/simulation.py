"""Decides a scenario pod by pod, with the ledger and the placement that decide live.

Each pod goes the way of a live one: the in-tree predicates, ``filter``, ``prioritize``, the choice of the
GPUs, and the Binding, whose annotation the ledger then reads back. Where gangs are planned, the pods of one are
decided by the search that plans them live. Pods of lower priority leave for one that fits nowhere, as in a cluster.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import numpy.typing as npt

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.api.resource_claims import ResourceClaim
from gputile.core.devices.allocation import Allocation
from gputile.core.devices.gang_membership import GangName
from gputile.core.devices.request import Request, RequestError
from gputile.core.kube_predicates.inter_pod import may_follow
from gputile.core.kube_predicates.node_answers import NodeRefusals, node_refusals
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.ledger.events import ClaimApplied, ClaimsReplaced, NodeApplied, PodApplied, PodDeleted, TimePassed
from gputile.core.ledger.ledger import Ledger
from gputile.core.placement.prices import prices
from gputile.core.placement.vectorized import UNFIT
from gputile.core.refusal import FitRule, Refusal
from gputile.core.scheduling.claims import filter_pod_with_claims, rank_pod_with_claims
from gputile.core.scheduling.gang_kinds import GangCandidate
from gputile.core.scheduling.gang_plan import plan_gang
from gputile.core.scheduling.gang_rules import gang_size, needed_members, no_room_text, together_text
from gputile.core.scheduling.gang_victims import GangVictims
from gputile.core.scheduling.placement_engine import TOP_SCORE, Decision, PlacementEngine
from gputile.tools.simulator.claims import BOTH_WAYS, KnownClaims, allocate_claims
from gputile.tools.simulator.equal_pods import EqualPods, Likeness, Likenesses, NodeStates, bind, settle
from gputile.tools.simulator.gangs import (
    PodBatch,
    PodGroups,
    incomplete,
    member_of,
    pod_batches,
    started_by_gang,
)
from gputile.tools.simulator.node_reports import waiting_for
from gputile.tools.simulator.preemption import Victim, VictimFinder, victims_text
from gputile.tools.simulator.refusals import FITS, NodeNames, Refusals, fits_nowhere_text
from gputile.tools.simulator.scenario import Scenario

# The weight of one rank beside the in-tree scores (examples/extender/scheduler.yaml): it outweighs all of them.
RANK_WEIGHT = 2000
IN_A_ROW = 4  # so many equal pods one after the other pay for what places equal pods faster
_MOST_ROUNDS = 32  # so long may a chain of pods be, each with affinity to one that comes later
_NO_GANG = "pods of gangs ask by extended resources: claims are allocated pod by pod"
_NOBODY: Mapping[GangName, int] = {}


@dataclass(frozen=True, slots=True)
class PodOutcome:
    """What became of one pod: its node and allocation, or None and why."""

    pod: Pod
    node: str | None
    allocation: Allocation | None
    reason: str


@dataclass(frozen=True, slots=True)
class _WaitingBatch:
    """A pod without a place, and how many pods had been placed when it was decided."""

    batch: PodBatch
    outcome: PodOutcome
    asked_at: int


@dataclass(frozen=True, slots=True)
class _JudgedNodes:
    """The nodes in the order of the predicates, and the ledger's row of each, -1 for none: shape [nodes]."""

    names: NodeNames
    rows: npt.NDArray[np.intp]


@dataclass(slots=True)
class Simulation:
    """A cluster, and the pods decided so far; ``victims`` are those that left for pods of higher priority."""

    configuration: Configuration
    victims: list[Victim] = field(init=False, default_factory=list)
    ledger: Ledger = field(init=False)
    engine: PlacementEngine = field(init=False)
    _predicates: Predicates = field(init=False)
    _groups: PodGroups = field(init=False, default_factory=PodGroups)
    _claims: KnownClaims = field(init=False, default_factory=KnownClaims)
    _placed_on: list[str] = field(init=False, default_factory=list)
    _states: NodeStates = field(init=False)
    _refusals: Refusals = field(init=False)
    _likenesses: Likenesses = field(init=False, default_factory=Likenesses)
    _last: tuple[Likeness, int] | None = field(init=False, default=None)  # of the last pods, and how many were equal
    _equal: EqualPods | None = field(init=False, default=None)  # what places them
    _refused: dict[Likeness, str] = field(init=False, default_factory=dict)  # since a pod was placed last
    _known_nodes: _JudgedNodes | None = field(init=False, default=None)
    _victim_finder: VictimFinder | None = field(init=False, default=None)  # while pods may preempt

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.configuration)
        self.engine = PlacementEngine(self.ledger)
        self._predicates = Predicates(())
        self._states = NodeStates(self.engine)
        self._refusals = Refusals(self.engine, self._states)

    def run(self, scenario: Scenario, clock_ns: Callable[[], int]) -> Iterator[PodOutcome]:
        """Yield the outcome of each pending pod, in the order in which kube-scheduler takes them.

        That is by priority, then by creation; a gang's pods are decided together, when the last of them is there.
        ``clock_ns`` gives the time of each decision (ns since the epoch).
        """
        self._predicates = Predicates(scenario.nodes)
        self._last = self._equal = self._known_nodes = None
        self._refused.clear()
        self._groups = scenario.groups
        self._claims = scenario.claims
        self.ledger.apply(TimePassed(clock_ns()))
        for node in scenario.nodes:
            self.ledger.apply(NodeApplied(node))
        self.ledger.apply(ClaimsReplaced([*scenario.claims.claims.values()]))
        for pod in scenario.bound:
            self.ledger.apply(PodApplied(pod))
            self._predicates.place(pod, pod.spec.node_name)
        for pod in scenario.waiting:
            self.ledger.apply(PodApplied(pod))
        there = [*scenario.bound, *scenario.waiting]
        self._victim_finder = VictimFinder(
            self.engine, self._predicates, scenario.nodes, there, scenario.budgets, scenario.groups
        )
        yield from self.decide(scenario.pending, clock_ns, started_by_gang(scenario.bound))
        self._victim_finder = None

    def decide(
        self, pods: Iterable[Pod], clock_ns: Callable[[], int], running: Mapping[GangName, int] = _NOBODY
    ) -> Iterator[PodOutcome]:
        """Decide more pods, and place each where it goes. ``running`` is how many pods of each gang run already.

        Once ``run`` has ended, nobody leaves for them.
        """
        waiting: list[_WaitingBatch] = []
        running = Counter(running)
        for batch in pod_batches(pods, gangs=self.configuration.admission.gangs):
            for outcome in self._decide_batch(batch, running, clock_ns()):
                if outcome.node is not None and batch.gang is None and (gang := member_of(outcome.pod)) is not None:
                    running[gang] += 1
                if outcome.node is None and batch.gang is None and may_follow(outcome.pod):
                    waiting.append(_WaitingBatch(batch, outcome, len(self._placed_on)))
                else:
                    yield outcome
        yield from self._decide_again(waiting, running, clock_ns)

    def _decide_batch(self, batch: PodBatch, running: Mapping[GangName, int], now_ns: int) -> Iterator[PodOutcome]:
        """Decide the pods of a batch, and place those that fit."""
        if batch.gang is not None:
            outcomes = self._decide_gang(batch.gang, batch.pods, running.get(batch.gang, 0), now_ns)
        else:
            outcomes = [self._decide(pod, now_ns) for pod in batch.pods]
        for outcome in outcomes:
            if outcome.node is not None:
                self._predicates.place(outcome.pod, outcome.node)
                self._placed_on.append(outcome.node)
                self._refused.clear()
            yield outcome

    def _decide_again(
        self, waiting: list[_WaitingBatch], running: Mapping[GangName, int], clock_ns: Callable[[], int]
    ) -> Iterator[PodOutcome]:
        """Decide pods again that may follow others which were placed after them, as kube-scheduler's queue does."""
        for _ in range(_MOST_ROUNDS):
            still: list[_WaitingBatch] = []
            refused: dict[Hashable, _WaitingBatch] = {}
            for each in waiting:
                came, alike = len(self._placed_on), _whole_likeness(each.outcome.pod)
                if each.asked_at == came:
                    still.append(each)
                elif alike in refused and refused[alike].asked_at == came:
                    reason = refused[alike].outcome.reason
                    still.append(_WaitingBatch(each.batch, replace(each.outcome, reason=reason), came))
                else:
                    for outcome in self._decide_batch(each.batch, running, clock_ns()):
                        if outcome.node is not None:
                            yield outcome
                        else:
                            refused[alike] = _WaitingBatch(each.batch, outcome, came)
                            still.append(refused[alike])
            found, waiting = len(still) < len(waiting), still
            if not found:
                break
        yield from (each.outcome for each in waiting)

    def _decide_gang(self, gang: GangName, pods: list[Pod], running: int, now_ns: int) -> list[PodOutcome]:
        """Place the pods of a gang that start together and as many more of it as fit, or none at all."""
        if any(pod.spec.resource_claims for pod in pods):
            return [PodOutcome(pod, None, None, f"gang {gang.name}: {_NO_GANG}") for pod in pods]
        size = gang_size(gang, pods, self._groups.sizes)
        if (why := incomplete(gang, size, running, len(pods), self._groups)) is not None:
            return [PodOutcome(pod, None, None, why) for pod in pods]
        try:
            members = [GangCandidate(pod, self.engine.request(pod)) for pod in pods]
        except RequestError as error:
            return [PodOutcome(pod, None, None, f"gang {gang.name}: {error}") for pod in pods]
        for member in members:
            self._learn(member.pod, member.request)
        needed = needed_members(size, running)
        plan = plan_gang(members, needed, self.engine, self._predicates, now_ns)
        together, places = together_text(gang, needed), plan.places
        if not plan.fits:
            found = self._preempt(members, needed if running < size else 0, now_ns)
            if found is None:
                return [PodOutcome(pod, None, None, no_room_text(together, plan)) for pod in pods]
            together, places = f"{together}; {self._preempts(found)}", found.places
        outcomes = []
        for member in members:
            place = places.get(member.pod.metadata.uid)
            if place is None:
                outcomes.append(PodOutcome(member.pod, None, None, f"{together} without it; {plan.lacking}"))
            elif member.request is None:
                settle(self.ledger, member.pod, place.node)
                outcomes.append(PodOutcome(member.pod, place.node, None, f"{together}; asks for no GPU"))
            else:
                outcomes.append(self._placed(member.pod, place, together))
        return outcomes

    def _decide(self, pod: Pod, now_ns: int) -> PodOutcome:
        """Decide one pod. A pod equal to a refused one is refused too, as long as no other pod is placed."""
        if pod.spec.resource_claims:
            self._last = self._equal = None
            return self._decide_by_claims(pod)
        if self._predicates.concerns_others(pod):
            self._last = self._equal = None
            return self._decide_alone(pod, now_ns)
        like = self._likenesses.of(pod)
        in_a_row = self._last[1] + 1 if self._last is not None and self._last[0] == like else 1
        self._last = like, in_a_row
        if in_a_row == 1:
            self._equal = None
        why = self._refused.get(like)
        if why is not None:
            self._learn_of_refused(pod)
            return PodOutcome(pod, None, None, why)
        outcome = self._decide_by_arrays(pod, now_ns, in_a_row=in_a_row)
        if outcome.node is None:
            self._refused[like] = outcome.reason
        return outcome

    def _decide_by_arrays(self, pod: Pod, now_ns: int, *, in_a_row: int) -> PodOutcome:
        """Decide a pod that no rule about other pods concerns, the last of so many equal ones in a row.

        It goes to the node with the best score, and of equal nodes to the one that entered the ledger first: a rank
        outweighs all scores of kube-scheduler together.
        """
        if (waiting := waiting_for(pod)) is not None:
            return PodOutcome(pod, None, None, waiting)
        try:
            request = self._equal.request if self._equal is not None else self.engine.request(pod)
        except RequestError as error:
            return PodOutcome(pod, None, None, str(error))
        self._learn(pod, request)
        if request is None:
            return self._decide_without_gpus(pod)
        predicates, ledger = self._predicates, self.ledger
        if self.engine.demand is None and in_a_row >= IN_A_ROW:  # with prices, every pod changes what all nodes score
            if self._equal is None:
                self._equal = EqualPods(pod, request, self.engine, predicates, self._states, self._placed_on)
            node, feasible = self._equal.best(), self._equal.feasible
        else:
            rows = self._nodes().rows
            open_rows = rows[predicates.refusals_alone(pod).open & (rows >= 0)]
            scores = self.engine.scores(request.shape, request.host)
            open_rows = np.sort(open_rows[scores[open_rows] != UNFIT])
            feasible = len(open_rows)
            info = ledger.node_info(int(open_rows[scores[open_rows].argmax()])) if feasible else None
            node = info.name if info is not None else None
        if node is None:
            return self._preempting(pod, request, predicates.refusals_alone(pod), now_ns)
        reason = f"fits {feasible} of {len(self._nodes().rows)} node(s)"
        if self._equal is not None:
            return self._told(pod, self._equal.place(pod, node, now_ns), reason)
        return self._placed(pod, self._fitting(pod, request, node, now_ns), reason)

    def _decide_without_gpus(self, pod: Pod) -> PodOutcome:
        """Place a pod that asks for no GPU where kube-scheduler's own scores are best."""
        predicates, names = self._predicates, self._nodes().names.names
        refusals = predicates.refusals_alone(pod)
        open_to_pod = np.flatnonzero(refusals.open)
        if not len(open_to_pod):
            return PodOutcome(pod, None, None, self._why_nowhere(None, refusals))
        node = names[int(open_to_pod[predicates.scores_among(pod, open_to_pod).argmax()])]
        settle(self.ledger, pod, node)
        return PodOutcome(pod, node, None, f"fits {len(open_to_pod)} of {len(names)} node(s); asks for no GPU")

    def _nodes(self) -> _JudgedNodes:
        if self._known_nodes is None:
            row_of, names = self.ledger.row_of, self._predicates.node_names
            rows = np.fromiter((row_of.get(name, -1) for name in names), np.intp, len(names))
            self._known_nodes = _JudgedNodes(NodeNames(names), rows)
        return self._known_nodes

    def _fitting(self, pod: Pod, request: Request, node: str, now_ns: int) -> Decision:
        """Return which GPUs of a node that the pod fits it gets."""
        decision = self.engine.decide(request, node, now_ns)
        if isinstance(decision, Refusal):
            raise AssertionError(f"{node} fitted {pod.key} and then did not: {decision.text}")
        return decision

    def _decide_alone(self, pod: Pod, now_ns: int) -> PodOutcome:
        predicates = self._predicates
        if (waiting := waiting_for(pod)) is not None:
            return PodOutcome(pod, None, None, waiting)
        try:
            request = self.engine.request(pod)
        except RequestError as error:
            return PodOutcome(pod, None, None, str(error))
        self._learn(pod, request)
        in_tree = predicates.reasons(pod)
        open_to_pod = [name for name, reason in in_tree.items() if reason is None]
        feasible = self.engine.filter(request, open_to_pod).feasible if request else open_to_pod
        if not feasible:
            return self._preempting(pod, request, node_refusals(in_tree.values()), now_ns)
        scores = predicates.scores(pod, feasible)
        ranks = self.engine.rank(request, feasible) if request else [TOP_SCORE] * len(feasible)
        total = {name: rank * RANK_WEIGHT + scores[name] for name, rank in zip(feasible, ranks, strict=True)}
        node = max(feasible, key=lambda name: total[name])
        reason = f"fits {len(feasible)} of {len(in_tree)} node(s)"
        if request is None:
            settle(self.ledger, pod, node)
            return PodOutcome(pod, node, None, f"{reason}; asks for no GPU")
        return self._placed(pod, self._fitting(pod, request, node, now_ns), reason)

    def _decide_by_claims(self, pod: Pod) -> PodOutcome:
        """Place a pod with ResourceClaims on the best of the nodes where kube-scheduler can allocate them."""
        if (waiting := waiting_for(pod)) is not None:
            return PodOutcome(pod, None, None, waiting)
        pod, made = self._claims.made_for(pod)
        for claim in made:
            self.ledger.apply(ClaimApplied(claim))
        in_tree = self._predicates.reasons(pod)
        open_to_pod = [name for name, reason in in_tree.items() if reason is None]
        try:
            if self.engine.request(pod) is not None:
                return PodOutcome(pod, None, None, BOTH_WAYS)
            verdict = filter_pod_with_claims(self.engine, pod, open_to_pod)
            why = {name: Refusal(FitRule.BROKEN, text) for name, text in verdict.nodes.refused.items()}
            ranks = dict(zip(open_to_pod, rank_pod_with_claims(self.engine, pod, open_to_pod), strict=True))
            scores = self._predicates.scores(pod, open_to_pod)
            for node in sorted(open_to_pod, key=lambda name: -(ranks[name] * RANK_WEIGHT + scores[name])):
                found = why.get(node) or allocate_claims(self.engine, pod, node)
                if not isinstance(found, Refusal):
                    return self._allocated(pod, node, found)
                why[node] = found
        except RequestError as error:
            return PodOutcome(pod, None, None, str(error))
        told = list(dict.fromkeys(why.values()))
        by_gpu = [told.index(why[name]) if name in why else FITS for name in self._predicates.node_names]
        refusals = node_refusals(in_tree.values())
        return PodOutcome(
            pod, None, None, fits_nowhere_text(self._nodes().names, refusals, told, np.array(by_gpu, np.intp))
        )

    def _allocated(self, pod: Pod, node: str, claims: Sequence[ResourceClaim]) -> PodOutcome:
        """Place a pod whose claims are allocated so."""
        settle(self.ledger, pod, node)
        for claim in claims:
            self.ledger.apply(ClaimApplied(claim))
        bookings = (self.ledger.booking(claim.metadata.uid) for claim in self.ledger.claims.of_pod(pod))
        held = [each.allocation for each in bookings if each is not None and each.allocation is not None]
        if not held:
            return PodOutcome(pod, node, None, "its claims ask for no GPU")
        shares = tuple(share for each in held for share in each.gpus)
        allocation = msgspec.structs.replace(held[0], gpus=shares, whole=all(each.whole for each in held))
        return PodOutcome(pod, node, allocation, f"by claims: {Decision(node, (), allocation).text()}")

    def _preempting(self, pod: Pod, request: Request | None, in_tree: NodeRefusals, now_ns: int) -> PodOutcome:
        """Place a pod that fits nowhere where others leave for it; where nobody can, say why it fits nowhere."""
        found = self._preempt([GangCandidate(pod, request)], 1, now_ns) if request is not None else None
        if found is None:
            return PodOutcome(pod, None, None, self._why_nowhere(request, in_tree))
        return self._placed(pod, found.places[pod.metadata.uid], self._preempts(found))

    def _preempt(self, members: Sequence[GangCandidate], needed: int, now_ns: int) -> GangVictims | None:
        """Have pods of lower priority leave; None where that is not enough."""
        finder = self._victim_finder
        found = finder.find(members, needed, now_ns) if finder is not None else None
        if finder is None or found is None:
            return None
        preemptors = tuple(member.pod.key for member in members if member.pod.metadata.uid in found.places)
        for uid in (*found.evicted, *found.withdrawn):
            self.ledger.apply(PodDeleted(uid))
            self._predicates.remove(uid)
            self.victims.append(Victim(finder.pods[uid], preemptors))
        self._last = self._equal = None
        return found

    def _preempts(self, found: GangVictims) -> str:
        return f"preempts {victims_text(each.pod for each in self.victims[-len(found.evicted + found.withdrawn) :])}"

    def _placed(self, pod: Pod, decision: Decision, reason: str) -> PodOutcome:
        bind(self.ledger, pod, decision)
        return self._told(pod, decision, reason)

    def _told(self, pod: Pod, decision: Decision, reason: str) -> PodOutcome:
        row = self.ledger.row_of.get(decision.node)
        info = self.ledger.node_info(row) if row is not None else None
        policy = info.placement if info and decision.allocation and not decision.allocation.whole else ""
        text = f"{reason}; {policy + ': ' if policy else ''}{decision.text()}"
        return PodOutcome(pod, decision.node, decision.allocation, text)

    def _learn(self, pod: Pod, request: Request | None) -> None:
        """Learn prices as the live extender does beside its decisions, if the policy is packing."""
        demand = self.engine.demand
        if demand is not None:
            demand.observe(pod, request)
            if demand.due():
                self.engine.reprice(prices(demand.demand()))

    def _learn_of_refused(self, pod: Pod) -> None:
        """Learn from a pod that is refused as an equal one was: pods that wait count for prices as well."""
        if self.engine.demand is not None and waiting_for(pod) is None:
            with suppress(RequestError):
                self._learn(pod, self.engine.request(pod))

    def _why_nowhere(self, request: Request | None, in_tree: NodeRefusals) -> str:
        """Return a sentence on all nodes: what their GPUs lack, and kube-scheduler's reasons."""
        cluster = self._nodes()
        told: Sequence[Refusal[FitRule]] = ()
        by_gpu = np.full(len(cluster.rows), FITS, np.intp)
        if request is not None:
            gpus_are_short = np.array([*(reason.lacks_gpus for reason in in_tree.distinct), True])[in_tree.codes]
            told, by_gpu[gpus_are_short] = self._refusals.told(request, cluster.rows[gpus_are_short])
        return fits_nowhere_text(cluster.names, in_tree, told, by_gpu)


def _whole_likeness(pod: Pod) -> Hashable:
    """Return a key that pods share which no rule about other pods tells apart."""
    meta = pod.metadata
    return id(pod.spec), meta.namespace, frozenset(meta.labels.items()), frozenset(meta.annotations.items())
