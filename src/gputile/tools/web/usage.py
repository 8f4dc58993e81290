"""Reads the metrics of agents, and computes the memory and GPU time that pods use.

GPU time is the difference between two readings.

Agents are read through the API server's proxy, with the viewer's rights. The proxy needs no further
address or credential, and RBAC decides who may use it (get pods/proxy). Prometheus would need both,
and access rules of its own.

``UsageFeed`` reads only the agents of nodes that a viewer has open, so the cost does not grow with
the cluster. A node is polled while a browser shows it, and for an hour after a viewer has opened a
pod on it. Samples are lost when the process ends; Prometheus keeps them for longer.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gputile.api.quantity import MIB
from gputile.api.workloads import RunningPod
from gputile.kube.client import Connection, list_all
from gputile.kube.errors import ApiError, Forbidden, KubeError
from gputile.tools.web.records import (
    NodeTile,
    NodeUsage,
    PodUsage,
    PodUsageAnswer,
    UsageAnswer,
    UsageSample,
)

_USED: Final = "gputile_agent_container_memory_used_bytes"
_TIME: Final = "gputile_agent_gpu_time_seconds_total"
_GPU_USED: Final = "gputile_agent_gpu_memory_used_bytes"
_STARTED: Final = "gputile_agent_starts_total"
_READ: Final = (*(f"{name}{{" for name in (_USED, _TIME, _GPU_USED)), f"{_STARTED} ")
_OF_AGENT: Final = "gputile_agent_"
_AGENTS: Final = {
    "labelSelector": "app.kubernetes.io/name=gputile,app.kubernetes.io/component=agent"
}
_MOST_S: Final = 5.0  # for one agent's response, retries included
_RELIST_S: Final = 60.0
_MOST_QUOTED: Final = 60  # characters of a response


class UnreadableMetrics(Exception):
    """The response is not in Prometheus' text format."""


@dataclass(frozen=True, slots=True)
class AgentReading:
    """The use of a node's GPUs at one moment.

    Pods are named ``namespace/name``; those without measurements are absent. ``pod_bytes`` is
    memory by GPU index, ``pod_seconds`` GPU time since the containers' start, ``gpu_bytes`` all
    memory in use by GPU index. ``agents_started`` is the agent's start time: another agent's
    counters begin anew.
    """

    pod_bytes: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    pod_seconds: Mapping[str, float] = field(default_factory=dict)
    gpu_bytes: Mapping[int, int] = field(default_factory=dict)
    agents_started: int = 0


