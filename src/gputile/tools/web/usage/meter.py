"""Computes what pods use from agents' readings: memory now, and GPU time between two readings.

It does no I/O and knows no clock.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gputile.tools.web.page.records import NodeTile, NodeUsage, PodUsage
from gputile.tools.web.usage.agent_metrics import AgentReading, mib

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
