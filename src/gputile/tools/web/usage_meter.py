"""From readings of agents to what pods use: memory now, and the part of a GPU's time between two readings.

It does no I/O and knows no clock.
"""

from collections.abc import Collection
from dataclasses import dataclass

from gputile.tools.web.agent_metrics import AgentReading, mib
from gputile.tools.web.records import NodeUsage, PodUsage


@dataclass(frozen=True, slots=True)
class _Read:
    at_s: float
    reading: AgentReading


class UsageMeter:
    """Keeps the latest reading of each node, to which the next one is compared."""

    def __init__(self) -> None:
        self._latest: dict[str, _Read] = {}

    def take(self, node: str, at_s: float, reading: AgentReading) -> NodeUsage:
        """Return what the node's pods and GPUs use by a reading at ``at_s``, in seconds of a clock that only advances.

        A pod has a part of GPU time from its second reading on, where its agent counts GPU time.
        """
        before = self._latest.get(node)
        self._latest[node] = _Read(at_s, reading)
        pods = {}
        for key in sorted(reading.pod_bytes.keys() | reading.pod_seconds.keys()):
            used = reading.pod_bytes.get(key)
            pods[key] = PodUsage(None if used is None else mib(used), _percent(key, before, at_s, reading))
        return NodeUsage(pods, {index: mib(used) for index, used in sorted(reading.gpu_bytes.items())})

    def keep(self, nodes: Collection[str]) -> None:
        """Forget all other nodes."""
        for name in self._latest.keys() - set(nodes):
            del self._latest[name]


def _percent(key: str, before: _Read | None, at_s: float, reading: AgentReading) -> int | None:
    """Return the part of one GPU's time in percent; None where two readings do not tell it."""
    if before is None or at_s <= before.at_s:
        return None
    earlier, now = before.reading.pod_seconds.get(key), reading.pod_seconds.get(key)
    if earlier is None or now is None or now < earlier:
        return None  # it is new, or its containers have started again
    return round(100 * (now - earlier) / (at_s - before.at_s))
