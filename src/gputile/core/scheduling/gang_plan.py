"""Plans a gang on the ledger with what decides single pods: kube-scheduler's checks, filter and rank.

Pod after pod is placed as a scheduler would, those first that are the hardest to place. Where one has no place, the
pods before it try their next best nodes, a bounded number of times. So a gang of different pods may wait though some
way to place it exists; one of equal pods with a GPU each never does. Pods that have to be near each other start over
elsewhere where the zone or rack of the first one is too small.

Pods of one kind may change places: they ask for the same, and all rules about labels treat them alike. Jobs and
StatefulSets number their pods in labels; such a label tells pods apart only where a selector names it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import numpy as np

from gputile.api.core import Pod
from gputile.core.devices.request import Request, RequestKind
from gputile.core.kube_predicates.inter_pod import affinity_terms, anti_affinity_terms, hard_spread
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.ledger.events import Assumed, Forgotten, PodDeleted
from gputile.core.ledger.ledger import Ledger, LedgerError
from gputile.core.placement import vectorized
from gputile.core.refusal import grouped
from gputile.core.scheduling.placement_engine import Decision, PlacementEngine

_MOST_KEYS = 64  # beyond these, pods whose labels differ are told apart


@dataclass(frozen=True, slots=True)
class GangCandidate:
    """A pod to be placed. ``request`` is None for one that asks for no GPU."""

    pod: Pod
    request: Request | None


def decisions(engine: PlacementEngine, asking: GangCandidate, names: Sequence[str], now_ns: int) -> Iterator[Decision]:
    """Yield what the pod could get on each of the nodes ``names``, best nodes first."""
    if asking.request is None:
        yield from (Decision(name, (), None) for name in names)
        return
    for name in engine.best_first(asking.request, names):
        # Asked only now: GPUs may have been taken and given back since the node was ranked.
        decision = engine.decide(asking.request, name, now_ns)
        if isinstance(decision, Decision):
            yield decision


@dataclass(frozen=True, slots=True)
class Kinds:
    """``number`` has the number of each pod's kind, ``asking`` a pod of each kind."""

    number: tuple[int, ...]
    asking: tuple[GangCandidate, ...]


def kinds_of(members: Sequence[GangCandidate], repelling: Iterable[Pod]) -> Kinds:
    """Sort out the pods of a gang; ``repelling`` are the placed pods that have anti-affinity terms."""
    keys = {key for pod in (*(member.pod for member in members), *repelling) for key in _label_keys(pod)}
    kinds: dict[object, int] = {}
    asking: list[GangCandidate] = []
    number = []
    for member in members:
        meta = member.pod.metadata
        labels = meta.labels.items() if len(keys) > _MOST_KEYS else ((key, meta.labels.get(key)) for key in keys)
        asked = msgspec.json.encode(msgspec.structs.replace(member.pod.spec, scheduling_gates=()))
        kind = member.request, meta.namespace, asked, frozenset(labels)
        if kind not in kinds:
            kinds[kind] = len(kinds)
            asking.append(member)
        number.append(kinds[kind])
    return Kinds(tuple(number), tuple(asking))


def _label_keys(pod: Pod) -> Iterator[str]:
    """Yield the keys of the labels that a pod's rules about others look at."""
    terms, spread = (*affinity_terms(pod), *anti_affinity_terms(pod)), hard_spread(pod)
    for term in terms:
        yield from (*term.match_label_keys, *term.mismatch_label_keys)
    for constraint in spread:
        yield from constraint.match_label_keys
    for selector in (*(term.label_selector for term in terms), *(each.label_selector for each in spread)):
        if selector is not None:
            yield from selector.match_labels
            yield from (requirement.key for requirement in selector.match_expressions)


_TRIES = 256  # places that a search may try, beside one for each pod
_MORE_TRIES = 1024  # about, for a gang whose pods have affinity to pods
_TRIES_OF_A_START = 128  # at least: each start looks at all nodes
_MOST_KINDS = 64  # that are summed up before a search; further ones count as if all of them had places
_MOST_COUNTED = 256  # this many pods of a gang that cannot fit are placed, to say how many would
_FAR = 1 << 30
_REASONS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class GangPlan:
    """The places of a gang's pods, by UID. Where the gang ``fits``, enough of them have one.

    ``lacking`` says of a pod without a place why it has none, "" where all have one. ``counted``: no more places were
    looked for, as not all of the gang can have one, so that there may be more, and ``lacking`` is "".
    """

    places: dict[str, Decision]
    fits: bool
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
    with _without_reservations(ordered, engine.ledger, predicates):
        search = _GangSearch(ordered, engine, predicates, now_ns, closed)
        hopeless = search.most_placed() < needed
        found = search.places(0, _MOST_COUNTED) if hopeless else search.places(needed, len(ordered))
        counted = hopeless and len(found) == _MOST_COUNTED
        lacking = search.explain(found) if len(found) < len(ordered) and not counted else ""
    places = {ordered[member].pod.metadata.uid: place for member, place in found.items()}
    return GangPlan(places, len(places) >= needed, lacking, counted)


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
    """Release the reservations of these pods within the context."""
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


