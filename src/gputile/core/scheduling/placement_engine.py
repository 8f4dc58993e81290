"""Answers the questions of a scheduler: which nodes, how good, which GPUs, and why not.

The extender asks them over HTTP and the simulator directly. Scores are kept per request shape for all nodes, and
only the rows that changed since are computed again. Where the policy is packing they are also computed again when
prices are: those come from outside, for what they are learnt from takes time. Who brings them later (``prices_later``)
goes by the plain rule, full nodes first, until then; otherwise the first question waits for prices.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import itemgetter

import msgspec
import numpy as np
import numpy.typing as npt

from gputile.api.core import Binding, BindingMeta, ObjectReference, Pod
from gputile.api.wording import memory_text
from gputile.core.devices.allocation import Allocation, allocate, binding_annotations
from gputile.core.devices.inventory import MOST_MIB, Gpu
from gputile.core.devices.request import Request, Shape, parse_request
from gputile.core.kube_predicates.node_answers import LastAsked
from gputile.core.kube_predicates.pod_requests import NO_HOST_RESOURCES, HostResources
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_arrays import NodeArrays
from gputile.core.ledger.node_info import NodeInfo
from gputile.core.ledger.snapshot import NodeState, node_state
from gputile.core.placement import vectorized
from gputile.core.placement.fit import SUMMARY, UNKNOWN, UNRESOLVABLE, choose_gpus, refusal
from gputile.core.placement.packing_scores import PackingState, build, scores, scores_without_gpus
from gputile.core.placement.prices import Prices, prices
from gputile.core.refusal import FitRule, Refusal
from gputile.core.scheduling.demand import DemandTracker

TOP_SCORE = 10  # MaxExtenderPriority of kube-scheduler
NAMED_NODES = 10
_SHAPES_KEPT = 256


@dataclass(slots=True)
class _Scored:
    """The scores of all rows for one shape, as of a position in the ledger's changes."""

    scores: npt.NDArray[np.int64]
    position: int
    packing_state: PackingState | None = None


@dataclass(frozen=True, slots=True)
class Filtered:
    """Which nodes a request fits, and why not the others.

    ``refused`` and ``unresolvable`` map a node to its reason; the eviction of pods would help no node in
    ``unresolvable``.
    ``closest`` are the refused nodes that come closest, with their reasons, for an event.
    """

    feasible: list[str]
    refused: dict[str, str] = field(default_factory=dict)
    unresolvable: dict[str, str] = field(default_factory=dict)
    closest: list[tuple[str, str]] = field(default_factory=list)


class Decision(msgspec.Struct, frozen=True, gc=False):
    """A pod's node and GPUs. A gang has thousands, so the garbage collector does not walk them.

    ``allocation`` is None, and ``gpus`` empty, on a node whose GPUs another device plugin hands out.
    """

    node: str
    gpus: tuple[Gpu, ...]
    allocation: Allocation | None

    def annotations(self, pod: Pod) -> dict[str, str]:
        return binding_annotations(self.allocation, self.gpus, pod) if self.allocation else {}

    def binding(self, pod: Pod, version: str = "") -> Binding:
        """Return the Binding: it sets the node and the allocation in one write, for the pod with this UID only.

        With ``version`` it is for that resourceVersion of the pod only.
        """
        meta = BindingMeta(
            name=pod.metadata.name,
            namespace=pod.metadata.namespace,
            uid=pod.metadata.uid,
            annotations=self.annotations(pod),
            resource_version=version,
        )
        return Binding(metadata=meta, target=ObjectReference(api_version="v1", kind="Node", name=self.node))

    def booking(self, pod: Pod, request: Request | None, assumed_at: float) -> Booking | None:
        """Return what to assume while the Binding is under way; None where there is nothing to book.

        ``request`` is the pod's, None where it asks for no GPU; ``assumed_at`` is a time of the monotonic clock in
        seconds.
        """
        if self.allocation is None or request is None:
            return None
        return Booking(
            uid=pod.metadata.uid,
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            node=self.node,
            trust_group=request.shape.trust_group,
            allocation=self.allocation,
            asked_mib=0 if self.allocation.whole else sum(share.mib for share in self.allocation.gpus),
            priority=pod.spec.priority or 0,
            assumed_at=assumed_at,
            host=request.host,
        )

    def text(self) -> str:
        """Return the decision for people: "GPU 1 (4 GiB)" or "GPU 0, GPU 3"."""
        if self.allocation is None:
            return "GPUs by the node's own device plugin"
        if self.allocation.whole:
            return ", ".join(f"GPU {share.index}" for share in self.allocation.gpus)
        return ", ".join(
            f"GPU {share.index} ({memory_text(share.mib)}{f', {share.percent} % of compute' if share.percent else ''})"
            for share in self.allocation.gpus
        )


