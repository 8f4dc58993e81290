"""An API server over a real socket: stores objects, lists in pages, watches, and misbehaves when it is told to.

Objects are stored as raw JSON so that a test can store what no real API server would. Faults are consumed in the order
in which they were added, each by the first request that it fits.
"""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from gputile.api.kubernetes import kubernetes_kinds
from gputile.kube.client import Attempts, Backoff, Connection
from gputile.kube.config import Access
from gputile.kube.credentials import FixedCredentials
from tests.conftest import HANGS_S

Object = dict[str, Any]
QUICK = Backoff(first=0.001, longest=0.004)
_VERSION = re.compile(r"/(?:api|apis(?=/.*/))/([a-z0-9./-]*v[0-9][a-z0-9]*)")
_WITHOUT = re.compile("Namespace|Node|Cluster.*|.*Class|PersistentVolume|CustomResourceDefinition")
_POD = re.compile(r"/api/v1/namespaces/[^/]+/pods/(?P<name>[^/]+)(?P<what>/[a-z]+)?")


@dataclass
class Request:
    """What arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        if self.method != "GET":
            return self.method.lower()
        if "watch" in self.query:
            return "watch"
        return "page" if "continue" in self.query else "get"

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Fault:
    """``what`` happens to the next request of ``kind``; in a watch, after ``after`` lines.

    Any request: "answer" (``status``, ``headers``, ``body``), "hang", "reset" (not executed), "lose" (executed, no
    answer), "cut" (half the answer). Watches: "cut" (mid-line), "silent", "end", "duplicate", "backwards", "garbage"
    (a line that is no JSON), "error" (an ERROR event of ``status``).
    """

    kind: str
    what: str
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    after: int = 0


class Refused(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def _selected(obj: Object, selector: str) -> bool:
    for term in selector.split(","):
        path, _, wanted = term.partition("=")
        found: Any = obj
        for name in path.split("."):
            found = found.get(name, "")
        if found != wanted:
            return False
    return True


def _labelled(obj: Object, selector: str) -> bool:
    """Return whether an object has the labels: of Kubernetes' selectors, equality and sets of values.

    One that was stored without a field for labels stands for one that has those that are asked for.
    """
    labels = obj.get("metadata", {}).get("labels")
    if labels is None:
        return True
    for term in re.findall(r"[^,(]+(?:\([^)]*\))?", selector):
        found = re.fullmatch(r"(?P<key>[^=! ]+)(?:(?P<verb>==?|!=| in | notin )(?P<values>[^=]*))?", term)
        if found is None:
            raise Refused(400, f"the selector {term} is none that this API server knows")
        key, verb, values = found["key"], found["verb"], (found["values"] or "").strip("()").split(",")
        there = key in labels and (verb is None or labels[key] in [value.strip() for value in values])
        without = key not in labels or labels[key] not in [value.strip() for value in values]
        if not (without if verb in ("!=", " notin ") else there):
            return False
    return True


def status_body(status: int, reason: str) -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": reason.lower(),
        "code": status,
        "metadata": {},
    }


class FakeApiServer:
    def __init__(self) -> None:
        self.url = ""
        self.version = 100
        self.store: dict[str, dict[str, Object]] = {}
        self.history: list[tuple[int, str, str, Object]] = []
        self.oldest = 0
        self.gone_as_event = False
        self.token: str | None = None
        self.kinds: dict[str, list[str]] = {}  # by version: kinds beside Kubernetes' own
        self.refused: dict[str, tuple[int, str]] = {}  # by path: the status and reason of every answer
        self.proxied: dict[str, tuple[int, bytes]] = {}  # by path: what a pod answers that is asked through the server
        self.reviews: dict[str, Callable[[Object], Object]] = {}  # by path: the status of a review that is posted
        self.faults: list[Fault] = []
        self.answering = asyncio.Event()  # while it is clear, connections are taken and nothing is answered
        self.answering.set()
        self.requests: list[Request] = []
        self._snapshots: dict[str, tuple[int, list[Object]]] = {}
        self._changed = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()

    # what a test does to the cluster

    def put(self, collection: str, obj: Object) -> Object:
        """Create or replace an object, with a new version."""
        self.version += 1
        name = obj["metadata"]["name"]
        objects = self.store.setdefault(collection, {})
        uid = objects[name]["metadata"]["uid"] if name in objects else f"uid-{self.version}"
        stored = {**obj, "metadata": {"uid": uid, **obj["metadata"], "resourceVersion": str(self.version)}}
        self._log("MODIFIED" if name in objects else "ADDED", collection, stored)
        objects[name] = stored
        return stored

    def delete(self, collection: str, name: str) -> None:
        self.version += 1
        stored = self.store[collection].pop(name)
        stored = {**stored, "metadata": {**stored["metadata"], "resourceVersion": str(self.version)}}
        self._log("DELETED", collection, stored)

    def bookmark(self, collection: str) -> None:
        self.version += 1
        self._log("BOOKMARK", collection, {"metadata": {"resourceVersion": str(self.version)}})

    def compact(self) -> None:
        """Forget what a watch or a page of a list would go on from."""
        self.oldest = self.version
        self.history.clear()
        self._snapshots.clear()

    def fault(self, kind: str, what: str, **details: Any) -> None:
        self.faults.append(Fault(kind, what, **details))

    def break_connections(self) -> None:
        """Break all connections that there are, watches among them."""
        for task in self._connections:
            task.cancel()

    def access(self, tls: ssl.SSLContext | None = None) -> Access:
        return Access(self.url, FixedCredentials(None, tls))

    def count(self, kind: str) -> int:
        return sum(request.kind == kind for request in self.requests)

    def _log(self, what: str, collection: str, obj: Object) -> None:
        self.history.append((self.version, what, collection, obj))
        self._changed.set()
        self._changed = asyncio.Event()

    # how it is reached

    @asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator["FakeApiServer"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        port = server.sockets[0].getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        try:
            yield self
        finally:
            for _ in range(5):  # a connection in the middle of being accepted would never be closed
                await asyncio.sleep(0)
            server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await server.wait_closed()

    @asynccontextmanager
    async def connected(self, attempts: int = 4, within: float = HANGS_S) -> AsyncIterator[Connection]:
        """Run, and yield a connection that tries again at once."""
        async with self.running(), Connection(self.access(), attempts=Attempts(attempts, QUICK), within=within) as it:
            yield it

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._connections.add(task)
        try:
            while True:
                request = await _read(reader)
                self.requests.append(request)
                if not await self._answer(request, writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        await self.answering.wait()
        fault = self._fault_for(request)
        what = fault.what if fault else ""
        if what == "hang":
            await asyncio.Event().wait()
        if what == "reset":
            return False
        if fault and what == "answer":
            body = fault.body
            if body is None:
                body = json.dumps(status_body(fault.status, f"Fault{fault.status}")).encode()
            _write(writer, fault.status, body, fault.headers)
            return True
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            _write(writer, 401, json.dumps(status_body(401, "Unauthorized")).encode())
            return True
        if request.path in self.proxied:
            _write(writer, *self.proxied[request.path])
            return True
        try:
            if request.kind == "watch" and request.path not in self.refused:
                return await self._watch(request, fault, writer)
            status, answer = self.execute(request)
        except Refused as refused:
            status, answer = refused.status, status_body(refused.status, refused.reason)
        body = json.dumps(answer).encode()
        if what == "lose":
            return False
        if what == "cut":
            _write(writer, status, body, cut=True)
            await writer.drain()
            return False
        _write(writer, status, body)
        return True

    def _served(self, version: str) -> list[Object]:
        """Return the kinds that API servers have; only Namespaces, Nodes and classes are in no namespace."""
        kinds = [*kubernetes_kinds().kinds.get(version, ()), *self.kinds.get(version, ())]
        return [
            {"name": f"{kind.lower()}s", "kind": kind, "namespaced": not _WITHOUT.fullmatch(kind)} for kind in kinds
        ]

    def _fault_for(self, request: Request) -> Fault | None:
        for fault in self.faults:
            if fault.kind in (request.kind, "any"):
                self.faults.remove(fault)
                return fault
        return None

    def execute(self, request: Request) -> tuple[int, Object]:
        if request.path in self.refused:
            raise Refused(*self.refused[request.path])
        if "dryRun" in request.query and request.method in ("POST", "PATCH"):
            return 200, request.json()
        if request.method == "GET" and request.path in self.store:
            return 200, self._page(request)
        version = _VERSION.fullmatch(request.path)
        if request.method == "GET" and version and (kinds := self._served(version[1])):
            return 200, {"kind": "APIResourceList", "resources": kinds}
        pod = _POD.fullmatch(request.path)
        if pod is not None and "/api/v1/pods" in self.store:
            return self._pod(request, pod["name"], pod["what"] or "")
        if request.path in self.reviews:
            return 201, {**request.json(), "status": self.reviews[request.path](request.json()["spec"])}
        if request.method == "POST":
            obj = request.json()
            if obj["metadata"]["name"] in self.store.setdefault(request.path, {}):
                raise Refused(409, "AlreadyExists")
            return 201, self.put(request.path, obj)
        collection, _, name = request.path.rpartition("/")
        stored = self.store.get(collection, {}).get(name)
        if stored is None and collection in self.store and "apply-patch" in request.headers.get("content-type", ""):
            return 201, self.put(collection, request.json())
        if stored is None:
            raise Refused(404, "NotFound")
        if request.method == "PATCH":
            patch = request.json()
            expected = patch.get("metadata", {}).get("resourceVersion")
            if expected not in (None, stored["metadata"]["resourceVersion"]):
                raise Refused(409, "Conflict")
            return 200, self.put(collection, _merged(stored, patch))
        if request.method == "DELETE":
            self.delete(collection, name)
        return 200, stored

    def _pod(self, request: Request, name: str, what: str) -> tuple[int, Object]:
        """Serve a pod of the list of all pods: get it, write to it or its status, bind it (BindingREST.Create)."""
        stored = self.store["/api/v1/pods"].get(name)
        if stored is None:
            raise Refused(404, "NotFound")
        if request.method == "PATCH":
            patch, current = request.json(), stored["metadata"]
            known = patch.get("metadata", {})
            if any(known.get(field, current[field]) != current[field] for field in ("uid", "resourceVersion")):
                raise Refused(409, "Conflict")
            return 200, self.put("/api/v1/pods", _merged(stored, patch))
        if request.method == "POST" and what == "/binding":
            binding = request.json()
            meta, current = binding["metadata"], stored["metadata"]
            same = meta["uid"] == current["uid"] and meta["resourceVersion"] in ("", current["resourceVersion"])
            if not same or stored["spec"].get("nodeName"):
                raise Refused(409, "Conflict")
            change = {"metadata": {"annotations": meta["annotations"]}, "spec": {"nodeName": binding["target"]["name"]}}
            self.put("/api/v1/pods", _merged(stored, change))
            return 201, {"kind": "Status", "status": "Success"}
        return 200, stored

    def _page(self, request: Request) -> Object:
        limit = int(request.query.get("limit", 0)) or None
        token = request.query.get("continue")
        if token is None:
            version, rest = self.version, list(self.store[request.path].values())
            selector = request.query.get("fieldSelector", "")
            if selector == "spec.nodeName=" or selector.startswith("involvedObject."):
                rest = [each for each in rest if _selected(each, selector)]
            if labels := request.query.get("labelSelector"):
                rest = [each for each in rest if _labelled(each, labels)]
        elif token in self._snapshots:
            version, rest = self._snapshots[token]
        else:
            raise Refused(410, "Expired")
        metadata: Object = {"resourceVersion": str(version)}
        items = rest[:limit]
        if len(rest) > len(items):
            metadata["continue"] = f"token-{len(self._snapshots)}-{version}"
            self._snapshots[metadata["continue"]] = version, rest[len(items) :]
        return {"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items}

    async def _watch(self, request: Request, fault: Fault | None, writer: asyncio.StreamWriter) -> bool:
        position = int(request.query["resourceVersion"])
        if position < self.oldest and not self.gone_as_event:
            raise Refused(410, "Expired")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        sent: list[bytes] = []
        while True:
            if position < self.oldest:
                _chunk(writer, _line("ERROR", status_body(410, "Expired")))
                return _finish(writer)
            changed = self._changed
            for version, what, collection, obj in list(self.history):
                if collection != request.path or version <= position:
                    continue
                line = _line(what, obj)
                if fault and len(sent) >= fault.after:
                    if fault.what == "silent":
                        await writer.drain()
                        await asyncio.Event().wait()
                    if not _misbehave(fault, writer, sent, line):
                        await writer.drain()
                        return False
                    fault = None
                _chunk(writer, line)
                sent.append(line)
            position = self.version
            await writer.drain()
            if fault and fault.what == "end" and len(sent) >= fault.after:
                return _finish(writer)
            await changed.wait()


def _misbehave(fault: Fault, writer: asyncio.StreamWriter, sent: list[bytes], line: bytes) -> bool:
    """Do what ``fault`` says before ``line``; return whether the watch goes on."""
    if fault.what == "duplicate":
        _chunk(writer, (sent[-1:] or [line])[0])
        return True
    if fault.what == "backwards":
        _chunk(writer, (sent[:1] or [line])[0])
        return True
    if fault.what == "cut":
        _chunk(writer, line[: len(line) // 2])
    elif fault.what == "garbage":
        _chunk(writer, b"<html>\n")
        _finish(writer)
    elif fault.what == "error":
        _chunk(writer, _line("ERROR", status_body(fault.status, "Fault")))
        _finish(writer)
    else:
        _finish(writer)
    return False


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, target, _ = head[0].split(" ")
    headers: dict[str, str] = {}
    for name, value in (line.split(": ", 1) for line in head[1:] if line):
        before = headers.get(name.lower())
        headers[name.lower()] = value if before is None else f"{before}, {value}"
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    url = urlsplit(target)
    return Request(method, url.path, dict(parse_qsl(url.query)), headers, body)


def _write(
    writer: asyncio.StreamWriter, status: int, body: bytes, headers: dict[str, str] | None = None, cut: bool = False
) -> None:
    lines = {"Content-Type": "application/json", "Content-Length": str(len(body)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    writer.write(f"HTTP/1.1 {status} X\r\n{head}\r\n".encode() + (body[: len(body) // 2] if cut else body))


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _finish(writer: asyncio.StreamWriter) -> bool:
    writer.write(b"0\r\n\r\n")
    return True


def _line(what: str, obj: Object) -> bytes:
    return json.dumps({"type": what, "object": obj}).encode() + b"\n"


def _merged(stored: Object, patch: Object) -> Object:
    merged = dict(stored)
    for key, value in patch.items():
        merged[key] = _merged(merged.get(key) or {}, value) if isinstance(value, dict) else value
        if value is None:  # RFC 7386
            del merged[key]
    return merged


async def until(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` holds.

    Raises:
        TimeoutError: it never does.
    """
    async with asyncio.timeout(HANGS_S):
        while not condition():  # noqa: ASYNC110 - a condition of many parts has no event
            await asyncio.sleep(0.001)
