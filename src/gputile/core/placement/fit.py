"""Whether a request fits a node, and if not, why: the card, what it has, and what is missing."""

from dataclasses import dataclass
from enum import IntEnum

from gputile.api.well_known import GPU_CORE, GPU_MEMORY, TOPOLOGY_GPU, WHOLE_GPU, Mode
from gputile.core.devices.request import Request, RequestKind, Shape
from gputile.core.ledger.node_arrays import NO_GROUP
from gputile.core.ledger.node_info import NodeInfo, ServingMode
from gputile.core.ledger.snapshot import CardState, NodeState
from gputile.core.placement.shortage import amount, card_lacks, on_cards


class FitRule(IntEnum):
    """The rule that a node breaks for a request; the order is the order of the checks."""

    NO_CARDS = 1
    BROKEN = 2
    UNPLACED = 3
    MODE = 4
    UNIT = 5
    TOO_FEW = 6
    TOO_LARGE = 7
    CARDS_TAKEN = 8


# What is said of a node where there are too many to say it of each: alike for all, so that kube-scheduler counts them.
SUMMARY = {
    FitRule.NO_CARDS: "node(s) without usable GPUs",
    FitRule.BROKEN: "node(s) without usable GPUs",
    FitRule.UNPLACED: "node(s) with a pod on GPUs that nobody knows",
    FitRule.MODE: "node(s) whose GPU mode does not serve the pod's GPU resource",
    FitRule.UNIT: "node(s) whose memory unit is not the pod's",
    FitRule.TOO_FEW: "node(s) with fewer GPUs than the pod needs",
    FitRule.TOO_LARGE: "node(s) whose GPUs are smaller than the pod needs",
    FitRule.CARDS_TAKEN: "node(s) without enough free on their GPUs",
}
# Rules that no pod's leaving can mend: preemption is not worth trying.
UNRESOLVABLE = frozenset(
    {FitRule.NO_CARDS, FitRule.BROKEN, FitRule.MODE, FitRule.UNIT, FitRule.TOO_FEW, FitRule.TOO_LARGE}
)


@dataclass(frozen=True, slots=True)
class FitRefusal:
    """Why a request does not fit a node. ``text`` is for people and does not repeat the node's name."""

    rule: FitRule
    text: str

    @property
    def lasting(self) -> bool:
        """Whether it would not fit either if every pod left the node."""
        return self.rule in UNRESOLVABLE


def serves(service: ServingMode, shape: Shape) -> bool:
    """Return whether a node of ``service`` takes requests like ``shape`` at all (M1, M2, M8, T3)."""
    if shape.kind is RequestKind.WHOLE:
        return service in (ServingMode.WHOLE, ServingMode.SLICED, ServingMode.FOREIGN)
    if shape.kind is RequestKind.TOPOLOGY:
        return service is ServingMode.TOPOLOGY
    return service is (ServingMode.MEMORY_AND_CORE if shape.percent else ServingMode.MEMORY)


def same_unit(facts: NodeInfo, shape: Shape) -> bool:
    """Return whether the pod and the node count memory alike.

    The kubelet counts units: where one of the pod were another of the node, it would hand out other bytes than the
    ledger books (B1).
    """
    return shape.kind is not RequestKind.SHARED or facts.unit_mib == shape.unit_mib


def card_fits(card: CardState, shape: Shape, facts: NodeInfo, group: int) -> bool:
    """Return whether one of the pod's cards can be ``card``; ``group`` is the number of its trust group."""
    if not card.card.healthy:
        return False
    company = card.pods < facts.slots and (
        not facts.grouped or card.group == NO_GROUP or (group != NO_GROUP and card.group == group)
    )
    if shape.kind is not RequestKind.SHARED:
        return company if facts.sliced else card.empty
    return card.total - card.used >= shape.mib and not _lacks_compute(card, shape) and company


def _lacks_compute(card: CardState, shape: Shape) -> bool:
    return shape.percent > 0 and card.percent + shape.percent > 100


def fits(node: NodeState, shape: Shape, group: int) -> bool:
    """Return whether the request fits the node."""
    if not serves(node.service, shape) or not same_unit(node.facts, shape):
        return False
    if node.service is ServingMode.FOREIGN:
        return True
    return sum(card_fits(card, shape, node.facts, group) for card in node.cards) >= shape.cards


