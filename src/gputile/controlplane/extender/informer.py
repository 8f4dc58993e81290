"""Turns what the API server's watches deliver into events of the ledger.

Where GPUs become free, pods that were refused a moment before are tried again.
"""

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator, KeysView, Sequence
from typing import NoReturn, Protocol, TypeVar

from gputile.api.core import Node, Pod
from gputile.api.resource_claims import ResourceClaim
from gputile.api.well_known import WAKE_ANNOTATION
from gputile.core.ledger.booking import frees
from gputile.core.ledger.events import (
    ClaimApplied,
    ClaimDeleted,
    ClaimsReplaced,
    Doubted,
    LedgerEvent,
    NodeApplied,
    NodeDeleted,
    NodesReplaced,
    PodApplied,
    PodDeleted,
)
from gputile.core.ledger.ledger import Ledger
from gputile.kube.client import Connection
from gputile.kube.errors import KubeError
from gputile.kube.objects import Applied, Deleted, Replaced, UnreadableObject, WatchEvent
from gputile.kube.writes import annotate_node

log = logging.getLogger(__name__)

# By how much two watches of one API server may differ; slow watchers are dropped long before.
WATCH_LAG_SECONDS = 30.0
PAUSE_SECONDS = 0.5

Item = TypeVar("Item")


_PIECE = 50  # objects: some milliseconds, of nodes the most


class PodObserver(Protocol):
    """Takes in pods after the ledger."""

    def pod_applied(self, pod: Pod) -> None:
        """Note a pod that was created or changed."""

    def pod_deleted(self, uid: str) -> None:
        """Forget a pod."""

    def uids(self) -> KeysView[str]:
        """Return the UIDs of the pods that it keeps."""


class Informer:
    """Applies to ``ledger``, and then to ``observers``, what reflectors deliver.

    ``freed`` is told of nodes that may have more free now.
    """

    def __init__(self, ledger: Ledger, freed: Callable[[str], None], observers: Sequence[PodObserver] = ()) -> None:
        self._ledger = ledger
        self._observers = observers
        self._freed = freed

    def _apply(self, event: LedgerEvent) -> None:
        uid = event.pod.metadata.uid if isinstance(event, PodApplied) else ""
        uid = event.uid if isinstance(event, PodDeleted) else uid
        before, position = self._ledger.booking(uid), self._ledger.changes.position
        self._ledger.apply(event)
        after = self._ledger.booking(uid)
        if before is not None and frees(before, after):
            self._freed(before.node)
        elif after is not None and after.reserved and after != before:
            self._freed(after.node)  # its gang may have been refused for want of this place
        elif not uid and self._ledger.changes.position != position and self._ledger.row_of:
            name = event.node.metadata.name if isinstance(event, NodeApplied) else next(iter(self._ledger.row_of))
            self._freed(name)

    def pods(self, event: WatchEvent[Pod]) -> None:
        match event:
            case Applied(pod):
                self._apply(PodApplied(pod))
                for observer in self._observers:
                    observer.pod_applied(pod)
            case Deleted(pod):
                self._apply(PodDeleted(pod.metadata.uid))
                for observer in self._observers:
                    observer.pod_deleted(pod.metadata.uid)
            case Replaced():
                for _ in self._list_of_pods(event):
                    pass
            case UnreadableObject():
                pass  # logged by the reflector; the last word on the pod stands

    async def listed_pods(self, event: Replaced[Pod]) -> None:
        for _ in self._list_of_pods(event):
            await asyncio.sleep(0)

    async def listed_nodes(self, event: Replaced[Node]) -> None:
        for _ in self._list_of_nodes(event):
            await asyncio.sleep(0)

    def _list_of_pods(self, event: Replaced[Pod]) -> Iterator[None]:
        """Take a list of pods in steps.

        What is gone goes first. What is there and not taken in yet is as if the watch were that much behind; a replica
        that has to have seen it all waits for the end of this.
        """
        position = self._ledger.changes.position
        unread = {each.uid for each in event.unreadable}
        there = frozenset(unread.union(pod.metadata.uid for pod in event.objects))
        yield
        yield from self._ledger.release_gone(there)
        for observer in self._observers:
            for uids in _pieces(list(observer.uids() - there)):
                yield
                for uid in uids:
                    observer.pod_deleted(uid)
        for pods in _pieces(event.objects):
            yield
            for pod in pods:
                if not pod.spec.node_name:
                    self._ledger.apply(Doubted(pod.metadata.uid))
                self._ledger.apply(PodApplied(pod))
                for observer in self._observers:
                    observer.pod_applied(pod)
        self._free_any(position)
        yield
        # What a list brought stays for long: a full collection need not walk it again and again.
        gc.freeze()

    def _list_of_nodes(self, event: Replaced[Node]) -> Iterator[None]:
        position = self._ledger.changes.position
        unread = {each.name for each in event.unreadable}
        there = frozenset(unread.union(node.metadata.name for node in event.objects))
        self._ledger.apply(NodesReplaced((), there))
        for nodes in _pieces(event.objects):
            yield
            for node in nodes:
                self._ledger.apply(NodeApplied(node))
        self._free_any(position)

    def _free_any(self, position: int) -> None:
        if self._ledger.changes.position != position and self._ledger.row_of:
            self._freed(next(iter(self._ledger.row_of)))

    def nodes(self, event: WatchEvent[Node]) -> None:
        match event:
            case Applied(node):
                self._apply(NodeApplied(node))
            case Deleted(node):
                self._apply(NodeDeleted(node.metadata.name))
            case Replaced():
                for _ in self._list_of_nodes(event):
                    pass
            case UnreadableObject():
                pass  # logged by the reflector; the last word on the node stands

    def claims(self, event: WatchEvent[ResourceClaim]) -> None:
        """Take in claims; kube-scheduler itself tries pods again when one is gone."""
        match event:
            case Applied(claim):
                self._ledger.apply(ClaimApplied(claim))
            case Deleted(claim):
                self._ledger.apply(ClaimDeleted(claim.metadata.uid))
            case Replaced(claims, unreadable):
                self._ledger.apply(ClaimsReplaced(claims, frozenset(each.uid for each in unreadable)))
            case UnreadableObject():
                pass  # logged by the reflector; the last word on the claim stands


