"""The page on a real control plane and in a real browser: what it shows is what the ledger has."""

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputile.api.well_known import ALLOCATION_ANNOTATION, GPU_MEMORY
from gputile.core.devices.allocation import decode_allocation
from tests.e2e.extender import bound, pod_body, pods_in, scheduled
from tests.localcluster.browser import Tab
from tests.localcluster.controlplane import ControlPlane

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("B7")]

CLUSTER = """
nodes:
- {name: shared, mode: cgpu, gpus: {count: 4, model: NVIDIA A10, memory: 24GiB}, taints: []}
- {name: whole, gpus: {count: 2, model: Tesla V100-SXM2-32GB, memory: 32GiB}, taints: []}
"""
SHARES = """
JSON.stringify([...document.querySelectorAll("[data-gpu]")].flatMap((tile) => [...tile.querySelectorAll("[data-pod]")]
  .map((block) => [block.dataset.pod, tile.dataset.of, Number(tile.dataset.gpu), block.title])))
"""


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The nodes of CLUSTER, an extender and a scheduler that asks it."""
    with scheduled(control_plane, tmp_path_factory.mktemp("cluster"), CLUSTER) as cluster:
        yield cluster


async def shares(tab: Tab) -> set[tuple[str, str, int, str]]:
    return {tuple(each) for each in json.loads(await tab.run(SHARES))}


def booked(plane: ControlPlane, namespace: str) -> set[tuple[str, str, int, str]]:
    """Return what the API server says of the pods of a namespace, as the page writes it."""
    found = set()
    for pod in pods_in(plane, namespace):
        key = f"{namespace}/{pod['metadata']['name']}"
        for share in decode_allocation(pod["metadata"]["annotations"][ALLOCATION_ANNOTATION]).gpus:
            found.add((key, pod["spec"]["nodeName"], share.index, f"{key}: {share.mib // 1024} GiB"))
    return found


async def test_tiles_are_the_ledger_and_a_new_pod_appears(
    cluster: ControlPlane, namespace: str, tab: Tab, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(6):
        body = pod_body(f"p{number}", {GPU_MEMORY: 5 + number})
        cluster.api.post(f"/api/v1/namespaces/{namespace}/pods", body)
    cluster.api.post(f"/api/v1/namespaces/{namespace}/pods", pod_body("whole", {"nvidia.com/gpu": 2}))
    cluster.wait(lambda: len(bound(pods_in(cluster, namespace))) == 7, "all pods bound")
    log = cluster.directory / "web.log"
    command: list[str | Path] = [Path(sys.executable).with_name("gputile"), "web", "--port=0"]
    command.append(f"--kubeconfig={cluster.kubeconfig()}")
    address = re.compile(r"http://127\.0\.0\.1:\d+/\?token=\S+")
    web = cluster.start_process("web", command, ready=lambda: bool(address.search(log.read_text())))
    with web:
        found = address.search(log.read_text())
        assert found
        await tab.open(found[0])
        await tab.until("document.documentElement.dataset.drawn")
        assert await shares(tab) == booked(cluster, namespace)
        begin = time.monotonic()
        cluster.api.post(f"/api/v1/namespaces/{namespace}/pods", pod_body("new", {GPU_MEMORY: 3}))
        await tab.until(f"document.querySelector('[data-pod=\"{namespace}/new\"]')")
        seconds = time.monotonic() - begin
        with capsys.disabled():
            print(f"\na new pod is drawn {seconds:.2f} s after its creation, its scheduling included")
        assert await shares(tab) == booked(cluster, namespace)
        cluster.api.post(f"/api/v1/namespaces/{namespace}/pods", pod_body("large", {GPU_MEMORY: 99}))
        await tab.until("document.getElementById('pending-count').textContent === '1'")
        await tab.key("2")
        await tab.run("document.querySelector('#view-pending .link').click()")
        await tab.until("document.querySelector('#panel .state')")
        text = await tab.run("document.getElementById('panel').textContent")
        assert "its largest GPU has 24 GiB" in text
        await tab.key("Escape")
        await tab.key("1")
        cluster.nodes.delete_pod_now(namespace, "new")
        await tab.until(f"!document.querySelector('[data-pod=\"{namespace}/new\"]')")
        assert tab.errors == []
    await tab.until("document.getElementById('trouble').textContent.startsWith('gputile web does not answer')")
    cluster.nodes.delete_pod_now(namespace, "large")
    assert await shares(tab) == booked(cluster, namespace), "what was known last stays"