def refusal(node: NodeState, request: Request, group: int) -> FitRefusal | None:
    """Return why the request does not fit the node, or None where it does."""
    shape = request.shape
    if fits(node, shape, group):
        return None
    facts = node.facts
    if facts.problem:
        return FitRefusal(FitRule.BROKEN, facts.problem)
    if node.closed_by:
        text = (
            f"pod {node.closed_by[0]} is on GPUs that nobody knows; the node's agent has to report them, "
            f"or the pod to go"
        )
        return FitRefusal(FitRule.UNPLACED, text)
    if not node.cards and node.service is not ServingMode.FOREIGN:
        return FitRefusal(FitRule.NO_CARDS, "it has no GPUs that gputile knows; is gputile's agent running there?")
    if not serves(node.service, shape):
        return FitRefusal(FitRule.MODE, _mode_text(facts, shape))
    if not same_unit(facts, shape):
        return FitRefusal(FitRule.UNIT, _unit_text(facts, shape))
    healthy = [card for card in node.cards if card.card.healthy]
    if len(healthy) < shape.cards:
        sick = f", {len(node.cards) - len(healthy)} of them unhealthy" if len(healthy) < len(node.cards) else ""
        text = f"it has {_count(len(node.cards), 'GPU')}{sick}; the pod needs {shape.cards}"
        return FitRefusal(FitRule.TOO_FEW, text)
    if shape.kind is not RequestKind.SHARED and facts.sliced:
        return FitRefusal(FitRule.CARDS_TAKEN, _taken_text(node, healthy, request, group))
    if shape.kind is not RequestKind.SHARED:
        free = sum(card.empty for card in healthy)
        return FitRefusal(
            FitRule.CARDS_TAKEN,
            f"{free} of {_count(len(healthy), 'GPU')} {'is' if free == 1 else 'are'} free; the pod needs {shape.cards}",
        )
    large = sum(card.total >= shape.mib for card in healthy)
    if large < shape.cards:
        return FitRefusal(FitRule.TOO_LARGE, _too_large_text(healthy, shape, facts))
    return FitRefusal(FitRule.CARDS_TAKEN, _taken_text(node, healthy, request, group))


def asked(shape: Shape) -> str:
    """Return the resource that a request asks for, in words."""
    return f"{GPU_MEMORY} and {GPU_CORE}" if shape.percent else shape.kind.value


_SERVES_TEXT = {
    Mode.EXCLUSIVE: f"whole GPUs ({WHOLE_GPU})",
    Mode.TOPOLOGY: f"whole GPUs by topology ({TOPOLOGY_GPU})",
    Mode.CORE_MEM: f"{GPU_MEMORY} together with {GPU_CORE}",
}


def _mode_text(facts: NodeInfo, shape: Shape) -> str:
    if facts.mode is None:
        return facts.problem
    served = _SERVES_TEXT.get(facts.mode, f"{GPU_MEMORY} alone")
    return f"its mode {facts.mode.value} serves {served}; the pod asks for {asked(shape)}"


def _unit_text(facts: NodeInfo, shape: Shape) -> str:
    """Name the one that is behind, and what to do: amounts keep the unit that the pod was created under (U5)."""
    if shape.unit_mib == facts.configured_unit_mib:
        return (
            f"its memory unit is still {facts.unit_mib} MiB; the pod counts in the {shape.unit_mib} MiB that are "
            f"configured, which the node's agent has to take over"
        )
    units = -(-shape.mib // facts.unit_mib) * shape.cards
    return (
        f"its memory unit is {facts.unit_mib} MiB; the pod counts in the {shape.unit_mib} MiB that were in force when "
        f"it was created: create it anew, and ask {units} units for its {shape.mib * shape.cards} MiB"
    )


def _too_large_text(healthy: list[CardState], shape: Shape, facts: NodeInfo) -> str:
    """Name the largest of the cards that are too small, and how many are not."""
    small = [card for card in healthy if card.total < shape.mib]
    biggest, unit = max(small, key=lambda card: card.total), facts.unit_mib
    units, need = biggest.total // unit, amount(shape.mib, unit)
    if len(small) == len(healthy):
        return f"its largest GPU has {units} units of {unit} MiB; the pod needs {need} {on_cards(shape)}"
    name = f"GPU {biggest.card.index}"
    large = len(healthy) - len(small)
    return (
        f"{large} of its {len(healthy)} GPUs {'is' if large == 1 else 'are'} large enough, "
        f"{name} has {units} units of {unit} MiB; the pod needs {need} {on_cards(shape)}"
    )


def _taken_text(node: NodeState, healthy: list[CardState], request: Request, group: int) -> str:
    """Name the card that comes closest, and what it lacks."""
    shape, facts = request.shape, node.facts
    card = min(
        (c for c in healthy if c.total >= shape.mib and not card_fits(c, shape, facts, group)),
        key=lambda c: (_lacks(c, shape, facts, group), -c.free, c.card.index),
    )
    text = f"GPU {card.card.index} {card_lacks(card, shape, facts, group)}"
    if shape.cards > 1:
        ready = sum(card_fits(c, shape, facts, group) for c in healthy)
        text += f" ({ready} of {len(healthy)} GPUs could take their part)"
    return text


def _lacks(card: CardState, shape: Shape, facts: NodeInfo, group: int) -> int:
    """Return how many of the rules a card breaks: the closest one is the one to name."""
    return (
        (card.free < shape.mib)
        + _lacks_compute(card, shape)
        + (card.pods >= facts.slots)
        + (facts.grouped and card.group != NO_GROUP and (group == NO_GROUP or card.group != group))
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
