"""Reads what agents measure through the API server's proxy, with the rights of the person who looks.

The proxy needs neither a second address nor a second credential, and RBAC decides who may use it (get pods/proxy). A
Prometheus would need both, and its tenants are not the cluster's. Each agent is asked by itself, so a page asks only
those of the nodes that somebody looks at, and a cluster of thousands of nodes costs no more than one of fifty.
"""

import asyncio
import time
from typing import Final

import msgspec

from gputile.api.usage_hour import HOUR_PATH, POD_UID, PodHour
from gputile.api.workloads import RunningPod
from gputile.kube.errors import ApiError, Forbidden, KubeError, NotFound
from gputile.kube.objects import NO_QUERY, Query, Reading, list_all
from gputile.tools.web.page.records import UsageSample
from gputile.tools.web.usage.meter import AgentReading, UnreadableMetrics, agent_reading

_AGENTS: Final = {"labelSelector": "app.kubernetes.io/name=gputile,app.kubernetes.io/component=agent"}
_MOST_S: Final = 5.0  # for one agent's answer, tries included
_LIST_AGAIN_S: Final = 60.0
_MOST_QUOTED: Final = 60  # characters of an answer
_HOUR: Final = msgspec.json.Decoder(PodHour)


class UsageUnknown(Exception):
    """Why it is not known what a node's pods use.

    ``refused``: whoever looks may not know of any node; asking again does not help.
    """

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


class UsageReader:
    """Asks the agents of the release in ``namespace``."""

    def __init__(self, connection: Reading, namespace: str) -> None:
        self._connection = connection
        self._namespace = namespace
        self._listing = asyncio.Lock()
        self._listed_at = float("-inf")
        self._unlisted: UsageUnknown | None = None
        self._place_of: dict[str, str] = {}  # node -> name and port of its agent's pod
        self._doubted: set[str] = set()  # nodes whose agent's pod may be another by now

    async def read(self, node: str) -> AgentReading:
        """Return what the agent of a node measures now.

        Raises:
            UsageUnknown: it cannot be read.
        """
        place = await self._place(node)
        answer = await self._ask(node, place, "/metrics", NO_QUERY)
        try:
            return agent_reading(answer)
        except UnreadableMetrics as error:
            self._doubted.add(node)
            who = self._named(place)
            raise UsageUnknown(f"{who} answers no metrics of an agent: {error}; {_quoted(answer)}") from error

    async def hour(self, node: str, uid: str) -> list[UsageSample]:
        """Return what the agent of a node remembers of a pod, oldest first; an agent may be too old to remember.

        Raises:
            UsageUnknown: it cannot be read.
        """
        place = await self._place(node)
        try:
            answer = await self._ask(node, place, HOUR_PATH, {POD_UID: uid})
        except UsageUnknown as error:
            if isinstance(error.__cause__, NotFound):
                self._doubted.discard(node)
                return []
            raise
        try:
            return _of_pod(_HOUR.decode(answer))
        except msgspec.MsgspecError as error:
            raise UsageUnknown(f"{self._named(place)} answers no use of an hour: {error}; {_quoted(answer)}") from error

    def _named(self, place: str) -> str:
        """Return a pod and a port of it in words."""
        name, _, port = place.rpartition(":")
        return f"port {port} of pod {self._namespace}/{name}"

    async def _ask(self, node: str, place: str, path: str, query: Query) -> bytes:
        path = f"/api/v1/namespaces/{self._namespace}/pods/{place}/proxy{path}"
        try:
            async with asyncio.timeout(_MOST_S):  # ends before the connection's own time-out
                return await self._connection.get(path, query, within=2 * _MOST_S)
        except TimeoutError as error:
            raise UsageUnknown(f"the agent did not answer within {_MOST_S:g} s") from error
        except Forbidden as error:
            raise UsageUnknown(f"you may not ask the agents: {error}", refused=bool(error.reason)) from error
        except KubeError as error:
            self._doubted.add(node)
            raise UsageUnknown(f"the agent cannot be asked: {_said(error)}") from error

    async def _place(self, node: str) -> str:
        async with self._listing:
            known = node in self._place_of and node not in self._doubted
            if not known and time.monotonic() - self._listed_at >= _LIST_AGAIN_S:
                await self._list()
        if self._unlisted is not None:
            raise self._unlisted
        if node not in self._place_of:
            where = f"on this node, in namespace {self._namespace}"
            if not self._place_of:
                where = f"in namespace {self._namespace}; --installed-in names another"
            raise UsageUnknown(f"no agent is ready {where}")
        return self._place_of[node]

    async def _list(self) -> None:
        try:
            self._place_of, self._unlisted = await self._places(), None
        except KubeError as error:
            refused = isinstance(error, Forbidden)
            self._unlisted = UsageUnknown(f"the agents cannot be listed: {error}", refused=refused)
        self._listed_at = time.monotonic()
        self._doubted.clear()

    async def _places(self) -> dict[str, str]:
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        pods = await list_all(self._connection, path, RunningPod, _AGENTS)
        return {
            pod.spec.node_name: f"{pod.metadata.name}:{port.container_port}"
            for pod in pods
            if pod.ready
            for container in pod.spec.containers
            for port in container.ports
            if port.name == "metrics"
        }


def _of_pod(hour: PodHour) -> list[UsageSample]:
    """Return what all containers of a pod have used together."""
    mib: dict[int, int] = {}
    percent: dict[int, int] = {}
    for sample in (each for line in hour.lines for each in line.samples):
        if sample.mib is not None:
            mib[sample.at] = mib.get(sample.at, 0) + sample.mib
        if sample.percent is not None:
            percent[sample.at] = percent.get(sample.at, 0) + sample.percent
    return [UsageSample(at, mib.get(at), percent.get(at)) for at in sorted(mib.keys() | percent.keys())]


def _quoted(answer: bytes) -> str:
    """Return how an answer begins, for somebody who looks for what gave it."""
    text = " ".join(answer[: 4 * _MOST_QUOTED].decode(errors="replace").split())
    return f"it begins with {text[:_MOST_QUOTED]!r}" if text else "it is empty"


def _said(error: Exception) -> str:
    return error.said if isinstance(error, ApiError) and error.said else str(error)
