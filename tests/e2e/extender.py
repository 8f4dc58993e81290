"""What the tests of the extender on a real kube-scheduler share: pods by the hundred, and what must hold of them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from gputile.api.well_known import ALLOCATION_ANNOTATION
from gputile.core.devices.allocation import decode_allocation
from gputile.core.devices.inventory import decode_inventory
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gputile import MANAGED, WEIGHT, described_nodes, start_controller, start_extender

TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists"}


def write_cluster(directory: Path, text: str) -> Path:
    """Write a cluster description for ``described_nodes``."""
    path = directory / "cluster.yaml"
    path.write_text(f"apiVersion: gputile.io/v1alpha1\nkind: Cluster\n{text}", encoding="utf-8")
    return path


@contextmanager
def scheduled(
    plane: ControlPlane,
    directory: Path,
    text: str,
    *,
    unit: str = "1GiB",
    settings: Mapping[str, object] | None = None,
    controller: bool = False,
    pods_without_gpus: bool = False,
) -> Iterator[ControlPlane]:
    """Have the nodes of a description, an extender, a scheduler that asks it, and a controller if it is wanted."""
    with ExitStack() as stack:
        stack.callback(plane.nodes.delete_all_nodes)
        plane.nodes.create_nodes(described_nodes(write_cluster(directory, text)))
        extender, url = start_extender(plane, unit=unit, settings=settings)
        stack.enter_context(extender)
        if controller:
            stack.enter_context(start_controller(plane, settings={"gpuMemoryUnit": unit, **(settings or {})})[0])
        options = {"bind": True, "preempt": True, "managed_resources": MANAGED, "weight": WEIGHT}
        scheduler = plane.start_scheduler(url, pods_without_gpus=pods_without_gpus, **options)  # type: ignore[arg-type]
        stack.enter_context(scheduler)
        yield plane


def pod_body(name: str, limits: Mapping[str, int], **spec: Any) -> dict[str, Any]:
    """Return a pod of one container."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": spec.pop("labels", {})},
        "spec": {
            "tolerations": [TOLERATION],
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example.com/x:1",
                    "resources": {"limits": {resource: str(count) for resource, count in limits.items()}},
                }
            ],
            **spec,
        },
    }


def pods_in(plane: ControlPlane, namespace: str) -> list[dict[str, Any]]:
    """Return the pods of a namespace as the API server has them."""
    found: list[dict[str, Any]] = plane.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return found


def bound(pods: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Return the node of each pod that has one."""
    return {p["metadata"]["name"]: p["spec"]["nodeName"] for p in pods if p["spec"].get("nodeName")}


def gpus_of(pod: dict[str, Any]) -> list[int]:
    """Return the indices of the GPUs that a pod holds by its annotation."""
    allocation = decode_allocation(pod["metadata"]["annotations"][ALLOCATION_ANNOTATION])
    return [share.index for share in allocation.gpus]


def assert_nothing_over_allocated(plane: ControlPlane) -> int:
    """Add up the annotations of all pods that are bound, independently of the ledger; return how many there are.

    The invariant above all: no GPU holds more than it has, and a whole GPU has one pod. Pods of a node that is gone
    are left out: a test that fails may leave some.
    """
    nodes = {n["metadata"]["name"]: n for n in plane.api.get("/api/v1/nodes")["items"]}
    held: dict[tuple[str, str], int] = defaultdict(int)
    whole: dict[tuple[str, str], int] = defaultdict(int)
    counted = 0
    for pod in plane.api.get("/api/v1/pods")["items"]:
        text = pod["metadata"].get("annotations", {}).get(ALLOCATION_ANNOTATION)
        name = pod["spec"].get("nodeName")
        if text is None or name not in nodes or pod["status"]["phase"] in ("Succeeded", "Failed"):
            continue
        counted += 1
        allocation = decode_allocation(text)
        for share in allocation.gpus:
            key = (name, share.uuid)
            held[key] += share.mib
            whole[key] += allocation.whole
    for (name, uuid), mib in held.items():
        inventory = decode_inventory(nodes[name]["metadata"]["annotations"]["gputile.io/inventory"])
        gpu = next(gpu for gpu in inventory.gpus if gpu.uuid == uuid)
        assert mib <= gpu.mib, f"GPU {uuid} of node {name} holds {mib} of {gpu.mib} MiB"
        assert whole[name, uuid] <= 1, f"GPU {uuid} of node {name} was given away whole twice"
    return counted


def events_of(plane: ControlPlane, namespace: str, pod: str, reason: str) -> list[str]:
    """Return the messages of a pod's Events with a reason."""
    found = plane.api.get(f"/api/v1/namespaces/{namespace}/events", fieldSelector=f"involvedObject.name={pod}")
    return [event["message"] for event in found["items"] if event["reason"] == reason]


def why_pending(plane: ControlPlane, namespace: str, name: str) -> str:
    """Return what kube-scheduler wrote into the pod's status."""
    conditions = plane.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")["status"].get("conditions", [])
    return " ".join(each.get("message", "") for each in conditions if each["type"] == "PodScheduled")
