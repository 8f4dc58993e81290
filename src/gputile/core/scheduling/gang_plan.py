"""Plans a gang on the ledger by the rules for single pods: kube-scheduler's checks, filter, rank.

The pods are placed one by one, the hardest first. If a pod fits nowhere, the pods before it are
moved to their next best nodes, a bounded number of times. So a gang of different pods may stay
pending although a placement exists. This never happens to a gang of equal pods with one GPU each.
If pods must be near each other, and the zone or rack of the first pod is too small, the search
starts again elsewhere.

Pods of one kind are interchangeable: they have the same requests, and all rules about labels treat
them alike. Jobs and StatefulSets number their pods in labels. Such a label makes pods different
only if a selector uses its key. ``placement.fit.choose_gpus`` chooses the GPUs on each node.
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
from gputile.core.ledger.ledger import Ledger, LedgerError
from gputile.core.placement import vectorized
from gputile.core.refusal import grouped
from gputile.core.scheduling.placement_engine import Decision, PlacementEngine

_MOST_KEYS = 64  # with more keys, pods are of one kind only if all their labels are equal


@dataclass(frozen=True, slots=True)
class GangCandidate:
    """A pod to be placed. ``request`` is None if the pod requests no GPU."""

    pod: Pod
    request: Request | None


def decisions(
    engine: PlacementEngine, candidate: GangCandidate, names: Sequence[str], now_ns: int
) -> Iterator[Decision]:
    """Yield a decision for each of the nodes ``names`` that the pod fits, best nodes first."""
    if candidate.request is None:
        yield from (Decision(name, (), None) for name in names)
        return
    for name in engine.best_first(candidate.request, names):
        # Decide lazily: the caller may have booked and released GPUs since the nodes were ranked.
        decision = engine.decide(candidate.request, name, now_ns)
        if isinstance(decision, Decision):
            yield decision


@dataclass(frozen=True, slots=True)
class Kinds:
    """The kinds of a gang's pods.

    ``number`` maps each pod to its kind. A kind is an index into ``candidates``, which has one pod
    per kind.
    """

    number: tuple[int, ...]
    candidates: tuple[GangCandidate, ...]


def kinds_of(members: Sequence[GangCandidate], repelling: Iterable[Pod]) -> Kinds:
    """Divide a gang's pods into kinds. ``repelling`` are the placed pods with anti-affinity."""
    keys = {
        key for pod in (*(member.pod for member in members), *repelling) for key in _label_keys(pod)
    }
    kinds: dict[object, int] = {}
    candidates: list[GangCandidate] = []
    number = []
    for member in members:
        meta = member.pod.metadata
        labels = (
            meta.labels.items()
            if len(keys) > _MOST_KEYS
            else ((key, meta.labels.get(key)) for key in keys)
        )
        asked = msgspec.json.encode(msgspec.structs.replace(member.pod.spec, scheduling_gates=()))
        kind = member.request, meta.namespace, asked, frozenset(labels)
        if kind not in kinds:
            kinds[kind] = len(kinds)
            candidates.append(member)
        number.append(kinds[kind])
    return Kinds(tuple(number), tuple(candidates))


def _label_keys(pod: Pod) -> Iterator[str]:
    """Yield the label keys that a pod's affinity and spread constraints use."""
    terms, spread = (*affinity_terms(pod), *anti_affinity_terms(pod)), hard_spread(pod)
    for term in terms:
        yield from (*term.match_label_keys, *term.mismatch_label_keys)
    for constraint in spread:
        yield from constraint.match_label_keys
    for selector in (
        *(term.label_selector for term in terms),
        *(each.label_selector for each in spread),
    ):
        if selector is not None:
            yield from selector.match_labels
            yield from (requirement.key for requirement in selector.match_expressions)


