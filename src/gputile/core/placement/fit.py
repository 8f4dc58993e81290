"""Whether a request fits a node, and if not, why: the card, what it has, and what is missing."""

from gputile.core.devices.request import Request, RequestKind, Shape
from gputile.core.ledger.node_arrays import NO_GROUP
from gputile.core.ledger.node_info import NodeInfo, ServingMode
from gputile.core.ledger.snapshot import CardState, NodeState
from gputile.core.placement.fit_refusal import FitRefusal, FitRule
from gputile.core.placement.shortage import card_shortages


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
    compute = not shape.percent or card.percent + shape.percent <= 100
    return card.total - card.used >= shape.mib and compute and company


def fits(node: NodeState, shape: Shape, group: int) -> bool:
    """Return whether the request fits the node."""
    if not serves(node.service, shape) or not same_unit(node.facts, shape):
        return False
    if node.service is ServingMode.FOREIGN:
        return True
    return sum(card_fits(card, shape, node.facts, group) for card in node.cards) >= shape.cards


def refusal(node: NodeState, request: Request, group: int) -> FitRefusal | None:
    """Return why the request does not fit the node, or None where it does."""
    shape, info = request.shape, node.facts
    if fits(node, shape, group):
        return None
    if info.problem:
        return FitRefusal(FitRule.BROKEN, shape, info)
    if node.closed_by:
        return FitRefusal(FitRule.UNPLACED, shape, info, closed_by=node.closed_by[0])
    if not node.cards and node.service is not ServingMode.FOREIGN:
        return FitRefusal(FitRule.NO_CARDS, shape, info)
    if not serves(node.service, shape):
        return FitRefusal(FitRule.MODE, shape, info)
    if not same_unit(info, shape):
        return FitRefusal(FitRule.UNIT, shape, info)
    healthy = [card for card in node.cards if card.card.healthy]
    if len(healthy) < shape.cards:
        return FitRefusal(FitRule.TOO_FEW, shape, info, len(node.cards) - len(healthy), len(node.cards))
    if shape.kind is not RequestKind.SHARED and not info.sliced:
        return FitRefusal(FitRule.CARDS_TAKEN, shape, info, sum(not card.empty for card in healthy), len(healthy))
    small = [card for card in healthy if card.total < shape.mib]
    if len(healthy) - len(small) < shape.cards:
        largest = max(small, key=lambda card: card.total)
        return FitRefusal(FitRule.TOO_LARGE, shape, info, len(small), len(healthy), largest)
    return _taken(healthy, shape, info, group)


def _taken(healthy: list[CardState], shape: Shape, info: NodeInfo, group: int) -> FitRefusal:
    """Return the refusal with the card that comes closest: the one that breaks the fewest rules."""
    lacking = [(card, list(card_shortages(card, shape, info, group))) for card in healthy]
    refused = [(card, shortages) for card, shortages in lacking if shortages]
    card, shortages = min(
        (pair for pair in refused if pair[0].total >= shape.mib),
        key=lambda pair: (len(pair[1]), -pair[0].free, pair[0].card.index),
    )
    return FitRefusal(FitRule.CARDS_TAKEN, shape, info, len(refused), len(healthy), card, shortages[0])
