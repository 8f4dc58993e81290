"""Polls the usage of the nodes that viewers have open, and keeps samples of one hour.

A node is polled while a browser shows it, and for an hour after a viewer has opened a pod on it.
Agents of other nodes are not read, so the cost does not grow with the cluster. Samples are lost
when the process ends. For a longer history, use Prometheus.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from gputile.tools.web.agent_usage import (
    CreationTimes,
    UsageMeter,
    UsageReader,
    UsageUnknown,
    is_same,
)
from gputile.tools.web.records import NodeUsage, PodUsageAnswer, UsageAnswer, UsageSample

EVERY_S: Final = 15.0
HISTORY_S: Final = 3600.0
MOST_NODES: Final = 128
MOST_PODS: Final = 1000
_POLL_AFTER_VIEW_S: Final = 60.0
_RETRY_S: Final = 300.0  # after the API server refused access, which may be granted later
_POLL_EVERY_S: Final = 1.0
_AGENTS_AT_ONCE: Final = 8
_NOT_MEASURED: Final = (
    "the agent does not measure this pod, because only gputile's library counts memory, and only "
    "modes cgpu and core_mem use the library"
)
_SAMPLES: Final = int(HISTORY_S / EVERY_S)


@dataclass(slots=True)
class _PolledNode:
    """A node that is polled. Times are seconds of the monotonic clock."""

    viewed_s: float = 0.0  # when a viewer last requested the node
    until_s: float = 0.0  # when polling ends
    due_s: float = 0.0  # when the next poll is due
    usage: NodeUsage | None = None
    created: CreationTimes = field(default_factory=dict)  # of the pods in ``usage``


class UsageFeed:
    """Polls nodes and stores their usage. Not thread-safe: one event loop owns the feed.

    ``created`` returns the creation times of the pods on a node. At most ``MOST_NODES`` nodes are
    polled. A further node replaces the node that was viewed least recently.
    """

    def __init__(self, reader: UsageReader, created: Callable[[str], CreationTimes]) -> None:
        self._reader = reader
        self._created = created
        self._meter = UsageMeter()
        self._polled: dict[str, _PolledNode] = {}
        # Keys: the node, the pod's namespace/name, and the pod's creation time.
        self._samples: dict[tuple[str, str, int], deque[UsageSample]] = {}
        self._refused = ""
        self._retry_s = 0.0
        self._slots = asyncio.Semaphore(_AGENTS_AT_ONCE)
        self._wake = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                now_s = time.monotonic()
                self._drop_unused(now_s)
                for name, each in self._polled.items():
                    if each.due_s <= now_s and self._retry_s <= now_s:
                        each.due_s = float("inf")  # _read sets the next time
                        group.create_task(self._read(name, each))
                try:
                    async with asyncio.timeout(_POLL_EVERY_S):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                self._wake.clear()

    def of_nodes(self, names: Iterable[str]) -> UsageAnswer:
        """Return the known usage of these nodes, and poll them for the next minute."""
        found = {}
        for name in names:
            polled = self._poll(name, _POLL_AFTER_VIEW_S)
            if polled.usage is not None:
                found[name] = _without_deleted(polled.usage, polled.created, self._created(name))
        return UsageAnswer(self._trouble(), found)

    def of_pod(self, node: str, key: str) -> PodUsageAnswer:
        """Return the known usage of the pod ``namespace/name``, and poll its node for an hour."""
        polled = self._poll(node, HISTORY_S)
        created, usage = self._created(node), polled.usage
        line = node, key, created.get(key, 0)
        if line not in self._samples and len(self._samples) >= MOST_PODS:
            del self._samples[next(iter(self._samples))]
        self._samples.setdefault(line, deque(maxlen=_SAMPLES))
        if usage is None or not is_same(key, polled.created, created):
            return PodUsageAnswer(self._refused, None, list(self._samples[line]))
        problem = usage.problem or ("" if key in usage.pods else _NOT_MEASURED)
        return PodUsageAnswer(
            self._refused or problem, usage.pods.get(key), list(self._samples[line])
        )

    def _poll(self, name: str, for_s: float) -> _PolledNode:
        """Poll a node for at least the next ``for_s`` seconds."""
        now_s = time.monotonic()
        if name not in self._polled and len(self._polled) >= MOST_NODES:
            del self._polled[min(self._polled, key=lambda each: self._polled[each].viewed_s)]
        polled = self._polled.setdefault(name, _PolledNode())
        polled.viewed_s, polled.until_s = now_s, max(polled.until_s, now_s + for_s)
        if polled.usage is None:
            self._wake.set()
        return polled

    def _drop_unused(self, now_s: float) -> None:
        """Stop polling nodes that viewers no longer need, and drop their samples."""
        self._polled = {name: each for name, each in self._polled.items() if each.until_s > now_s}
        self._meter.retain(self._polled)
        for line in [line for line in self._samples if line[0] not in self._polled]:
            del self._samples[line]

    async def _read(self, name: str, polled: _PolledNode) -> None:
        async with self._slots:
            # Read creation times first. A later pod of the same name must not get this usage.
            created = self._created(name)
            try:
                reading = await self._reader.read(name)
            except UsageUnknown as error:
                polled.usage = NodeUsage(problem=str(error))
                if error.refused:
                    self._refused = str(error)
                    self._retry_s = time.monotonic() + _RETRY_S
            else:
                self._refused = ""
                polled.usage = self._meter.measure(name, time.monotonic(), reading, created)
                polled.created = created
                self._store(name, polled.usage, created)
        polled.due_s = time.monotonic() + EVERY_S

    def _store(self, node: str, usage: NodeUsage, created: CreationTimes) -> None:
        now = int(time.time())
        lines = {(node, key, created.get(key, 0)): pod for key, pod in usage.pods.items()}
        # Pods that exist but are not measured keep their entries.
        existing = {(node, *pod) for pod in created.items()}
        for line in [line for line in self._samples if line[0] == node]:
            if line not in existing and line not in lines:
                del self._samples[line]
        for line, pod in lines.items():
            if line in self._samples or len(self._samples) < MOST_PODS:
                self._samples.setdefault(line, deque(maxlen=_SAMPLES)).append(
                    UsageSample(now, pod.mib, pod.percent)
                )

    def _trouble(self) -> str:
        """Return why all usage is unknown, or "" if some is known or may become known soon."""
        known = [each.usage for each in self._polled.values() if each.usage is not None]
        if self._refused or not known or any(not usage.problem for usage in known):
            return self._refused
        return known[0].problem


def _without_deleted(usage: NodeUsage, earlier: CreationTimes, later: CreationTimes) -> NodeUsage:
    """Remove the usage of deleted pods, even if new pods have the same names."""
    pods = {key: pod for key, pod in usage.pods.items() if is_same(key, earlier, later)}
    return usage if len(pods) == len(usage.pods) else msgspec.structs.replace(usage, pods=pods)
