"""A real Karpenter adds nodes for pods that no GPU takes, for gangs, and none in vain (U8, B5).

Each test has a NodePool of its own, which its pods select, so that none sees the nodes of another.
"""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import httpx2 as httpx
import pytest

from gputile.api.well_known import GANG_NAME_LABEL, GANG_SIZE_LABEL, GPU_CORE, GPU_MEMORY, MODE_LABEL, WHOLE_GPU, Mode
from gputile.core.devices.inventory import Gpu, Inventory, encode_inventory, resources_for_mode
from tests.e2e.extender import assert_nothing_over_allocated, bound, events_of, pod_body, pods_in
from tests.localcluster.admission import installed
from tests.localcluster.client import STRATEGIC_PATCH, Api, ApiError
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gputile import EXAMPLES, MANAGED, WEIGHT, start_controller, start_extender
from tests.localcluster.neighbours import POOL_LABEL, instance_type, karpenter, node_pool, remove_kinds
from tests.localcluster.nodes import now

pytestmark = pytest.mark.requirement("U8", "B5")

UNIT_MIB: Final = 128
GIB15: Final = 15 * 1024
WAIT_SECONDS: Final = 20
START_SECONDS: Final = 2.0  # from a node's joining to its agent's report
MODES: Final = {"core": Mode.CORE_MEM, "whole": Mode.EXCLUSIVE}  # of all others: cgpu
POOLS: Final = ("fragments", "core", "whole", "idle")
MOST_NODES: Final = 3
KARPENTER: Final = "/apis/karpenter.sh/v1"


def described(pool: str) -> dict[str, Any]:
    mode = MODES.get(pool, Mode.CGPU).value
    return {"label": f"{POOL_LABEL}={pool}", "gpus": {"count": 2, "memory": "15GiB"}, "mode": mode}


GPUS: Final = tuple(Gpu(i, str(i), GIB15) for i in range(2))
SETTINGS: Final = {
    "admission": {"gangs": True},
    "autoscaling": {
        "enabled": True,
        "waitSeconds": WAIT_SECONDS,
        "mostNodes": MOST_NODES,
        "nodeTypes": [described(pool) for pool in POOLS],
    },
}


