"""Computes what pods use from agents' readings: memory now, and GPU time between two readings.

It does no I/O and knows no clock.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gputile.api.quantity import MIB
from gputile.tools.web.page.records import NodeTile, NodeUsage, PodUsage

_USED: Final = "gputile_agent_container_memory_used_bytes"
_TIME: Final = "gputile_agent_gpu_time_seconds_total"
_GPU_USED: Final = "gputile_agent_gpu_memory_used_bytes"
_STARTED: Final = "gputile_agent_agents_started_total"
_READ: Final = (*(f"{name}{{" for name in (_USED, _TIME, _GPU_USED)), f"{_STARTED} ")
_OF_AGENT: Final = "gputile_agent_"
_MOST: Final = 1 << 53  # bytes or seconds: more than any node has, and the last whole number that a float counts to


class UnreadableMetrics(Exception):
    """What a port answered are no metrics."""


@dataclass(frozen=True, slots=True)
class AgentReading:
    """The use of a node's GPUs at one moment. Pods are named ``namespace/name``; one that is not measured is absent.

    ``pod_bytes`` is memory by GPU index, ``pod_seconds`` time on GPUs since the containers' start, ``gpu_bytes`` memory
    in use by GPU index, by whomever. ``agents_started`` tells an agent, and what it has counted, from the one before.
    """

    pod_bytes: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    pod_seconds: Mapping[str, float] = field(default_factory=dict)
    gpu_bytes: Mapping[int, int] = field(default_factory=dict)
    agents_started: int = 0


def agent_reading(text: bytes) -> AgentReading:
    """Return what an agent's ``/metrics`` say, in Prometheus' text format.

    Raises:
        UnreadableMetrics: they are not in that format.
    """
    # The other series are most of the text, and Prometheus' own parser takes a tenth of a second for all of them.
    said = [line for line in text.decode(errors="replace").split("\n") if line.startswith(_OF_AGENT)]
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
                    on[index] = on.get(index, 0) + int(_amount(each))
                elif each.name == _TIME:
                    pod_seconds[_pod(each)] = pod_seconds.get(_pod(each), 0.0) + _amount(each)
                elif each.name == _GPU_USED:
                    gpu_bytes[int(each.labels["gpu"])] = int(_amount(each))
                elif each.name == _STARTED:
                    agents_started = int(_amount(each))
    except (ValueError, OverflowError, LookupError) as error:
        raise UnreadableMetrics(f"{type(error).__name__}: {error}") from error
    return AgentReading(pod_bytes, pod_seconds, gpu_bytes, agents_started)


def mib(count: int) -> int:
    """Return bytes as MiB, rounded up: what uses anything does not use nothing."""
    return -(-count // MIB)


def _amount(sample: Sample) -> float:
    if not 0 <= sample.value <= _MOST:  # nor NaN, of which both comparisons are false
        raise ValueError(f"{sample.name} is {sample.value}")
    return sample.value


def _pod(sample: Sample) -> str:
    return f"{sample.labels['namespace']}/{sample.labels['pod']}"


Made = Mapping[str, int]
"""When the pods of a node were created, by ``namespace/name``: it tells a pod from its predecessor of the same name."""


def made_of(tile: NodeTile) -> Made:
    """Return when the pods of a node were created, Unix time in seconds."""
    return {f"{pod.namespace}/{pod.name}": pod.created for pod in tile.pods}


def is_same(key: str, earlier: Made, later: Made) -> bool:
    """Return whether a name was that of the same pod at two moments."""
    return earlier.get(key, 0) == later.get(key, 0)


@dataclass(frozen=True, slots=True)
class _Read:
    at_s: float
    reading: AgentReading
    made: Made


class UsageMeter:
    """Keeps the latest reading of each node, to which the next one is compared."""

    def __init__(self) -> None:
        self._latest: dict[str, _Read] = {}

    def take(self, node: str, at_s: float, reading: AgentReading, made: Made) -> NodeUsage:
        """Return what the node's pods and GPUs use by a reading at ``at_s``, in seconds of a clock that only advances.

        ``made`` says of which pods the reading is. A pod has a part of GPU time from its second reading on, where its
        agent counts GPU time.
        """
        before = self._latest.get(node)
        now = self._latest[node] = _Read(at_s, reading, made)
        pods = {}
        for key in sorted(reading.pod_bytes.keys() | reading.pod_seconds.keys()):
            used = reading.pod_bytes.get(key, {})
            by_gpu = {index: mib(count) for index, count in sorted(used.items())}
            pods[key] = PodUsage(mib(sum(used.values())) if used else None, _percent(key, before, now), by_gpu)
        return NodeUsage(pods, {index: mib(used) for index, used in sorted(reading.gpu_bytes.items())})

    def keep(self, nodes: Collection[str]) -> None:
        """Forget all other nodes."""
        for name in self._latest.keys() - set(nodes):
            del self._latest[name]


def _percent(key: str, before: _Read | None, now: _Read) -> int | None:
    """Return the part of one GPU's time in percent; None where two readings do not tell it."""
    if before is None or now.at_s <= before.at_s or not is_same(key, before.made, now.made):
        return None
    if before.reading.agents_started != now.reading.agents_started:
        return None  # what another agent has counted, began at another time
    earlier, later = before.reading.pod_seconds.get(key), now.reading.pod_seconds.get(key)
    if earlier is None or later is None or later < earlier:
        return None  # it is new, or its containers have started again
    return round(100 * (later - earlier) / (now.at_s - before.at_s))
