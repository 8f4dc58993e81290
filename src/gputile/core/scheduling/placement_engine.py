"""Scores nodes for a request, and combines fit, scores and GPU choice into a decision.

``placement.fit.choose_gpus`` chooses the GPUs of a node, and ``placement.fit`` explains why a
request does not fit. ``placement.vectorized`` and ``placement.packing_scores`` compute scores. This
module only decides the order of the nodes. The extender serves its decisions over HTTP, and the
simulator calls it directly.

Scores are cached per request shape for all nodes, and only changed rows are computed again. Under
the policy ``packing``, new prices change all scores. With ``prices_later`` the caller provides the
prices (``reprice``), and nodes are scored as under ``binpack`` until then. Without
``prices_later``, the first call of ``scores`` computes prices, which takes time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import itemgetter

import msgspec
import numpy as np
import numpy.typing as npt

from gputile.api.core import Pod
from gputile.api.wording import memory_text
from gputile.core.devices.allocation import Allocation, allocate, binding_annotations
from gputile.core.devices.inventory import MOST_MIB, Gpu
from gputile.core.devices.request import Request, Shape, parse_request
from gputile.core.kube_predicates.node_answers import LruCache
from gputile.core.kube_predicates.pod_requests import NO_HOST_RESOURCES, HostResources
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_arrays import NodeArrays
from gputile.core.ledger.node_info import NodeInfo
from gputile.core.placement import vectorized
from gputile.core.placement.fit import SUMMARY, UNKNOWN, UNRESOLVABLE, choose_gpus, refusal
from gputile.core.placement.packing_scores import PackingState, build, scores, scores_without_gpus
from gputile.core.placement.prices import Prices, prices
from gputile.core.refusal import FitRule, Refusal
from gputile.core.scheduling.demand import DemandTracker

TOP_SCORE = 10  # MaxExtenderPriority of kube-scheduler
NAMED_NODES = 10
_MOST_SHAPES = 256


@dataclass(slots=True)
class _Scored:
    """The scores of all rows for one shape, at one ``position`` in the ledger's log of changes."""

    scores: npt.NDArray[np.int64]
    position: int
    packing_state: PackingState | None = None


@dataclass(frozen=True, slots=True)
class Filtered:
    """The nodes that a request fits, and the reasons why it does not fit the others.

    ``refused`` and ``unresolvable`` map the name of a node to the reason. Evictions may help on a
    node in ``refused``, but never on a node in ``unresolvable``. ``closest`` lists the nodes that
    come closest to fitting, with their reasons, for an event.
    """

    feasible: list[str]
    refused: dict[str, str] = field(default_factory=dict)
    unresolvable: dict[str, str] = field(default_factory=dict)
    closest: list[tuple[str, str]] = field(default_factory=list)


