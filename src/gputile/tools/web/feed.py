"""Keeps the page up to date: it watches nodes and pods, and logs what changes for the viewers."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from gputile.api.core import Node, Pod
from gputile.kube.client import Connection
from gputile.kube.errors import AnswerLost, ConnectionFailed, KubeError, ServerError
from gputile.kube.objects import Applied, Deleted, Replaced, UnreadableObject, WatchEvent
from gputile.kube.reflector import Reflector
from gputile.tools.web.records import Difference, FeedStatus
from gputile.tools.web.state import PageState
from gputile.tools.web.stream import ChangeLog

GATHER_S: Final = 0.1  # changes so close together are sent as one
LOOK_EVERY_S: Final = 1.0
ASK_EVERY_S: Final = 15.0
ANSWERED_WITHIN_S: Final = 5.0  # of each attempt
_QUESTION: Final = "/version"  # which costs the API server nothing, and which whoever logs in may ask
_PIECE: Final = 200  # objects, after which others get their turn
_MOST_AT_ONCE: Final = 50  # nodes and pods of one change: to look at a node with 128 pods takes half a millisecond


class Feed:
    """The page's state, and the log of its changes."""

    def __init__(self, connection: Connection, state: PageState) -> None:
        self.state = state
        self.log = ChangeLog()
        self.status = FeedStatus()
        self._connection = connection
        self._unanswered: KubeError | None = None  # why the latest question had no answer
        self._dirty = asyncio.Event()
        self._pods = Reflector(connection, "/api/v1/pods", Pod, self._pod, on_list=self._pods_listed)
        self._nodes = Reflector(connection, "/api/v1/nodes", Node, self._node, on_list=self._nodes_listed)

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for work in (self._pods.run(), self._nodes.run(), self._publish(), self._look(), self._ask()):
                group.create_task(work)

    async def publish(self) -> None:
        """Write what has changed into the log now: much of it as several changes, between which others get their turn.

        The page and the log agree between them, too.
        """
        while True:
            difference = self.state.take_difference(_MOST_AT_ONCE)
            if difference:
                self.log.append(change_event(self.log.revision + 1, difference), difference)
            if not self.state.differs:
                return
            await asyncio.sleep(0)

    async def _publish(self) -> None:
        while True:
            await self._dirty.wait()
            await asyncio.sleep(GATHER_S)
            self._dirty.clear()
            await self.publish()

    async def _look(self) -> None:
        """Let time pass, and see whether the cluster answers."""
        while True:
            self.state.time_passed(time.time_ns())
            self._dirty.set()
            troubles = (self._nodes.trouble, self._pods.trouble, self._unanswered)
            text = next((str(each) for each in troubles if each is not None), "")
            if text != self.status.trouble:
                since = self.status.since if text and self.status.trouble else int(time.time())
                self.status = FeedStatus(text, since)
                self.log.append(_event("status", self.log.revision + 1, msgspec.json.encode(self.status)))
            await asyncio.sleep(LOOK_EVERY_S)

    async def _ask(self) -> None:
        """Ask the API server something: one that hangs keeps its watches open for minutes, and they are only silent."""
        while True:
            await asyncio.sleep(ASK_EVERY_S)
            try:
                await self._connection.get(_QUESTION, within=ANSWERED_WITHIN_S)
            except (ConnectionFailed, AnswerLost, ServerError) as error:
                self._unanswered = error
            except KubeError:
                self._unanswered = None  # a refusal is an answer
            else:
                self._unanswered = None

    def _pod(self, event: WatchEvent[Pod]) -> None:
        match event:
            case Applied(pod):
                self.state.pod_applied(pod)
            case Deleted(pod):
                self.state.pod_deleted(pod.metadata.uid)
            case Replaced() | UnreadableObject():
                return  # lists come another way; of what cannot be read the last word stands
        self._dirty.set()

    def _node(self, event: WatchEvent[Node]) -> None:
        match event:
            case Applied(node):
                self.state.node_applied(node)
            case Deleted(node):
                self.state.node_deleted(node.metadata.name)
            case Replaced() | UnreadableObject():
                return
        self._dirty.set()

    async def _pods_listed(self, listed: Replaced[Pod]) -> None:
        unread = {each.uid for each in listed.unreadable}
        self.state.pods_replaced((), frozenset(unread.union(pod.metadata.uid for pod in listed.objects)))
        for number, pod in enumerate(listed.objects):
            self.state.pod_applied(pod)
            await self._pause(number, listed.objects)
        self._dirty.set()

    async def _nodes_listed(self, listed: Replaced[Node]) -> None:
        unread = {each.name for each in listed.unreadable}
        self.state.nodes_replaced((), frozenset(unread.union(node.metadata.name for node in listed.objects)))
        for number, node in enumerate(listed.objects):
            self.state.node_applied(node)
            await self._pause(number, listed.objects)
        self._dirty.set()

    async def _pause(self, number: int, objects: Sequence[object]) -> None:
        if number % _PIECE == 0 and len(objects) > _PIECE:
            await asyncio.sleep(0)


def change_event(revision: int, difference: Difference) -> bytes:
    """Return a difference as an event for browsers."""
    return _event("change", revision, msgspec.json.encode(difference))


def _event(kind: str, revision: int, data: bytes) -> bytes:
    """Return a server-sent event; JSON has no line ends, so the data is one line."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (revision, kind.encode(), data)
