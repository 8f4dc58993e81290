"""Builds the rows of ``gputile top``: the booked and used amounts of nodes, GPUs and pods."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeVar

import msgspec

from gputile.api.wording import described, gib_text
from gputile.kube.client import Connection
from gputile.tools.web.agent_usage import (
    AgentReading,
    UsageMeter,
    UsageReader,
    UsageUnknown,
    created_of,
)
from gputile.tools.web.records import GpuTile, NodeTile, NodeUsage, PodTile, PodUsage

MOST_NODES: Final = 200  # each node costs a request to its agent through the API server
BETWEEN_S: Final = 1.0
_REQUESTS_AT_ONCE: Final = 16
_NO_USAGE: Final = NodeUsage()
_UNKNOWN: Final = PodUsage(None)


class TopNode(msgspec.Struct, frozen=True, rename="camel"):
    """A node, with the booked and used amounts of its GPUs."""

    name: Annotated[str, described("The node's name.")]
    mode: Annotated[str, described('The mode in force, or "" if the mode is invalid.')]
    gpus: Annotated[int, described("The number of the node's GPUs.")]
    gpus_in_use: Annotated[int, described("The number of GPUs with pods.")]
    booked_mib: Annotated[int, described("Booked memory, in MiB.")]
    used_mib: Annotated[int | None, described("Memory in use in MiB, or null if unknown.")]
    total_mib: Annotated[int, described("Allocatable memory, in MiB.")]
    compute_percent: Annotated[int, described("Booked compute, in percent of one GPU.")]
    pods: Annotated[int, described("The number of pods with GPUs on the node.")]
    problems: Annotated[list[str], described("The node's problems.")]


class TopGpu(msgspec.Struct, frozen=True, rename="camel"):
    """A GPU, with its booked and used amounts."""

    node: Annotated[str, described("The node's name.")]
    index: Annotated[int, described("The number of the GPU on its node.")]
    model: Annotated[str, described('The GPU\'s model, or "" if unknown.')]
    booked_mib: Annotated[int, described("Booked memory, in MiB.")]
    used_mib: Annotated[int | None, described("Memory in use in MiB, or null if unknown.")]
    total_mib: Annotated[int, described("Allocatable memory, in MiB.")]
    compute_percent: Annotated[int, described("Booked compute, in percent.")]
    pods: Annotated[int, described("The number of pods on the GPU.")]
    healthy: Annotated[bool, described("Whether the GPU is healthy.")]


class TopPod(msgspec.Struct, frozen=True, rename="camel"):
    """A pod with GPUs, or with a reservation of GPUs."""

    namespace: Annotated[str, described("The pod's namespace.")]
    name: Annotated[str, described("The pod's name.")]
    node: Annotated[str, described("The pod's node.")]
    gpus: Annotated[
        list[int], described("The numbers of the pod's GPUs. The list is empty for MIG instances.")
    ]
    booked_mib: Annotated[int, described("Booked memory, in MiB.")]
    used_mib: Annotated[int | None, described("Memory in use in MiB, or null if unknown.")]
    used_mib_of_gpus: Annotated[
        list[int | None],
        described("Memory in use on each of `gpus`, in MiB. A number is null if unknown."),
    ]
    compute_percent: Annotated[int, described("Booked compute, in percent of one GPU.")]
    gpu_time_percent: Annotated[
        int | None, described("GPU time in use in percent of one GPU, or null if unknown.")
    ]
    reserved: Annotated[
        bool, described("Whether the GPUs are reserved for the pod, which is not bound yet.")
    ]


class TopAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """The JSON output of ``gputile top``. Each list is in the requested order."""

    nodes: Annotated[list[TopNode], described("The GPU nodes.")]
    gpus: Annotated[list[TopGpu], described("The GPUs of these nodes.")]
    pods: Annotated[list[TopPod], described("The pods with GPUs.")]


def top_answer(
    tiles: Iterable[NodeTile], order: str, usage: Mapping[str, NodeUsage] = MappingProxyType({})
) -> TopAnswer:
    """Build the rows, sorted by ``order``. ``usage`` maps node names to measured usage."""
    tiles = sorted(tiles, key=lambda tile: tile.name)
    used_on = {tile.name: usage.get(tile.name, _NO_USAGE) for tile in tiles}
    gpus = [_gpu(tile.name, gpu, used_on[tile.name]) for tile in tiles for gpu in tile.gpus]
    pods = [_pod(tile.name, pod, used_on[tile.name]) for tile in tiles for pod in tile.pods]
    pods.sort(key=lambda pod: (pod.namespace, pod.name))
    return TopAnswer(
        sorted(
            (_node(tile, used_on[tile.name]) for tile in tiles),
            key=_key(order, lambda row: (_booked_part(row), row.pods)),
        ),
        sorted(gpus, key=_key(order, lambda row: (_booked_part(row), row.pods))),
        sorted(pods, key=_key(order, lambda row: (float(row.booked_mib), len(row.gpus)))),
    )


Row = TypeVar("Row")
Columns = Mapping[str, Callable[[Row], str]]
"""Maps each heading of a table to the function that returns a row's cell."""


