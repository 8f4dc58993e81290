"""Fill one GPU before the next (``ack.node.gpu.placement=binpack``, the default)."""

from gputile.core.ledger.snapshot import CardState


def card_key(card: CardState) -> tuple[int, int, int]:
    """Order the cards that fit: the one with the least memory free first, then the least compute free."""
    return (card.total - card.used, -min(card.percent, 100), card.card.index)


def node_score(card_used: int, card_total: int, node_used: int, node_total: int) -> int:
    """Return 0 to 1000 for a node after the pod is placed: fuller is better.

    Half of it is how full the pod's fullest card gets, so that a started card goes before an empty one elsewhere;
    half is how full the node gets.
    """
    return 500 * card_used // card_total + 500 * node_used // node_total
