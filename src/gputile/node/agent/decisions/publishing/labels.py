"""Derives the node labels that tell a node's GPUs (C1, C3).

``aliyun.accelerator/nvidia_name``, ``nvidia_mem`` and ``alpha.kubernetes.io/nvidia-gpu-name`` hold one value, so they
are there only where it is true of every GPU. Every model has a label of its own beside them, on any node:
``model.gputile.io/<model>: "<number of gpus>"``. A node with T4 and V100 GPUs is found by
``model.gputile.io/Tesla-T4 Exists``, and avoided by ``DoesNotExist``.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from gputile.api.well_known import (
    LEGACY_MODEL_LABEL,
    MODEL_COUNT_PREFIX,
    MODEL_LABEL,
    NODE_GPU_COUNT_LABEL,
    NODE_GPU_MEMORY_LABEL,
)
from gputile.core.devices.inventory import Gpu, model_label_value, model_labels

_SINGLE: Final = frozenset((MODEL_LABEL, NODE_GPU_MEMORY_LABEL, NODE_GPU_COUNT_LABEL, LEGACY_MODEL_LABEL))


def node_labels(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Return the labels of a node with ``gpus``, healthy or not; none where there are none."""
    counts = Counter(model_label_value(gpu.model) for gpu in gpus)
    return model_labels(gpus) | {f"{MODEL_COUNT_PREFIX}{model}": str(n) for model, n in counts.items() if model}


def is_ours(label: str) -> bool:
    """Return whether ``label`` is one that the agent sets, and removes where it is no longer true."""
    return label in _SINGLE or label.startswith(MODEL_COUNT_PREFIX)
