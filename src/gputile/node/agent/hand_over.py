"""Hands a node over from one agent to the next, for example in an upgrade, without failed pods.

Between the end of one device plugin and the registration of the next, the kubelet has no devices,
and permanently fails each pod that it admits. It does not help to register the next plugin before
the end of the old one. When the stream of the old plugin ends, the kubelet disconnects the plugin
that is registered then (``runClient`` in pkg/kubelet/cm/devicemanager/plugin/v1beta1). So the new
agent first closes the node by an annotation that the scheduler extender obeys. It waits until all
pods that were already scheduled are bound and admitted. Then it takes over, and opens the node when
the kubelet watches the new agent's devices.

The annotation contains a deadline, after which a later agent may remove the annotation. The writer
extends the deadline while the kubelet admits pods, which may take minutes on a slow node.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gputile.api.core import Container, Node
from gputile.api.quantity import count_of
from gputile.api.well_known import HANDOVER_ANNOTATION
from gputile.kube.errors import KubeError
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.api_server import NodeApi
from gputile.node.agent.device_table import Listing
from gputile.node.agent.known_pods import KnownPod, known_pod
from gputile.node.agent.kubelet import KubeletLink
from gputile.node.agent.node_config import is_served

log = logging.getLogger(__name__)

CLOSED_AT_MOST_S = 60.0
SEEN_WITHIN_S = 5.0
RETRIED_FOR_S, RETRY_EVERY_S = 40.0, 0.5
# The time from the last pod's admission until the kubelet watches the new agent's devices
OPEN_WITHIN_S = 30.0
STUCK_AFTER_S = 40.0  # a busy kubelet may need this time to answer
LIST_WITHIN_S = 1.0
LOOK_EVERY_S = 0.1
LISTENING_WITHIN_S = 20.0
TAKEN_IN_AFTER_S = 0.5  # the time from the kubelet's ListAndWatch call until it counts the devices


@dataclass
class HandOver:
    """The handover of the node from another agent to this agent.

    ``closed_for`` is in seconds. ``now`` returns Unix time, and ``clock`` monotonic time.
    ``under_way`` is True while this agent keeps the node closed. ``looked`` is when the agent last
    read the kubelet's list.
    """

    cluster: NodeApi
    kubelet: KubeletLink
    state: AllocationState
    closed_for: float
    now: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic
    under_way: bool = False
    looked: float = 0.0
    _text: str = ""

    async def close(self) -> None:
        """Close the node if another agent serves it. Wait until no pod is on its way to the node.

        A failed request is retried, while the other agent continues to serve the node. If the API
        server does not answer for ``RETRIED_FOR_S``, the handover continues with an open node.
        """
        until = self.clock() + RETRIED_FOR_S
        while self.kubelet.state.others:
            try:
                pods = await self._closed()
            except KubeError as error:
                if self.clock() < until:
                    await asyncio.sleep(RETRY_EVERY_S)
                    continue
                log.warning("replacing another agent without closing the node: %s", error)
                pods = list(self.state.pods.values())
            await self._admitted(pods)
            return

    async def _closed(self) -> list[KnownPod]:
        """Close the node, and return the pods that are bound to it. Raises KubeError."""
        await self._write_deadline()
        self.under_way = True
        await self._until(self._is_closed, SEEN_WITHIN_S)
        await asyncio.sleep(self.closed_for)
        pods = await self.cluster.bound_pods()
        return [known_pod(pod, self.state.configuration) for pod in pods]

    async def open(self) -> None:
        if not self.under_way:
            return
        await self._until(lambda: self.kubelet.state.listening, LISTENING_WITHIN_S)
        await asyncio.sleep(TAKEN_IN_AFTER_S)
        self.under_way = False

    def left(self, node: Node) -> float | None:
        """Return for how many seconds the annotation must remain, or None if there is none."""
        text = node.metadata.annotations.get(HANDOVER_ANNOTATION)
        if text is None:
            return None
        if self.under_way:
            return CLOSED_AT_MOST_S
        return 0.0 if text == self._text else self._seconds_left(text)

    def _seconds_left(self, text: str) -> float:
        """Return how many seconds an annotation is still valid.

        The result is 0 if the text is invalid, or if the clock was set back after the text was
        written.
        """
        try:
            left = float(text) - self.now()
        except ValueError:
            return 0.0
        return left if 0 < left <= CLOSED_AT_MOST_S + 1 else 0.0

    async def _write_deadline(self) -> None:
        self._text = f"{self.now() + CLOSED_AT_MOST_S:.0f}"
        await self.cluster.patch_node(
            {"metadata": {"annotations": {HANDOVER_ANNOTATION: self._text}}}
        )

    async def _admitted(self, pods: Sequence[KnownPod]) -> None:
        """Wait until the kubelet has admitted ``pods``.

        The wait ends early if the kubelet admits none of them within ``STUCK_AFTER_S``.
        """
        fewest, since = len(pods) + 1, self.clock()
        while True:
            listing = await self.kubelet.list(LIST_WITHIN_S)
            now = self.looked = self.clock()
            waiting = unadmitted(map(self._as_it_is, pods), listing)
            if not waiting:
                return
            if len(waiting) < fewest:
                fewest, since = len(waiting), now
            elif now - since > STUCK_AFTER_S:
                log.warning("no longer waiting for the kubelet to admit %s", ", ".join(waiting[:5]))
                return
            if self._seconds_left(self._text) < OPEN_WITHIN_S:
                try:
                    await self._write_deadline()
                except KubeError as error:
                    log.warning("the node may open before its agent is replaced: %s", error)
            await asyncio.sleep(LOOK_EVERY_S)

    def _as_it_is(self, pod: KnownPod) -> KnownPod | None:
        """Return the pod as the watch now reports it, or None if it was deleted."""
        pods = self.state.pods
        present = pods.get(pod.key)
        if pod.uid in pods.gone:
            return None
        return present if present is not None and present.uid == pod.uid else pod

    def _is_closed(self) -> bool:
        node = self.state.node
        return node is not None and node.metadata.annotations.get(HANDOVER_ANNOTATION) == self._text

    async def _until(self, true: Callable[[], bool], within: float) -> None:
        deadline = asyncio.get_running_loop().time() + within
        # No event announces that the condition is true.
        while not true() and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_EVERY_S)


def unadmitted(pods: Iterable[KnownPod | None], listing: Listing | None) -> list[str]:
    """Return the keys of the ``pods`` that lack devices in the kubelet's list.

    Init containers that are not sidecars do not count, because the kubelet does not list their
    devices.
    """
    waiting = []
    for pod in pods:
        if pod is None or not pod.alive or pod.pod.metadata.deletion_timestamp is not None:
            continue
        if pod.pod.status.phase not in ("", "Pending"):
            continue
        spec, listed = pod.pod.spec, (listing or {}).get(pod.key)
        if any(
            listed is None or not listed.ids(each.name, resource)
            for each in (*spec.init_containers, *spec.containers)
            for resource in _asked(each)
            if listed is None or each in spec.containers or each.restart_policy == "Always"
        ):
            waiting.append(pod.key)
    return waiting


def _asked(container: Container) -> list[str]:
    """Return the device plugins' resources that a container requests, including MIG instances."""
    limits = container.resources.limits
    return [name for name in limits if is_served(name) and count_of(limits, name)]
