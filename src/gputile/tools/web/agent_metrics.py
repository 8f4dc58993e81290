"""What an agent's metrics say of the use of its GPUs: memory by pod and by GPU, and the pods' GPU time so far."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

_USED: Final = "gputile_agent_container_memory_used_bytes"
_TIME: Final = "gputile_agent_gpu_time_seconds_total"
_GPU: Final = "gputile_agent_gpu_info"
_GPU_USED: Final = "gputile_agent_gpu_memory_used_bytes"
_READ: Final = tuple(f"{name}{{" for name in (_USED, _TIME, _GPU, _GPU_USED))
_MIB: Final = 1 << 20


class UnreadableMetrics(Exception):
    """What a port answered are no metrics."""


@dataclass(frozen=True, slots=True)
class AgentReading:
    """The use of a node's GPUs at one moment. Pods are named ``namespace/name``; one that is not measured is absent.

    ``pod_bytes`` is memory of GPUs, ``pod_seconds`` time on GPUs since the containers' start, ``gpu_bytes`` memory in
    use by GPU index, by whomever.
    """

    pod_bytes: Mapping[str, int] = field(default_factory=dict)
    pod_seconds: Mapping[str, float] = field(default_factory=dict)
    gpu_bytes: Mapping[int, int] = field(default_factory=dict)


def agent_reading(text: bytes) -> AgentReading:
    """Return what an agent's ``/metrics`` say, in Prometheus' text format.

    Raises:
        UnreadableMetrics: they are not in that format.
    """
    # The other series are most of the text, and Prometheus' own parser takes a tenth of a second for all of them.
    lines = [line for line in text.decode(errors="replace").split("\n") if line.startswith(_READ)]
    pod_bytes: dict[str, int] = {}
    pod_seconds: dict[str, float] = {}
    index_of: dict[str, int] = {}
    used_of: dict[str, int] = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for each in family.samples:
                if each.name == _USED:
                    pod_bytes[_pod(each)] = pod_bytes.get(_pod(each), 0) + int(each.value)
                elif each.name == _TIME:
                    pod_seconds[_pod(each)] = pod_seconds.get(_pod(each), 0.0) + each.value
                elif each.name == _GPU:
                    index_of[each.labels["gpu"]] = int(each.labels["index"])
                elif each.name == _GPU_USED:
                    used_of[each.labels["gpu"]] = int(each.value)
    except (ValueError, OverflowError, LookupError) as error:
        raise UnreadableMetrics(f"these are no metrics of an agent: {type(error).__name__}: {error}") from error
    return AgentReading(
        pod_bytes, pod_seconds, {index_of[gpu]: used for gpu, used in used_of.items() if gpu in index_of}
    )


def mib(count: int) -> int:
    """Return bytes as MiB, rounded up: what uses anything does not use nothing."""
    return -(-count // _MIB)


def _pod(sample: Sample) -> str:
    return f"{sample.labels['namespace']}/{sample.labels['pod']}"
