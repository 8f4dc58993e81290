"""Watches nodes, pods and claims for the page, and streams the changes to browsers.

A slow browser must never delay others. The feed therefore disconnects browsers that stop reading.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

import msgspec
from aiohttp import web

from gputile.api.core import Node, Pod
from gputile.api.quantity import MIB
from gputile.api.resource_claims import RESOURCE_CLAIMS_PATH, ResourceClaim
from gputile.kube.client import Connection
from gputile.kube.errors import AnswerLost, ConnectionFailed, KubeError, ServerError
from gputile.kube.objects import Applied, Deleted, Replaced, UnreadableObject, WatchEvent
from gputile.kube.reflector import Reflector
from gputile.tools.web.guard import SECURITY_HEADERS
from gputile.tools.web.records import Difference, FeedStatus
from gputile.tools.web.state import PageState

GATHER_S: Final = 0.1  # changes within this time are sent together
TICK_EVERY_S: Final = 1.0
CHECK_EVERY_S: Final = 15.0
CHECK_TIMEOUT_S: Final = 5.0  # the time limit for a check of the API server
_CHECKED_PATH: Final = "/version"  # cheap, and every authenticated user may read it
_OBJECTS: Final = 200  # how many listed objects are applied before other tasks run
# The most nodes, and the most pods, in one change. Comparing a node with 128 pods takes 0.5 ms.
_MOST_AT_ONCE: Final = 50
MOST_CHANGES: Final = 512
MOST_BYTES: Final = 16 * MIB
STALLED_S: Final = 30.0  # a browser that reads nothing for this long is disconnected
# Heartbeats prevent proxies from closing an idle stream, and show the page that the stream works.
HEARTBEAT_S: Final = 15.0
Object = TypeVar("Object")
_PIECE: Final = 256 * 1024
RELOAD: Final = b"event: reload\ndata: {}\n\n"
# Heartbeats are events, because browsers do not pass the comments of a stream to the page.
_HEARTBEAT: Final = b"event: beat\ndata: {}\n\n"


@dataclass(frozen=True, slots=True)
class Change:
    """An entry of ``ChangeLog``, encoded for viewers who may see all pods.

    ``difference`` is None for an entry that is the same for all viewers, such as a status.
    """

    revision: int
    encoded: bytes
    difference: Difference | None = None


class ChangeLog:
    """The latest changes, limited in number and in bytes.

    For each viewer, the server stores only the revision of the last change sent, so a slow viewer
    costs no memory. If later changes have left the log, the viewer must reload the page.
    A change is encoded once for all viewers who may see all pods.
    """

    def __init__(self, most: int = MOST_CHANGES, most_bytes: int = MOST_BYTES) -> None:
        self.revision = 0
        self._most = most
        self._most_bytes = most_bytes
        self._entries: deque[Change] = deque()
        self._bytes = 0
        self._appended = asyncio.Event()

    def append(self, encoded: bytes, difference: Difference | None = None) -> None:
        """Append a change, and wake all viewers that wait for changes."""
        self.revision += 1
        self._entries.append(Change(self.revision, encoded, difference))
        self._bytes += len(encoded)
        while len(self._entries) > self._most or self._bytes > self._most_bytes:
            self._bytes -= len(self._entries.popleft().encoded)
        self._appended.set()
        self._appended = asyncio.Event()

    def since(self, revision: int) -> list[Change] | None:
        """Return the changes after ``revision``, or None if that revision is too old or unknown."""
        behind = self.revision - revision
        if behind < 0 or behind > len(self._entries):
            return None
        return list(islice(self._entries, len(self._entries) - behind, None))

    async def wait_for_change(self, revision: int) -> None:
        while self.revision <= revision:
            await self._appended.wait()


class BrowserStream:
    """A long or endless response to a browser."""

    def __init__(self, request: web.BaseRequest, media_type: str) -> None:
        self._request = request
        bound = request[SECURITY_HEADERS]
        self.answer = web.StreamResponse(headers={**bound, "Content-Type": media_type})

    async def begin(self) -> None:
        await self.answer.prepare(self._request)

    async def write(self, body: bytes) -> bool:
        """Send a part of the body. Return False if the browser has disconnected or is stalled."""
        for start in range(0, len(body), _PIECE):
            try:
                async with asyncio.timeout(STALLED_S):
                    await self.answer.write(memoryview(body)[start : start + _PIECE])
            except TimeoutError:
                if self._request.transport is not None:
                    self._request.transport.abort()
                return False
            except ConnectionError:
                return False
        return True

    async def follow(
        self,
        log: ChangeLog,
        revision: int,
        encode: Callable[[Change], bytes],
        has_same_rights: Callable[[], Awaitable[bool]],
    ) -> None:
        """Stream changes after ``revision``, until the browser disconnects or must reload.

        ``encode`` encodes the part of a change that the viewer may see. ``has_same_rights`` returns
        whether the viewer's rights are unchanged.
        """
        while True:
            found = log.since(revision) if await has_same_rights() else None
            if found is None:
                await self.write(RELOAD)
                return
            revision += len(found)
            if not await self.write(b"".join(map(encode, found)) if found else _HEARTBEAT):
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await log.wait_for_change(revision)


class Feed:
    def __init__(self, connection: Connection, state: PageState, *, claims: bool = True) -> None:
        """Prepare the watches. ``claims`` states whether ResourceClaims are watched too."""
        self.state = state
        self.log = ChangeLog()
        self.status = FeedStatus()
        self._connection = connection
        self._check_error: KubeError | None = None  # why the latest check failed
        self._dirty = asyncio.Event()
        self._pods = Reflector(
            connection, "/api/v1/pods", Pod, self._pod, on_list=self._pods_listed
        )
        self._nodes = Reflector(
            connection, "/api/v1/nodes", Node, self._node, on_list=self._nodes_listed
        )
        self._claims = (
            Reflector(connection, RESOURCE_CLAIMS_PATH, ResourceClaim, self._claim)
            if claims
            else None
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for work in (
                self._pods.run(),
                self._nodes.run(),
                self._publish(),
                self._tick(),
                self._check_api_server(),
            ):
                group.create_task(work)
            if self._claims is not None:
                group.create_task(self._claims.run())

    async def publish(self) -> None:
        """Append all pending changes of the page to the log, in parts.

        Other tasks run between the parts. They see a page with exactly the changes in the log.
        """
        while True:
            difference = self.state.next_difference(_MOST_AT_ONCE)
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

    async def _tick(self) -> None:
        """Expire reservations, and check whether the cluster answers."""
        while True:
            self.state.time_passed(time.time_ns())
            self._dirty.set()
            of_claims = self._claims.last_error if self._claims is not None else None
            troubles = (self._nodes.last_error, self._pods.last_error, of_claims, self._check_error)
            text = next((str(each) for each in troubles if each is not None), "")
            if text != self.status.trouble:
                since = self.status.since if text and self.status.trouble else int(time.time())
                self.status = FeedStatus(text, since)
                self.log.append(
                    _event("status", self.log.revision + 1, msgspec.json.encode(self.status))
                )
            await asyncio.sleep(TICK_EVERY_S)

    async def _check_api_server(self) -> None:
        """Check regularly that the API server answers.

        Watches do not show that an API server hangs, because they stay open without events.
        """
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            try:
                await self._connection.get(_CHECKED_PATH, within=CHECK_TIMEOUT_S)
            except (ConnectionFailed, AnswerLost, ServerError) as error:
                self._check_error = error
            except KubeError:
                self._check_error = None  # an API server that refuses a request is available
            else:
                self._check_error = None

    def _pod(self, event: WatchEvent[Pod]) -> None:
        match event:
            case Applied(pod):
                self.state.pod_applied(pod)
            case Deleted(pod):
                self.state.pod_deleted(pod.metadata.uid)
            case Replaced() | UnreadableObject():
                # _pods_listed applies lists. An unreadable pod keeps its last known state.
                return
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

    def _claim(self, event: WatchEvent[ResourceClaim]) -> None:
        match event:
            case Applied(claim):
                self.state.claim_applied(claim)
            case Deleted(claim):
                self.state.claim_deleted(claim.metadata.uid)
            case Replaced(claims, unreadable):
                self.state.claims_replaced(claims, frozenset(each.uid for each in unreadable))
            case UnreadableObject():
                return
        self._dirty.set()

    async def _pods_listed(self, listed: Replaced[Pod]) -> None:
        unreadable = {each.uid for each in listed.unreadable}
        self.state.pods_replaced(
            (), frozenset(unreadable.union(pod.metadata.uid for pod in listed.objects))
        )
        await self._apply_list(listed.objects, self.state.pod_applied)

    async def _nodes_listed(self, listed: Replaced[Node]) -> None:
        unreadable = {each.name for each in listed.unreadable}
        self.state.nodes_replaced(
            (), frozenset(unreadable.union(node.metadata.name for node in listed.objects))
        )
        await self._apply_list(listed.objects, self.state.node_applied)

    async def _apply_list(self, objects: Sequence[Object], apply: Callable[[Object], None]) -> None:
        """Apply the objects of a list, and let other tasks run after every ``_OBJECTS`` objects."""
        for number, each in enumerate(objects, 1):
            apply(each)
            if number % _OBJECTS == 0:
                await asyncio.sleep(0)
        self._dirty.set()


def change_event(revision: int, difference: Difference) -> bytes:
    return _event("change", revision, msgspec.json.encode(difference))


def _event(kind: str, revision: int, data: bytes) -> bytes:
    """Return a server-sent event. ``data`` must be JSON without line breaks."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (revision, kind.encode(), data)
