"""Keeps plain pods off GPU nodes by a taint (G7): ``nvidia.com/gpu:NoSchedule``, without a value.

A taint that is there already stays as it is. One that the controller set is remembered in an annotation of the node, by
the same write, and only such a one is removed again.
"""

from typing import Any

from gputile.api.core import Node
from gputile.api.quantity import count_of
from gputile.api.well_known import (
    GPU_CORE,
    GPU_MEMORY,
    INVENTORY_ANNOTATION,
    TAINTED_ANNOTATION,
    TOPOLOGY_GPU,
    WHOLE_GPU,
)
from gputile.core.devices.inventory import InventoryError, decode_inventory

EFFECT = "NoSchedule"
_OURS_ALONE = (GPU_MEMORY, GPU_CORE, TOPOLOGY_GPU)
_ANNOTATION_PATH = f"/metadata/annotations/{TAINTED_ANNOTATION.replace('~', '~0').replace('/', '~1')}"

JsonPatch = list[dict[str, Any]]


def is_gpu_node(node: Node) -> bool:
    """Return whether gputile serves GPUs on the node, now or as soon as what is wrong there has been fixed.

    A node whose whole GPUs another device plugin offers is not gputile's to taint.
    """
    text = node.metadata.annotations.get(INVENTORY_ANNOTATION)
    if text is not None:
        try:
            return bool(decode_inventory(text).gpus)
        except InventoryError:
            return True
    return any(count_of(node.status.capacity, resource) for resource in _OURS_ALONE)


def taint_patch(node: Node, wanted: bool) -> JsonPatch:
    """Return the JSON patch that gives the node its taint, or takes it away; empty where nothing is to be done.

    ``wanted`` is whether GPU nodes are to be tainted at all. The patch holds for this version of the node only.
    """
    taints = node.spec.taints
    ours = TAINTED_ANNOTATION in node.metadata.annotations
    there = next((i for i, taint in enumerate(taints) if (taint.key, taint.effect) == (WHOLE_GPU, EFFECT)), None)
    changes: JsonPatch = []
    if wanted and is_gpu_node(node):
        if there is None:
            taint = {"key": WHOLE_GPU, "effect": EFFECT}
            changes.append(_add("/spec/taints/-", taint) if taints else _add("/spec/taints", [taint]))
            changes += [] if ours else [_remember(node)]
    elif ours:
        if there is not None:
            changes.append({"op": "remove", "path": f"/spec/taints/{there}"})
        changes.append({"op": "remove", "path": _ANNOTATION_PATH})
    if not changes:
        return []
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": node.metadata.resource_version}, *changes]


def _remember(node: Node) -> dict[str, Any]:
    if node.metadata.annotations:
        return _add(_ANNOTATION_PATH, "true")
    return _add("/metadata/annotations", {TAINTED_ANNOTATION: "true"})


def _add(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}
