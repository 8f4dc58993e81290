"""Two extenders, a kube-scheduler beside each, and an API server that each of them reaches in its own way.

An extender is the whole program but for its sockets: configuration, gate, Lease, watches, binder. Time is the event
loop's. The API server is that of ``tests.fakes``, of whose answers a ``Fate`` decides.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod
from gputile.api.well_known import EXTENDER_LEASE
from gputile.controlplane.config_reload import ConfigReloader
from gputile.controlplane.extender.server import Extender, ExtenderSettings
from gputile.kube.client import JSON, MERGE_PATCH, NO_QUERY, Clock, Connection, Query
from gputile.kube.config import Access
from gputile.kube.credentials import FixedCredentials
from gputile.kube.errors import AnswerLost, ConnectionFailed, KubeError, api_error
from tests.fakes.apiserver import FakeApiServer, Object, Refused, Request, status_body
from tests.fakes.corebuilders import mib_on_gpus
from tests.fakes.http import ask, sent
from tests.stateful.virtualtime import VirtualTimeLoop

PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/gputile/leases"
LEASE_S = 15
GIVES_UP_S = 60.0  # --request-timeout of the API server
BEGAN = datetime(2030, 1, 1, tzinfo=UTC)


class Fate(Enum):
    """What becomes of a request."""

    FINE = "executed and answered"
    HELD = "executed some time, or never"
    LOST = "never executed, and not answered"
    LOST_AFTER = "executed and not answered"
    FAILED = "500, not executed"
    FAILED_AFTER = "500, executed"
    REFUSED = "403"
    BUSY = "429"
    CONFLICT = "409, as if somebody else had written"
    UNREACHABLE = "no connection"


class Kind(Enum):
    """What requests are for; each kind may meet another fate."""

    BINDING = "Bindings"
    POD = "writes to pods"
    READ = "pods that are read"
    LIST = "lists"
    LEASE = "the Lease"
    WATCH = "watches"
    OTHER = "the rest"


def kind_of(request: Request) -> Kind:
    if request.path.startswith(LEASES):
        return Kind.LEASE
    if request.method == "GET":
        return Kind.LIST if request.path in (PODS, NODES, BUDGETS) else Kind.READ
    if request.path.startswith("/api/v1/namespaces/"):
        return Kind.BINDING if request.path.endswith("/binding") else Kind.POD
    return Kind.OTHER


@dataclass(eq=False)
class Held:
    """A request that the API server has not executed yet."""

    request: Request
    since: float
    answer: asyncio.Future[bytes]

    @property
    def kind(self) -> Kind:
        return kind_of(self.request)


class ModelServer(FakeApiServer):
    """The API server. ``held`` are requests under way; those that wait for longer than ``gives_up_s`` never happen."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self.loop = loop
        self.held: list[Held] = []
        self.gives_up_s = float("inf")
        self.bound: dict[str, str] = {}  # the node of each pod that was ever bound, by UID

    def answer(self, request: Request) -> bytes:
        """Execute a request; raise what it is refused by."""
        try:
            _, answer = self.execute(request)
        except Refused as refused:
            raise _refusal(request, refused.status, refused.reason) from None
        if kind_of(request) is Kind.BINDING:
            body = request.json()
            assert body["metadata"]["uid"] not in self.bound, "bound a second time"
            self.bound[body["metadata"]["uid"]] = body["target"]["name"]
            self.no_gpu_has_more_than_it_may()
        return json.dumps(answer).encode()

    def go_on(self, held: Held) -> None:
        """Execute a request that was held; nobody may wait for it any more."""
        self.held.remove(held)
        try:
            answer = self.answer(held.request)
        except KubeError as error:
            if not held.answer.done():
                held.answer.set_exception(error)
            return
        if not held.answer.done():
            held.answer.set_result(answer)

    def give_up(self) -> None:
        """Forget requests that have been under way for too long."""
        self.held = [each for each in self.held if self.loop.time() - each.since < self.gives_up_s]

    def may_bind(self, held: Held) -> bool:
        """Return whether a request is a Binding of the version that its pod has."""
        known = held.request.json()["metadata"] if held.kind is Kind.BINDING else {"name": ""}
        pod = self.store[PODS].get(known["name"])
        return pod is not None and pod["metadata"]["resourceVersion"] == known["resourceVersion"]

    def no_gpu_has_more_than_it_may(self) -> None:
        used = mib_on_gpus(self.pods().values())
        assert all(mib <= GPU_MIB for mib in used.values()), used

    def pods(self) -> dict[str, Pod]:
        return {name: msgspec.convert(each, Pod) for name, each in self.store.get(PODS, {}).items()}

    def nodes(self) -> list[Node]:
        return [msgspec.convert(each, Node) for each in self.store.get(NODES, {}).values()]

    def changed(self) -> asyncio.Event:
        """Return what is set when something changes."""
        return self._changed

    def poke(self) -> None:
        """Have watches look again."""
        self._changed.set()
        self._changed = asyncio.Event()


