"""Reads the usage of pods and GPUs from the agents, for commands that compare it with bookings."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Final

from gputile.cli.options import Reach
from gputile.cli.reads.live_cluster import connected, read_or_leave
from gputile.tools.web.records import NodeTile, NodeUsage
from gputile.tools.web.usage import AgentReading, Made, UsageMeter, UsageReader, UsageUnknown, made_of

MOST_NODES: Final = 200  # each agent costs a request through the API server
BETWEEN_S: Final = 1.0
_AT_ONCE: Final = 16


class UsageLooks:
    """Reads usage from the agents of a release. ``why`` is the reason if some of it is unknown, else None."""

    def __init__(self, reach: Reach, installed_in: str) -> None:
        self.why: str | None = None
        self._reach = reach
        self._installed_in = installed_in
        self._meter = UsageMeter()

    def look(self, tiles: Iterable[NodeTile], *, twice: bool = False) -> Mapping[str, NodeUsage]:
        """Return the usage on these nodes; if there are more than ``MOST_NODES``, on those with the most pods.

        With ``twice``, agents that count GPU time are asked again after a second: a percentage needs two readings.
        Exits if the cluster cannot be reached.
        """
        tiles = list(tiles)
        made = {tile.name: made_of(tile) for tile in tiles}
        nodes = [tile.name for tile in sorted(tiles, key=lambda tile: (-len(tile.pods), tile.name)) if tile.gpus]
        asked = nodes[:MOST_NODES]
        self.why = None
        if len(nodes) > len(asked):
            self.why = f"use is shown of the {MOST_NODES} nodes with most pods, of {len(nodes)}"
        self._meter.keep(asked)
        return read_or_leave(self._look({name: made[name] for name in asked}, twice=twice))

    async def _look(self, nodes: Mapping[str, Made], *, twice: bool) -> Mapping[str, NodeUsage]:
        async with connected(self._reach) as connection:
            reader = UsageReader(connection, self._installed_in)
            found, counts_time = await self._round(reader, nodes)
            if twice and counts_time:
                await asyncio.sleep(BETWEEN_S)
                again, _ = await self._round(reader, {name: nodes[name] for name in counts_time})
                found |= again
        return found

    async def _round(self, reader: UsageReader, nodes: Mapping[str, Made]) -> tuple[dict[str, NodeUsage], list[str]]:
        """Return the usage of the nodes, and the names of those that count GPU time."""
        turns = asyncio.Semaphore(_AT_ONCE)

        async def read(node: str) -> AgentReading | UsageUnknown:
            async with turns:
                try:
                    return await reader.read(node)
                except UsageUnknown as error:
                    return error

        found, counts_time, failed = {}, [], []
        for node, answer in zip(nodes, await asyncio.gather(*map(read, nodes)), strict=True):
            if isinstance(answer, UsageUnknown):
                failed.append(f"{answer}" if answer.refused else f"{node}: {answer}")
                continue
            found[node] = self._meter.take(node, time.monotonic(), answer, nodes[node])
            if answer.pod_seconds:
                counts_time.append(node)
        if failed:
            self.why = f"use is not known of {len(failed)} of {len(nodes)} nodes: {failed[0]}"
        return found, counts_time
