"""Two hundred pods at once on a real kubelet with eight GPUs, while agent and kubelet are killed at random.

While agents die no pod fails. A kubelet that starts fails those pods for good that it admits before the plugins have
registered; such a pod is created again, as its controller would. One that the agent itself refuses is counted as lost.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gputile.api.well_known import MODE_LABEL
from gputile.node.gateway.gateway import AGENT_TIMEOUT_S
from tests.e2e.extender import assert_nothing_over_allocated
from tests.e2e.node import (
    ITS_OWN_WORDS,
    NOBODY_ANSWERED,
    GpuNode,
    gpu_node,
    kill_agent,
    random_probe_pod,
    restart_all,
    restart_kubelet,
    runs,
    told,
)
from tests.localcluster.controlplane import ControlPlane

pytestmark = pytest.mark.requirement("B1", "G1")

NAMESPACES = ("burst-0", "burst-1", "burst-2", "burst-3")
SETTINGS = {"trust": {"by": "cluster"}, "maxPodsPerGpu": 64}
NO_AGENT = "the agent of this node does not run"
STUCK_S = 300  # without another pod that runs, however slow the machine is


@pytest.fixture(scope="module")
def crowded(control_plane: ControlPlane, node_programs: dict[str, Path]) -> Iterator[GpuNode]:
    """A node with eight GPUs of 80 GiB, on which many pods may share a GPU."""
    with gpu_node(control_plane, node_programs, "crowded", {MODE_LABEL: "cgpu"}, SETTINGS) as here:
        for name in NAMESPACES:
            control_plane.create_namespace(name)
        try:
            yield here
        finally:
            for name in NAMESPACES:
                control_plane.nodes.delete_all_pods_now(name)


def wait_for_agent(here: GpuNode) -> None:
    """Let an agent come up and answer: calls of the kubelet wait for one, but not for ever."""
    before = len(here.assigned())
    here.plane.wait(here.agent.is_ready, "an agent")
    here.plane.wait(
        lambda: len(here.assigned()) > before or all(runs(pod) for pod in here.pods(*NAMESPACES)), "it to answer"
    )


def harass(here: GpuNode, choice: random.Random, deeds: Sequence[Callable[[GpuNode], None]]) -> float:
    """Do these deeds at random times; return for how many seconds at most no agent was there."""
    longest, killed = 0.0, 0.0
    for deed in deeds:
        time.sleep(choice.uniform(0.3, 3.0))
        if deed is kill_agent:
            killed = killed or time.monotonic()
        deed(here)
        if deed is wait_for_agent:
            longest, killed = max(longest, time.monotonic() - killed), 0.0
    return longest


EVERYTHING = (kill_agent, restart_kubelet, restart_all, kill_agent, restart_all, restart_kubelet)


def create_again(here: GpuNode, bodies: Mapping[tuple[str, str], Mapping[str, Any]]) -> Iterator[str]:
    """Replace the pods that failed; yield what the kubelet said of each."""
    for pod in here.pods(*NAMESPACES):
        if pod["status"].get("phase") != "Failed":
            continue
        key = pod["metadata"]["namespace"], pod["metadata"]["name"]
        here.delete_now(*key)
        here.create(key[0], bodies[key])
        yield told(pod)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("count", "deeds"),
    [
        pytest.param(80, [kill_agent, kill_agent, wait_for_agent] * 3, id="agents die"),
        pytest.param(200, EVERYTHING, id="everything dies"),
    ],
)
def test_many_pods_at_once(crowded: GpuNode, count: int, deeds: Sequence[Callable[[GpuNode], None]]) -> None:
    choice = random.Random(count)
    bodies = {
        (choice.choice(NAMESPACES), f"p{i}"): random_probe_pod(choice, f"p{i}", equal=i % 2 == 0) for i in range(count)
    }
    begun = time.monotonic()
    for (namespace, _), body in bodies.items():
        crowded.create(namespace, body)
    away = harass(crowded, choice, deeds)
    failures: list[str] = []
    there, progressed = 0, time.monotonic()
    while there < count:
        failures += create_again(crowded, bodies)
        pods = crowded.pods(*NAMESPACES)
        before, there = there, sum(runs(pod) and crowded.has_spoken(pod) for pod in pods)
        if there != before:
            progressed = time.monotonic()
        rest = [told(pod) for pod in pods if not runs(pod)]
        assert time.monotonic() - progressed < STUCK_S, f"{there} of {count} run; the others: {rest[:5]}"
        time.sleep(1.0)
    print(f"{count} pods run after {time.monotonic() - begun:.0f} s; {len(failures)} were created again")
    crowded.wait_agreement(*NAMESPACES, forgetful=restart_kubelet in deeds)
    assert [text for text in failures if any(word in text for word in ITS_OWN_WORDS)] == []
    assert {text for text in failures if not any(word in text for word in NOBODY_ANSWERED)} == set()
    assert assert_nothing_over_allocated(crowded.plane) == count
    if restart_kubelet not in deeds:
        # Calls wait for so long, as docs/concepts/agent.md says; where all agents together need longer, pods do fail.
        assert [text for text in failures if away < AGENT_TIMEOUT_S or NO_AGENT not in text] == []
    crowded.clear(*NAMESPACES, timeout=300.0)
