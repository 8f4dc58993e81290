"""The agent on a real kubelet, containerd and runc: the right card (B1), its rights, what the node says (V1, C1)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gputile.api.wellknown import GPU_MEMORY, MODE_LABEL
from tests.e2e.extender import assert_nothing_over_allocated
from tests.e2e.node import LIMITS, VISIBLE, GpuNode, booked_cards, gpu_node, probe_pod
from tests.localcluster.controlplane import ControlPlane


@pytest.fixture(scope="module")
def shared(control_plane: ControlPlane, node_programs: dict[str, Path]) -> Iterator[GpuNode]:
    """A node with eight cards of 80 GiB, in mode cgpu."""
    with gpu_node(control_plane, node_programs, "worker", {MODE_LABEL: "cgpu"}) as here:
        yield here


def test_a_pod_gets_the_card_that_was_booked(shared: GpuNode, namespace: str) -> None:
    """B1, U3, B9: inside the container, in PodResources and in the annotation."""
    shared.create(namespace, probe_pod("two", {GPU_MEMORY: 2}), probe_pod("none", {}))
    pods = {pod["metadata"]["name"]: pod for pod in shared.wait_running(2, namespace)}
    shared.wait_agreement(namespace)
    said = shared.said(pods["two"], "main")
    assert {said[VISIBLE]} == booked_cards(pods["two"])["main"]
    assert said["ALIYUN_COM_GPU_MEM_CONTAINER"] == "2"
    assert '"mib":2048' in said[LIMITS]
    assert VISIBLE not in shared.said(pods["none"], "main")
    assert VISIBLE in shared.plane.kubectl("-n", namespace, "logs", "two")
    assert assert_nothing_over_allocated(shared.plane) == 1
