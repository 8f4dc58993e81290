"""Answers requests for files, state, changes and usage, and questions about pods and manifests."""

import asyncio
import hashlib
import logging
import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote

import msgspec
from aiohttp import web

from gputile.api.core import Pod
from gputile.api.workloads import Event
from gputile.kube.client import Connection
from gputile.kube.errors import Forbidden, KubeError
from gputile.kube.objects import list_all
from gputile.support.http_requests import BodyReader, BodyRefused, routed
from gputile.support.http_server import Handler
from gputile.tools.simulator.explanation import ExplainAnswer, placement_of
from gputile.tools.web.feed import BrowserStream, Change, Feed, change_event
from gputile.tools.web.guard import RIGHTS, SECRET
from gputile.tools.web.questions import (
    ClusterSnapshot,
    QuestionQueue,
    TooManyQuestions,
    explanation,
    what_if,
)
from gputile.tools.web.records import PageAnswer, PodUsageAnswer
from gputile.tools.web.usage import MOST_NODES, UsageFeed
from gputile.tools.web.viewers import (
    ALL_RIGHTS,
    Rights,
    Viewers,
    visible_difference,
    visible_nodes,
    visible_pending,
    visible_pod_usage,
    visible_usage,
)

log = logging.getLogger(__name__)

LARGEST_MANIFEST: Final = 256 * 1024
FIRST_NODES: Final = 64  # more rows than any screen shows
# Limits of waiting questions about pods. Fifty people may open the same link at the same time.
_MOST_WAITING: Final = 64
_MOST_WAITING_OF_ONE: Final = 16
_MOST_MANIFESTS: Final = 8  # a manifest takes longer than a question about a pod
_MOST_MANIFESTS_OF_ONE: Final = 2
MOST_TEXTS: Final = 8  # the largest number of descriptions of added nodes
_EVENTS_SHOWN: Final = 50
_NUMBERS: Final = re.compile(r"([0-9]+)")
_AGAIN_S: Final = "2"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    body: bytes
    media_type: str


def assets() -> dict[str, Asset]:
    """Return the files that the browser loads. The page must load nothing from other hosts."""
    found = {}
    for each in files("gputile.tools.web").joinpath("static").iterdir():
        kind = _TYPES.get(f".{each.name.rpartition('.')[2]}")
        if kind is not None:
            found[each.name] = Asset(each.read_bytes(), kind)
    return found


class PodEventLine(msgspec.Struct, frozen=True, rename="camel"):
    type: str
    reason: str
    message: str
    when: str


class PodAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """The response of ``/api/pod``. If Events cannot be shown, ``events_unknown`` says why."""

    explanation: ExplainAnswer
    created: str
    events: list[PodEventLine]
    events_unknown: str = ""


