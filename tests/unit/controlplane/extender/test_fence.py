"""Whoever may have a predecessor writes to every pod that a Binding of it may be for, before it decides."""

from dataclasses import dataclass

import pytest

from gputile.api.core import Pod, SchedulingGate
from gputile.controlplane.extender.binder import ANSWER_LOST_FOR_GOOD_S
from gputile.controlplane.extender.fence import PAUSE_S, fence_off
from gputile.kube.errors import AnswerLost
from tests.unit.controlplane.extender.builders import gpu_pod
from tests.unit.controlplane.extender.cluster import Fate, ModelCluster

pytestmark = pytest.mark.requirement("B1")


@dataclass
class Time:
    """A clock that moves while somebody sleeps."""

    now: float = 0.0

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


async def fenced(cluster: ModelCluster, time: Time) -> set[str]:
    """Return the names of the pods that got another version."""
    before = {pod.metadata.name: pod.metadata.resource_version for pod in cluster.pods.values()}
    await fence_off(cluster, lambda: time.now, time.sleep)
    return {name for (_, name), pod in cluster.pods.items() if pod.metadata.resource_version != before[name]}


def pods() -> dict[str, Pod]:
    """Return one pod of each kind, by name."""
    found = {
        name: gpu_pod(name)
        for name in ("waits", "bound", "finished", "gated", "deleted", "plain", "invalid", "other-unit")
    }
    found["bound"].spec.node_name = "a"
    found["finished"].status.phase = "Succeeded"
    found["gated"].spec.scheduling_gates = (SchedulingGate(name="g"),)
    found["deleted"].metadata.deletion_timestamp = "2026-01-01T00:00:00Z"
    found["plain"].spec.containers[0].resources.limits = {}
    found["invalid"].spec.containers[0].resources.limits = {"aliyun.com/gpu-mem": "-1"}
    return found


@pytest.mark.anyio
async def test_the_pods_that_a_binding_may_be_under_way_for() -> None:
    cluster = ModelCluster(lambda: Fate.OK)
    for pod in pods().values():
        cluster.add(pod)
    assert await fenced(cluster, Time()) == {"waits", "invalid", "other-unit"}, (
        "by another configuration it was no nonsense"
    )


@pytest.mark.anyio
async def test_a_pod_that_cannot_be_written_to_is_tried_again_until_the_api_server_has_had_its_time() -> None:
    cluster, time = ModelCluster(lambda: Fate.OK), Time()
    for name in ("p", "q"):
        cluster.add(gpu_pod(name))
    fence, calls = cluster.fence, list[tuple[str, float]]()

    async def refuses_p(namespace: str, name: str) -> Pod | None:
        calls.append((name, time.now))
        if name == "p":
            raise AnswerLost("timed out")
        return await fence(namespace, name)

    cluster.fence = refuses_p  # type: ignore[method-assign]
    assert await fenced(cluster, time) == {"q"}
    assert [when for name, when in calls if name == "q"] == [0.0]
    assert [when for name, when in calls if name == "p"][:2] == [0.0, PAUSE_S]
    assert time.now >= ANSWER_LOST_FOR_GOOD_S