class _GangSearch:
    """Places pods of a gang on the ledger and takes them back."""

    def __init__(
        self,
        members: Sequence[GangCandidate],
        engine: PlacementEngine,
        predicates: Predicates,
        now_ns: int,
        closed: Collection[str],
    ) -> None:
        self._engine, self._ledger, self._predicates = engine, engine.ledger, predicates
        self._now_ns, self._closed = now_ns, closed
        self._members = members
        self._kinds = kinds_of(members, predicates.repelling())
        self._placed: dict[int, Decision] = {}  # by the pod's position in the gang
        self._full: set[int] = set()  # kinds that have no place as things stand
        self._too_small: set[str] = set()  # nodes where the first pod is not to be placed again

    def most_placed(self) -> int:
        """Return an upper bound of how many pods the GPUs take: those of each kind, if no others came."""
        total = 0
        for kind, count in Counter(self._kinds.number).items():
            request = self._kinds.asking[kind].request
            if request is None or kind >= _MOST_KINDS:
                total += count
                continue
            names = [name for name in self._open_nodes(kind, alone=True) if name in self._ledger.row_of]
            rows = np.fromiter((self._ledger.row_of[name] for name in names), np.intp, len(names))
            gpus = vectorized.capacity_bound(self._ledger.node_arrays, request.shape, rows)
            total += min(count, int(gpus.sum()))
        return total

    def places(self, needed: int, most: int) -> dict[int, Decision]:
        """Return places for ``needed`` of the first ``most`` pods, or the most that were found; none stays placed."""
        count = min(most, len(self._members))
        best = found = self._descend(needed, count, count + _TRIES)
        tries = _MORE_TRIES if any(affinity_terms(each.pod) for each in self._members) else 0
        while found and len(best) < needed and tries > 0:
            self._too_small.update(place.node for place in found.values())
            found = self._descend(needed, count, count)
            best = max(best, found, key=len)
            tries -= max(count, _TRIES_OF_A_START)
        self._too_small.clear()
        return best

    def _descend(self, needed: int, count: int, tries: int) -> dict[int, Decision]:
        spare = count - needed
        found: dict[int, Decision] = {}
        turns = [self._options(0)] if count else []
        while turns and tries > 0:
            member = len(turns) - 1
            self._take_back(member)
            try:
                place = next(turns[-1])
            except StopIteration:
                turns.pop()
                continue
            if place is not None:
                self._put(member, place)
                tries -= 1
            elif len(turns) - len(self._placed) > spare:
                continue
            if len(self._placed) > len(found):
                found = self._placed.copy()
            if len(turns) == count:
                break
            turns.append(self._options(len(turns)))
        for member in list(self._placed):
            self._take_back(member)
        return found

    def explain(self, places: dict[int, Decision]) -> str:
        """Return why the first pod without a place has none, with all others where they would be."""
        for member, place in places.items():
            self._put(member, place)
        without = next(member for member in range(len(self._members)) if member not in places)
        why = self._why_nowhere(self._kinds.asking[self._kinds.number[without]])
        for member in places:
            self._take_back(member)
        return why

    def _options(self, member: int) -> Iterator[Decision | None]:
        """Yield the places that a pod could have, best nodes first; in the end None, to go on without it."""
        kind = self._kinds.number[member]
        if kind not in self._full:
            placed = False
            asking = self._kinds.asking[kind]
            for decision in decisions(self._engine, asking, self._open_nodes(kind), self._now_ns):
                if not self._placed and decision.node in self._too_small:
                    continue
                placed = True
                yield decision
            if not placed:
                self._full.add(kind)
        yield None

    def _open_nodes(self, kind: int, *, alone: bool = False) -> list[str]:
        # Predicates keep their answers by pod: those of one kind are asked about as one.
        pod = self._kinds.asking[kind].pod
        names = self._predicates.open_alone(pod) if alone else self._predicates.open_nodes(pod)
        return [name for name in names if name not in self._closed]

    def _put(self, member: int, place: Decision) -> None:
        pod, request = self._members[member].pod, self._members[member].request
        booking = place.booking(pod, request, 0.0)
        if booking is not None:
            self._ledger.apply(Assumed(booking))
        spec = self._kinds.asking[self._kinds.number[member]].pod.spec
        self._predicates.place(msgspec.structs.replace(pod, spec=spec), place.node)
        self._placed[member] = place
        self._full.clear()

    def _take_back(self, member: int) -> None:
        if self._placed.pop(member, None) is not None:
            uid = self._members[member].pod.metadata.uid
            self._predicates.remove(uid)
            self._ledger.apply(Forgotten(uid))
            self._full.clear()

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