class PlacementEngine:
    """Placement on one ledger. ``packing_state`` is what packing weighs by, None before the first prices."""

    def __init__(self, ledger: Ledger, *, prices_later: bool = False) -> None:
        self.ledger = ledger
        self._scored: LastAsked[tuple[Shape | None, HostResources], _Scored] = LastAsked()
        self._emptier = ledger.configuration.placement == "spread"
        self.packing_state: PackingState | None = None
        self._prices_later = prices_later
        packing = ledger.configuration.placement == "packing"
        self.demand = DemandTracker(ledger) if packing else None

    def snapshot(self) -> "PlacementEngine":
        """Return placement on a snapshot of the ledger, which weighs as is weighed now."""
        engine = PlacementEngine(self.ledger.snapshot(), prices_later=self._prices_later)
        engine.packing_state = self.packing_state
        return engine

    def reprice(self, prices: Prices) -> None:
        """Weigh by these prices, and by how scarce things are now.

        Nodes that change later are weighed as they are by then.
        """
        self.packing_state = build(self.ledger.node_arrays, prices)

    def request(self, pod: Pod) -> Request | None:
        """Return what ``pod`` asks of GPUs, by the ledger's configuration; None where it asks nothing.

        Raises:
            RequestError: it asks for a GPU in a way that can never be served.
        """
        configuration = self.ledger.configuration
        return parse_request(pod, configuration.unit_mib, configuration.trust_group)

    def filter(self, request: Request, names: Sequence[str]) -> Filtered:
        """Return which of ``names`` the request fits, and why not the others.

        The reasons are in full for the nodes that come closest, and a class for the others: kube-scheduler writes all
        distinct reasons into the pod's status, and thousands would not fit.
        """
        rows, known = self._rows(names)
        feasible = (self.scores(request.shape, request.host)[rows] != vectorized.UNFIT) & known
        if feasible.all():
            return Filtered(list(names))
        result = Filtered(list(compress(names, feasible.tolist())))
        unfit, node_arrays = np.flatnonzero(~feasible), self.ledger.node_arrays
        left_out, rows = [names[i] for i in unfit.tolist()], rows[unfit]
        broken = np.where(known[unfit], vectorized.rules(node_arrays, request.shape, rows), FitRule.NO_GPUS)
        for rule in map(FitRule, np.flatnonzero(np.bincount(broken)).tolist()):
            texts = result.unresolvable if rule in UNRESOLVABLE else result.refused
            texts |= dict.fromkeys(compress(left_out, (broken == rule).tolist()), SUMMARY[rule])
        for i in _closest(node_arrays, rows, broken):
            name = left_out[i]
            why = self.refusal(request, name)
            if why is None:
                continue
            for texts in (result.unresolvable, result.refused):
                texts.pop(name, None)
            (result.unresolvable if why.rule in UNRESOLVABLE else result.refused)[name] = f"{name}: {why.text}"
            result.closest.append((name, why.text))
        return result

    def rank(self, request: Request, names: Sequence[str], *alternatives: Request) -> list[int]:
        """Return a rank of 0 to 10 for each of ``names``.

        10 is the best node alone: among nodes of equal score the one that the ledger met first, so that
        kube-scheduler, which draws lots among equals, does not scatter pods over equal nodes. Then 9 for its equals,
        and one less for each worse distinct score, however close; below the tenth they are all 0, as nodes that do
        not fit are. ``alternatives`` are what the request is on nodes that it does not fit as it is.
        """
        if not names:
            return []
        rows, known = self._rows(names)
        found = self.scores(request.shape, request.host)[rows]
        for each in alternatives:
            found = np.maximum(found, self.scores(each.shape, each.host)[rows])
        return _ranks(np.where(known, found, vectorized.UNFIT), rows)

    def rank_without_gpus(self, host: HostResources, names: Sequence[str]) -> list[int]:
        """Return a rank of 0 to 10 for each of ``names``, for a pod that asks for ``host`` and no GPU.

        Where some nodes have no GPUs, each of these has rank 10 and all others 0: kube-scheduler chooses among them.
        Where all have GPUs, they are ranked as ``rank`` does it: the best is the one whose free GPUs lose the least
        when the pod takes CPU and memory there. Under the policy spread all nodes have rank 0.
        """
        if not names or self._emptier:
            return [0] * len(names)
        rows, known = self._rows(names)
        found = np.where(known, self.scores(None, host)[rows], vectorized.UNFIT)
        without_gpus = known & ~(self.ledger.node_arrays.total[rows] > 0).any(axis=1)
        if without_gpus.any():
            return [TOP_SCORE if each else 0 for each in without_gpus.tolist()]
        return _ranks(found, rows)

    def best_first(self, request: Request, names: Sequence[str]) -> list[str]:
        """Return those of ``names`` that the request fits, best first; of equals the one that is named first."""
        if not names:
            return []
        rows, known = self._rows(names)
        found = np.where(known, self.scores(request.shape, request.host)[rows], vectorized.UNFIT)
        fitting = np.flatnonzero(found != vectorized.UNFIT)
        order = fitting[np.argsort(-found[fitting], kind="stable")]
        return [names[i] for i in order.tolist()]

    def decide(self, request: Request, name: str, now_ns: int) -> Decision | Refusal[FitRule]:
        """Return which GPUs of node ``name`` the request gets at ``now_ns`` (Unix time), or why it gets none."""
        node = self.state(name)
        if node is None:
            return UNKNOWN
        if (why := refusal(node, request.shape)) is not None:
            return why
        arrays, value = self.ledger.node_arrays, self.packing_state.value if self.packing_state else None
        chosen = choose_gpus(arrays, self.ledger.row_of[name], node, request.shape, value)
        return self.decision(request, node.info, tuple(gpu.gpu for gpu in chosen), now_ns)

    def decision(self, request: Request, info: NodeInfo, gpus: Sequence[Gpu], now_ns: int) -> Decision:
        """Return the decision that assigns ``gpus`` of a node, or no GPU if another device plugin manages them."""
        if not gpus:
            return Decision(info.name, (), None)
        mode = info.mode.value if info.mode else ""
        return Decision(info.name, tuple(gpus), allocate(request, gpus, mode, now_ns))

    def refusal(self, request: Request, name: str) -> Refusal[FitRule] | None:
        node = self.state(name)
        if node is None:
            return UNKNOWN
        return refusal(node, request.shape)

    def state(self, name: str) -> NodeState | None:
        row = self.ledger.row_of.get(name)
        node_info = self.ledger.node_info(row) if row is not None else None
        if row is None or node_info is None:
            return None
        return node_state(self.ledger, row, node_info)

    def _rows(self, names: Sequence[str]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
        """Return the row of each name, and whether it is known (a row of an unknown name is 0)."""
        row_of = self.ledger.row_of
        try:  # one call into C for thousands of names; it takes two names to answer with a tuple
            found = itemgetter(*names)(row_of) if len(names) > 1 else [row_of[name] for name in names]
            return np.fromiter(found, np.intp, len(names)), np.ones(len(names), np.bool_)
        except KeyError:
            rows = np.fromiter((row_of.get(name, -1) for name in names), np.intp, len(names))
            return np.maximum(rows, 0), rows >= 0

    def scores(self, shape: Shape | None, host: HostResources) -> npt.NDArray[np.int64]:
        """Return the scores of all rows, computing again only those that changed.

        ``shape`` is None for a pod without GPUs; ``host`` is what the pod asks for beside GPUs.
        """
        if self.demand is not None and self.packing_state is None and not self._prices_later:
            self.reprice(prices(self.demand.demand()))
        packing_state, key = self.packing_state, (shape, NO_HOST_RESOURCES if self._emptier else host)
        ledger, kept = self.ledger, self._scored.find(key, lambda: _Scored(np.empty(0, np.int64), -1), _SHAPES_KEPT)
        position = ledger.changes.position
        if kept.position == position and kept.packing_state is packing_state:
            return kept.scores
        whole = len(kept.scores) != ledger.node_arrays.rows or kept.packing_state is not packing_state
        changed = None if whole else ledger.changes.rows_since(kept.position)
        rows = slice(0, ledger.node_arrays.rows) if changed is None else changed
        fresh = self._computed(shape, host, rows, packing_state)
        if changed is None:
            kept.scores = fresh
        else:
            kept.scores[rows] = fresh
        kept.position, kept.packing_state = position, packing_state
        return kept.scores

    def _computed(
        self, shape: Shape | None, host: HostResources, rows: vectorized.Which, packing_state: PackingState | None
    ) -> npt.NDArray[np.int64]:
        arrays = self.ledger.node_arrays
        if shape is not None and packing_state is not None:
            return scores(arrays, shape, host, rows, packing_state)
        if shape is not None:
            return vectorized.scores(arrays, shape, host, rows, emptier=self._emptier)
        if packing_state is not None:
            return scores_without_gpus(arrays, host, rows, packing_state)
        return vectorized.scores_without_gpus(arrays, rows, host)


def _ranks(found: npt.NDArray[np.int64], rows: npt.NDArray[np.intp]) -> list[int]:
    """Return the ranks of scores: see ``PlacementEngine.rank``. Of equally good rows the first is the best."""
    ranks, rest = np.zeros(len(found), np.int64), found.copy()
    for rank in range(TOP_SCORE - 1, 0, -1):  # each pass is linear: sorting thousands of scores would take longer
        best = rest.max()
        if best == vectorized.UNFIT:
            break
        equal = rest == best
        ranks[equal], rest[equal] = rank, vectorized.UNFIT
    top = np.flatnonzero(ranks == TOP_SCORE - 1)
    if len(top):
        ranks[top[rows[top].argmin()]] = TOP_SCORE
    answer: list[int] = ranks.tolist()
    return answer


def _closest(node_arrays: NodeArrays, rows: npt.NDArray[np.intp], broken: npt.NDArray[np.int64]) -> list[int]:
    """Return the positions of the nodes to name: those that break the latest rule, then those with the most free."""
    free = node_arrays.total[rows] - node_arrays.used[rows]
    nearness = broken * MOST_MIB * 2 + np.where(node_arrays.usable[rows], free, -1).max(axis=1).clip(-1)
    if len(rows) > NAMED_NODES:  # sorting thousands to name ten would be a waste
        near = np.flatnonzero(nearness >= np.partition(nearness, -NAMED_NODES)[-NAMED_NODES])
    else:
        near = np.arange(len(rows))
    order = np.argsort(-nearness[near], kind="stable")[:NAMED_NODES]
    return [int(i) for i in near[order]]
