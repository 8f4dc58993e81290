"""The node labels that tell a node's cards (C1, C3).

``aliyun.accelerator/nvidia_name``, ``nvidia_mem`` and ``alpha.kubernetes.io/nvidia-gpu-name`` hold one value, so they
are there only where it is true of every card. Every model has a label of its own beside them, on any node:
``model.gputile.io/<model>: "<number of cards>"``. A node with T4 and V100 cards is found by
``model.gputile.io/Tesla-T4 Exists``, and avoided by ``DoesNotExist``.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from gputile.api.well_known import (
    CARD_COUNT_LABEL,
    CARD_MEMORY_LABEL,
    LEGACY_MODEL_LABEL,
    MODEL_COUNT_PREFIX,
    MODEL_LABEL,
)
from gputile.core.devices.advertised import model_label_value, model_labels
from gputile.core.devices.inventory import Card

_SINGLE: Final = frozenset((MODEL_LABEL, CARD_MEMORY_LABEL, CARD_COUNT_LABEL, LEGACY_MODEL_LABEL))


def node_labels(cards: Sequence[Card]) -> dict[str, str]:
    """Return the labels of a node with ``cards``, healthy or not; none where there are none."""
    counts = Counter(model_label_value(card.model) for card in cards)
    return model_labels(cards) | {f"{MODEL_COUNT_PREFIX}{model}": str(n) for model, n in counts.items() if model}


def is_ours(label: str) -> bool:
    """Return whether ``label`` is one that the agent sets, and removes where it is no longer true."""
    return label in _SINGLE or label.startswith(MODEL_COUNT_PREFIX)
