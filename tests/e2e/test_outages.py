"""Webhook, controller, and the active scheduler and extender killed while 500 pods come: nothing lost or doubled."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gputile.api.well_known import GANG_NAME_LABEL, GANG_SIZE_LABEL, GPU_MEMORY, MEMORY_UNIT_ANNOTATION
from tests.e2e.extender import assert_nothing_over_allocated, bound, pods_in, write_cluster
from tests.localcluster.admission import installed, pod
from tests.localcluster.client import ApiError, text_at
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gputile import MANAGED, described_nodes, start_controller, start_extender
from tests.localcluster.processes import PATIENCE_S

SETTINGS = {"admission": {"gangs": True}}
SINGLE, GANGS, SIZE = 400, 20, 5
PODS = SINGLE + GANGS * SIZE
# Room for all, and hardly a unit to spare: 768 units for 500 pods that ask for 700.
CLUSTER = """
nodes:
- {name: 'n', count: 6, mode: cgpu, gpus: {count: 8, model: Tesla T4, memory: 16GiB}}
"""


def bodies() -> list[dict[str, Any]]:
    """Single pods of one and two units, and between them gangs of pods of one."""
    made = [pod(f"p{i:03}", {GPU_MEMORY: str(1 + i % 2)}) for i in range(SINGLE)]
    for i in range(GANGS * SIZE):
        labels = {GANG_NAME_LABEL: f"g{i // SIZE:02}", GANG_SIZE_LABEL: str(SIZE)}
        made.insert(5 * i, pod(f"g{i // SIZE:02}-{i % SIZE}", {GPU_MEMORY: "1"}, meta={"labels": labels}))
    return made


class Author:
    """Creates pods as a workload's controller does: what is refused is tried again."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._plane, self._path = plane, f"/api/v1/namespaces/{namespace}/pods"
        self._lock = threading.Lock()
        self.created = 0
        self.refusals = 0

    def until(self, count: int) -> None:
        """Wait until so many pods are created."""
        self._plane.wait(lambda: self.created >= count, f"{count} pods to be created", interval=0.02)

    def create(self, body: dict[str, Any]) -> None:
        """Create one pod, and go on until it is there."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._plane.api.post(self._path, body)
            except ApiError as error:
                away = "gpu-pods.gputile.io" in str(error)
                if error.status != 409:  # that one was created before, and the answer was lost
                    if not away or time.monotonic() > deadline:
                        raise
                    with self._lock:
                        self.refusals += 1
                    time.sleep(0.1)
                    continue
            with self._lock:
                self.created += 1
            return


@pytest.mark.requirement("U9", "M13", "B1", "B2")
def test_everybody_is_killed_while_500_pods_are_created(
    control_plane: ControlPlane, namespace: str, no_nodes: None, tmp_path: Path
) -> None:
    """Every pod is stamped and bound once, gangs start whole, and no GPU has more than it has."""
    control_plane.nodes.create_nodes(described_nodes(write_cluster(tmp_path, CLUSTER)))
    extender, url = start_extender(control_plane, "first", lease_seconds=3, settings=SETTINGS)
    other, other_url = start_extender(control_plane, "second", lease_seconds=3, settings=SETTINGS)
    controller, _ = start_controller(control_plane, settings=SETTINGS)
    options = {"bind": True, "preempt": True, "managed_resources": MANAGED, "lease_seconds": 24}
    scheduler = control_plane.start_scheduler(url, name="scheduler-first", **options)  # type: ignore[arg-type]
    standby = control_plane.start_scheduler(other_url, name="scheduler-second", **options)  # type: ignore[arg-type]
    author = Author(control_plane, namespace)
    with (
        extender,
        other,
        controller,
        scheduler,
        standby,
        installed(control_plane) as webhook,
        ThreadPoolExecutor(4) as pool,
    ):
        webhook.configure(**SETTINGS)
        control_plane.wait(lambda: _gated(control_plane, namespace), "the webhook to know of gangs")
        work = [pool.submit(author.create, body) for body in bodies()]
        author.until(PODS // 5)
        control_plane.processes[webhook.name].kill()
        time.sleep(0.5)
        webhook.start()
        author.until(2 * PODS // 5)
        controller.kill()
        controller.start()
        control_plane.wait(lambda: _bound(control_plane, namespace) > PODS // 10, "a tenth to be bound")
        extender.kill()  # and its scheduler, for good, while it binds
        scheduler.kill()
        at_the_kill = _bound(control_plane, namespace)
        for each in work:
            each.result()
        assert author.created == PODS
        assert author.refusals, "the webhook was killed when nobody asked it: nothing was proved"
        assert at_the_kill < PODS, "the kill came too late to prove anything"
        control_plane.wait(lambda: _bound(control_plane, namespace) == PODS, "all pods to be bound", interval=0.5)
        assert assert_nothing_over_allocated(control_plane) == PODS
        pods = pods_in(control_plane, namespace)
        names = sorted(each["metadata"]["name"] for each in pods)
        assert names == sorted(body["metadata"]["name"] for body in bodies())
        assert {each["metadata"]["annotations"][MEMORY_UNIT_ANNOTATION] for each in pods} == {"1024"}
        wanted = {f"gputile_ledger_bookings {PODS}.0", "gputile_ledger_unconfirmed_bindings 0.0"}
        control_plane.wait(lambda: wanted <= {*text_at(f"{other_url}/metrics").splitlines()}, "the ledger to say so")


def _gated(plane: ControlPlane, namespace: str) -> bool:
    labels = {GANG_NAME_LABEL: "probe", GANG_SIZE_LABEL: "2"}
    body = pod("probe", {GPU_MEMORY: "1"}, meta={"labels": labels})
    answer = plane.api.request("POST", f"/api/v1/namespaces/{namespace}/pods", body, query={"dryRun": "All"})
    return bool(answer["spec"].get("schedulingGates"))


def _bound(plane: ControlPlane, namespace: str) -> int:
    return len(bound(pods_in(plane, namespace)))