class Machines:
    """Kubelet and agent of each node that Karpenter adds, for as long as the context lasts.

    An agent reports its GPUs some time after the node has joined, as it does where drivers are loaded first.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._joined: dict[str, float] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(0.2):
            with contextlib.suppress(ApiError, httpx.HTTPError):
                for node in self._api.get("/api/v1/nodes")["items"]:
                    ready = any(each["type"] == "Ready" for each in node["status"].get("conditions", ()))
                    if POOL_LABEL in node["metadata"]["labels"] and not ready:
                        self._see(node["metadata"]["name"], node["metadata"]["labels"][POOL_LABEL])

    def _see(self, name: str, pool: str) -> None:
        if time.monotonic() - self._joined.setdefault(name, time.monotonic()) > START_SECONDS:
            self._report(name, pool)

    def _report(self, name: str, pool: str) -> None:
        mode = MODES.get(pool, Mode.CGPU)
        gpus = tuple(Gpu(i, f"GPU-{name}-{i}", GIB15) for i in range(len(GPUS)))
        text = encode_inventory(Inventory(gpus, mode=mode.value, unit_mib=UNIT_MIB))
        self._api.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": {"gputile.io/inventory": text}}})
        counts = {each: str(count) for each, count in resources_for_mode(mode, gpus, UNIT_MIB).items()}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": now()}
        status = {"conditions": [ready], "capacity": counts, "allocatable": counts}
        self._api.patch(f"/api/v1/nodes/{name}/status", {"status": status}, STRATEGIC_PATCH)


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane, autoscaler_programs: dict[str, Path]) -> Iterator[ControlPlane]:
    """A cluster of no nodes, with gputile and a Karpenter that can add some."""
    plane, unit = control_plane, f"{UNIT_MIB}MiB"
    types = [instance_type(pool, resources_for_mode(MODES.get(pool, Mode.CGPU), GPUS, UNIT_MIB), 1.0) for pool in POOLS]
    with ExitStack() as stack:
        stack.enter_context(installed(plane, settings={"gpuMemoryUnit": unit, **SETTINGS}))
        controller, _ = start_controller(plane, "asking", settings={"gpuMemoryUnit": unit, **SETTINGS})
        stack.enter_context(controller)
        plane.kubectl("apply", "-f", str(EXAMPLES / "controller" / "rbac-autoscaling.yaml"))
        extender, url = start_extender(plane, "scaled", unit=unit, settings=SETTINGS)
        stack.enter_context(extender)
        stack.enter_context(plane.start_scheduler(url, bind=True, managed_resources=MANAGED, weight=WEIGHT))
        stack.enter_context(karpenter(plane, autoscaler_programs["karpenter"], types))
        stack.enter_context(Machines(plane.api))
        pools = [node_pool(pool, pool, {MODE_LABEL: MODES.get(pool, Mode.CGPU).value}) for pool in POOLS]
        plane.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": pools}))
        yield plane
        plane.api.delete(f"{KARPENTER}/nodepools")
    for path in (f"{KARPENTER}/nodeclaims", "/api/v1/nodes"):
        for each in plane.api.get(path)["items"]:  # Karpenter, which is gone, would remove its finalizers
            plane.api.patch(f"{path}/{each['metadata']['name']}", {"metadata": {"finalizers": None}})
        plane.api.delete(path)
    remove_kinds(plane)


def create(plane: ControlPlane, namespace: str, name: str, pool: str, **more: Any) -> None:
    limits = more.pop("limits", None) or {GPU_MEMORY: more.pop("units")}
    body = pod_body(name, limits, nodeSelector={POOL_LABEL: pool}, **more)
    plane.api.post(f"/api/v1/namespaces/{namespace}/pods", body)


def nodes(plane: ControlPlane, pool: str) -> list[str]:
    found = plane.api.get("/api/v1/nodes", labelSelector=f"{POOL_LABEL}={pool}")["items"]
    return [node["metadata"]["name"] for node in found]


def claims(plane: ControlPlane, pool: str) -> int:
    return len(plane.api.get(f"{KARPENTER}/nodeclaims", labelSelector=f"{POOL_LABEL}={pool}")["items"])


def placeholders(plane: ControlPlane, pool: str) -> int:
    """Return how many placeholders ask for a node of a pool."""
    return sum(
        pod["metadata"]["annotations"].get("gputile.io/node-type") == f"{POOL_LABEL}={pool}"
        for pod in plane.api.get("/api/v1/namespaces/gputile/pods", labelSelector="gputile.io/placeholder")["items"]
    )


def wait_bound(plane: ControlPlane, namespace: str, *names: str) -> None:
    plane.wait(lambda: set(names) <= bound(pods_in(plane, namespace)).keys(), f"{', '.join(names)} to be bound")


def assert_settled(plane: ControlPlane, pool: str, count: int) -> None:
    """Nothing is asked for any more, and there are as many nodes as were needed."""
    plane.wait(lambda: placeholders(plane, pool) == 0, "the placeholders to be gone")
    time.sleep(2)
    assert (len(nodes(plane, pool)), claims(plane, pool)) == (count, count)
    assert_nothing_over_allocated(plane)


def fragmented(plane: ControlPlane, namespace: str, pool: str) -> None:
    """Have one node with 64 and 48 of 120 units free on its two GPUs."""
    create(plane, namespace, "a", pool, units=56)
    wait_bound(plane, namespace, "a")
    create(plane, namespace, "b", pool, units=72)
    wait_bound(plane, namespace, "b")
    assert len(nodes(plane, pool)) == 1


def test_a_pod_that_fits_a_node_and_none_of_its_gpus_brings_a_node(cluster: ControlPlane, namespace: str) -> None:
    """From zero, then by fragments; one larger than any GPU brings none, though two GPUs have enough in sum."""
    fragmented(cluster, namespace, "fragments")
    create(cluster, namespace, "large", "fragments", units=160)
    create(cluster, namespace, "c", "fragments", units=96)
    wait_bound(cluster, namespace, "c")
    assert len(events_of(cluster, namespace, "c", "NodeRequested")) == 1
    (why,) = events_of(cluster, namespace, "large", "NoNodeTypeFits")
    assert f"{POOL_LABEL}=fragments: its GPUs have 120 units of 128 MiB; the pod needs 20480 MiB on one GPU" in why
    assert_settled(cluster, "fragments", 2)


def test_a_pod_brings_a_node_of_its_mode_from_zero(cluster: ControlPlane, namespace: str) -> None:
    create(cluster, namespace, "core", "core", limits={GPU_MEMORY: 100, GPU_CORE: 50})
    create(cluster, namespace, "whole", "whole", limits={WHOLE_GPU: 2})
    create(cluster, namespace, "memory-alone", "core", units=8)
    wait_bound(cluster, namespace, "core", "whole")
    assert_settled(cluster, "core", 1)
    assert_settled(cluster, "whole", 1)


def test_a_gang_starts_on_an_idle_node_and_brings_the_other_one(cluster: ControlPlane, namespace: str) -> None:
    """Three pods of a GPU each, behind their gate. Karpenter would put the placeholder on the idle node."""
    create(cluster, namespace, "first", "idle", units=100)
    wait_bound(cluster, namespace, "first")
    cluster.nodes.delete_pod_now(namespace, "first")
    names = [f"train-{i}" for i in range(3)]
    labels = {GANG_NAME_LABEL: "train", GANG_SIZE_LABEL: str(len(names))}
    for name in names:
        create(cluster, namespace, name, "idle", units=120, labels=labels)
    wait_bound(cluster, namespace, *names)
    assert_settled(cluster, "idle", 2)