class Decision(msgspec.Struct, frozen=True, gc=False):
    """A pod's node and GPUs.

    ``gpus`` is empty and ``allocation`` is None if another device plugin manages the node's GPUs.
    Garbage collection skips decisions, since a gang has thousands of them.
    """

    node: str
    gpus: tuple[Gpu, ...]
    allocation: Allocation | None

    def annotations(self, pod: Pod) -> dict[str, str]:
        return binding_annotations(self.allocation, self.gpus, pod) if self.allocation else {}

    def booking(self, pod: Pod, request: Request | None, assumed_at: float) -> Booking | None:
        """Build the booking to assume before the Binding is sent. Return None if nothing is booked.

        ``request`` is None if ``pod`` requests no GPU. ``assumed_at`` is monotonic time in seconds.
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
            asked_mib=0
            if self.allocation.whole
            else sum(share.mib for share in self.allocation.gpus),
            priority=pod.spec.priority or 0,
            assumed_at=assumed_at,
            host=request.host,
        )

    def text(self) -> str:
        """Describe the GPUs for people, for example "GPU 1 (4 GiB)" or "GPU 0, GPU 3"."""
        if self.allocation is None:
            return "GPUs by the node's own device plugin"
        if self.allocation.whole:
            return ", ".join(f"GPU {share.index}" for share in self.allocation.gpus)
        return ", ".join(
            f"GPU {share.index} ({memory_text(share.mib)}"
            f"{f', {share.percent} % of compute' if share.percent else ''})"
            for share in self.allocation.gpus
        )


class PlacementEngine:
    """Places pods on one ledger. ``packing_state`` is None before the first prices are known."""

    def __init__(self, ledger: Ledger, *, prices_later: bool = False) -> None:
        self.ledger = ledger
        self._scored: LruCache[tuple[Shape | None, HostResources], _Scored] = LruCache()
        self._is_spread = ledger.configuration.placement == "spread"
        self.packing_state: PackingState | None = None
        self._prices_later = prices_later
        packing = ledger.configuration.placement == "packing"
        self.demand = DemandTracker(ledger) if packing else None

    def snapshot(self) -> "PlacementEngine":
        engine = PlacementEngine(self.ledger.snapshot(), prices_later=self._prices_later)
        engine.packing_state = self.packing_state
        return engine

    def reprice(self, prices: Prices) -> None:
        """Score nodes by ``prices`` and by what is scarce in the cluster now.

        A node that changes later is scored again with the same prices and scarcities.
        """
        self.packing_state = build(self.ledger.node_arrays, prices)

    def request(self, pod: Pod) -> Request | None:
        """Parse the GPU request of ``pod``. Return None if the pod requests no GPU.

        Raises:
            RequestError: the request can never be served.
        """
        configuration = self.ledger.configuration
        return parse_request(pod, configuration.unit_mib, configuration.trust_group)

    def filter(self, request: Request, names: Sequence[str]) -> Filtered:
        """Return which of the nodes ``names`` the request fits, and why it does not fit the others.

        Only the nodes that come closest to fitting get full reasons. The others get short reasons:
        kube-scheduler writes all distinct reasons to the pod's status, which has limited space.
        """
        rows, known = self._rows(names)
        feasible = (self.scores(request.shape, request.host)[rows] != vectorized.UNFIT) & known
        if feasible.all():
            return Filtered(list(names))
        result = Filtered(list(compress(names, feasible.tolist())))
        unfit, node_arrays = np.flatnonzero(~feasible), self.ledger.node_arrays
        unfit_names, rows = [names[i] for i in unfit.tolist()], rows[unfit]
        broken = np.where(
            known[unfit], vectorized.rules(node_arrays, request.shape, rows), FitRule.NO_GPUS
        )
        for rule in map(FitRule, np.flatnonzero(np.bincount(broken)).tolist()):
            texts = result.unresolvable if rule in UNRESOLVABLE else result.refused
            texts |= dict.fromkeys(compress(unfit_names, (broken == rule).tolist()), SUMMARY[rule])
        for i in _closest(node_arrays, rows, broken):
            name = unfit_names[i]
            why = self.refusal(request, name)
            if why is None:
                continue
            for texts in (result.unresolvable, result.refused):
                texts.pop(name, None)
            (result.unresolvable if why.rule in UNRESOLVABLE else result.refused)[name] = (
                f"{name}: {why.text}"
            )
            result.closest.append((name, why.text))
        return result

    def rank(self, request: Request, names: Sequence[str], *alternatives: Request) -> list[int]:
        """Return a rank from 0 to 10 for each of the nodes ``names``.

        kube-scheduler chooses at random among equal ranks, which would scatter pods over equal
        nodes. So only one node has rank 10: the first node in the ledger that has the highest
        score. Other nodes with this score have rank 9. Each next lower score has one rank less,
        down to rank 1. All other nodes have rank 0, as have nodes that the request does not fit.
        ``alternatives`` are forms of the request for nodes of other modes.
        """
        if not names:
            return []
        rows, known = self._rows(names)
        found = self.scores(request.shape, request.host)[rows]
        for each in alternatives:
            found = np.maximum(found, self.scores(each.shape, each.host)[rows])
        return _ranks(np.where(known, found, vectorized.UNFIT), rows)

    def rank_without_gpus(self, host: HostResources, names: Sequence[str]) -> list[int]:
        """Return a rank from 0 to 10 for each of the nodes ``names``, for a pod without GPUs.

        If some nodes have no GPUs, these nodes have rank 10 and all others rank 0. Otherwise the
        best node is the one whose free GPUs lose the least value when the pod uses ``host`` CPU and
        memory. Under the policy ``spread`` all nodes have rank 0.
        """
        if not names or self._is_spread:
            return [0] * len(names)
        rows, known = self._rows(names)
        found = np.where(known, self.scores(None, host)[rows], vectorized.UNFIT)
        without_gpus = known & ~(self.ledger.node_arrays.total[rows] > 0).any(axis=1)
        if without_gpus.any():
            return [TOP_SCORE if each else 0 for each in without_gpus.tolist()]
        return _ranks(found, rows)

    def best_first(self, request: Request, names: Sequence[str]) -> list[str]:
        """Return the nodes of ``names`` that the request fits, best first.

        Nodes of equal score keep their order.
        """
        if not names:
            return []
        rows, known = self._rows(names)
        found = np.where(known, self.scores(request.shape, request.host)[rows], vectorized.UNFIT)
        fitting = np.flatnonzero(found != vectorized.UNFIT)
        order = fitting[np.argsort(-found[fitting], kind="stable")]
        return [names[i] for i in order.tolist()]

    def decide(self, request: Request, name: str, now_ns: int) -> Decision | Refusal[FitRule]:
        """Choose a node's GPUs, or return why the request does not fit.

        ``now_ns`` is Unix time in nanoseconds.
        """
        node = self.ledger.state(name)
        if node is None:
            return UNKNOWN
        if (why := refusal(node, request.shape)) is not None:
            return why
        arrays = self.ledger.node_arrays
        value = self.packing_state.prices.value if self.packing_state else None
        chosen = choose_gpus(arrays, self.ledger.row_of[name], node, request.shape, value)
        return self.decision(request, node.info, tuple(gpu.gpu for gpu in chosen), now_ns)

    def decision(
        self, request: Request, info: NodeInfo, gpus: Sequence[Gpu], now_ns: int
    ) -> Decision:
        """Build the decision that assigns ``gpus``. Without GPUs, there is no allocation."""
        if not gpus:
            return Decision(info.name, (), None)
        mode = info.mode.value if info.mode else ""
        return Decision(info.name, tuple(gpus), allocate(request, gpus, mode, now_ns))

    def refusal(self, request: Request, name: str) -> Refusal[FitRule] | None:
        node = self.ledger.state(name)
        if node is None:
            return UNKNOWN
        return refusal(node, request.shape)

    def _rows(self, names: Sequence[str]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
        """Return the row of each node, and whether the node is known. Unknown nodes get row 0."""
        row_of = self.ledger.row_of
        # itemgetter looks up thousands of names in one call. For a single name it returns no tuple.
        try:
            found = (
                itemgetter(*names)(row_of) if len(names) > 1 else [row_of[name] for name in names]
            )
            return np.fromiter(found, np.intp, len(names)), np.ones(len(names), np.bool_)
        except KeyError:
            rows = np.fromiter((row_of.get(name, -1) for name in names), np.intp, len(names))
            return np.maximum(rows, 0), rows >= 0

    def scores(self, shape: Shape | None, host: HostResources) -> npt.NDArray[np.int64]:
        """Return the scores of all rows. Only rows that have changed are computed again.

        ``shape`` is None for a pod without GPUs. ``host`` is the pod's request for CPU and memory.
        """
        if self.demand is not None and self.packing_state is None and not self._prices_later:
            self.reprice(prices(self.demand.demand()))
        packing_state = self.packing_state
        key = shape, NO_HOST_RESOURCES if self._is_spread else host
        ledger = self.ledger
        cached = self._scored.find(key, lambda: _Scored(np.empty(0, np.int64), -1), _MOST_SHAPES)
        position = ledger.changes.position
        if cached.position == position and cached.packing_state is packing_state:
            return cached.scores
        whole = (
            len(cached.scores) != ledger.node_arrays.rows
            or cached.packing_state is not packing_state
        )
        changed = None if whole else ledger.changes.rows_since(cached.position)
        rows = slice(0, ledger.node_arrays.rows) if changed is None else changed
        fresh = self._compute(shape, host, rows, packing_state)
        if changed is None:
            cached.scores = fresh
        else:
            cached.scores[rows] = fresh
        cached.position, cached.packing_state = position, packing_state
        return cached.scores

    def _compute(
        self,
        shape: Shape | None,
        host: HostResources,
        rows: vectorized.Which,
        packing_state: PackingState | None,
    ) -> npt.NDArray[np.int64]:
        arrays = self.ledger.node_arrays
        if shape is not None and packing_state is not None:
            return scores(arrays, shape, host, rows, packing_state)
        if shape is not None:
            return vectorized.scores(arrays, shape, host, rows, emptier=self._is_spread)
        if packing_state is not None:
            return scores_without_gpus(arrays, host, rows, packing_state)
        return vectorized.scores_without_gpus(arrays, rows, host)


def _ranks(found: npt.NDArray[np.int64], rows: npt.NDArray[np.intp]) -> list[int]:
    """Return the ranks of the scores ``found``, as ``PlacementEngine.rank`` describes them."""
    ranks, rest = np.zeros(len(found), np.int64), found.copy()
    # Nine linear passes are faster than sorting thousands of scores
    for rank in range(TOP_SCORE - 1, 0, -1):
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


def _closest(
    node_arrays: NodeArrays, rows: npt.NDArray[np.intp], broken: npt.NDArray[np.int64]
) -> list[int]:
    """Return the positions of the nodes whose reasons are reported in full.

    Nodes that fail a later check come first. Among equals, nodes with more free memory come first.
    """
    free = node_arrays.total[rows] - node_arrays.used[rows]
    nearness = broken * MOST_MIB * 2 + np.where(node_arrays.usable[rows], free, -1).max(
        axis=1
    ).clip(-1)
    if len(rows) > NAMED_NODES:  # sorting thousands of rows to find ten would be slow
        near = np.flatnonzero(nearness >= np.partition(nearness, -NAMED_NODES)[-NAMED_NODES])
    else:
        near = np.arange(len(rows))
    order = np.argsort(-nearness[near], kind="stable")[:NAMED_NODES]
    return [int(i) for i in near[order]]