def table_of(columns: Columns[Row], rows: Iterable[Row]) -> list[tuple[str, ...]]:
    return [tuple(columns), *(tuple(cell(row) for cell in columns.values()) for row in rows)]


def _gpu(node: str, gpu: GpuTile, usage: NodeUsage) -> TopGpu:
    return TopGpu(
        node=node,
        index=gpu.index,
        model=gpu.model,
        booked_mib=gpu.booked,
        used_mib=usage.gpus.get(gpu.index),
        total_mib=gpu.total,
        compute_percent=gpu.percent,
        pods=gpu.pods,
        healthy=gpu.healthy,
    )


def _node(tile: NodeTile, usage: NodeUsage) -> TopNode:
    silent = ["its agent is silent"] if tile.silent else []
    cordoned = ["it is cordoned"] if tile.cordoned else []
    return TopNode(
        name=tile.name,
        mode=tile.mode,
        gpus=len(tile.gpus),
        gpus_in_use=sum(gpu.pods > 0 for gpu in tile.gpus),
        booked_mib=sum(gpu.booked for gpu in tile.gpus),
        used_mib=_sum(usage.gpus.get(gpu.index) for gpu in tile.gpus),
        total_mib=sum(gpu.total for gpu in tile.gpus),
        compute_percent=sum(gpu.percent for gpu in tile.gpus),
        pods=len(tile.pods),
        problems=[*cordoned, *silent, *tile.problems],
    )


def _pod(node: str, pod: PodTile, usage: NodeUsage) -> TopPod:
    measured = usage.pods.get(f"{pod.namespace}/{pod.name}", _UNKNOWN)
    return TopPod(
        namespace=pod.namespace,
        name=pod.name,
        node=node,
        gpus=[share.index for share in pod.shares],
        booked_mib=sum(share.mib for share in pod.shares) or pod.asked,
        used_mib=measured.mib,
        used_mib_of_gpus=[measured.gpus.get(share.index) for share in pod.shares],
        compute_percent=sum(share.percent for share in pod.shares),
        gpu_time_percent=measured.percent,
        reserved=pod.reserved,
    )


def _booked_part(row: TopNode | TopGpu) -> float:
    return row.booked_mib / row.total_mib if row.total_mib else 0.0


def _key(order: str, amounts: Callable[[Any], tuple[float, int]]) -> Callable[[Any], float]:
    """Return the key function of ``order``. ``amounts`` returns the booked amount and pod count."""
    match order:
        case "booked":
            return lambda row: -amounts(row)[0]
        case "used":
            return lambda row: 0 if row.used_mib is None else -1 - row.used_mib
        case "pods":
            return lambda row: -amounts(row)[1]
        case "compute":
            return lambda row: -row.compute_percent
        case _:
            return lambda _: 0


def _sum(amounts: Iterable[int | None]) -> int | None:
    """Return the sum, or None if an amount is unknown."""
    total = 0
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return total


def _pod_usage(pod: TopPod) -> str:
    """Return a pod's memory usage in GiB, and then the usage of each GPU if there are several."""
    if pod.used_mib is None or len(pod.gpus) < 2:
        return _used(pod.used_mib)
    return f"{gib_text(pod.used_mib)} ({', '.join(map(_used, pod.used_mib_of_gpus))})"


def _used(mib: int | None) -> str:
    return "-" if mib is None else gib_text(mib)


