"""What one card lacks for a request, in words."""

from gputile.api.well_known import Mode
from gputile.core.devices.request import RequestKind, Shape
from gputile.core.ledger.node_arrays import NO_GROUP
from gputile.core.ledger.node_info import NodeInfo
from gputile.core.ledger.snapshot import CardState


def card_lacks(card: CardState, shape: Shape, facts: NodeInfo, group: int) -> str:
    """Return why ``card`` cannot be one of the pod's cards, "" where it can; ``group`` numbers the pod's trust group.

    The text goes on after the card's name: "GPU 1" "has 3 of 15 units free; the pod needs 10 on one card".
    """
    if not card.card.healthy:
        return "is out of order"
    if shape.kind is not RequestKind.SHARED:
        return _company(card, facts, group) if facts.sliced else "" if card.empty else "is in use"
    unit, left = facts.unit_mib, max(0, 100 - card.percent)
    needs = f"the pod needs {amount(shape.mib, unit)} {on_cards(shape)}"
    if card.total < shape.mib:
        return f"has {card.total // unit} units of {unit} MiB; {needs}"
    if card.free < shape.mib:
        return f"has {card.free // unit} of {card.total // unit} units free; {needs}"
    if shape.percent > left:
        return f"has {left} of 100 percent of compute free; the pod needs {shape.percent} {on_cards(shape)}"
    return _company(card, facts, group)


def _company(card: CardState, facts: NodeInfo, group: int) -> str:
    """Return which pods on the card keep the pod off it, "" where none do."""
    if card.pods >= facts.slots:
        return f"holds {card.pods} pods, the most that a GPU may hold here ({facts.slots})"
    if facts.grouped and card.group != NO_GROUP and (group == NO_GROUP or card.group != group):
        way = "time-slicing" if facts.sliced else f"mode {Mode.SHARE.value}"
        return f"is used by pods of another trust group, and {way} does not isolate memory"
    return ""


def amount(mib: int, unit: int) -> str:
    """Return an amount in units of ``unit`` MiB, in MiB where it is no whole number of them."""
    return str(mib // unit) if mib % unit == 0 else f"{mib} MiB"


def on_cards(shape: Shape) -> str:
    """Return on how many cards an amount is needed."""
    return "on one card" if shape.cards == 1 else f"on each of {shape.cards} cards"
