"""What a ledger holds, in terms that two ledgers can be compared by, and when a card holds too much."""

from typing import Any

from gputile.api.well_known import Mode
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_arrays import MIXED_GROUPS, NO_GROUP
from gputile.core.ledger.snapshot import CardState, NodeState, node_state

CARD_ARRAYS = ("total", "used", "percent", "pods", "usable")
NODE_ARRAYS = ("service", "slots", "unit", "spread", "grouped")


def image(ledger: Ledger) -> dict[str, Any]:
    """Return all that a ledger holds by names: rows and numbers of trust groups may differ between ledgers."""
    group_names = {number: name for name, number in ledger._table._groups.items()} | {
        NO_GROUP: "",
        MIXED_GROUPS: "several",
    }
    nodes = {}
    for row, facts in ledger.nodes():
        cards = len(facts.inventory.cards)
        arrays = {name: getattr(ledger.columns, name)[row].tolist() for name in NODE_ARRAYS}
        for name in CARD_ARRAYS:
            values = getattr(ledger.columns, name)[row].tolist()
            assert not any(values[cards:]), f"{name} of cards that do not exist"
            arrays[name] = values[:cards]
        arrays["group"] = [group_names[number] for number in ledger.columns.group[row].tolist()[:cards]]
        nodes[facts.name] = (facts, arrays)
    return {"nodes": nodes, "bookings": {booking.uid: booking for booking in ledger.bookings()}}


def unused_rows_are_empty(ledger: Ledger) -> bool:
    used = set(ledger.row_of.values())
    return all(not array[row].any() for array in vars(ledger.columns).values() for row in set(range(len(array))) - used)


def states(ledger: Ledger) -> dict[str, NodeState]:
    return {facts.name: node_state(ledger, row, facts) for row, facts in ledger.nodes()}


def overfull(ledger: Ledger, node: NodeState, card: CardState) -> str:
    """Return what a card has more of than it may, "" where all is well."""
    held = list(ledger.on_card(node.facts.name, card.card.uuid))
    if card.used > card.total and not any(booking.whole for booking in held):
        return f"{card.used} of {card.total} MiB"
    if node.facts.mode is Mode.CORE_MEM and card.percent > 100:
        return f"{card.percent} percent"
    if card.pods > node.facts.slots:
        return f"{card.pods} of {node.facts.slots} pods"
    if node.facts.mode is Mode.SHARE and len({booking.trust_group for booking in held}) > 1:
        return "two trust groups"
    if any(booking.whole for booking in held) and len(held) > 1:
        return "a whole card given twice"
    return ""
