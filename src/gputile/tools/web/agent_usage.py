"""Reads the metrics of agents, and computes the memory and GPU time that pods use.

GPU time is computed from two readings of a counter. Agents are read through the API server's proxy,
with the credentials of this process. The proxy needs no further address or password, and RBAC
decides who may use it (get pods/proxy). To read Prometheus instead, users would have to configure
its address, password and access rules.
"""

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gputile.api.quantity import MIB
from gputile.api.workloads import RunningPod
from gputile.kube.client import Connection
from gputile.kube.errors import ApiError, Forbidden, KubeError
from gputile.kube.objects import list_all
from gputile.tools.web.records import NodeTile, NodeUsage, PodUsage

_USED: Final = "gputile_agent_container_memory_used_bytes"
_TIME: Final = "gputile_agent_gpu_time_seconds_total"
_GPU_USED: Final = "gputile_agent_gpu_memory_used_bytes"
_STARTED: Final = "gputile_agent_starts_total"
_READ: Final = (*(f"{name}{{" for name in (_USED, _TIME, _GPU_USED)), f"{_STARTED} ")
_PREFIX: Final = "gputile_agent_"
_AGENTS: Final = {
    "labelSelector": "app.kubernetes.io/name=gputile,app.kubernetes.io/component=agent"
}
_MOST_S: Final = 5.0  # the time limit for an agent's response, including retries
_RELIST_S: Final = 60.0
_MOST_QUOTED: Final = 60  # how many characters of a response an error quotes


class UnreadableMetrics(Exception):
    """The response is not an agent's metrics in Prometheus' text format."""


@dataclass(frozen=True, slots=True)
class AgentReading:
    """The usage of a node's GPUs at one moment.

    Keys of pods are ``namespace/name``. Pods without measurements are absent.
    """

    # The memory of each pod in bytes, by GPU index.
    pod_bytes: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    # The GPU time of each pod in seconds, since its containers started.
    pod_seconds: Mapping[str, float] = field(default_factory=dict)
    # All memory in use in bytes, by GPU index.
    gpu_bytes: Mapping[int, int] = field(default_factory=dict)
    # How many times agents have started on the node. Each agent's counters begin at 0.
    agents_started: int = 0


def agent_reading(text: bytes) -> AgentReading:
    """Parse an agent's ``/metrics``.

    Raises:
        UnreadableMetrics: the text is not an agent's metrics.
    """
    # Only the needed series are parsed: Prometheus' parser would take 0.1 s for all of them.
    series = [
        line for line in text.decode(errors="replace").split("\n") if line.startswith(_PREFIX)
    ]
    if not series:
        raise UnreadableMetrics(f"no name begins with {_PREFIX}")
    lines = [line for line in series if line.startswith(_READ)]
    pod_bytes: dict[str, dict[int, int]] = {}
    pod_seconds: dict[str, float] = {}
    gpu_bytes: dict[int, int] = {}
    agents_started = 0
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for each in family.samples:
                if each.name == _USED:
                    on, index = pod_bytes.setdefault(_pod(each), {}), int(each.labels["gpu"])
                    on[index] = on.get(index, 0) + int(each.value)
                elif each.name == _TIME:
                    pod_seconds[_pod(each)] = pod_seconds.get(_pod(each), 0.0) + each.value
                elif each.name == _GPU_USED:
                    gpu_bytes[int(each.labels["gpu"])] = int(each.value)
                elif each.name == _STARTED:
                    agents_started = int(each.value)
    except (ValueError, OverflowError, LookupError) as error:
        raise UnreadableMetrics(f"{type(error).__name__}: {error}") from error
    return AgentReading(pod_bytes, pod_seconds, gpu_bytes, agents_started)


