"""Agents of simulated nodes: their own decisions about mode and unit, without a GPU or a device plugin.

What a node is set to is decided by the very code of the agent (``mode_and_unit``).
Its labels, inventory, conditions and counts are written as the agent and the kubelet write them, and a pod that is
deleted ends.
"""

import contextlib
import datetime
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2 as httpx
import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node
from gputile.api.well_known import ALLOCATION_ANNOTATION, GPU_MEMORY, INVENTORY_ANNOTATION, Mode
from gputile.core.devices.allocation import decode_allocation
from gputile.core.devices.inventory import (
    Gpu,
    Inventory,
    decode_inventory,
    encode_inventory,
    model_labels,
    resources_for_mode,
)
from gputile.node.agent.device_lists import free_units
from gputile.node.agent.mode import decide_mode
from gputile.node.agent.node_config import EffectiveMode
from gputile.node.agent.node_status import Wanted, mps_condition, node_patch
from tests.localcluster.client import STRATEGIC_PATCH, Api, ApiError

LOOK_EVERY_S = 0.1
BUSY = (409, 429, 500, 503, 504)


@dataclass
class PlayedAgents:
    """The agents of a cluster, in a thread, for as long as the context lasts. ``unit_mib`` is what is configured.

    ``plays`` says for which nodes; they look at the cluster every ``look_every_s`` seconds. ``mps`` is whether they can
    run MPS control daemons.
    """

    api: Api
    unit_mib: Callable[[], int]
    plays: Callable[[str], bool] = lambda node: True
    look_every_s: float = LOOK_EVERY_S
    mps: Callable[[], bool] = lambda: True
    in_force: dict[str, EffectiveMode] = field(default_factory=dict)
    inventories: dict[str, Inventory] = field(default_factory=dict)
    problem: BaseException | None = None

    def __enter__(self) -> "PlayedAgents":
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        if self.problem is not None:
            raise self.problem

    def _run(self) -> None:
        try:
            while not self._ending.wait(self.look_every_s):
                try:
                    self._look()
                except httpx.HTTPError:
                    continue  # the next look tries again
                except ApiError as error:
                    if error.status not in BUSY:
                        raise
        except BaseException as error:
            self.problem = error

    def _look(self) -> None:
        unit = self.unit_mib()
        pods = self.api.get("/api/v1/pods")["items"]
        for pod in pods:
            if pod["metadata"].get("deletionTimestamp") and self.plays(pod["spec"].get("nodeName", "")):
                self._end(pod)
        for body in self.api.get("/api/v1/nodes")["items"]:
            node = msgspec.convert(body, Node)
            if not self.plays(node.metadata.name):
                continue
            text = node.metadata.annotations.get(INVENTORY_ANNOTATION)
            if text is not None and node.metadata.name not in self.inventories:
                self.inventories[node.metadata.name] = decode_inventory(text)
            if node.metadata.name in self.inventories:
                self._serve(node, unit, [pod for pod in pods if _holds(pod, node.metadata.name)])

    def _end(self, pod: dict[str, Any]) -> None:
        """End a pod whose deletion is asked for, as its kubelet does."""
        meta = pod["metadata"]
        with contextlib.suppress(ApiError):  # gone already
            self.api.delete(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", {"gracePeriodSeconds": 0})

    def _serve(self, node: Node, unit: int, holders: list[dict[str, Any]]) -> None:
        name = node.metadata.name
        inventory = self.inventories[name]
        configuration = Configuration(gpu_memory_unit=f"{unit}MiB")
        holding = [_key(pod) for pod in holders]
        planned = decide_mode(self.in_force.get(name), node.metadata.labels, configuration, inventory.gpus, holding)
        now = self.in_force[name] = planned.effective_mode
        missing = "" if now.mode is not Mode.MPS or self.mps() else "there is no MPS control daemon"
        gpus = () if missing else inventory.gpus
        wanted = Wanted(
            labels=model_labels(inventory.gpus),
            inventory=encode_inventory(
                msgspec.structs.replace(inventory, gpus=gpus, mode=now.mode.value, unit_mib=now.unit_mib),
            ),
            conditions=(*planned.conditions, mps_condition(missing)),
        )
        offered = resources_for_mode(now.mode, gpus, now.unit_mib)
        if now.mode.shared:
            offered[GPU_MEMORY] = sum(_listed_ids(gpu, now.unit_mib, holders) for gpu in gpus)
        counts = {resource: str(count) for resource, count in offered.items()}
        patch: dict[str, Any] = node_patch(node, wanted, datetime.datetime.now(datetime.UTC)) or {}
        if any(str(node.status.allocatable.get(resource)) != count for resource, count in counts.items()):
            patch.setdefault("status", {}).update(capacity=counts, allocatable=counts)
        if patch:
            self.api.patch(f"/api/v1/nodes/{name}/status", patch, STRATEGIC_PATCH)


def _holds(pod: dict[str, Any], node: str) -> bool:
    annotated = ALLOCATION_ANNOTATION in pod["metadata"].get("annotations", {})
    return annotated and pod["spec"].get("nodeName") == node and pod["status"]["phase"] not in ("Succeeded", "Failed")


def _listed_ids(gpu: Gpu, unit_mib: int, holders: list[dict[str, Any]]) -> int:
    """Return how many IDs of a GPU the kubelet is told of: those that pods hold, in whatever unit, and free ones."""
    allocations = [decode_allocation(pod["metadata"]["annotations"][ALLOCATION_ANNOTATION]) for pod in holders]
    held = [(share.mib, each.unit_mib) for each in allocations for share in each.gpus if share.uuid == gpu.uuid]
    return sum(mib // unit for mib, unit in held) + free_units(gpu.mib, unit_mib, sum(mib for mib, _ in held))


def _key(pod: dict[str, Any]) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
