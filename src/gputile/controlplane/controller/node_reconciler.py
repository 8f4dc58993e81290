"""Keeps what the controller writes on nodes right: the taint, and the condition of a silent agent.

The taint ``nvidia.com/gpu:NoSchedule``, without a value, keeps plain pods off GPU nodes (G7). One that is there already
stays as it is. One that the controller set is remembered in an annotation of the node, by the same write, and only such
a one is removed again.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from gputile.api.config.v1alpha1 import Configuration
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
from gputile.controlplane.controller.api_server import ApiServerWriter, JsonPatch
from gputile.controlplane.controller.node_diagnosis import NodeDiagnosis, condition_patch, diagnose
from gputile.controlplane.controller.queues import WorkQueue
from gputile.core.devices.inventory import InventoryError, decode_inventory
from gputile.kube.errors import Invalid, NotFound

EFFECT = "NoSchedule"
_OURS_ALONE = (GPU_MEMORY, GPU_CORE, TOPOLOGY_GPU)
_ANNOTATION_PATH = f"/metadata/annotations/{TAINTED_ANNOTATION.replace('~', '~0').replace('/', '~1')}"


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


class NodeReconciler:
    """Reconciles nodes; ``node`` returns one as it is known, ``active`` whether this replica may write."""

    def __init__(
        self,
        writer: ApiServerWriter,
        configuration: Configuration,
        node: Callable[[str], Node | None],
        active: Callable[[], bool],
        monotonic: Callable[[], float],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.queue = WorkQueue(self.work)
        self.tainted = 0
        self._writer = writer
        self._configuration = configuration
        self._node = node
        self._active = active
        self._monotonic = monotonic
        self._now = now
        self._since: dict[str, float] = {}  # node -> when a diagnosis that may pass was made first

    async def work(self, name: str) -> None:
        """Bring one node in order.

        Raises:
            KubeError: it could not be written; to be tried again.
        """
        node = self._node(name)
        if node is None:
            self._since.pop(name, None)
            return
        if not self._active():
            return
        try:
            await self._taint(node)
            await self._write_condition(node)
        except NotFound:
            return  # gone meanwhile: the watch will tell

    async def _taint(self, node: Node) -> None:
        patch = taint_patch(node, self._configuration.controller.taint_nodes)
        if not patch:
            return
        try:
            await self._writer.patch_node(node.metadata.name, patch)
        except Invalid:
            # The node has changed since: its new version is on its way to us, or has come.
            self.queue.add_later(node.metadata.name, 1.0)
            return
        self.tainted += 1

    async def _write_condition(self, node: Node) -> None:
        name = node.metadata.name
        found = self._persistent(name, diagnose(node, self._configuration))
        patch = condition_patch(node, found, self._now())
        if patch is None:
            return
        await self._writer.patch_node_status(name, patch)
        if found is not None:
            self._writer.record(node, found.reason, found.message, warning=True)

    def _persistent(self, name: str, found: NodeDiagnosis | None) -> NodeDiagnosis | None:
        """Return a diagnosis once it persists: while an agent starts or a mode changes, nothing is offered either."""
        if found is None or found.at_once:
            self._since.pop(name, None)
            return found
        timeout = self._configuration.controller.agent_silent_seconds
        since = self._since.setdefault(name, self._monotonic())
        left = since + timeout - self._monotonic()
        if left <= 0:
            return found
        self.queue.add_later(name, left + 0.1)
        return None
