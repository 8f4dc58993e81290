"""Plans a gang on the ledger, with what decides single pods: kube-scheduler's own checks, filter, rank and cards.

Pods of the gang are booked in the ledger while the search looks for places, and taken out again before it returns.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations, islice

import msgspec

from gputile.api.core import Pod
from gputile.device.allocation import Chosen, allocate
from gputile.device.inventory import advertised_units
from gputile.device.request import Kind, Request, parse_request
from gputile.intree.predicates import Predicates
from gputile.ledger.events import Assumed, Forgotten
from gputile.ledger.ledger import Ledger
from gputile.ledger.snapshot import CardState, NodeState
from gputile.placement.fit import card_fits
from gputile.placement.gang import Search, search
from gputile.scheduling.decision import Decision
from gputile.scheduling.placer import Placer

_TRIES = 64  # beside one for each pod, at least, whatever the number of nodes
_NODE_TRIES = 20_000  # tries times nodes, about: what bounds the time of one search
_CARD_SETS = 2048  # sets of cards looked at on one node beside the one that is best by the node's policy
_FAR = 1 << 30


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod to be placed. ``request`` is None for one that asks for no GPU."""

    pod: Pod
    request: Request | None


@dataclass(frozen=True, slots=True)
class GangPlan:
    """The places of a gang's pods, by UID; see ``placement.gang.Search`` for ``fits`` and ``certain``.

    ``lacking`` says of a pod without a place why it has none, "" where all have one.
    """

    places: dict[str, Decision]
    fits: bool
    certain: bool
    lacking: str = ""


def candidate(pod: Pod, ledger: Ledger) -> Candidate:
    """Return ``pod`` as one to be placed.

    Raises:
        RequestError: it asks for a GPU in a way that can never be served.
    """
    configuration = ledger.configuration
    return Candidate(pod, parse_request(pod, configuration.unit_mib, configuration.trust_group))


def plan_gang(
    members: Sequence[Candidate], needed: int, placer: Placer, predicates: Predicates, now_ns: int
) -> GangPlan:
    """Return places for all of ``members``, or for at least ``needed`` of them, or why there are none.

    Holds of the members do not count meanwhile. ``now_ns`` is Unix time in nanoseconds.
    """
    ordered = sorted(members, key=_hardness)
    ground = _LedgerGround(ordered, placer, predicates, now_ns)
    budget = len(ordered) + _TRIES + _NODE_TRIES // max(1, len(placer.ledger.row_of))
    with _set_aside(placer.ledger, predicates, [member.pod for member in ordered]):
        found: Search[Decision] = search(ground.kinds, needed, ground, budget)
        lacking = "" if found.placed == len(ordered) else ground.explain(found.places)
    uids = [member.pod.metadata.uid for member in ordered]
    places = {uid: place for uid, place in zip(uids, found.places, strict=True) if place is not None}
    return GangPlan(places, found.fits, found.certain, lacking)


def _hardness(member: Candidate) -> tuple[int, int, int, str, str]:
    shape = member.request.shape if member.request else None
    whole = shape is not None and shape.kind is not Kind.SHARED
    cards, mib, percent = (shape.cards, shape.mib, shape.percent) if shape else (0, 0, 0)
    meta = member.pod.metadata
    return (-(_FAR if whole else 1) * cards, -mib * cards, -percent, meta.creation_timestamp or "", meta.name)


@contextmanager
def _set_aside(ledger: Ledger, predicates: Predicates, pods: Sequence[Pod]) -> Iterator[None]:
    """Look at the pods as if nothing were kept for them."""
    holds = [hold for pod in pods if (hold := ledger.set_aside(pod.metadata.uid)) is not None]
    counted = [(pod, node) for pod in pods if (node := predicates.remove(pod.metadata.uid))]
    try:
        yield
    finally:
        for hold in holds:
            ledger.bring_back(hold)
        for pod, node in counted:
            predicates.place(pod, node)


