"""Whether annotation, kubelet, and the environment and limits that a container sees say the same of it.

Read with no code of gputile: PodResources by the kubelet's own protocol, environment and limits as the container's
program printed them.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from gputile.node.gateway import kubelet_pb2 as pb
from gputile.node.gateway.registration import CLIENT_OPTIONS
from tests.e2e.node import LIMITS, VISIBLE, GpuNode, runs
from tests.fakes.grpcservices import Stub
from tests.soak.system.objects import ASKED, Unreadable, claim_of, gpus_of, key_of, node_of

Gpus = frozenset[str]


@dataclass(frozen=True)
class Look:
    """What is wrong at a moment, by container, and how many containers were compared."""

    wrong: Mapping[str, str]
    compared: int


class NodeJudge:
    """Compares what is known of the containers of a real node whose agent keeps its files in ``state``."""

    def __init__(self, node: GpuNode, state: Path) -> None:
        self._node, self._state = node, state

    def look(self, pods: list[dict[str, Any]]) -> Look:
        """Compare all containers that run.

        Raises:
            grpc.RpcError: the kubelet does not answer.
            OSError: a file cannot be read.
        """
        node = self._node.node.object()
        held, wrong = self.held()
        limits: dict[tuple[str, str], dict[str, int]] = {}
        compared = 0
        for pod in pods:
            if node_of(pod) != node["metadata"]["name"] or not runs(pod) or pod["metadata"].get("deletionTimestamp"):
                continue
            if not self._node.has_spoken(pod):
                continue
            seen = {name: self._limits(pod, name) for name in _names(pod)}
            limits |= {(pod["metadata"]["uid"], name): mib for name, mib in seen.items()}
            for name, problem in self._container_problems(pod, held, seen):
                compared += 1
                if problem:
                    wrong[f"{key_of(pod)}/{name}"] = problem
        wrong |= _too_much(gpus_of(node), limits)
        return Look(wrong, compared)

    def _container_problems(
        self, pod: dict[str, Any], held: Mapping[tuple[str, str, str], Gpus], seen: Mapping[str, Mapping[str, int]]
    ) -> list[tuple[str, str]]:
        meta, spec = pod["metadata"], pod["spec"]
        try:
            claim = claim_of(pod)
        except Unreadable as error:
            return [("", f"its allocation cannot be read: {error}")]
        inits = {c["name"] for c in spec.get("initContainers", []) if c.get("restartPolicy") != "Always"}
        problems = []
        for container in (*spec.get("initContainers", []), *spec["containers"]):
            name = container["name"]
            if not any(container.get("resources", {}).get("limits", {}).get(each) for each in ASKED):
                continue
            shares = claim.containers.get(name, ()) if claim is not None else ()
            booked = frozenset(share.uuid for share in shares)
            sees = frozenset(filter(None, self._node.said(pod, name).get(VISIBLE, "").split(",")))
            found = seen[name]
            listed = held.get((meta["namespace"], meta["name"], name), frozenset())
            holds = booked if name in inits else listed  # the kubelet lists no init containers
            mib = {share.uuid: share.mib for share in shares}
            same = booked == sees == holds and mib == found
            text = f"booked {mib}, kubelet {sorted(holds)}, sees {sorted(sees)}, limits {found}"
            if not same and not holds and name in self._node.forgotten(meta["namespace"], meta["uid"]):
                same = booked == sees and mib == found
            problems.append((name, "" if same else text))
        return problems

    def held(self) -> tuple[dict[tuple[str, str, str], Gpus], dict[str, str]]:
        """Return the GPUs of each container that the kubelet lists, and what is held twice."""
        target = f"unix:{self._node.node.pod_resources}"
        with grpc.insecure_channel(target, options=CLIENT_OPTIONS) as channel:
            listed = Stub("v1", "PodResourcesLister", channel).List(pb.ListPodResourcesRequest(), timeout=10.0)
        found: dict[tuple[str, str, str], Gpus] = {}
        holder: dict[tuple[str, str], str] = {}
        twice: dict[str, str] = {}
        for pod in listed.pod_resources:
            for container in pod.containers:
                gpus = set()
                for devices in container.devices:
                    for device in devices.device_ids:
                        gpus.add(device.partition("::")[0])  # docs/concepts/agent.md
                        name = f"{pod.namespace}/{pod.name}/{container.name}"
                        other = holder.setdefault((devices.resource_name, device), name)
                        if other != name:
                            twice[f"device {device}"] = f"is given to {other} and {name}"
                found[pod.namespace, pod.name, container.name] = frozenset(gpus)
        return found, twice

    def _limits(self, pod: dict[str, Any], container: str) -> dict[str, int]:
        """Return the MiB of each GPU by the limits file that a container sees."""
        text = self._node.said(pod, container).get(LIMITS)
        return {gpu["uuid"]: gpu["mib"] for gpu in json.loads(text)["cards"]} if text else {}

    def is_empty(self) -> str:
        """Return what the kubelet or the agent still has of pods, "" if nothing."""
        held, _ = self.held()
        left = [f"the kubelet has {key}: {sorted(gpus)}" for key, gpus in held.items() if gpus]
        left += [f"the agent keeps {path}" for path in (self._state / "allocations").iterdir()]
        return "; ".join(left)


def _names(pod: Mapping[str, Any]) -> list[str]:
    return [each["name"] for each in (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"])]


def _too_much(gpus: Mapping[str, int], limits: Mapping[tuple[str, str], Mapping[str, int]]) -> dict[str, str]:
    """Return the GPUs of which the containers of running pods may take more than there is.

    Containers of one pod count for the most that one of them may have: init containers run before the others.
    """
    most: dict[tuple[str, str], int] = defaultdict(int)
    for (uid, _), each in limits.items():
        for uuid, mib in each.items():
            most[uuid, uid] = max(most[uuid, uid], mib)
    total: dict[str, int] = defaultdict(int)
    for (uuid, _), mib in most.items():
        total[uuid] += mib
    return {
        f"GPU {uuid}": f"containers may take {mib} of {gpus.get(uuid, 0)} MiB"
        for uuid, mib in total.items()
        if mib > gpus.get(uuid, 0)
    }
