"""Which cards of a node a pod gets, and how good the node is for it."""

from types import ModuleType

import numpy as np
import numpy.typing as npt

from gputile.core.devices.request import RequestKind, Shape
from gputile.core.ledger.node_info import ServingMode
from gputile.core.ledger.snapshot import CardState, NodeState
from gputile.core.placement.fit import card_fits, fits
from gputile.core.placement.packing.array_scores import card_key
from gputile.core.placement.policies import binpack, spread
from gputile.core.placement.topology import best_set

Float64 = npt.NDArray[np.float64]
POLICIES: dict[str, ModuleType] = {"binpack": binpack, "spread": spread}


def choose_cards(
    node: NodeState, shape: Shape, group: int, value: Float64 | None = None
) -> tuple[CardState, ...] | None:
    """Return the cards that the pod gets on ``node``, by index; None where it does not fit.

    Empty on a node whose cards another device plugin hands out. ``value`` is what remnants are worth, for packing
    (``PackingState.value``); where it is not known, packing fills one card before the next.
    """
    if not fits(node, shape, group):
        return None
    if node.serving_mode is ServingMode.OTHER_PLUGIN:
        return ()
    ready = [(i, card) for i, card in enumerate(node.cards) if card_fits(card, shape, node.info, group)]
    if shape.kind is RequestKind.SHARED:
        if node.info.placement == "packing" and value is not None:
            by_worth = [(card_key(node, card, shape, value), card) for _, card in ready]
            chosen = [card for _, card in sorted(by_worth, key=lambda pair: pair[0])[: shape.cards]]
        else:
            chosen = sorted((card for _, card in ready), key=_policy(node).card_key)[: shape.cards]
        return tuple(sorted(chosen, key=lambda card: card.card.index))
    if shape.kind is RequestKind.TOPOLOGY:
        positions = best_set(node.info.inventory.bandwidth, tuple(i for i, _ in ready), shape.cards)
        return tuple(node.cards[i] for i in positions)
    if node.serving_mode is ServingMode.SLICED:  # different cards first, those that the fewest share
        least = sorted((card for _, card in ready), key=lambda card: (card.pods, card.card.index))[: shape.cards]
        return tuple(sorted(least, key=lambda card: card.card.index))
    return tuple(card for _, card in ready[: shape.cards])


def node_score(node: NodeState, shape: Shape, group: int, policy_name: str) -> int | None:
    """Return 0 to 1000 for ``node``, higher is better; None where the pod does not fit.

    ``policy_name`` is the cluster's: it tells full nodes from empty ones, while a node's own label only tells among
    its cards (M9). So the scores of all nodes compare.
    """
    chosen = choose_cards(node, shape, group)
    if chosen is None:
        return None
    if node.serving_mode in (ServingMode.OTHER_PLUGIN, ServingMode.SLICED):
        return 0  # after those that give a card to the pod alone
    policy = POLICIES[policy_name]
    if shape.kind is not RequestKind.SHARED:
        held = sum(not card.empty for card in node.cards)
        used = held + shape.cards
        return int(policy.node_score(used, len(node.cards), used, len(node.cards)))
    first = min(chosen, key=_policy(node).card_key)
    used, total = sum(card.held for card in node.cards), sum(card.total for card in node.cards)
    return int(policy.node_score(first.used + shape.mib, first.total, used + shape.cards * shape.mib, total))


def _policy(node: NodeState) -> ModuleType:
    return POLICIES.get(node.info.placement, binpack)