class _LedgerGround:
    """The ledger as a ground of the search. Pods with equal specs and labels are of one kind."""

    def __init__(self, members: Sequence[Candidate], placer: Placer, predicates: Predicates, now_ns: int) -> None:
        self._placer = placer
        self._ledger = placer.ledger
        self._predicates = predicates
        self._now_ns = now_ns
        self._requests = [member.request for member in members]
        self.kinds: list[Hashable] = []
        self._pods: list[Pod] = []
        self._placed: list[tuple[int, Decision]] = []
        self._know(members)

    def _know(self, members: Sequence[Candidate]) -> None:
        """Number the kinds; pods of one kind share one spec, which the predicates look at once."""
        known: list[Candidate] = []
        for member in members:
            number = next((i for i, other in enumerate(known) if _alike(other, member)), len(known))
            if number == len(known):
                known.append(member)
            self.kinds.append(number)
            self._pods.append(msgspec.structs.replace(member.pod, spec=known[number].pod.spec))

    def room(self, member: int, enough: int) -> int:
        """Return an upper bound of how many pods like this one fit, counting cards alone."""
        request, total = self._requests[member], 0
        names = self._open(member)
        if request is None:
            return enough if names else 0
        for name in self._placer.filter(request, names).feasible:
            state = self._placer.state(name)
            if state is not None:
                total += _card_room(state, request, self._group(request))
            if total >= enough:
                break
        return total

    def options(self, member: int) -> Iterator[Decision]:
        """Yield the best cards of each node, best nodes first; then the other cards that would do."""
        request, names = self._requests[member], self._open(member)
        if request is None:
            yield from (Decision(name, (), None) for name in names)
            return
        feasible = self._placer.filter(request, names).feasible
        ranks = self._placer.rank(request, feasible)
        ordered = [feasible[i] for i in sorted(range(len(feasible)), key=lambda i: -ranks[i])]
        first: dict[str, Decision] = {}
        for name in ordered:
            # Asked only now: the search may have taken and given back cards since the node was ranked.
            decision = self._placer.decide(request, name, self._now_ns)
            if isinstance(decision, Decision):
                first[name] = decision
                yield decision
        if request.shape.kind is Kind.SHARED:
            for name, decision in first.items():
                yield from self._other_cards(request, name, decision)

    def _other_cards(self, request: Request, name: str, first: Decision) -> Iterator[Decision]:
        state = self._placer.state(name)
        if state is None:
            return
        shape, group = request.shape, self._group(request)
        fitting = [card for card in state.cards if card_fits(card, shape, state.facts, group)]
        mode = state.facts.mode.value if state.facts.mode else ""
        chosen_first = {chosen.card.uuid for chosen in first.cards}
        seen = {tuple(sorted(_load(card) for card in fitting if card.card.uuid in chosen_first))}
        for cards in islice(combinations(fitting, shape.cards), _CARD_SETS):
            alike = tuple(sorted(_load(card) for card in cards))
            if alike in seen:
                continue
            seen.add(alike)
            chosen = tuple(Chosen(c.card, advertised_units(c.card, state.facts.unit_mib)) for c in cards)
            yield Decision(name, chosen, allocate(request, chosen, mode, self._now_ns))

    def put(self, member: int, place: Decision) -> None:
        """Book the pod."""
        pod, request = self._pods[member], self._requests[member]
        booking = place.booking(pod, request.shape.trust_group if request else "", 0.0)
        if booking is not None:
            self._ledger.apply(Assumed(booking))
        self._predicates.place(pod, place.node)
        self._placed.append((member, place))

    def take_back(self, member: int) -> None:
        """Take the pod out again."""
        self._placed.pop()
        uid = self._pods[member].metadata.uid
        self._predicates.remove(uid)
        self._ledger.apply(Forgotten(uid))

    def mark(self) -> Hashable:
        """Return which kinds of pods are on which cards."""
        return frozenset(
            (place.node, tuple(sorted(chosen.card.uuid for chosen in place.cards)), self.kinds[member], count)
            for count, (member, place) in _numbered(self._placed, self.kinds)
        )

    def explain(self, places: Sequence[Decision | None]) -> str:
        """Return why the first pod without a place has none, with all others where they would be."""
        missing = places.index(None)
        for member, place in enumerate(places):
            if place is not None:
                self.put(member, place)
        try:
            return self._why_nowhere(missing)
        finally:
            for member, place in reversed(list(enumerate(places))):
                if place is not None:
                    self.take_back(member)

    def _why_nowhere(self, member: int) -> str:
        request, in_tree = self._requests[member], self._predicates.reasons(self._pods[member])
        open_nodes = [name for name, reason in in_tree.items() if reason is None]
        parts = []
        if request is not None and open_nodes:
            parts += [f"{name}: {why}" for name, why in self._placer.filter(request, open_nodes).closest[:3]]
        counted: dict[str, int] = {}
        for reason in in_tree.values():
            if reason is not None:
                counted[reason] = counted.get(reason, 0) + 1
        parts += [f"{count} {reason}" for reason, count in sorted(counted.items(), key=lambda item: -item[1])[:3]]
        return "; ".join(parts) or "there are no nodes"

    def _open(self, member: int) -> list[str]:
        reasons = self._predicates.reasons(self._pods[member])
        return [name for name, reason in reasons.items() if reason is None]

    def _group(self, request: Request) -> int:
        return self._ledger.group_number(request.shape.trust_group)


def _numbered(
    placed: Sequence[tuple[int, Decision]], kinds: Sequence[Hashable]
) -> Iterator[tuple[int, tuple[int, Decision]]]:
    """Yield what is placed with a number that tells equal ones apart."""
    counts: dict[Hashable, int] = {}
    for member, place in placed:
        key = (kinds[member], place.node, tuple(chosen.card.uuid for chosen in place.cards))
        counts[key] = counts.get(key, 0) + 1
        yield counts[key], (member, place)


def _alike(one: Candidate, other: Candidate) -> bool:
    """Return whether two pods may change places. Their gates do not count, nor do their names and annotations."""
    spec = msgspec.structs.replace(other.pod.spec, scheduling_gates=one.pod.spec.scheduling_gates)
    return (
        one.request == other.request
        and one.pod.spec == spec
        and one.pod.metadata.labels == other.pod.metadata.labels
        and one.pod.metadata.namespace == other.pod.metadata.namespace
    )


def _load(card: CardState) -> tuple[int, int, int, int, int]:
    return card.total, card.used, card.percent, card.pods, card.group


def _card_room(state: NodeState, request: Request, group: int) -> int:
    """Return an upper bound of how many such pods the node's cards take."""
    shape = request.shape
    if not state.cards:
        return _FAR  # another device plugin's cards: kube-scheduler counts them
    fitting = [card for card in state.cards if card_fits(card, shape, state.facts, group)]
    if shape.kind is not Kind.SHARED:
        return len(fitting) // shape.cards
    parts = 0
    for card in fitting:
        limits = [state.facts.slots - card.pods]
        limits += [card.free // shape.mib] if shape.mib else []
        limits += [(100 - card.percent) // shape.percent] if shape.percent else []
        parts += min(limits)
    return parts // shape.cards
