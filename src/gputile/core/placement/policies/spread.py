"""Use the GPU that is less used (``ack.node.gpu.placement=spread``): one failing card hurts fewer pods."""

from gputile.core.ledger.snapshot import CardState
from gputile.core.placement.policies import binpack

SCALE = 1 << 20


def card_key(card: CardState) -> tuple[int, int, int]:
    """Order the cards that fit: the smallest used fraction of memory first, then the least compute in use.

    The fraction is an integer in steps of 2**-20, so that scalar and array code agree exactly.
    """
    return (card.used * SCALE // card.total, min(card.percent, 100), card.card.index)


def node_score(card_used: int, card_total: int, node_used: int, node_total: int) -> int:
    """Return 0 to 1000 for a node after the pod is placed: emptier is better."""
    return 1000 - binpack.node_score(card_used, card_total, node_used, node_total)
