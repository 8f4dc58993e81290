"""Plans a gang on the ledger with what decides single pods: kube-scheduler's checks, filter and rank.

It plans on a snapshot: pods of the gang are booked there while the search looks for places.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations, islice

import msgspec

from gputile.core.devices.allocation import Chosen, allocate
from gputile.core.devices.inventory import advertised_units
from gputile.core.devices.request import Request, RequestKind
from gputile.core.kube_predicates.inter_pod import affinity_terms, hard_spread
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.ledger.events import Assumed, Forgotten, PodDeleted
from gputile.core.ledger.ledger import Ledger, LedgerError
from gputile.core.ledger.snapshot import GpuState
from gputile.core.placement.fit import gpu_fits
from gputile.core.placement.gang_search import MOST_COUNTED, Search, search
from gputile.core.refusal import grouped
from gputile.core.scheduling.gang_bound import most_placed
from gputile.core.scheduling.gang_kinds import GangCandidate, Kinds, kinds_of
from gputile.core.scheduling.placement_engine import Decision, PlacementEngine

_TRIES = 64  # beside one for each pod, at least, whatever the number of nodes
_NODE_TRIES = 20_000  # tries times nodes, about: what bounds the time of one search
_GPU_SETS = 2048  # sets of GPUs looked at on one node beside the one that is best by the node's policy
_FAR = 1 << 30
_REASONS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class GangPlan:
    """The places of a gang's pods, by UID; see ``placement.gang_search.Search`` for ``fits`` and ``certain``.

    ``lacking`` says of a pod without a place why it has none, "" where all have one. ``counted``: no more places were
    looked for, as not all of the gang can have one, so that there may be more, and ``lacking`` is "".
    """

    places: dict[str, Decision]
    fits: bool
    certain: bool
    lacking: str = ""
    counted: bool = False

    @property
    def room(self) -> str:
        """For how many pods there is room, and why for no more."""
        count = len(self.places)
        return f"{count} or more, and not for all of them" if self.counted else f"{count}; {self.lacking}"


def plan_gang(
    members: Sequence[GangCandidate],
    needed: int,
    engine: PlacementEngine,
    predicates: Predicates,
    now_ns: int,
    closed: Collection[str] = (),
) -> GangPlan:
    """Return places for all of ``members``, or for at least ``needed`` of them, or why there are none.

    None is on a node whose name is in ``closed``. Reservations of the members do not count meanwhile. ``now_ns`` is
    Unix time in nanoseconds. Ledger and predicates are as before in the end; a live ledger lends a snapshot.
    """
    ordered = sorted(members, key=hardness)
    budget = len(ordered) + _TRIES + _NODE_TRIES // max(1, len(engine.ledger.row_of))
    with _without_reservations(ordered, engine.ledger, predicates):
        kinds = kinds_of(ordered, predicates.repelling())
        search_state = _LedgerSearchState(ordered, kinds, engine, predicates, now_ns, closed)
        found: Search[Decision] = search(search_state.kinds, needed, search_state, budget)
        counted = found.hopeless and found.placed == MOST_COUNTED
        lacking = search_state.explain(found.places) if found.placed < len(ordered) and not counted else ""
    uids = [member.pod.metadata.uid for member in ordered]
    places = {uid: place for uid, place in zip(uids, found.places, strict=True) if place is not None}
    # Whether a rule about other pods is kept depends on who comes first, and the search goes by one order only.
    in_any_order = not any(affinity_terms(member.pod) or hard_spread(member.pod) for member in ordered)
    certain = found.certain and (found.fits or found.hopeless or in_any_order)
    return GangPlan(places, found.fits, certain, lacking, counted)


def hardness(member: GangCandidate) -> tuple[bool, int, int, int, str, str]:
    """Return what pods of a gang are placed by: those first that are the hardest to place."""
    shape = member.request.shape if member.request else None
    whole = shape is not None and shape.kind is not RequestKind.SHARED
    gpus, mib, percent = (shape.gpus, shape.mib, shape.percent) if shape else (0, 0, 0)
    meta = member.pod.metadata
    seeks = bool(affinity_terms(member.pod))  # those come after the ones that they may look for
    return seeks, -(_FAR if whole else 1) * gpus, -mib * gpus, -percent, meta.creation_timestamp or "", meta.name


@contextmanager
def _without_reservations(members: Sequence[GangCandidate], ledger: Ledger, predicates: Predicates) -> Iterator[None]:
    """Have nothing reserved for these pods for as long as the context lasts."""
    pods = {each.pod.metadata.uid: each.pod for each in members}
    held = {uid: booking for uid in pods if (booking := ledger.booking(uid)) is not None}
    for booking in held.values():
        if not booking.reserved:
            raise LedgerError(f"pod {booking.key} already holds GPUs of node {booking.node}")
    nodes = {uid: node for uid in pods if (node := predicates.remove(uid))}
    for uid in pods:
        ledger.apply(PodDeleted(uid))
    try:
        yield
    finally:
        for booking in held.values():
            ledger.apply(Assumed(booking))
        for uid, node in nodes.items():
            predicates.place(pods[uid], node)


class _LedgerSearchState:
    """The ledger as the state that the search changes and looks at."""

    def __init__(
        self,
        members: Sequence[GangCandidate],
        kinds: Kinds,
        engine: PlacementEngine,
        predicates: Predicates,
        now_ns: int,
        closed: Collection[str],
    ) -> None:
        self._engine = engine
        self._ledger = engine.ledger
        self._predicates = predicates
        self._now_ns, self._closed = now_ns, closed
        self._members = members
        self.kinds = kinds.number
        self._specs = kinds.spec
        # Predicates keep their answers by spec and by pod: those of one kind are asked about as one.
        self._asking = kinds.asking
        self._pods = [
            msgspec.structs.replace(member.pod, spec=self._asking[kind].pod.spec)
            for member, kind in zip(members, self.kinds, strict=True)
        ]
        self._placed: list[tuple[int, Decision]] = []

    def most(self, enough: int) -> int:
        """Return how many of the pods could have a place at once, at most."""
        counts = Counter(self._specs)
        first = {
            spec: self._asking[kind] for spec, kind in zip(reversed(self._specs), reversed(self.kinds), strict=True)
        }
        specs = [(first[spec], count) for spec, count in counts.items()]
        return most_placed(specs, self._ledger, self._predicates, enough, self._closed)

    def options(self, member: int) -> Iterator[Decision]:
        """Yield the best GPUs of each node, best nodes first; then the other GPUs that would do."""
        asking = self._asking[self.kinds[member]]
        best = next(self._best_of_nodes(asking), None)
        if best is None:
            return
        yield best
        # The search comes back with everything as it was, if at all. Until then no list of nodes is kept: thousands of
        # pods with one each are millions of references for the garbage collector to walk.
        first = {best.node: best}
        for decision in islice(self._best_of_nodes(asking), 1, None):
            first[decision.node] = decision
            yield decision
        request = asking.request
        if request is not None and request.shape.kind is RequestKind.SHARED:
            for name, decision in first.items():
                yield from self._other_gpus(request, name, decision)

    def _best_of_nodes(self, asking: GangCandidate) -> Iterator[Decision]:
        """Yield the best GPUs of each node as things stand, best nodes first."""
        request = asking.request
        names = [name for name in self._predicates.open_nodes(asking.pod) if name not in self._closed]
        if request is None:
            yield from (Decision(name, (), None) for name in names)
            return
        for name in self._engine.best_first(request, names):
            # Asked only now: the search may have taken and given back GPUs since the node was ranked.
            decision = self._engine.decide(request, name, self._now_ns)
            if isinstance(decision, Decision):
                yield decision

    def _other_gpus(self, request: Request, name: str, first: Decision) -> Iterator[Decision]:
        state = self._engine.state(name)
        if state is None:
            return
        shape, group = request.shape, self._ledger.group_number(request.shape.trust_group)
        fitting = [gpu for gpu in state.gpus if gpu_fits(gpu, shape, state.info, group)]
        mode = state.info.mode.value if state.info.mode else ""
        chosen_first = {chosen.gpu.uuid for chosen in first.gpus}
        seen = {tuple(sorted(_load(gpu) for gpu in fitting if gpu.gpu.uuid in chosen_first))}
        for gpus in islice(combinations(fitting, shape.gpus), _GPU_SETS):
            alike = tuple(sorted(_load(gpu) for gpu in gpus))
            if alike in seen:
                continue
            seen.add(alike)
            chosen = tuple(Chosen(c.gpu, advertised_units(c.gpu, state.info.unit_mib)) for c in gpus)
            yield Decision(name, chosen, allocate(request, chosen, mode, self._now_ns))

    def put(self, member: int, place: Decision) -> None:
        pod, request = self._pods[member], self._members[member].request
        booking = place.booking(pod, request, 0.0)
        if booking is not None:
            self._ledger.apply(Assumed(booking))
        self._predicates.place(pod, place.node)
        self._placed.append((member, place))

    def take_back(self, member: int) -> None:
        self._placed.pop()
        uid = self._pods[member].metadata.uid
        self._predicates.remove(uid)
        self._ledger.apply(Forgotten(uid))

    def state_key(self) -> Hashable:
        """Return which kinds of pods are on which GPUs."""
        return frozenset(
            Counter(
                (self.kinds[member], place.node, tuple(sorted(chosen.gpu.uuid for chosen in place.gpus)))
                for member, place in self._placed
            ).items()
        )

    def explain(self, places: Sequence[Decision | None]) -> str:
        """Return why the first pod without a place has none, with all others where they would be."""
        for member, place in enumerate(places):
            if place is not None:
                self.put(member, place)
        why = self._why_nowhere(self._asking[self.kinds[places.index(None)]])
        while self._placed:
            self.take_back(self._placed[-1][0])
        return why

    def _why_nowhere(self, asking: GangCandidate) -> str:
        request, in_tree = asking.request, self._predicates.reasons(asking.pod)
        open_nodes = [name for name, reason in in_tree.items() if reason is None]
        parts = []
        if request is not None and open_nodes:
            closest = self._engine.filter(request, open_nodes).closest
            parts += grouped(closest, len(open_nodes), _REASONS_SHOWN)
        counted = Counter(reason for reason in in_tree.values() if reason is not None)
        parts += [f"{count} {refusal.text}" for refusal, count in counted.most_common(3)]
        return "; ".join(parts) or "there are no nodes"


def _load(gpu: GpuState) -> tuple[int, int, int, int, int]:
    return gpu.total, gpu.used, gpu.percent, gpu.pods, gpu.group
