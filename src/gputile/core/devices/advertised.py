"""Derives what a node tells the cluster of its GPUs: resources by mode, and labels of the model."""

import re
from collections.abc import Iterable, Sequence

from gputile.api.well_known import (
    GPU_CORE,
    GPU_MEMORY,
    LEGACY_MODEL_LABEL,
    MODEL_LABEL,
    NODE_GPU_COUNT_LABEL,
    NODE_GPU_MEMORY_LABEL,
    TOPOLOGY_GPU,
    WHOLE_GPU,
    Mode,
)
from gputile.core.devices.inventory import Gpu, advertised_units

CORE_PERCENT = 100  # gpu-core.percentage of one GPU
_LONGEST_LABEL = 63


def resources_for_mode(
    mode: Mode, gpus: Iterable[Gpu], unit_mib: int, *, count_unhealthy: bool = False
) -> dict[str, int]:
    """Return what a node in ``mode`` advertises of ``gpus``; the resources of every other mode are there and 0.

    Unhealthy GPUs do not count, as in a node's allocatable; ``count_unhealthy`` counts them too, as in its capacity.
    """
    counted = [gpu for gpu in gpus if gpu.healthy or count_unhealthy]
    resources = {GPU_MEMORY: 0, GPU_CORE: 0, TOPOLOGY_GPU: 0, WHOLE_GPU: 0}
    if mode is Mode.EXCLUSIVE:
        resources[WHOLE_GPU] = len(counted)
    elif mode is Mode.TOPOLOGY:
        resources[TOPOLOGY_GPU] = len(counted)
    else:
        resources[GPU_MEMORY] = sum(advertised_units(gpu, unit_mib) for gpu in counted)
        if mode is Mode.CORE_MEM:
            resources[GPU_CORE] = CORE_PERCENT * len(counted)
    return resources


def model_label_value(model: str) -> str:
    """Return a model's name as a label value: spaces, and what a label may not hold, become ``-``.

    >>> model_label_value("Tesla K80")
    'Tesla-K80'
    """
    return re.sub(r"[^A-Za-z0-9._-]", "-", model.strip())[:_LONGEST_LABEL].strip("-._")


def model_labels(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Return the labels that tell a node's GPUs; where GPUs differ, the label that would be true of some is left out.

    The count is that of all GPUs. A node without GPUs has no such label.
    """
    if not gpus:
        return {}
    labels = {NODE_GPU_COUNT_LABEL: str(len(gpus))}
    models = {model_label_value(model) for model in {gpu.model for gpu in gpus}}
    if len(models) == 1 and (model := models.pop()):
        labels[MODEL_LABEL] = labels[LEGACY_MODEL_LABEL] = model
    sizes = {gpu.mib for gpu in gpus}
    if len(sizes) == 1:
        labels[NODE_GPU_MEMORY_LABEL] = f"{sizes.pop()}MiB"
    return labels
