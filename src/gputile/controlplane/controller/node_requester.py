"""Carries out the rounds of ``node_request_planner`` with placeholders that autoscalers see.

A crash in between does no harm: placeholders that exist are found again, and Kubernetes itself ends those that nobody
deletes.
"""

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from gputile.api.core import Pod
from gputile.controlplane.controller.node_request_planner import NodeRequestPlanner, NodeRequestRound
from gputile.controlplane.controller.waiting_pods import WaitingPods
from gputile.kube.errors import ApiError, KubeError, NotFound

log = logging.getLogger(__name__)

LOOKS, LOOK_SECONDS = 100, 0.05  # so often, and after such a pause, is looked whether placeholders are gone
_MESSAGE = "this pod asks the cluster's autoscaler for a node and is never bound; gputile deletes it"


class PlaceholderWriter(Protocol):
    """The controller's writes on placeholders. Errors are those of ``gputile.kube.errors``."""

    async def create_placeholder(self, job: Mapping[str, Any]) -> None:
        """Create the Job of a placeholder."""

    async def delete_placeholder(self, job: str) -> None:
        """Delete the Job of a placeholder, and its pod."""

    async def mark_unschedulable(self, pod: Pod, message: str) -> None:
        """Write the condition by which autoscalers find a pod that no node takes."""

    def record(self, about: Pod, reason: str, message: str, *, warning: bool) -> None:
        """Say something about a pod."""


class NodeRequester:
    """Writes what ``planner`` decides; ``waiting`` has the placeholders that the watch knows."""

    def __init__(self, planner: NodeRequestPlanner, writer: PlaceholderWriter, waiting: WaitingPods) -> None:
        self.failures = 0
        self._planner = planner
        self._writer = writer
        self._waiting = waiting

    async def placeholders_gone(self) -> None:
        """Have the placeholders gone that were deleted; wait some seconds for that at most.

        An autoscaler would look for other nodes for them, and add some.
        """
        for _ in range(LOOKS):
            if not self._planner.being_deleted(self._waiting.placeholders):
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def write(self, result: NodeRequestRound) -> None:
        for event in result.events:
            for pod in event.pods:
                self._writer.record(pod, event.reason, event.message, warning=event.warning)
        # First what goes: an autoscaler is not to see a placeholder beside the one that replaces it.
        for name in result.deleted:
            if not await self._try(self._writer.delete_placeholder(name)):
                self._planner.not_deleted(name)
        for job in result.created:
            await self._create(job)
        for pod in result.unmarked:
            await self._try(self._writer.mark_unschedulable(pod, _MESSAGE))

    async def _create(self, job: Mapping[str, Any]) -> None:
        try:
            await self._writer.create_placeholder(job)
        except KubeError as error:
            self._failed(error)
            if not error.may_have_been_executed:
                refused = isinstance(error, NotFound) or (isinstance(error, ApiError) and error.refused_for_good)
                self._planner.not_created(job["metadata"]["name"], refused=refused)

    async def _try(self, write: Awaitable[None]) -> bool:
        try:
            await write
        except NotFound:
            return True
        except KubeError as error:
            self._failed(error)
            return False
        return True

    def _failed(self, error: KubeError) -> None:
        self.failures += 1
        log.warning("a placeholder was not written: %s", error)