def _pieces(objects: Sequence[Item]) -> Iterator[Sequence[Item]]:
    return (objects[start : start + _PIECE] for start in range(0, len(objects), _PIECE))


class PodRequeuer:
    """Touches nodes when GPUs become free, one every ``pause`` seconds, so that refused pods are tried again.

    kube-scheduler tries a refused pod again when something in the cluster changes. Its watch may be a moment ahead of
    ours: it sees a pod go, asks again at once, and we still see the pod there. It would not ask a third time for
    minutes. So whenever GPUs become free soon after a refusal, the node's annotation is touched: an event that
    kube-scheduler hears after we have seen the GPUs free.
    """

    def __init__(self, connection: Connection, monotonic: Callable[[], float], *, pause: float = PAUSE_SECONDS) -> None:
        self._connection = connection
        self._monotonic = monotonic
        self._pause = pause
        self._last_refusal = float("-inf")
        self._node = ""
        self._wanted = asyncio.Event()
        self.touched = 0

    def refused(self) -> None:
        self._last_refusal = self._monotonic()

    def freed(self, node: str) -> None:
        """Note that GPUs of ``node`` became free, or that it got others."""
        if self._monotonic() - self._last_refusal < WATCH_LAG_SECONDS:
            self._node = node
            self._wanted.set()

    async def run(self) -> NoReturn:
        """Touch a node whenever that is wanted, for ever. One is enough: the event wakes all pods that were refused."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            self.touched += 1
            mark = {WAKE_ANNOTATION: str(int(self._monotonic() * 1000))}
            try:
                await annotate_node(self._connection, self._node, mark)
            except KubeError as error:
                log.warning("kube-scheduler could not be woken: %s", error)
            await asyncio.sleep(self._pause)
