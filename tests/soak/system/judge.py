"""What must hold at every moment, judged from the objects alone."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.soak.system.objects import (
    Asked,
    Claim,
    Json,
    Unreadable,
    annotation,
    asked_by,
    cards_of,
    claim_of,
    finished,
    key_of,
    node_of,
)

ISOLATED = ("cgpu", "core_mem", "mps")


@dataclass(frozen=True)
class Rules:
    """What the cluster is configured to. ``groups`` is the trust group of each namespace.

    ``kubelets`` are the nodes with a real kubelet: where nobody can tell it about a pod, it chooses the cards itself,
    and the booking follows it. There shared pods may be on fewer cards than they asked for (docs/concepts/agent.md,
    Limits).
    """

    pods_per_card: int
    groups: Mapping[str, str]
    kubelets: frozenset[str] = frozenset()


@dataclass
class _Card:
    mib: int = 0
    percent: int = 0
    pods: list[str] = field(default_factory=list)
    whole: list[str] = field(default_factory=list)
    isolated: int = 0
    groups: set[str] = field(default_factory=set)


def over_allocations(nodes: Iterable[Json], pods: Iterable[Json], rules: Rules) -> list[str]:
    """Return what is wrong with the cards of these nodes, by the annotations of the pods that are bound to them."""
    cards = {node["metadata"]["name"]: cards_of(node) for node in nodes}
    held: dict[tuple[str, str], _Card] = defaultdict(_Card)
    wrong: list[str] = []
    for pod in pods:
        node = node_of(pod)
        if node not in cards or finished(pod):
            continue
        key, asked = key_of(pod), asked_by(pod)
        try:
            claim = claim_of(pod)
        except Unreadable as error:
            wrong.append(f"{key} has an allocation that cannot be read: {error}")
            continue
        if claim is None:
            if asked.anything:
                wrong.append(f"{key} is bound to {node} without an allocation")
            continue
        if problem := _not_what_was_asked(pod, claim, asked, node in rules.kubelets):
            wrong.append(f"{key}: {problem}")
        for share in claim.cards:
            card = held[node, share.uuid]
            card.mib += share.mib
            card.percent += share.percent
            card.pods.append(key)
            card.isolated += claim.mode in ISOLATED
            if claim.whole:
                card.whole.append(key)
            if claim.mode == "share":
                card.groups.add(rules.groups.get(pod["metadata"]["namespace"], pod["metadata"]["namespace"]))
    for (node, uuid), card in held.items():
        wrong += _wrong_with(f"card {uuid} of {node}", cards[node].get(uuid), card, rules)
    return wrong


def _wrong_with(name: str, mib: int | None, card: _Card, rules: Rules) -> list[str]:
    if mib is None:
        return [f"{name} is none of the node's, and booked by {card.pods}"]
    wrong = []
    if card.mib > mib:
        wrong.append(f"{name} has {mib} MiB, and {card.mib} MiB are booked by {card.pods}")
    if card.percent > 100:
        wrong.append(f"{name} is booked with {card.percent} percent by {card.pods}")
    if card.whole and len(card.pods) > 1:
        wrong.append(f"{name} is given whole to {card.whole}, and booked by {card.pods}")
    if card.isolated > rules.pods_per_card:
        wrong.append(f"{name} has {card.isolated} pods, and {rules.pods_per_card} are allowed: {card.pods}")
    if len(card.groups) > 1:
        wrong.append(f"{name} isolates nothing, and is shared by {sorted(card.groups)}: {card.pods}")
    return wrong


def _not_what_was_asked(pod: Json, claim: Claim, asked: Asked, fewer: bool) -> str:
    """Return in what the allocation is not what the pod asks for, "" where it is; it may be on ``fewer`` cards."""
    if len(claim.cards) > asked.cards or (len(claim.cards) < asked.cards and not (fewer and asked.units)):
        return f"{len(claim.cards)} cards are booked, {asked.cards} asked for"
    if asked.whole:
        return "" if claim.whole else "a whole card is asked for and a part booked"
    unit = int(annotation(pod, "gputile.io/memory-unit-mib") or claim.unit_mib)
    mib, percent = asked.units * unit, asked.percent
    booked = sum(share.mib for share in claim.cards), sum(share.percent for share in claim.cards)
    return "" if booked == (mib, percent) else f"{booked} MiB and percent are booked, {(mib, percent)} asked for"


@dataclass
class Gang:
    """What was seen of a gang. ``broken`` is one that we have taken pods from before it had started."""

    size: int
    created: set[str] = field(default_factory=set)
    bound: set[str] = field(default_factory=set)
    first: float = 0.0  # when its first pod was bound
    whole: float = 0.0  # when its last was
    broken: bool = False
    possible: bool = True

    def see(self, name: str, now: float) -> None:
        """Note that a pod of it is bound."""
        self.bound.add(name)
        self.first = self.first or now
        if len(self.bound) >= self.size:
            self.whole = self.whole or now

    def in_part_for(self, now: float) -> float:
        """Return for how many seconds it has run, or did run, in part."""
        return (self.whole or now) - self.first if self.first and not self.broken else 0.0
