"""Reconciles what the controller writes to nodes: the taint, and the condition ``AgentSilent``.

The taint ``nvidia.com/gpu:NoSchedule``, without a value, keeps pods without GPUs off GPU nodes
(requirement G7). The controller does not change an existing taint. When the controller adds the
taint, it adds an annotation to the node in the same write. It removes the taint only if the node
has this annotation.

The condition reports problems of a GPU node that its agent cannot report, because the agent is
absent or silent. A running agent itself reports other problems: of modes, memory units, GPUs and
drivers. If an agent is silent, its inventory is still in the Node object. But the kubelet has
noticed that the device plugin is gone, and offers no resources. Both facts are in the Node object,
so the diagnosis does not depend on the agent's clock.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, changed_conditions, node_condition
from gputile.api.quantity import count_of
from gputile.api.well_known import (
    GPU_CORE,
    GPU_MEMORY,
    INVENTORY_ANNOTATION,
    MODE_LABEL,
    MODES,
    TAINTED_ANNOTATION,
    TOPOLOGY_GPU,
    WHOLE_GPU,
    ConditionReason,
    ConditionType,
    Mode,
)
from gputile.api.wording import nearest
from gputile.controlplane.controller.api_server import ApiServerWriter, JsonPatch
from gputile.controlplane.event_loop import for_each
from gputile.core.devices.inventory import (
    Inventory,
    InventoryError,
    decode_inventory,
    resources_for_mode,
    unknown_mode,
)
from gputile.core.ledger.node_info import has_agent_condition
from gputile.kube.client import Backoff
from gputile.kube.errors import Invalid, KubeError, NotFound


@dataclass(frozen=True, slots=True)
class NodeDiagnosis:
    """A problem of a node. It is reported ``at_once`` if it cannot disappear by itself."""

    reason: ConditionReason
    message: str
    at_once: bool = False


def diagnose(node: Node, configuration: Configuration) -> NodeDiagnosis | None:
    """Return a problem of the node that its agent does not report, or None."""
    text = node.metadata.annotations.get(INVENTORY_ANNOTATION)
    label = node.metadata.labels.get(MODE_LABEL)
    if text is None:
        return None if label is None or has_agent_condition(node) else _no_agent(label)
    try:
        inventory = decode_inventory(text)
    except InventoryError as error:
        return NodeDiagnosis(
            ConditionReason.INVENTORY_UNREADABLE,
            f"the annotation {INVENTORY_ANNOTATION} cannot be read: {error}",
            True,
        )
    mode = inventory.mode or label or Mode.EXCLUSIVE.value
    if mode not in MODES and inventory.mode:
        return NodeDiagnosis(
            ConditionReason.INVENTORY_UNREADABLE,
            f"the annotation {INVENTORY_ANNOTATION} {unknown_mode(mode)}",
            True,
        )
    if mode not in MODES:
        return _no_agent(mode)
    return _offers_nothing(
        node, inventory, Mode(mode), inventory.unit_mib or configuration.unit_mib
    )


def _no_agent(label: str) -> NodeDiagnosis:
    if label not in MODES:
        message = (
            f"the label {MODE_LABEL} is {label!r}; valid are "
            f"{', '.join(MODES)}{nearest(label, MODES)}"
        )
        return NodeDiagnosis(ConditionReason.INVALID_LABEL, message, at_once=True)
    return NodeDiagnosis(
        ConditionReason.NO_AGENT,
        f"the label {MODE_LABEL} sets mode {label}, but no gputile agent has reported GPUs: none "
        "runs on the node, or it has found no NVIDIA GPU",
    )


def _offers_nothing(
    node: Node, inventory: Inventory, mode: Mode, unit_mib: int
) -> NodeDiagnosis | None:
    expected = {
        name: n for name, n in resources_for_mode(mode, inventory.gpus, unit_mib).items() if n
    }
    if not expected or any(count_of(node.status.allocatable, resource) for resource in expected):
        return None
    healthy = sum(gpu.healthy for gpu in inventory.gpus)
    return NodeDiagnosis(
        ConditionReason.NOTHING_OFFERED,
        f"the node's agent reported {healthy} GPUs in mode {mode.value}, but its kubelet offers no "
        f"{min(expected)}: "
        f"the agent does not run, or its device plugin is not registered with the kubelet",
    )


def condition_patch(
    node: Node, found: NodeDiagnosis | None, now: datetime
) -> dict[str, Any] | None:
    """Return the strategic merge patch of the node's status, or None if nothing changes.

    A node that never had the condition does not get the condition with the status False.
    """
    silent = ConditionType.AGENT_SILENT
    if found is not None:
        wanted = node_condition(silent, "True", found.reason, found.message)
    elif any(each.type == silent for each in node.status.conditions):
        wanted = node_condition(silent, "False", ConditionReason.AGENT_HEARD, "")
    else:
        return None
    changed = changed_conditions(node.status.conditions, [wanted], now)
    return {"status": {"conditions": changed}} if changed else None


class SilentNodes:
    """Records the first scrape of the metrics at which each node was ``AgentSilent``."""

    def __init__(self, nodes: Mapping[str, Node], unix_time: Callable[[], float]) -> None:
        self._nodes, self._unix_time = nodes, unix_time
        self._since: dict[str, float] = {}

    def since(self) -> list[float]:
        """Return, for each silent node, the Unix time of the first scrape that found it silent."""
        now, silent = self._unix_time(), ConditionType.AGENT_SILENT
        self._since = {
            name: self._since.get(name, now)
            for name, node in self._nodes.items()
            if any(each.type == silent and each.status == "True" for each in node.status.conditions)
        }
        return list(self._since.values())


EFFECT = "NoSchedule"
_OURS_ALONE = (GPU_MEMORY, GPU_CORE, TOPOLOGY_GPU)
_ANNOTATION_PATH = (
    f"/metadata/annotations/{TAINTED_ANNOTATION.replace('~', '~0').replace('/', '~1')}"
)


def is_gpu_node(node: Node) -> bool:
    """Return whether gputile serves GPUs on the node, now or once its problems are fixed.

    A node does not count if another device plugin offers its whole GPUs.
    """
    text = node.metadata.annotations.get(INVENTORY_ANNOTATION)
    if text is not None:
        try:
            return bool(decode_inventory(text).gpus)
        except InventoryError:
            return True
    return any(count_of(node.status.capacity, resource) for resource in _OURS_ALONE)


def taint_patch(node: Node, wanted: bool) -> JsonPatch:
    """Return the JSON patch that adds or removes the node's taint. It may be empty.

    ``wanted`` states whether GPU nodes are tainted at all. The patch is conditional on this version
    of the node.
    """
    taints = node.spec.taints
    ours = TAINTED_ANNOTATION in node.metadata.annotations
    position = next(
        (i for i, taint in enumerate(taints) if (taint.key, taint.effect) == (WHOLE_GPU, EFFECT)),
        None,
    )
    changes: JsonPatch = []
    if wanted and is_gpu_node(node):
        if position is None:
            taint = {"key": WHOLE_GPU, "effect": EFFECT}
            changes.append(
                _add("/spec/taints/-", taint) if taints else _add("/spec/taints", [taint])
            )
            changes += [] if ours else [_remember(node)]
    elif ours:
        if position is not None:
            changes.append({"op": "remove", "path": f"/spec/taints/{position}"})
        changes.append({"op": "remove", "path": _ANNOTATION_PATH})
    if not changes:
        return []
    return [
        {
            "op": "test",
            "path": "/metadata/resourceVersion",
            "value": node.metadata.resource_version,
        },
        *changes,
    ]


def _remember(node: Node) -> dict[str, Any]:
    if node.metadata.annotations:
        return _add(_ANNOTATION_PATH, "true")
    return _add("/metadata/annotations", {TAINTED_ANNOTATION: "true"})


def _add(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


log = logging.getLogger(__name__)

_BACKOFF = Backoff(first=0.2, longest=60.0)


class WorkQueue:
    """Calls ``work`` for every added key.

    A key that is added again during its processing is processed once more. After a ``KubeError``,
    the key is retried with a back-off.
    """

    def __init__(
        self, work: Callable[[str], Awaitable[None]], *, backoff: Backoff = _BACKOFF
    ) -> None:
        self.failures = 0
        self._work = work
        self._backoff = backoff
        self._due: dict[str, float] = {}  # by key, on the event loop's clock
        self._added = asyncio.Event()
        self._failed: dict[str, int] = {}

    def add(self, key: str) -> None:
        self.add_later(key, 0.0)

    def add_later(self, key: str, seconds: float) -> None:
        """Process ``key`` after a delay, or earlier if an earlier time is already set."""
        when = asyncio.get_running_loop().time() + seconds
        if when < self._due.get(key, math.inf):
            self._due[key] = when
            self._added.set()

    async def run(self) -> NoReturn:
        loop = asyncio.get_running_loop()
        while True:
            self._added.clear()
            now = loop.time()
            due = [key for key, when in self._due.items() if when <= now]
            for key in due:
                del self._due[key]
            await for_each(self._try, due)
            next_s = min(self._due.values(), default=math.inf) - loop.time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(next_s if next_s < math.inf else None):
                    await self._added.wait()

    async def _try(self, key: str) -> None:
        try:
            await self._work(key)
            self._failed.pop(key, None)
        except KubeError as error:
            self.failures += 1
            failed = self._failed.get(key, 0)
            self._failed[key] = failed + 1
            pause = max(self._backoff.delay(failed), error.retry_after)
            log.log(
                logging.WARNING if failed else logging.INFO,
                "node %s: retrying in %.1f s: %s",
                key,
                pause,
                error,
            )
            self.add_later(key, pause)


class NodeReconciler:
    """Reconciles nodes. ``node`` returns a node by name. ``active`` returns whether to write."""

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
        self._writer = writer
        self._configuration = configuration
        self._node = node
        self._active = active
        self._monotonic = monotonic
        self._now = now
        # when a problem that may disappear was first seen, by node
        self._since: dict[str, float] = {}

    async def work(self, name: str) -> None:
        """Reconcile one node.

        Raises:
            KubeError: the node could not be written. The queue tries again.
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
            return  # the node was deleted; the watch will show it

    async def _taint(self, node: Node) -> None:
        patch = taint_patch(node, self._configuration.controller.taint_nodes)
        if not patch:
            return
        try:
            await self._writer.patch_node(node.metadata.name, patch)
        except Invalid:
            # The node has changed. The watch will bring its new version.
            self.queue.add_later(node.metadata.name, 1.0)
            return

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
        """Return ``found`` after ``agentSilentSeconds``, because a starting agent looks silent."""
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