def agent_reading(text: bytes) -> AgentReading:
    """Parse an agent's ``/metrics``.

    Raises:
        UnreadableMetrics: the text is not in Prometheus' text format.
    """
    # Most series are skipped: Prometheus' parser takes 0.1 s for all of them.
    said = [
        line for line in text.decode(errors="replace").split("\n") if line.startswith(_OF_AGENT)
    ]
    if not said:
        raise UnreadableMetrics("none of them is named")
    lines = [line for line in said if line.startswith(_READ)]
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
    """Return bytes as MiB, rounded up."""
    return -(-count // MIB)


def _pod(sample: Sample) -> str:
    return f"{sample.labels['namespace']}/{sample.labels['pod']}"


Made = Mapping[str, int]
"""When the pods of a node were created, by ``namespace/name``: it tells a pod from its
predecessor of the same name.
"""


def made_of(tile: NodeTile) -> Made:
    """Return the creation times of a node's pods, Unix time in seconds."""
    return {f"{pod.namespace}/{pod.name}": pod.created for pod in tile.pods}


def is_same(key: str, earlier: Made, later: Made) -> bool:
    """Return whether a name belonged to the same pod in both."""
    return earlier.get(key, 0) == later.get(key, 0)


@dataclass(frozen=True, slots=True)
class _Read:
    at_s: float
    reading: AgentReading
    made: Made


class UsageMeter:
    """Keeps the latest reading of each node, to compute GPU time from the next one."""

    def __init__(self) -> None:
        self._latest: dict[str, _Read] = {}

    def measure(self, node: str, at_s: float, reading: AgentReading, made: Made) -> NodeUsage:
        """Compute the use of the node's pods and GPUs from a reading at ``at_s``.

        ``at_s`` are seconds of a monotonic clock. ``made`` has the creation times of the pods that
        were read. A pod's GPU time is known from its second reading on, if its agent counts GPU
        time.
        """
        before = self._latest.get(node)
        now = self._latest[node] = _Read(at_s, reading, made)
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


def _percent(key: str, before: _Read | None, now: _Read) -> int | None:
    """Return the percentage of one GPU's time; None if the two readings do not determine it."""
    if before is None or now.at_s <= before.at_s or not is_same(key, before.made, now.made):
        return None
    if before.reading.agents_started != now.reading.agents_started:
        return None  # another agent's counters began at another time
    earlier, later = before.reading.pod_seconds.get(key), now.reading.pod_seconds.get(key)
    if earlier is None or later is None or later < earlier:
        return None  # the pod is new, or its containers have restarted
    return round(100 * (later - earlier) / (now.at_s - before.at_s))


class UsageUnknown(Exception):
    """The use of a node's pods cannot be read.

    ``refused``: the viewer has no right to read it on any node, so retries do not help.
    """

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


class UsageReader:
    """Reads from the agents of the release in ``namespace``."""

    def __init__(self, connection: Connection, namespace: str) -> None:
        self._connection = connection
        self._namespace = namespace
        self._listing = asyncio.Lock()
        self._listed_at = float("-inf")
        self._unlisted: UsageUnknown | None = None
        self._agents: dict[str, str] = {}  # node -> name and port of its agent's pod
        self._doubted: set[str] = set()  # nodes whose agent may have been replaced

    @property
    def finds_no_agent(self) -> bool:
        """Whether the namespace has no agent that is ready."""
        return not self._agents and self._unlisted is None

    async def read(self, node: str) -> AgentReading:
        """Read the current metrics of a node's agent.

        Raises:
            UsageUnknown: it cannot be read.
        """
        agent = await self._agent(node)
        answer = await self._ask(node, agent)
        try:
            return agent_reading(answer)
        except UnreadableMetrics as error:
            self._doubted.add(node)
            who = self._named(agent)
            raise UsageUnknown(
                f"{who} answers no metrics of an agent: {error}; {_quoted(answer)}"
            ) from error

    def _named(self, agent: str) -> str:
        """Return the text for a pod and its port."""
        name, _, port = agent.rpartition(":")
        return f"port {port} of pod {self._namespace}/{name}"

    async def _ask(self, node: str, agent: str) -> bytes:
        path = f"/api/v1/namespaces/{self._namespace}/pods/{agent}/proxy/metrics"
        try:
            async with asyncio.timeout(_MOST_S):  # shorter than the connection's own time-out
                return await self._connection.get(path, within=2 * _MOST_S)
        except TimeoutError as error:
            raise UsageUnknown(f"the agent did not answer within {_MOST_S:g} s") from error
        except Forbidden as error:
            raise UsageUnknown(
                f"you may not ask the agents: {error}", refused=bool(error.reason)
            ) from error
        except KubeError as error:
            self._doubted.add(node)
            raise UsageUnknown(f"the agent cannot be asked: {_error_text(error)}") from error

    async def _agent(self, node: str) -> str:
        async with self._listing:
            known = node in self._agents and node not in self._doubted
            if not known and time.monotonic() - self._listed_at >= _RELIST_S:
                await self._list()
        if self._unlisted is not None:
            raise self._unlisted
        if node not in self._agents:
            where = "on this node, " if self._agents else ""
            raise UsageUnknown(f"no agent is ready {where}in namespace {self._namespace}")
        return self._agents[node]

    async def _list(self) -> None:
        try:
            self._agents, self._unlisted = await self._ready_agents(), None
        except KubeError as error:
            refused = isinstance(error, Forbidden)
            self._unlisted = UsageUnknown(f"the agents cannot be listed: {error}", refused=refused)
        self._listed_at = time.monotonic()
        self._doubted.clear()

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
    """Return the beginning of a response, which helps to find out what sent it."""
    text = " ".join(answer[: 4 * _MOST_QUOTED].decode(errors="replace").split())
    return f"it begins with {text[:_MOST_QUOTED]!r}" if text else "it is empty"


def _error_text(error: Exception) -> str:
    return (
        error.server_message if isinstance(error, ApiError) and error.server_message else str(error)
    )


EVERY_S: Final = 15.0
KEPT_S: Final = 3600.0
MOST_NODES: Final = 128
MOST_PODS: Final = 1000
_IN_SIGHT_S: Final = 60.0
_ASK_AGAIN_S: Final = 300.0  # after the API server has refused access: somebody may grant it later
_POLL_EVERY_S: Final = 1.0
_AGENTS_AT_ONCE: Final = 8
_NOT_MEASURED: Final = (
    "its agent does not measure it: only gputile's library, of modes cgpu and "
    "core_mem, counts memory"
)
_SAMPLES: Final = int(KEPT_S / EVERY_S)


@dataclass(slots=True)
class _Followed:
    """A node that is polled; ``made`` has the creation times of the pods in ``usage``."""

    looked_s: float = 0.0
    until_s: float = 0.0
    due_s: float = 0.0
    usage: NodeUsage | None = None
    made: Made = field(default_factory=dict)


class UsageFeed:
    """The use of the polled nodes. One event loop owns it.

    ``made`` returns the creation times of the pods on a node. If too many nodes are open, the one
    that was viewed least recently is dropped.
    """

    def __init__(self, reader: UsageReader, made: Callable[[str], Made]) -> None:
        self._reader = reader
        self._made = made
        self._meter = UsageMeter()
        self._followed: dict[str, _Followed] = {}
        # By node, pod and the pod's creation time.
        self._samples: dict[tuple[str, str, int], deque[UsageSample]] = {}
        self._refused = ""
        self._ask_again_s = 0.0
        self._turns = asyncio.Semaphore(_AGENTS_AT_ONCE)
        self._wake = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                now_s = time.monotonic()
                self._forget(now_s)
                for name, each in self._followed.items():
                    if each.due_s <= now_s and self._ask_again_s <= now_s:
                        each.due_s = float("inf")  # until it has been read
                        group.create_task(self._read(name, each))
                try:
                    async with asyncio.timeout(_POLL_EVERY_S):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                self._wake.clear()

    def of_nodes(self, names: Iterable[str]) -> UsageAnswer:
        """Return the known use of these nodes, and poll them for a while."""
        found = {}
        for name in names:
            followed = self._follow(name, _IN_SIGHT_S)
            if followed.usage is not None:
                found[name] = _of_those(followed.usage, followed.made, self._made(name))
        return UsageAnswer(self._trouble(), found)

    def of_pod(self, node: str, key: str) -> PodUsageAnswer:
        """Return the known use of a pod, ``namespace/name``, and poll its node for an hour."""
        followed = self._follow(node, KEPT_S)
        made, usage = self._made(node), followed.usage
        line = node, key, made.get(key, 0)
        if line not in self._samples and len(self._samples) >= MOST_PODS:
            del self._samples[next(iter(self._samples))]
        self._samples.setdefault(line, deque(maxlen=_SAMPLES))
        if usage is None or not is_same(key, followed.made, made):
            return PodUsageAnswer(self._refused, None, list(self._samples[line]))
        problem = usage.problem or ("" if key in usage.pods else _NOT_MEASURED)
        return PodUsageAnswer(
            self._refused or problem, usage.pods.get(key), list(self._samples[line])
        )

    def _follow(self, name: str, for_s: float) -> _Followed:
        """Poll a node for ``for_s`` seconds."""
        now_s = time.monotonic()
        if name not in self._followed and len(self._followed) >= MOST_NODES:
            del self._followed[min(self._followed, key=lambda each: self._followed[each].looked_s)]
        followed = self._followed.setdefault(name, _Followed())
        followed.looked_s, followed.until_s = now_s, max(followed.until_s, now_s + for_s)
        if followed.usage is None:
            self._wake.set()
        return followed

    def _forget(self, now_s: float) -> None:
        """Stop polling nodes whose time has ended, and drop their samples."""
        self._followed = {
            name: each for name, each in self._followed.items() if each.until_s > now_s
        }
        self._meter.retain(self._followed)
        for line in [line for line in self._samples if line[0] not in self._followed]:
            del self._samples[line]

    async def _read(self, name: str, followed: _Followed) -> None:
        async with self._turns:
            # Before the reading, lest a new pod of the same name gets the use of the old one.
            made = self._made(name)
            try:
                reading = await self._reader.read(name)
            except UsageUnknown as error:
                followed.usage = NodeUsage(problem=str(error))
                if error.refused:
                    self._refused = str(error)
                    self._ask_again_s = time.monotonic() + _ASK_AGAIN_S
            else:
                self._refused = ""
                followed.usage = self._meter.measure(name, time.monotonic(), reading, made)
                followed.made = made
                self._store(name, followed.usage, made)
        followed.due_s = time.monotonic() + EVERY_S

    def _store(self, node: str, usage: NodeUsage, made: Made) -> None:
        now = int(time.time())
        lines = {(node, key, made.get(key, 0)): pod for key, pod in usage.pods.items()}
        # A pod that is not measured has an entry without samples.
        there = {(node, *pod) for pod in made.items()}
        for line in [
            line for line in self._samples if line[0] == node and line not in there | lines.keys()
        ]:
            del self._samples[line]
        for line, pod in lines.items():
            if line in self._samples or len(self._samples) < MOST_PODS:
                self._samples.setdefault(line, deque(maxlen=_SAMPLES)).append(_sample(now, pod))

    def _trouble(self) -> str:
        """Return the reason why no use is known, "" if some is known or may become known soon."""
        known = [each.usage for each in self._followed.values() if each.usage is not None]
        if self._refused or not known or any(not usage.problem for usage in known):
            return self._refused
        return known[0].problem


def _of_those(usage: NodeUsage, earlier: Made, later: Made) -> NodeUsage:
    """Remove the use of deleted pods whose names other pods have now."""
    pods = {key: pod for key, pod in usage.pods.items() if is_same(key, earlier, later)}
    return usage if len(pods) == len(usage.pods) else msgspec.structs.replace(usage, pods=pods)


def _sample(now: int, pod: PodUsage) -> UsageSample:
    return UsageSample(now, pod.mib, pod.percent)
