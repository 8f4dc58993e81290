"""Agents that are exchanged on a real kubelet: no pod fails."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from gputile.api.well_known import (
    GPU_MEMORY,
    HANDOVER_ANNOTATION,
    MODE_LABEL,
)
from tests.e2e.node import GpuNode, gpu_node, probe_pod, told
from tests.localcluster.client import is_ready
from tests.localcluster.controlplane import ControlPlane

HAND_OVERS, AT_ONCE = 2, 30
ENOUGH_S = 600
pytestmark = [pytest.mark.timeout(ENOUGH_S + 300), pytest.mark.requirement("G1")]


def failed(here: GpuNode, namespace: str) -> list[str]:
    return [told(pod) for pod in here.pods(namespace) if pod["status"].get("phase") == "Failed"]


def keep_creating(here: GpuNode, namespace: str, over: threading.Event) -> int:
    """Create a pod every so often, and delete old ones by force, until it is over; return how many there were."""
    for number in count():
        if over.wait(0.4):
            return number
        here.create(namespace, probe_pod(f"p{number}", {GPU_MEMORY: 1}))
        if number >= AT_ONCE:
            here.delete_now(namespace, f"p{number - AT_ONCE}")
    raise AssertionError("unreachable")


def test_no_pod_fails_while_agents_are_exchanged(
    control_plane: ControlPlane, node_programs: dict[str, Path], namespace: str
) -> None:
    """Pods come all the time, and each runs at its first try."""
    with (
        gpu_node(control_plane, node_programs, "exchange", {MODE_LABEL: "share"}, kind="t4") as here,
        ThreadPoolExecutor(1) as worker,
        ExitStack() as agents,
    ):
        control_plane.wait(lambda: here.allocatable().get(GPU_MEMORY, "0") != "0", "the node to offer memory")
        over = threading.Event()
        agents.callback(over.set)
        making = worker.submit(keep_creating, here, namespace, over)
        older = here.agent.process
        for _ in range(HAND_OVERS):
            younger, url = here.agent.successor()
            agents.enter_context(younger).start()
            control_plane.wait(lambda at=url: is_ready(at), "the younger agent")  # type: ignore[misc]
            control_plane.wait(
                lambda: HANDOVER_ANNOTATION not in here.node.object()["metadata"].get("annotations", {}),
                "the node to take pods again",
            )
            older.stop()
            older = younger
            assert failed(here, namespace) == []
        over.set()
        assert making.result() > HAND_OVERS
        control_plane.wait(
            lambda: all(pod["status"].get("phase") != "Pending" for pod in here.pods(namespace)), "all pods to begin"
        )
        assert failed(here, namespace) == []
        here.clear(namespace)
