"""What is used on the nodes that somebody looks at: read again and again, and kept for an hour, in bounds.

A node is followed while a browser has it in sight, and for an hour after one has opened a pod on it. What is kept goes
with the process: a longer memory is Prometheus' work.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gputile.tools.web.records import NodeUsage, PodUsage, PodUsageAnswer, UsageAnswer, UsageSample
from gputile.tools.web.usage_meter import UsageMeter
from gputile.tools.web.usage_reader import UsageReader, UsageUnknown

EVERY_S: Final = 15.0
KEPT_S: Final = 3600.0
MOST_NODES: Final = 128
MOST_PODS: Final = 1000
_IN_SIGHT_S: Final = 60.0
_ASK_AGAIN_S: Final = 300.0  # whom the API server has refused: rights are granted by people
_LOOK_EVERY_S: Final = 1.0
_AT_ONCE: Final = 8
_TOO_MANY: Final = f"use is read of {MOST_NODES} nodes at a time, and others look at as many"
_NOT_MEASURED: Final = "its agent does not measure it; without gputile's library that needs agent.hostPID of the chart"
_SAMPLES: Final = int(KEPT_S / EVERY_S)


@dataclass(slots=True)
class _Followed:
    until_s: float
    due_s: float = 0.0
    usage: NodeUsage | None = None


class UsageFeed:
    """The use of nodes that are followed. One event loop owns it."""

    def __init__(self, reader: UsageReader) -> None:
        self._reader = reader
        self._meter = UsageMeter()
        self._followed: dict[str, _Followed] = {}
        self._samples: dict[tuple[str, str], deque[UsageSample]] = {}  # by node and pod
        self._refused = ""
        self._ask_again_s = 0.0
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Read what is followed, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                now_s = time.monotonic()
                self._forget(now_s)
                for name, each in self._followed.items():
                    if each.due_s <= now_s and self._ask_again_s <= now_s:
                        each.due_s = float("inf")  # it is due again once it has been read
                        group.create_task(self._read(name, each))
                try:
                    async with asyncio.timeout(_LOOK_EVERY_S):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                self._wake.clear()

    def of_nodes(self, names: Iterable[str]) -> UsageAnswer:
        """Return what is known of these nodes, and follow them for a while: what is not known yet, is soon."""
        found = {}
        for name in names:
            if name not in self._followed and len(self._followed) >= MOST_NODES:
                found[name] = NodeUsage(problem=_TOO_MANY)
                continue
            usage = self._follow(name, _IN_SIGHT_S).usage
            if usage is not None:
                found[name] = usage
        return UsageAnswer(self._trouble(), found)

    def of_pod(self, node: str, key: str) -> PodUsageAnswer:
        """Return what is known of a pod, ``namespace/name``, and follow its node for an hour."""
        usage = self._follow(node, KEPT_S).usage
        if (node, key) not in self._samples and len(self._samples) >= MOST_PODS:
            del self._samples[next(iter(self._samples))]
        samples = self._samples.setdefault((node, key), deque(maxlen=_SAMPLES))
        if usage is None:
            return PodUsageAnswer(self._refused, None, list(samples))
        problem = usage.problem or ("" if key in usage.pods else _NOT_MEASURED)
        return PodUsageAnswer(self._refused or problem, usage.pods.get(key), list(samples))

    def _follow(self, name: str, for_s: float) -> _Followed:
        until_s = time.monotonic() + for_s
        followed = self._followed.setdefault(name, _Followed(until_s))
        followed.until_s = max(followed.until_s, until_s)
        if followed.usage is None:
            self._wake.set()
        return followed

    def _forget(self, now_s: float) -> None:
        """Follow no longer what nobody has looked at for long, nor what is too much."""
        by_end = sorted(self._followed.items(), key=lambda item: -item[1].until_s)
        self._followed = {name: each for name, each in by_end[:MOST_NODES] if each.until_s > now_s}
        self._meter.keep(self._followed)
        for node, key in [each for each in self._samples if each[0] not in self._followed]:
            del self._samples[node, key]

    async def _read(self, name: str, followed: _Followed) -> None:
        async with self._turns:
            try:
                reading = await self._reader.read(name)
            except UsageUnknown as error:
                followed.usage = NodeUsage(problem=str(error))
                if error.refused:
                    self._refused = str(error)
                    self._ask_again_s = time.monotonic() + _ASK_AGAIN_S
            else:
                self._refused = ""
                followed.usage = self._meter.take(name, time.monotonic(), reading)
                self._keep(name, followed.usage)
        followed.due_s = time.monotonic() + EVERY_S

    def _keep(self, node: str, usage: NodeUsage) -> None:
        now = int(time.time())
        for key in [key for name, key in self._samples if name == node and key not in usage.pods]:
            del self._samples[node, key]
        for key, pod in usage.pods.items():
            if (node, key) in self._samples or len(self._samples) < MOST_PODS:
                samples = self._samples.setdefault((node, key), deque(maxlen=_SAMPLES))
                samples.append(_sample(now, pod))

    def _trouble(self) -> str:
        """Return why nothing at all is known, "" where something is, or is not known yet."""
        known = [each.usage for each in self._followed.values() if each.usage is not None]
        if self._refused or not known or any(not usage.problem for usage in known):
            return self._refused
        return known[0].problem


def _sample(now: int, pod: PodUsage) -> UsageSample:
    return UsageSample(now, pod.mib, pod.percent)