def mib(count: int) -> int:
    """Convert ``count`` bytes to MiB, rounded up."""
    return -(-count // MIB)


def _pod(sample: Sample) -> str:
    return f"{sample.labels['namespace']}/{sample.labels['pod']}"


CreationTimes = Mapping[str, int]
"""The creation times of a node's pods, by ``namespace/name``. They distinguish a pod from an
earlier pod of the same name.
"""


def created_of(tile: NodeTile) -> CreationTimes:
    """Return the creation times of a node's pods as Unix time in seconds."""
    return {f"{pod.namespace}/{pod.name}": pod.created for pod in tile.pods}


def is_same(key: str, earlier: CreationTimes, later: CreationTimes) -> bool:
    """Return whether the pod named ``key`` has the same creation time in both mappings."""
    return earlier.get(key, 0) == later.get(key, 0)


@dataclass(frozen=True, slots=True)
class _TimedReading:
    at_s: float
    reading: AgentReading
    created: CreationTimes


class UsageMeter:
    """Computes usage from readings. Stores the latest reading of each node to compute GPU time."""

    def __init__(self) -> None:
        self._latest: dict[str, _TimedReading] = {}

    def measure(
        self, node: str, at_s: float, reading: AgentReading, created: CreationTimes
    ) -> NodeUsage:
        """Compute the usage of a node's pods and GPUs from a reading.

        ``at_s`` is the time of the reading on a monotonic clock. ``created`` has the creation times
        of the pods that existed at that time. GPU time needs two readings that contain it.
        """
        before = self._latest.get(node)
        now = self._latest[node] = _TimedReading(at_s, reading, created)
        pods = {}
        for key in sorted(reading.pod_bytes.keys() | reading.pod_seconds.keys()):
            used = reading.pod_bytes.get(key, {})
            by_gpu = {index: mib(count) for index, count in sorted(used.items())}
            pods[key] = PodUsage(
                mib(sum(used.values())) if used else None, _percent(key, before, now), by_gpu
            )
        return NodeUsage(
            pods, {index: mib(used) for index, used in sorted(reading.gpu_bytes.items())}
        )

    def retain(self, nodes: Collection[str]) -> None:
        for name in self._latest.keys() - set(nodes):
            del self._latest[name]


def _percent(key: str, before: _TimedReading | None, now: _TimedReading) -> int | None:
    """Return the pod's GPU time in percent of one GPU between two readings, or None if unknown."""
    if before is None or now.at_s <= before.at_s or not is_same(key, before.created, now.created):
        return None
    if before.reading.agents_started != now.reading.agents_started:
        return None  # the agent has restarted, so its counters began again at 0
    earlier, later = before.reading.pod_seconds.get(key), now.reading.pod_seconds.get(key)
    if earlier is None or later is None or later < earlier:
        return None  # the pod is new, or its containers have restarted
    return round(100 * (later - earlier) / (now.at_s - before.at_s))


class UsageUnknown(Exception):
    """The usage of a node's pods cannot be read.

    ``refused`` states that RBAC allows access to no agent, so an immediate retry is useless.
    """

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


class UsageReader:
    """Reads the metrics of the agents in ``namespace``."""

    def __init__(self, connection: Connection, namespace: str) -> None:
        self._connection = connection
        self._namespace = namespace
        self._listing = asyncio.Lock()
        self._listed_at = float("-inf")
        self._list_error: UsageUnknown | None = None
        self._agents: dict[str, str] = {}  # node -> name and port of its agent's pod
        self._suspect: set[str] = set()  # nodes whose agent may have been replaced

    @property
    def has_no_agent(self) -> bool:
        """Whether the namespace has no agent that is ready."""
        return not self._agents and self._list_error is None

    async def read(self, node: str) -> AgentReading:
        """Read the current metrics of a node's agent.

        Raises:
            UsageUnknown: the metrics cannot be read.
        """
        agent = await self._agent(node)
        answer = await self._get_metrics(node, agent)
        try:
            return agent_reading(answer)
        except UnreadableMetrics as error:
            self._suspect.add(node)
            name, _, port = agent.rpartition(":")
            raise UsageUnknown(
                f"the response of port {port} of pod {self._namespace}/{name} is not an agent's "
                f"metrics: {error}; {_quoted(answer)}"
            ) from error

    async def _get_metrics(self, node: str, agent: str) -> bytes:
        path = f"/api/v1/namespaces/{self._namespace}/pods/{agent}/proxy/metrics"
        try:
            async with asyncio.timeout(_MOST_S):  # expires before the limit ``within``
                return await self._connection.get(path, within=2 * _MOST_S)
        except TimeoutError as error:
            raise UsageUnknown(f"the agent did not answer within {_MOST_S:g} s") from error
        except Forbidden as error:
            raise UsageUnknown(
                f"you may not read the agents: {error}", refused=bool(error.reason)
            ) from error
        except KubeError as error:
            self._suspect.add(node)
            text = (error.server_message if isinstance(error, ApiError) else "") or str(error)
            raise UsageUnknown(f"the agent cannot be read: {text}") from error

    async def _agent(self, node: str) -> str:
        async with self._listing:
            known = node in self._agents and node not in self._suspect
            if not known and time.monotonic() - self._listed_at >= _RELIST_S:
                await self._list()
        if self._list_error is not None:
            raise self._list_error
        if node not in self._agents:
            where = "on this node, " if self._agents else ""
            raise UsageUnknown(f"no agent is ready {where}in namespace {self._namespace}")
        return self._agents[node]

    async def _list(self) -> None:
        try:
            self._agents, self._list_error = await self._ready_agents(), None
        except KubeError as error:
            refused = isinstance(error, Forbidden)
            self._list_error = UsageUnknown(
                f"the agents cannot be listed: {error}", refused=refused
            )
        self._listed_at = time.monotonic()
        self._suspect.clear()

    async def _ready_agents(self) -> dict[str, str]:
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


def _quoted(answer: bytes) -> str:
    """Quote the beginning of a response for an error message, to show which program sent it."""
    text = " ".join(answer[: 4 * _MOST_QUOTED].decode(errors="replace").split())
    return f"it begins with {text[:_MOST_QUOTED]!r}" if text else "it is empty"
