"""What one card lacks for a request: the rule, the amounts, and the words for them."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from gputile.api.well_known import Mode
from gputile.core.devices.request import RequestKind, Shape
from gputile.core.ledger.node_arrays import NO_GROUP
from gputile.core.ledger.node_info import NodeInfo
from gputile.core.ledger.snapshot import CardState


class CardRule(Enum):
    """The rule by which a card cannot be one of the pod's."""

    UNHEALTHY = auto()
    IN_USE = auto()
    SIZE = auto()
    MEMORY = auto()
    COMPUTE = auto()
    PODS = auto()
    TRUST = auto()


@dataclass(frozen=True, slots=True)
class CardShortage:
    """A rule that a card breaks for a request, and the amounts by it: MiB, percent of compute, or pods."""

    rule: CardRule
    requested: int = 0
    used: int = 0
    capacity: int = 0

    def text(self, shape: Shape, node_info: NodeInfo) -> str:
        """Return the shortage in words that go on after the card's name: "GPU 1" "has 3 of 15 units free; ..."."""
        unit, where = node_info.unit_mib, on_cards(shape)
        free = max(0, self.capacity - self.used)
        match self.rule:
            case CardRule.UNHEALTHY:
                return "is out of order"
            case CardRule.IN_USE:
                return "is in use"
            case CardRule.SIZE:
                needs = f"the pod needs {amount(self.requested, unit)} {where}"
                return f"has {self.capacity // unit} units of {unit} MiB; {needs}"
            case CardRule.MEMORY:
                needs = f"the pod needs {amount(self.requested, unit)} {where}"
                return f"has {free // unit} of {self.capacity // unit} units free; {needs}"
            case CardRule.COMPUTE:
                return f"has {free} of 100 percent of compute free; the pod needs {self.requested} {where}"
            case CardRule.PODS:
                return f"holds {self.used} pods, the most that a GPU may hold here ({self.capacity})"
            case CardRule.TRUST:
                way = "time-slicing" if node_info.sliced else f"mode {Mode.SHARE.value}"
                return f"is used by pods of another trust group, and {way} does not isolate memory"


def card_shortages(card: CardState, shape: Shape, node_info: NodeInfo, group: int) -> Iterator[CardShortage]:
    """Yield every rule by which ``card`` cannot be one of the pod's cards; ``group`` numbers the pod's trust group.

    None is yielded for a card that ``fit.card_fits``.
    """
    if not card.card.healthy:
        yield CardShortage(CardRule.UNHEALTHY)
        return
    if shape.kind is not RequestKind.SHARED and not node_info.sliced:
        if not card.empty:
            yield CardShortage(CardRule.IN_USE)
        return
    if card.total < shape.mib:
        yield CardShortage(CardRule.SIZE, shape.mib, card.used, card.total)
    elif card.free < shape.mib:
        yield CardShortage(CardRule.MEMORY, shape.mib, card.used, card.total)
    if shape.percent and card.percent + shape.percent > 100:
        yield CardShortage(CardRule.COMPUTE, shape.percent, card.percent, 100)
    if card.pods >= node_info.max_pods_per_gpu:
        yield CardShortage(CardRule.PODS, 1, card.pods, node_info.max_pods_per_gpu)
    if node_info.grouped and card.group != NO_GROUP and (group == NO_GROUP or card.group != group):
        yield CardShortage(CardRule.TRUST)


def amount(mib: int, unit: int) -> str:
    """Return an amount in units of ``unit`` MiB, in MiB where it is no whole number of them."""
    return str(mib // unit) if mib % unit == 0 else f"{mib} MiB"


def on_cards(shape: Shape) -> str:
    """Return on how many cards an amount is needed."""
    return "on one card" if shape.cards == 1 else f"on each of {shape.cards} cards"
