"""What a node says of its cards to the cluster: the resources that its mode advertises, and the model labels."""

import re
from collections.abc import Iterable, Sequence

from gputile.api.well_known import (
    CARD_COUNT_LABEL,
    CARD_MEMORY_LABEL,
    GPU_CORE,
    GPU_MEMORY,
    LEGACY_MODEL_LABEL,
    MODEL_LABEL,
    TOPOLOGY_GPU,
    WHOLE_GPU,
    Mode,
)
from gputile.core.devices.inventory import Card, advertised_units

CORE_PERCENT = 100  # gpu-core.percentage of one card
_LONGEST_LABEL = 63


def resources_for_mode(
    mode: Mode, cards: Iterable[Card], unit_mib: int, *, count_unhealthy: bool = False
) -> dict[str, int]:
    """Return what a node in ``mode`` advertises of ``cards``; the resources of every other mode are there and 0.

    Unhealthy cards do not count, as in a node's allocatable; ``count_unhealthy`` counts them too, as in its capacity.
    """
    counted = [card for card in cards if card.healthy or count_unhealthy]
    resources = {GPU_MEMORY: 0, GPU_CORE: 0, TOPOLOGY_GPU: 0, WHOLE_GPU: 0}
    if mode is Mode.EXCLUSIVE:
        resources[WHOLE_GPU] = len(counted)
    elif mode is Mode.TOPOLOGY:
        resources[TOPOLOGY_GPU] = len(counted)
    else:
        resources[GPU_MEMORY] = sum(advertised_units(card, unit_mib) for card in counted)
        if mode is Mode.CORE_MEM:
            resources[GPU_CORE] = CORE_PERCENT * len(counted)
    return resources


def model_label_value(model: str) -> str:
    """Return a model's name as a label value: spaces, and what a label may not hold, become ``-``.

    >>> model_label_value("Tesla K80")
    'Tesla-K80'
    """
    return re.sub(r"[^A-Za-z0-9._-]", "-", model.strip())[:_LONGEST_LABEL].strip("-._")


def model_labels(cards: Sequence[Card]) -> dict[str, str]:
    """Return the labels that tell a node's cards; where cards differ, the label that would be true of some is left out.

    The count is that of all cards. A node without cards has no such label.
    """
    if not cards:
        return {}
    labels = {CARD_COUNT_LABEL: str(len(cards))}
    models = {model_label_value(card.model) for card in cards}
    if len(models) == 1 and (model := models.pop()):
        labels[MODEL_LABEL] = labels[LEGACY_MODEL_LABEL] = model
    sizes = {card.mib for card in cards}
    if len(sizes) == 1:
        labels[CARD_MEMORY_LABEL] = f"{sizes.pop()}MiB"
    return labels
