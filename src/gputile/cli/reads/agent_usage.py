"""Reads what pods and GPUs use, as the agents measure it, for commands that show it beside bookings."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Final

from gputile.cli.options import Reach
from gputile.cli.reads.live_cluster import connected, read_or_leave
from gputile.tools.web.records import NodeTile, NodeUsage
from gputile.tools.web.usage import AgentReading, Made, UsageMeter, UsageReader, UsageUnknown, made_of

MOST_NODES: Final = 200  # whose agents are asked: each by itself, through the API server
BETWEEN_S: Final = 1.0
_AT_ONCE: Final = 16


class UsageLooks:
    """Asks the agents of a release again and again. ``why`` is why not all is known, None where it is."""

    def __init__(self, reach: Reach, installed_in: str) -> None:
        self.why: str | None = None
        self._reach = reach
        self._installed_in = installed_in
        self._meter = UsageMeter()

    def look(self, tiles: Iterable[NodeTile], *, twice: bool = False) -> Mapping[str, NodeUsage]:
        """Return what is used on these nodes, those with most pods first where there are very many.

        With ``twice`` agents that count GPU time are asked again after a second, since a part of it needs two readings.
        Leaves the program where the cluster cannot be reached.
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
        """Return what nodes use, and which of them count GPU time."""
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
