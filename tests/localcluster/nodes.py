"""Nodes that no kubelet serves, and what a kubelet would have done for their pods."""

import datetime
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

import httpx2 as httpx

from tests.localcluster.client import STRATEGIC_PATCH, Api, ApiError

ORDINARY = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "250"}
CONCURRENCY = 16
CONDITIONS = {
    "MemoryPressure": ("False", "KubeletHasSufficientMemory"),
    "DiskPressure": ("False", "KubeletHasNoDiskPressure"),
    "PIDPressure": ("False", "KubeletHasSufficientPID"),
}
INTERVAL_S = 0.5


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """A node to simulate. ``capacity`` is added to that of an ordinary machine; what is allocatable equals it."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    address: str = "127.0.0.1"
    taints: Sequence[Mapping[str, str]] = ()


class SimulatedNodes:
    """Creates and changes nodes, and plays the kubelet for their pods, as admin."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def create_node(self, name: str, **more: Any) -> dict[str, Any]:
        """Create a node as a kubelet registers it, ready for pods; return it. ``more`` is what ``NodeSpec`` has."""
        return self._create(NodeSpec(name=name, **more))

    def create_nodes(self, specs: Iterable[NodeSpec]) -> None:
        """Create many nodes, several at a time."""
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            for _ in pool.map(self._create, specs):
                pass

    def _create(self, spec: NodeSpec) -> dict[str, Any]:
        self._api.post("/api/v1/nodes", node_object(spec))
        # The API server taints every new node; the controller-manager would remove the taint some time later.
        taints = {"spec": {"taints": list(spec.taints) or None}}
        changed: dict[str, Any] = self._api.patch(f"/api/v1/nodes/{spec.name}", taints)
        return changed

    def set_capacity(self, name: str, capacity: Mapping[str, str]) -> None:
        """Advertise other counts of these resources, as a device plugin has the kubelet do."""
        self._api.patch(f"/api/v1/nodes/{name}/status", {"status": {"capacity": capacity, "allocatable": capacity}})

    def annotate(self, name: str, annotations: Mapping[str, str | None]) -> None:
        """Set annotations of a node; None removes one."""
        self._api.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": annotations}})

    def label(self, name: str, labels: Mapping[str, str | None]) -> None:
        """Set labels of a node; None removes one."""
        self._api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}})

    def delete_node(self, name: str) -> None:
        """Remove a node; the controller-manager deletes its pods later."""
        self._api.delete(f"/api/v1/nodes/{name}")

    def delete_all_nodes(self) -> None:
        """Remove every node."""
        self._api.delete("/api/v1/nodes")

    def delete_pod_now(self, namespace: str, name: str) -> None:
        """Delete a pod without waiting for a kubelet, which here there is none of."""
        self._api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}", {"gracePeriodSeconds": 0})

    def delete_all_pods_now(self, namespace: str) -> None:
        """Delete every pod of a namespace without waiting for kubelets."""
        self._api.delete(f"/api/v1/namespaces/{namespace}/pods", {"gracePeriodSeconds": 0})

    def set_pod_phase(self, namespace: str, name: str, phase: str) -> None:
        """Report of a pod what its kubelet would: ``Running`` (and ready), ``Succeeded`` or ``Failed``."""
        ready = {"type": "Ready", "status": "True" if phase == "Running" else "False", "lastTransitionTime": now()}
        status = {"phase": phase, "startTime": now(), "conditions": [ready]}
        self._api.patch(f"/api/v1/namespaces/{namespace}/pods/{name}/status", {"status": status}, STRATEGIC_PATCH)


def now() -> str:
    """Return the time as Kubernetes writes it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def node_object(spec: NodeSpec) -> dict[str, Any]:
    """Return the Node that the kubelet of such a node would register with."""
    resources = {**ORDINARY, **spec.capacity}
    states = {**CONDITIONS, "Ready": ("True", "KubeletReady")}
    moment = now()
    times = {"lastHeartbeatTime": moment, "lastTransitionTime": moment}
    addresses = [{"type": "InternalIP", "address": spec.address}, {"type": "Hostname", "address": spec.name}]
    common = {"kubernetes.io/hostname": spec.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": spec.name,
            "labels": {**common, **spec.labels},
            "annotations": dict(spec.annotations),
        },
        "spec": {"taints": list(spec.taints)} if spec.taints else {},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "addresses": addresses,
            "conditions": [{"type": k, "status": s, "reason": reason, **times} for k, (s, reason) in states.items()],
        },
    }


class PlayedKubelets:
    """Reports what the kubelets of all nodes would, until it is closed. Nothing runs in fact."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._nodes = SimulatedNodes(api)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelets", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            try:
                self._look()
            except (ApiError, httpx.HTTPError):
                continue  # an API server that ends, or a pod that somebody else has changed: look again

    def _look(self) -> None:
        for pod in self._api.get("/api/v1/pods")["items"]:
            if pod["spec"].get("nodeName"):
                self._serve(pod)

    def _serve(self, pod: dict[str, Any]) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        if pod["metadata"].get("deletionTimestamp"):
            self._nodes.delete_pod_now(namespace, name)
        elif pod["status"].get("phase") == "Pending":
            self._api.patch(f"/api/v1/namespaces/{namespace}/pods/{name}/status", _running(pod), STRATEGIC_PATCH)


def _running(pod: dict[str, Any]) -> dict[str, Any]:
    moment = now()
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": moment}
        for kind in ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
    ]
    containers = [
        {
            "name": each["name"],
            "image": each["image"],
            "imageID": "",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": moment}},
        }
        for each in pod["spec"]["containers"]
    ]
    status = {"phase": "Running", "startTime": moment, "conditions": conditions, "containerStatuses": containers}
    return {"status": status}
