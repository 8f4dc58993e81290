"""What ``kubectl inspect gpushare`` shows of a cluster: the client of gpushare, by what it reads.

Its program is in none of the registries that the tests have, so this reads what it reads (B9), in words of our own:
of a node the resources ``aliyun.com/gpu-mem`` and ``aliyun.com/gpu-count``, of a pod the limits of its containers, the
annotation ``scheduler.framework.gpushare.allocation`` with numbers as its keys and, without it,
``ALIYUN_COM_GPU_MEM_IDX``. All GPUs of a node are alike to it, and init containers are unknown.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

MEMORY, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
ALLOCATION, INDEX = "scheduler.framework.gpushare.allocation", "ALIYUN_COM_GPU_MEM_IDX"
PENDING = -1  # the column of pods of which it does not know the GPU


@dataclass(frozen=True)
class ShownNode:
    """A row of the summary, and the pods below it with ``-d``: units by the number of a GPU."""

    name: str
    cells: dict[int, str]
    pending: int
    total: str
    pods: dict[tuple[str, str], dict[int, int]]


def shown(nodes: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]]) -> dict[str, ShownNode]:
    """Return what the client shows of each node that shares memory, from objects as the API server gives them."""
    alive = [pod for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")]
    found = {}
    for node in nodes:
        amounts = node["status"].get("allocatable", {})
        memory, count = int(amounts.get(MEMORY, 0)), int(amounts.get(COUNT, 0))
        if memory > 0:
            name = node["metadata"]["name"]
            here = [pod for pod in alive if pod["spec"].get("nodeName") == name and _asks(pod) > 0]
            found[name] = _node(name, memory, count, here)
    return found


def units_by_gpu(pod: Mapping[str, Any]) -> dict[int, int]:
    """Return the units of a pod by the number of the GPU; all of them under ``PENDING`` where that is not known."""
    annotations = pod["metadata"].get("annotations", {})
    found: dict[int, int] = {}
    try:
        for container, units in json.loads(annotations.get(ALLOCATION, "{}")).items():
            int(container)
            for index, amount in units.items():
                found[int(index)] = found.get(int(index), 0) + int(amount)
    except ValueError:
        found = {}
    if found:
        return found
    index = annotations.get(INDEX, "")
    return {int(index) if index.isdigit() else PENDING: _asks(pod)}


def _node(name: str, memory: int, count: int, pods: list[Mapping[str, Any]]) -> ShownNode:
    taken = {(pod["metadata"]["namespace"], pod["metadata"]["name"]): units_by_gpu(pod) for pod in pods}
    used = {index: sum(units.get(index, 0) for units in taken.values()) for index in (*range(count), PENDING)}
    cells = {index: f"{used[index]}/{memory // count}" for index in range(count)}
    return ShownNode(name, cells, used[PENDING], f"{sum(used.values())}/{memory}", taken)


def _asks(pod: Mapping[str, Any]) -> int:
    return sum(int(c.get("resources", {}).get("limits", {}).get(MEMORY, 0)) for c in pod["spec"]["containers"])
