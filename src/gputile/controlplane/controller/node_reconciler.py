"""Keeps what the controller writes on nodes right: the taint, and the condition of a silent agent."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node
from gputile.controlplane.controller.node_diagnosis import NodeDiagnosis, condition_patch, diagnose
from gputile.controlplane.controller.taints import JsonPatch, taint_patch
from gputile.controlplane.controller.work_queue import WorkQueue
from gputile.kube.errors import Invalid, NotFound


class NodeWriter(Protocol):
    """The controller's writes on nodes. Errors are those of ``gputile.kube.errors``."""

    async def patch_node(self, name: str, patch: JsonPatch) -> None:
        """Apply a JSON patch to a node."""

    async def patch_node_status(self, name: str, patch: dict[str, object]) -> None:
        """Apply a strategic merge patch to a node's status."""

    def record(self, about: Node, reason: str, message: str, *, warning: bool) -> None:
        """Say something about a node."""


class NodeReconciler:
    """Reconciles nodes; ``node`` returns one as it is known, ``active`` whether this replica may write."""

    def __init__(
        self,
        writer: NodeWriter,
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