class PageApp:
    """The HTTP handlers of the page.

    ``cluster`` is the name of the cluster that the page shows. ``snapshot`` returns the objects
    from which questions about pods and manifests are answered. Without a login, ``viewers`` is
    None, and only the person who started the page can open it.
    """

    def __init__(
        self,
        feed: Feed,
        usage: UsageFeed,
        connection: Connection,
        snapshot: Callable[[], Awaitable[ClusterSnapshot]],
        viewers: Viewers | None,
        cluster: str,
    ) -> None:
        self._feed = feed
        self._usage_feed = usage
        self._connection = connection
        self._viewers = viewers
        self._epoch = secrets.token_hex(8)
        self._cluster = cluster
        self._encoded = -1, b""  # the latest encoded state, with its revision
        self._encoding = asyncio.Lock()  # partial states are encoded one at a time, in a thread
        self._questions = QuestionQueue(snapshot, _MOST_WAITING, _MOST_WAITING_OF_ONE)
        self._manifests = QuestionQueue(snapshot, _MOST_MANIFESTS, _MOST_MANIFESTS_OF_ONE)
        self._bodies = BodyReader(LARGEST_MANIFEST)

    def app(self) -> Handler:
        found = assets()

        def file_of(name: str) -> Handler:
            async def file(_: web.BaseRequest) -> web.Response:
                return web.Response(
                    body=found[name].body, headers={"Content-Type": found[name].media_type}
                )

            return file

        reads: dict[str, Handler] = {
            "/": file_of("page.html"),
            **{f"/static/{name}": file_of(name) for name in found},
            "/api/first": self._first,
            "/api/state": self._state,
            "/api/changes": self._changes,
            "/api/pod": self._pod,
            "/api/usage": self._usage,
            "/api/pod-usage": self._pod_usage,
        }
        routes = {path: ("GET", handler) for path, handler in reads.items()}
        return routed({**routes, "/api/what-if": ("POST", self._what_if)})

    def _rights(self, request: web.BaseRequest) -> Rights:
        """Return the viewer's rights. Without a login the viewer may see everything."""
        return ALL_RIGHTS if self._viewers is None else request[RIGHTS]

    def _viewer(self, request: web.BaseRequest) -> str:
        """Return the viewer's user name, or "" if there is no login."""
        return "" if self._viewers is None else self._viewers.user(request[SECRET])

    def prepare(self) -> None:
        """Encode the state in advance, so that the first viewer does not wait for the encoding."""
        self._encoded_state()

    async def _first(self, request: web.BaseRequest) -> web.Response:
        """Return the first nodes, which the browser draws while it loads all nodes."""
        await self._feed.publish()
        answer, rights = self._answer(), self._rights(request)
        if len(answer.nodes) > FIRST_NODES:
            nodes = sorted(answer.nodes, key=lambda node: _natural_key(node.name))[:FIRST_NODES]
            answer = msgspec.structs.replace(answer, nodes=nodes, pending=[], more=True)
        return _json(answer if rights.everywhere else self._visible(answer, rights))

    async def _state(self, request: web.BaseRequest) -> web.StreamResponse:
        rights = self._rights(request)
        if rights.everywhere:
            await self._feed.publish()
            body = self._encoded_state()
        else:
            async with self._encoding:
                await self._feed.publish()
                answer = self._answer()
                body = await asyncio.to_thread(
                    lambda: msgspec.json.encode(self._visible(answer, rights))
                )
        stream = BrowserStream(request, "application/json")
        await stream.begin()
        await stream.write(body)
        return stream.answer

    def _encoded_state(self) -> bytes:
        if self._encoded[0] != self._feed.log.revision:
            answer = self._answer()
            self._encoded = answer.revision, msgspec.json.encode(answer)
        return self._encoded[1]

    def _answer(self) -> PageAnswer:
        page = self._feed.state.page
        return PageAnswer(
            epoch=self._epoch,
            revision=self._feed.log.revision,
            cluster=self._cluster,
            unit_mib=self._feed.state.configuration.unit_mib,
            status=self._feed.status,
            nodes=[page.nodes[name] for name in sorted(page.nodes)],
            pending=[page.pending[key] for key in sorted(page.pending)],
            login=self._viewers is not None,
        )

    def _visible(self, answer: PageAnswer, rights: Rights) -> PageAnswer:
        nodes = visible_nodes(answer.nodes, rights)
        pending = visible_pending(answer.pending, rights)
        epoch = self._epoch_for(rights)
        return msgspec.structs.replace(
            answer, epoch=epoch, nodes=nodes, pending=pending, partial=True
        )

    def _epoch_for(self, rights: Rights) -> str:
        """Return the epoch, which identifies this process and the viewer's rights."""
        if rights.everywhere:
            return self._epoch
        namespaces = " ".join(sorted(rights.namespaces)).encode()
        return f"{self._epoch}-{hashlib.sha256(namespaces).hexdigest()[:16]}"

    async def _changes(self, request: web.BaseRequest) -> web.StreamResponse:
        """Stream the changes that are newer than the revision that the browser has.

        When the browser reconnects, it sends this revision in ``Last-Event-ID``.
        """
        text = request.headers.get("last-event-id") or request.query.get("after", "")
        known = text.isascii() and text.isdecimal() and len(text) <= 18
        rights = self._rights(request)
        same = request.query.get("epoch") == self._epoch_for(rights)
        stream = BrowserStream(request, "text/event-stream")
        await stream.begin()

        def encode(change: Change) -> bytes:
            if rights.everywhere or change.difference is None:
                return change.encoded
            return change_event(change.revision, visible_difference(change.difference, rights))

        async def has_same_rights() -> bool:
            return self._viewers is None or await self._viewers.rights(request[SECRET]) == rights

        revision = int(text) if known and same else -1
        await stream.follow(self._feed.log, revision, encode, has_same_rights)
        return stream.answer

    async def _usage(self, request: web.BaseRequest) -> web.Response:
        tiles = self._feed.state.page.nodes
        names = dict.fromkeys(name for name in request.query.getall("node", []) if name in tiles)
        return _json(
            visible_usage(
                self._usage_feed.of_nodes(list(names)[:MOST_NODES]), self._rights(request)
            )
        )

    async def _pod_usage(self, request: web.BaseRequest) -> web.Response:
        pod = self._requested_pod(request)
        if pod is None:
            return _pod_not_found()
        if pod.spec.node_name not in self._feed.state.page.nodes:
            return _json(PodUsageAnswer())
        found = self._usage_feed.of_pod(pod.spec.node_name, pod.key)
        return _json(visible_pod_usage(found, self._rights(request)))

    def _requested_pod(self, request: web.BaseRequest) -> Pod | None:
        """Return the pod that a request names, or None if the viewer can see no such pod."""
        namespace = request.query.get("namespace", "")
        if not self._rights(request).sees(namespace):
            return None
        key = f"{namespace}/{request.query.get('name', '')}"
        return next((each for each in self._feed.state.pods if each.key == key), None)

    async def _pod(self, request: web.BaseRequest) -> web.Response:
        pod = self._requested_pod(request)
        if pod is None:
            return _pod_not_found()
        try:
            answer = await self._questions.ask(
                lambda snapshot: explanation(pod, snapshot), self._viewer(request)
            )
        except TooManyQuestions:
            return _busy()
        except KubeError as error:
            return _unavailable(error)
        if not self._rights(request).everywhere:
            answer = _without_other_pods(answer, pod)
        events, unknown = await self._events_for(request, pod)
        return _json(PodAnswer(answer, pod.metadata.creation_timestamp or "", events, unknown))

    async def _events_for(
        self, request: web.BaseRequest, pod: Pod
    ) -> tuple[list[PodEventLine], str]:
        if self._viewers is not None:
            try:
                may = await self._viewers.may_list(
                    request[SECRET], "events", pod.metadata.namespace
                )
            except KubeError as error:
                return [], f"the Events cannot be read: {error}"
            if not may:
                return [], "you may not list the Events of this namespace"
        return await self._events(pod)

    async def _events(self, pod: Pod) -> tuple[list[PodEventLine], str]:
        meta = pod.metadata
        path = f"/api/v1/namespaces/{quote(meta.namespace, safe='')}/events"
        query = {
            "fieldSelector": "involvedObject.kind=Pod,"
            f"involvedObject.name={meta.name},involvedObject.uid={meta.uid}"
        }
        try:
            found = await list_all(self._connection, path, Event, query)
        except Forbidden as error:
            return [], f"you may not list the Events of this namespace: {error}"
        except KubeError as error:
            return [], f"the Events cannot be read: {error}"
        found = sorted(found, key=lambda each: each.when, reverse=True)[:_EVENTS_SHOWN]
        return [PodEventLine(each.type, each.reason, each.message, each.when) for each in found], ""

    async def _what_if(self, request: web.BaseRequest) -> web.Response:
        if not self._rights(request).everywhere:
            return web.Response(
                status=403,
                text="only viewers who may list the pods of all namespaces can use What if\n",
            )
        try:
            body = await self._bodies.body(request)
        except BodyRefused as refused:
            return web.Response(status=refused.status, text=f"{refused}\n")
        try:
            added = request.query.getall("node", [])[:MOST_TEXTS]
            answer = await self._manifests.ask(
                lambda snapshot: what_if(body, snapshot, added), self._viewer(request)
            )
            return _json(answer)
        except TooManyQuestions:
            return _busy()
        except KubeError as error:
            return _unavailable(error)


def _natural_key(name: str) -> list[str | int]:
    """Return a sort key that orders node-10 after node-9, as the browser does."""
    return [int(part) if number % 2 else part for number, part in enumerate(_NUMBERS.split(name))]


def _without_other_pods(answer: ExplainAnswer, pod: Pod) -> ExplainAnswer:
    """Remove other pods from an explanation for a viewer without permission to list them."""
    unseen = "The pod has no node. Only viewers who may list the pods of all namespaces see why."
    text = placement_of(pod)[1] if answer.node else unseen
    return msgspec.structs.replace(answer, text=text, nodes=[], changes=[])


def _pod_not_found() -> web.Response:
    text = "this pod does not exist (any more), or you may not list the pods of its namespace\n"
    return web.Response(status=404, text=text)


def _busy() -> web.Response:
    text = "too many requests are waiting for an answer; try again in a moment\n"
    return web.Response(status=503, text=text, headers={"Retry-After": _AGAIN_S})


def _unavailable(error: KubeError) -> web.Response:
    return web.Response(
        status=503, text=f"the cluster cannot be read: {error}\n", headers={"Retry-After": _AGAIN_S}
    )


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
