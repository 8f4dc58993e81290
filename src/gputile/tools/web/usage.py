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

from gputile.tools.web.agent_usage import Made, UsageMeter, UsageReader, UsageUnknown, is_same
from gputile.tools.web.records import NodeUsage, PodUsageAnswer, UsageAnswer, UsageSample

EVERY_S: Final = 15.0
KEPT_S: Final = 3600.0
MOST_NODES: Final = 128
MOST_PODS: Final = 1000
_IN_SIGHT_S: Final = 60.0
_ASK_AGAIN_S: Final = 300.0  # after the API server refused access, which may be granted later
_POLL_EVERY_S: Final = 1.0
_AGENTS_AT_ONCE: Final = 8
_NOT_MEASURED: Final = (
    "the agent does not measure this pod, because only gputile's library counts memory, and only "
    "modes cgpu and core_mem use the library"
)
_SAMPLES: Final = int(KEPT_S / EVERY_S)


@dataclass(slots=True)
class _Followed:
    """A node that is polled. Times are seconds of the monotonic clock."""

    looked_s: float = 0.0  # when a viewer last requested the node
    until_s: float = 0.0  # when polling ends
    due_s: float = 0.0  # when the next poll is due
    usage: NodeUsage | None = None
    made: Made = field(default_factory=dict)  # of the pods in ``usage``


class UsageFeed:
    """Polls nodes and stores their use. Not thread-safe: one event loop owns the feed.

    ``made`` returns the creation times of the pods on a node. If more than ``MOST_NODES`` nodes
    are open, the least recently viewed node is dropped.
    """

    def __init__(self, reader: UsageReader, made: Callable[[str], Made]) -> None:
        self._reader = reader
        self._made = made
        self._meter = UsageMeter()
        self._followed: dict[str, _Followed] = {}
        # Keys: the node, the pod's namespace/name, and the pod's creation time.
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
                        each.due_s = float("inf")  # _read sets the next time
                        group.create_task(self._read(name, each))
                try:
                    async with asyncio.timeout(_POLL_EVERY_S):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                self._wake.clear()

    def of_nodes(self, names: Iterable[str]) -> UsageAnswer:
        """Return the known use of these nodes, and poll them for the next minute."""
        found = {}
        for name in names:
            followed = self._follow(name, _IN_SIGHT_S)
            if followed.usage is not None:
                found[name] = _of_those(followed.usage, followed.made, self._made(name))
        return UsageAnswer(self._trouble(), found)

    def of_pod(self, node: str, key: str) -> PodUsageAnswer:
        """Return the known use of the pod ``namespace/name``, and poll its node for an hour."""
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
        """Poll a node for at least the next ``for_s`` seconds."""
        now_s = time.monotonic()
        if name not in self._followed and len(self._followed) >= MOST_NODES:
            del self._followed[min(self._followed, key=lambda each: self._followed[each].looked_s)]
        followed = self._followed.setdefault(name, _Followed())
        followed.looked_s, followed.until_s = now_s, max(followed.until_s, now_s + for_s)
        if followed.usage is None:
            self._wake.set()
        return followed

    def _forget(self, now_s: float) -> None:
        """Stop polling nodes that viewers no longer need, and drop their samples."""
        self._followed = {
            name: each for name, each in self._followed.items() if each.until_s > now_s
        }
        self._meter.retain(self._followed)
        for line in [line for line in self._samples if line[0] not in self._followed]:
            del self._samples[line]

    async def _read(self, name: str, followed: _Followed) -> None:
        async with self._turns:
            # Read creation times first. A later pod of the same name must not get this usage.
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
        # Pods that exist but are not measured keep their entries.
        there = {(node, *pod) for pod in made.items()}
        for line in [
            line for line in self._samples if line[0] == node and line not in there | lines.keys()
        ]:
            del self._samples[line]
        for line, pod in lines.items():
            if line in self._samples or len(self._samples) < MOST_PODS:
                self._samples.setdefault(line, deque(maxlen=_SAMPLES)).append(
                    UsageSample(now, pod.mib, pod.percent)
                )

    def _trouble(self) -> str:
        """Return why all use is unknown, or "" if some is known or may become known soon."""
        known = [each.usage for each in self._followed.values() if each.usage is not None]
        if self._refused or not known or any(not usage.problem for usage in known):
            return self._refused
        return known[0].problem


def _of_those(usage: NodeUsage, earlier: Made, later: Made) -> NodeUsage:
    """Remove the use of deleted pods if new pods have the same names."""
    pods = {key: pod for key, pod in usage.pods.items() if is_same(key, earlier, later)}
    return usage if len(pods) == len(usage.pods) else msgspec.structs.replace(usage, pods=pods)