GPU_MIB = 15 * 1024


def _refusal(request: Request, status: int, reason: str) -> KubeError:
    return api_error(request.method, request.path, status, json.dumps(status_body(status, reason)).encode())


class ModelConnection(Connection):
    """How one extender reaches the API server. ``dead``: the process has been killed."""

    def __init__(self, server: ModelServer) -> None:
        super().__init__(Access("http://model", FixedCredentials(None, None), namespace="gputile"))
        self.server = server
        self.fates: dict[Kind, Fate] = {}
        self.next_bindings: list[Fate] = []
        self.dead = False

    async def get(self, path: str, query: Query = NO_QUERY, *, within: float | None = None) -> bytes:
        return await self._ask(Request("GET", path, dict(query), {}, b""), within)

    async def post(self, path: str, body: bytes, *, within: float | None = None) -> bytes:
        return await self._ask(Request("POST", path, {}, {"content-type": JSON}, body), within)

    async def patch(
        self, path: str, body: bytes, *, content_type: str = MERGE_PATCH, within: float | None = None
    ) -> bytes:
        return await self._ask(Request("PATCH", path, {}, {"content-type": content_type}, body), within)

    def fate(self, kind: Kind) -> Fate:
        if kind is Kind.BINDING and self.next_bindings:
            return self.next_bindings.pop(0)
        return self.fates.get(kind, Fate.FINE)

    async def _ask(self, request: Request, within: float | None) -> bytes:
        await asyncio.sleep(0)
        fate = Fate.UNREACHABLE if self.dead else self.fate(kind_of(request))
        match fate:
            case Fate.FINE:
                answer = self.server.answer(request)
                await asyncio.sleep(0)
                return answer
            case Fate.HELD:
                return await self._wait(request, within or 10.0)
            case Fate.LOST:
                raise AnswerLost("no answer")
            case Fate.LOST_AFTER | Fate.FAILED_AFTER:
                with contextlib.suppress(KubeError):
                    self.server.answer(request)
                if fate is Fate.LOST_AFTER:
                    raise AnswerLost("no answer")
                raise _refusal(request, 500, "InternalError")
            case Fate.FAILED:
                raise _refusal(request, 500, "InternalError")
            case Fate.REFUSED:
                raise _refusal(request, 403, "Forbidden")
            case Fate.BUSY:
                raise _refusal(request, 429, "TooManyRequests")
            case Fate.CONFLICT:
                raise _refusal(request, 409, "Conflict")
            case Fate.UNREACHABLE:
                raise ConnectionFailed("no connection")

    async def _wait(self, request: Request, within: float) -> bytes:
        loop = self.server.loop
        held = Held(request, loop.time(), loop.create_future())
        self.server.held.append(held)
        try:
            async with asyncio.timeout(within):
                return await held.answer
        except TimeoutError:
            raise AnswerLost(f"no answer within {within:g} s") from None

    @asynccontextmanager
    async def stream(self, path: str, query: Query, *, within: float) -> AsyncIterator[AsyncIterator[bytes]]:
        yield self._lines(path, int(query["resourceVersion"]))

    async def _lines(self, path: str, position: int) -> AsyncIterator[bytes]:
        server = self.server
        while True:
            changed, fate = server.changed(), Fate.UNREACHABLE if self.dead else self.fate(Kind.WATCH)
            if fate is Fate.UNREACHABLE:
                raise ConnectionFailed("the watch broke off")
            if fate is not Fate.HELD:
                if position < server.oldest:
                    raise _refusal(Request("GET", path, {}, {}, b""), 410, "Expired")
                for version, what, collection, obj in list(server.history):
                    if collection == path and version > position:
                        yield json.dumps({"type": what, "object": obj}).encode() + b"\n"
                position = server.version
            await changed.wait()


