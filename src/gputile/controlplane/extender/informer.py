"""Applies watch events of the API server to the ledger.

When GPUs become free, pods that were refused shortly before are requeued.
"""

import asyncio
import gc
import logging
from collections.abc import Callable, Sequence
from typing import NoReturn

from gputile.api.core import Node, Pod
from gputile.api.resource_claims import ResourceClaim
from gputile.api.well_known import WAKE_ANNOTATION
from gputile.controlplane.event_loop import yielding_to_loop
from gputile.controlplane.evictable_pods import EvictablePods
from gputile.controlplane.extender.metrics import PendingPods
from gputile.core.ledger.booking import Booking, frees
from gputile.core.ledger.ledger import Ledger
from gputile.kube.client import Connection
from gputile.kube.errors import KubeError
from gputile.kube.objects import Applied, Deleted, Replaced, UnreadableObject, WatchEvent
from gputile.kube.writes import annotate_node

log = logging.getLogger(__name__)

# The longest lag of one watch behind another. The API server drops slower watchers.
WATCH_LAG_SECONDS = 30.0
PAUSE_SECONDS = 0.5


class Informer:
    """Applies the events of reflectors to ``ledger``, and then to ``observers``.

    ``on_freed`` is called with the name of a node whenever GPUs of the node may have become free.
    """

    def __init__(
        self,
        ledger: Ledger,
        on_freed: Callable[[str], None],
        observers: Sequence[EvictablePods | PendingPods] = (),
    ) -> None:
        self._ledger = ledger
        self._observers = observers
        self._on_freed = on_freed

    def _report_freed(self, uid: str, before: Booking | None) -> None:
        """Report the node whose GPUs may be free after a pod has lost the booking ``before``."""
        after = self._ledger.booking(uid)
        if before is not None and frees(before, after):
            self._on_freed(before.node)
        elif after is not None and after.reserved and after != before:
            # The pod's gang may have been refused because this reservation was missing.
            self._on_freed(after.node)

    def pods(self, event: WatchEvent[Pod]) -> None:
        match event:
            case Applied(pod):
                before = self._ledger.booking(pod.metadata.uid)
                self._ledger.apply_pod(pod)
                self._report_freed(pod.metadata.uid, before)
                for observer in self._observers:
                    observer.pod_applied(pod)
            case Deleted(pod):
                before = self._ledger.booking(pod.metadata.uid)
                self._ledger.remove_pod(pod.metadata.uid)
                self._report_freed(pod.metadata.uid, before)
                for observer in self._observers:
                    observer.pod_deleted(pod.metadata.uid)
            case UnreadableObject():
                pass  # The reflector logs the object. The last known state of the pod stays.

    async def listed_pods(self, event: Replaced[Pod]) -> None:
        """Apply a list of pods. Pods that are missing from the list are removed first.

        Other tasks that run meanwhile may see an outdated ledger, as they do if the watch lags. A
        replica waits until the whole list is applied before it becomes the leader.
        """
        position = self._ledger.changes.position
        unread = {each.uid for each in event.unreadable}
        listed = frozenset(unread.union(pod.metadata.uid for pod in event.objects))
        for _ in self._ledger.release_gone(listed):
            await asyncio.sleep(0)
        for observer in self._observers:
            async for uid in yielding_to_loop(observer.uids() - listed):
                observer.pod_deleted(uid)
        async for pod in yielding_to_loop(event.objects):
            if not pod.spec.node_name:
                self._ledger.doubt(pod.metadata.uid)
            self._ledger.apply_pod(pod)
            for observer in self._observers:
                observer.pod_applied(pod)
        self._free_any(position)
        # Garbage collections need not visit the listed objects, because they live long.
        gc.freeze()

    async def listed_nodes(self, event: Replaced[Node]) -> None:
        position = self._ledger.changes.position
        unread = {each.name for each in event.unreadable}
        listed = frozenset(unread.union(node.metadata.name for node in event.objects))
        self._ledger.replace_nodes((), listed)
        async for node in yielding_to_loop(event.objects):
            self._ledger.apply_node(node)
        self._free_any(position)

    def _free_any(self, position: int, node: str = "") -> None:
        """Call ``on_freed`` for ``node`` or any node, if the ledger changed after ``position``."""
        if self._ledger.changes.position != position and self._ledger.row_of:
            self._on_freed(node or next(iter(self._ledger.row_of)))

    def nodes(self, event: WatchEvent[Node]) -> None:
        position = self._ledger.changes.position
        match event:
            case Applied(node):
                self._ledger.apply_node(node)
                self._free_any(position, node.metadata.name)
            case Deleted(node):
                self._ledger.remove_node(node.metadata.name)
                self._free_any(position)
            case UnreadableObject():
                pass  # The reflector logs the object. The last known state of the node stays.

    def claims(self, event: WatchEvent[ResourceClaim]) -> None:
        """Apply an event about claims. kube-scheduler itself requeues pods after a deletion."""
        match event:
            case Applied(claim):
                self._ledger.apply_claim(claim)
            case Deleted(claim):
                self._ledger.remove_claim(claim.metadata.uid)
            case Replaced(claims, unreadable):
                self._ledger.replace_claims(claims, frozenset(each.uid for each in unreadable))
            case UnreadableObject():
                pass  # The reflector logs the object. The last known state of the claim stays.


class PodRequeuer:
    """Annotates a node when GPUs become free, so that kube-scheduler requeues refused pods.

    kube-scheduler retries a refused pod when something in the cluster changes. The watch of
    kube-scheduler may be slightly ahead of the extender's watch. Then kube-scheduler sees a pod end
    and retries at once, while the extender still sees the pod. The next retry would follow only
    after minutes. So if GPUs become free soon after a refusal, an annotation is written to a node.
    The change makes kube-scheduler retry after the extender has seen the free GPUs. Annotations are
    written at most every ``pause`` seconds.
    """

    def __init__(
        self,
        connection: Connection,
        monotonic: Callable[[], float],
        *,
        pause: float = PAUSE_SECONDS,
    ) -> None:
        self._connection = connection
        self._monotonic = monotonic
        self._pause = pause
        self._last_refusal = float("-inf")
        self._node = ""
        self._wanted = asyncio.Event()
        self.touched = 0

    def record_refusal(self) -> None:
        self._last_refusal = self._monotonic()

    def record_freed(self, node: str) -> None:
        """Record that GPUs of ``node`` became free or changed."""
        if self._monotonic() - self._last_refusal < WATCH_LAG_SECONDS:
            self._node = node
            self._wanted.set()

    async def run(self) -> NoReturn:
        """Annotate the nodes that ``record_freed`` records, so that refused pods are requeued."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            self.touched += 1
            mark = {WAKE_ANNOTATION: str(int(self._monotonic() * 1000))}
            try:
                await annotate_node(self._connection, self._node, mark)
            except KubeError as error:
                log.warning(
                    "refused pods are not requeued, because the node could not be annotated: %s",
                    error,
                )
            await asyncio.sleep(self._pause)