NODE_COLUMNS: Final[Columns[TopNode]] = {
    "NODE": lambda node: node.name,
    "MODE": lambda node: node.mode or "-",
    "GPUS IN USE": lambda node: f"{node.gpus_in_use}/{node.gpus}",
    "BOOKED GiB": lambda node: f"{gib_text(node.booked_mib)}/{gib_text(node.total_mib)}",
    "BOOKED": lambda node: f"{_booked_part(node):.0%}",
    "USED GiB": lambda node: _used(node.used_mib),
    "COMPUTE": lambda node: f"{node.compute_percent}%" if node.compute_percent else "-",
    "PODS": lambda node: str(node.pods),
    "PROBLEMS": lambda node: "; ".join(node.problems),
}
GPU_COLUMNS: Final[Columns[TopGpu]] = {
    "NODE": lambda gpu: gpu.node,
    "GPU": lambda gpu: str(gpu.index),
    "MODEL": lambda gpu: gpu.model or "-",
    "BOOKED GiB": lambda gpu: f"{gib_text(gpu.booked_mib)}/{gib_text(gpu.total_mib)}",
    "BOOKED": lambda gpu: f"{_booked_part(gpu):.0%}",
    "USED GiB": lambda gpu: _used(gpu.used_mib),
    "COMPUTE": lambda gpu: f"{gpu.compute_percent}%" if gpu.compute_percent else "-",
    "PODS": lambda gpu: str(gpu.pods),
    "HEALTH": lambda gpu: "ok" if gpu.healthy else "unhealthy",
}
POD_COLUMNS: Final[Columns[TopPod]] = {
    "NAMESPACE": lambda pod: pod.namespace,
    "POD": lambda pod: pod.name,
    "NODE": lambda pod: pod.node,
    "GPUS": lambda pod: ",".join(map(str, pod.gpus)) or "unknown",
    "BOOKED GiB": lambda pod: gib_text(pod.booked_mib),
    "USED GiB": _pod_usage,
    "COMPUTE": lambda pod: f"{pod.compute_percent}%" if pod.compute_percent else "-",
    "GPU TIME": lambda pod: "-" if pod.gpu_time_percent is None else f"{pod.gpu_time_percent}%",
    "STATE": lambda pod: "reserved" if pod.reserved else "bound",
}


class UsageOfNodes:
    """Reads usage from the agents in the namespace ``installed_in``.

    If some usage is unknown, ``unknown`` says why.
    """

    def __init__(self, installed_in: str) -> None:
        self.unknown = ""
        self._installed_in = installed_in
        self._meter = UsageMeter()

    async def read(
        self, connection: Connection, tiles: Iterable[NodeTile], *, twice: bool = False
    ) -> Mapping[str, NodeUsage]:
        """Return the usage of the GPU nodes with the most pods, at most ``MOST_NODES`` nodes.

        GPU time is computed from two readings. If ``twice`` is true, agents that count GPU time are
        therefore read again after a second.
        """
        nodes = [
            tile
            for tile in sorted(tiles, key=lambda tile: (-len(tile.pods), tile.name))
            if tile.gpus
        ]
        tile_of = {tile.name: tile for tile in nodes[:MOST_NODES]}
        self.unknown = ""
        if len(nodes) > len(tile_of):
            self.unknown = f"use is shown for {MOST_NODES} of {len(nodes)} nodes: the busiest ones"
        self._meter.retain(tile_of)
        reader = UsageReader(connection, self._installed_in)
        found, counts_time = await self._round(reader, tile_of)
        if twice and counts_time:
            await asyncio.sleep(BETWEEN_S)
            second, _ = await self._round(reader, {name: tile_of[name] for name in counts_time})
            found |= second
        return found

    async def _round(
        self, reader: UsageReader, nodes: Mapping[str, NodeTile]
    ) -> tuple[dict[str, NodeUsage], list[str]]:
        """Return the usage of the nodes, and the names of the nodes that count GPU time."""
        slots = asyncio.Semaphore(_REQUESTS_AT_ONCE)

        async def read(node: str) -> AgentReading | UsageUnknown:
            async with slots:
                try:
                    return await reader.read(node)
                except UsageUnknown as error:
                    return error

        found, counts_time, failed = {}, [], []
        for node, answer in zip(nodes, await asyncio.gather(*map(read, nodes)), strict=True):
            if isinstance(answer, UsageUnknown):
                failed.append(f"{answer}" if answer.refused else f"{node}: {answer}")
                continue
            created = created_of(nodes[node])
            found[node] = self._meter.measure(node, time.monotonic(), answer, created)
            if answer.pod_seconds:
                counts_time.append(node)
        if failed:
            self.unknown = f"use is unknown for {len(failed)} of {len(nodes)} nodes: {failed[0]}"
            if reader.has_no_agent:
                self.unknown += "; use --installed-in for another namespace"
        return found, counts_time