@dataclass
class Replica:
    """One extender and the kube-scheduler that asks it. ``seen`` are pods as that has been told of them."""

    name: str
    server: ModelServer
    rate: float  # of its monotonic clock
    configuration: Configuration
    ahead_s: float = 0.0  # of its time of day
    seen: dict[str, Object] = field(default_factory=dict)
    asking: list[asyncio.Task[None]] = field(default_factory=list)
    connection: ModelConnection = field(init=False)
    reloader: ConfigReloader = field(init=False)
    running: asyncio.Task[None] = field(init=False)
    instance: Extender | None = None

    def start(self) -> None:
        """Start the process; under the same name it is the same pod's container, started again."""
        loop = self.server.loop
        self.connection = ModelConnection(self.server)
        clock = Clock(
            now=lambda: BEGAN + timedelta(seconds=loop.time() + self.ahead_s),
            monotonic=lambda: loop.time() * self.rate,
        )
        settings = ExtenderSettings(identity=self.name, lease_namespace="gputile", lease_seconds=LEASE_S, events=False)

        def build(configuration: Configuration) -> Extender:
            self.instance = Extender(self.connection, configuration, settings, clock)
            return self.instance

        self.reloader = ConfigReloader(build, self.configuration)
        self.running = loop.create_task(self.reloader.run())

    def kill(self) -> None:
        """SIGKILL, and another start: what was under way in the network or the API server stays so."""
        self.connection.dead = True
        self.running.cancel()
        for task in self.asking:
            task.cancel()
        self.server.poke()
        self.server.loop.pass_time()
        self.start()

    @property
    def leads(self) -> bool:
        """Whether it takes itself for the active one."""
        if self.instance is None or self.running.done():
            return False
        (active,) = self.instance.metrics.registry.restricted_registry(["gputile_extender_active"]).collect()
        return bool(active.samples[0].value)

    def hears(self) -> None:
        """Its kube-scheduler is told of all pods."""
        self.seen = dict(self.server.store.get(PODS, {}))

    def ask(self, name: str, last: bool) -> None:
        """kube-scheduler tries to bind a pod, on the last node that fits or the first."""
        if name in self.seen and not self.seen[name]["spec"].get("nodeName"):
            self.asking.append(self.server.loop.create_task(self._try(self.seen[name], last)))

    async def _try(self, pod: Object, last: bool) -> None:
        found = await self._call("filter", {"Pod": pod, "NodeNames": sorted(self.server.store[NODES])})
        if not found.get("NodeNames"):
            return
        node, meta = found["NodeNames"][-1 if last else 0], pod["metadata"]
        asked = {"PodName": meta["name"], "PodNamespace": "default", "PodUID": meta["uid"], "Node": node}
        said = await self._call("bind", asked)
        if not said["Error"]:
            assert self.server.bound.get(meta["uid"]) == node, "what was said to be bound is not"

    async def _call(self, verb: str, body: Object) -> Any:
        status, answer = await ask(self.reloader, sent(f"/{verb}", json.dumps(body).encode()))
        return json.loads(answer) if status == 200 else {"Error": answer.decode()}

    def look(self) -> None:
        """Raise what has gone wrong in its tasks."""
        for task in [each for each in self.asking if each.done()]:
            self.asking.remove(task)
            if not task.cancelled():
                task.result()
        if self.running.done() and not self.running.cancelled():
            self.running.result()


def pod_body(name: str, uid: str, units: int) -> Object:
    """Return a pod that asks for so many GiB."""
    limits = {"aliyun.com/gpu-mem": str(units)}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": uid},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {"phase": "Pending"},
    }


def lease_body() -> Object:
    return {"metadata": {"name": EXTENDER_LEASE}, "spec": {"leaseDurationSeconds": 1}}