# A search may try this many placements in addition to one for each pod.
_TRIES = 256
# If pods have pod affinity, further searches may try about this many placements in total.
_MORE_TRIES = 1024
# Each further search counts as at least this many placements, since it judges all nodes.
_TRIES_OF_A_START = 128
# The capacity for this many kinds is computed before a search. Further kinds count as fitting.
_MOST_KINDS = 64
# If a gang cannot fit, at most this many of its pods are placed to report how many would fit.
_MOST_COUNTED = 256
_FAR = 1 << 30
_REASONS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class GangPlan:
    """The placements of a gang's pods, by UID. ``fits`` states whether enough pods are placed.

    ``lacking`` is the reason why the first unplaced pod has no placement. It is "" if all pods have
    a placement. It is also "" if a gang cannot fit and the search ended early. In that case, more
    pods may fit than were placed.
    """

    places: dict[str, Decision]
    fits: bool
    lacking: str = ""

    @property
    def room(self) -> str:
        """A text that states how many pods fit, and why no more pods fit."""
        count = len(self.places)
        return (
            f"{count}; {self.lacking}"
            if self.lacking
            else f"{count} or more, and not for all of them"
        )


def plan_gang(
    members: Sequence[GangCandidate],
    needed: int,
    engine: PlacementEngine,
    predicates: Predicates,
    now_ns: int,
    closed: Collection[str] = (),
) -> GangPlan:
    """Return placements for at least ``needed`` of ``members``, or the reason why fewer pods fit.

    All pods are placed if they fit. Nodes whose names are in ``closed`` are not used. Existing
    reservations of the members are ignored. ``now_ns`` is Unix time in nanoseconds. The ledger and
    the predicates are changed during the call and restored afterwards, so pass snapshots.
    """
    ordered = sorted(members, key=hardness)
    with _without_reservations(ordered, engine.ledger, predicates):
        search = _GangSearch(ordered, engine, predicates, now_ns, closed)
        hopeless = search.most_placed() < needed
        found = search.places(0, _MOST_COUNTED) if hopeless else search.places(needed, len(ordered))
        counted = hopeless and len(found) == _MOST_COUNTED
        lacking = search.explain(found) if len(found) < len(ordered) and not counted else ""
    places = {ordered[member].pod.metadata.uid: place for member, place in found.items()}
    return GangPlan(places, len(places) >= needed, lacking)


def hardness(member: GangCandidate) -> tuple[bool, int, int, int, str, str]:
    """Return a sort key for the pods of a gang. The pods that are hardest to place come first."""
    shape = member.request.shape if member.request else None
    whole = shape is not None and shape.kind is not RequestKind.SHARED
    gpus, mib, percent = (shape.gpus, shape.mib, shape.percent) if shape else (0, 0, 0)
    meta = member.pod.metadata
    # Pods with affinity terms come after the pods that they may have to be near
    seeks = bool(affinity_terms(member.pod))
    return (
        seeks,
        -(_FAR if whole else 1) * gpus,
        -mib * gpus,
        -percent,
        meta.creation_timestamp or "",
        meta.name,
    )


@contextmanager
def _without_reservations(
    members: Sequence[GangCandidate], ledger: Ledger, predicates: Predicates
) -> Iterator[None]:
    pods = {each.pod.metadata.uid: each.pod for each in members}
    booked = {uid: booking for uid in pods if (booking := ledger.booking(uid)) is not None}
    for booking in booked.values():
        if not booking.reserved:
            raise LedgerError(f"pod {booking.key} already has GPUs of node {booking.node}")
    nodes = {uid: node for uid in pods if (node := predicates.remove(uid))}
    for uid in pods:
        ledger.remove_pod(uid)
    try:
        yield
    finally:
        for booking in booked.values():
            ledger.assume(booking)
        for uid, node in nodes.items():
            predicates.place(pods[uid], node)


