"""Reads the use of GPUs from an agent's metrics: memory by pod and GPU, and GPU time so far."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gputile.api.quantity import MIB

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
