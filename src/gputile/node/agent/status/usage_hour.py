"""Keeps what containers used over the last hour in memory, one sample a minute.

A pod is known by its UID, so its samples end with it, and a pod of the same name begins anew. One thread takes the
samples and replaces them as a whole, for the threads that answer.
"""

from array import array
from collections.abc import Mapping
from typing import Final, NamedTuple

from gputile.api.quantity import MIB
from gputile.api.usage_hour import MOST_SAMPLES, HourLine, HourSample, PodHour
from gputile.node.agent.status.call_metrics import GpuTimes
from gputile.node.agent.status.container_use import ContainerUse
from gputile.node.agent.status.node_snapshot import Snapshots
from gputile.node.nvml.gpu_monitor import GpuMonitor

EVERY_S: Final = 60.0
_UNKNOWN: Final = -1
_FIELDS: Final = 3  # of a sample: Unix time, MiB, percent


class _Line(NamedTuple):
    """``seconds`` of GPU time so far, None where nobody counts; ``samples`` holds the fields one after another."""

    container: str
    gpu: int
    seconds: float | None
    samples: "array[int]"


_LINES = Mapping[str, Mapping[tuple[str, int], _Line]]  # by the pod's UID, then by container and GPU


class UsageHour:
    """The last hour of the containers of ``snapshots``."""

    def __init__(self, snapshots: Snapshots, monitor: GpuMonitor, times: GpuTimes, use: ContainerUse) -> None:
        self._snapshots = snapshots
        self._monitor = monitor
        self._times = times
        self._use = use
        self._due_s = self._taken_s = float("-inf")
        self._lines: _LINES = {}

    def take_if_due(self, at: int, now_s: float) -> None:
        """Take a sample if a minute has passed: ``at`` is Unix time, ``now_s`` that of a clock that only advances."""
        if now_s < self._due_s:
            return
        self._due_s += EVERY_S
        if self._due_s <= now_s:  # it is the first, or the machine has slept
            self._due_s = now_s + EVERY_S
        counted = {(row.container, row.gpu): row.seconds for row in self._times.rows}
        lines: dict[str, dict[tuple[str, int], _Line]] = {}
        for each, usages in self._use.read(self._snapshots.latest.containers, self._monitor.readings):
            before, of_pod = self._lines.get(each.container.uid, {}), lines.setdefault(each.container.uid, {})
            for part, usage in zip(each.gpus, usages, strict=True):
                key = each.container.name, part.index
                line = before.get(key, _Line(*key, None, array("q")))
                seconds = counted.get((each.container, str(part.index)))
                mib = _UNKNOWN if usage is None else -(-min(usage.used, part.total) // MIB)
                sample = array("q", (at, mib, _percent(line.seconds, seconds, now_s - self._taken_s)))
                of_pod[key] = _Line(*key, seconds, (line.samples + sample)[-MOST_SAMPLES * _FIELDS :])
        self._lines, self._taken_s = lines, now_s

    def of_pod(self, uid: str) -> PodHour:
        return PodHour(
            [HourLine(line.container, line.gpu, _samples(line.samples)) for line in self._lines.get(uid, {}).values()]
        )


def _percent(earlier: float | None, later: float | None, within_s: float) -> int:
    if earlier is None or later is None or later < earlier or within_s <= 0:
        return _UNKNOWN  # it is new, or has started again
    return min(round(100 * (later - earlier) / within_s), 100)


def _samples(fields: "array[int]") -> list[HourSample]:
    return [
        HourSample(fields[i], *(None if each == _UNKNOWN else each for each in fields[i + 1 : i + _FIELDS]))
        for i in range(0, len(fields), _FIELDS)
    ]