class _GangSearch:
    """Places pods of a gang on the ledger, and removes them again."""

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
        self._full: set[int] = set()  # kinds that fit nowhere at the moment
        self._too_small: set[str] = set()  # nodes where the first pod must not be placed again

    def most_placed(self) -> int:
        """Return an upper bound on the number of pods that fit, summed over the kinds."""
        total = 0
        for kind, count in Counter(self._kinds.number).items():
            request = self._kinds.candidates[kind].request
            if request is None or kind >= _MOST_KINDS:
                total += count
                continue
            names = [
                name for name in self._open_nodes(kind, alone=True) if name in self._ledger.row_of
            ]
            rows = np.fromiter((self._ledger.row_of[name] for name in names), np.intp, len(names))
            gpus = vectorized.capacity_bound(self._ledger.node_arrays, request.shape, rows)
            total += min(count, int(gpus.sum()))
        return total

    def places(self, needed: int, most: int) -> dict[int, Decision]:
        """Return placements for at least ``needed`` of the first ``most`` pods.

        If fewer pods fit, the result has as many placements as were found. After the call, none of
        the pods is placed on the ledger.
        """
        count = min(most, len(self._members))
        best = found = self._search(needed, count, count + _TRIES)
        tries = _MORE_TRIES if any(affinity_terms(each.pod) for each in self._members) else 0
        while found and len(best) < needed and tries > 0:
            self._too_small.update(place.node for place in found.values())
            found = self._search(needed, count, count)
            best = max(best, found, key=len)
            tries -= max(count, _TRIES_OF_A_START)
        self._too_small.clear()
        return best

    def _search(self, needed: int, count: int, tries: int) -> dict[int, Decision]:
        spare = count - needed
        found: dict[int, Decision] = {}
        options = [self._options(0)] if count else []
        while options and tries > 0:
            member = len(options) - 1
            self._unassign(member)
            try:
                place = next(options[-1])
            except StopIteration:
                options.pop()
                continue
            if place is not None:
                self._assign(member, place)
                tries -= 1
            elif len(options) - len(self._placed) > spare:
                continue
            if len(self._placed) > len(found):
                found = self._placed.copy()
            if len(options) == count:
                break
            options.append(self._options(len(options)))
        for member in list(self._placed):
            self._unassign(member)
        return found

    def explain(self, places: dict[int, Decision]) -> str:
        """Return why the first pod without a placement fits no node with ``places`` assigned."""
        for member, place in places.items():
            self._assign(member, place)
        without = next(member for member in range(len(self._members)) if member not in places)
        why = self._no_fit_text(self._kinds.candidates[self._kinds.number[without]])
        for member in places:
            self._unassign(member)
        return why

    def _options(self, member: int) -> Iterator[Decision | None]:
        """Yield the possible placements of a pod, best nodes first.

        The last item is None, which leaves the pod without a placement.
        """
        kind = self._kinds.number[member]
        if kind not in self._full:
            placed = False
            candidate = self._kinds.candidates[kind]
            for decision in decisions(
                self._engine, candidate, self._open_nodes(kind), self._now_ns
            ):
                if not self._placed and decision.node in self._too_small:
                    continue
                placed = True
                yield decision
            if not placed:
                self._full.add(kind)
        yield None

    def _open_nodes(self, kind: int, *, alone: bool = False) -> list[str]:
        # Predicates cache their answers by pod, so ask for one pod of each kind only.
        pod = self._kinds.candidates[kind].pod
        names = self._predicates.open_alone(pod) if alone else self._predicates.open_nodes(pod)
        return [name for name in names if name not in self._closed]

    def _assign(self, member: int, place: Decision) -> None:
        pod, request = self._members[member].pod, self._members[member].request
        booking = place.booking(pod, request, 0.0)
        if booking is not None:
            self._ledger.assume(booking)
        spec = self._kinds.candidates[self._kinds.number[member]].pod.spec
        self._predicates.place(msgspec.structs.replace(pod, spec=spec), place.node)
        self._placed[member] = place
        self._full.clear()

    def _unassign(self, member: int) -> None:
        if self._placed.pop(member, None) is not None:
            uid = self._members[member].pod.metadata.uid
            self._predicates.remove(uid)
            self._ledger.forget(uid)
            self._full.clear()

    def _no_fit_text(self, candidate: GangCandidate) -> str:
        request, in_tree = candidate.request, self._predicates.reasons(candidate.pod)
        open_nodes = [name for name, reason in in_tree.items() if reason is None]
        parts = []
        if request is not None and open_nodes:
            closest = self._engine.filter(request, open_nodes).closest
            parts += grouped(closest, len(open_nodes), _REASONS_SHOWN)
        counted = Counter(reason for reason in in_tree.values() if reason is not None)
        parts += [f"{count} {refusal.text}" for refusal, count in counted.most_common(3)]
        return "; ".join(parts) or "there are no nodes"
