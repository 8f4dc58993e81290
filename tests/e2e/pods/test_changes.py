"""The chart as people install it, out of the image that a release has, and as it changes while GPU pods run."""

import json
import re

import pytest

from gputile.api.well_known import GPU_MEMORY
from tests.e2e.pods.cluster import GPU_NODE, PLAIN_NODE
from tests.e2e.pods.release import COMPONENTS, PodRelease
from tests.e2e.pods.workload import said_by, sample_pod, share_of, started
from tests.localcluster.client import text_at

pytestmark = [pytest.mark.timeout(900), pytest.mark.requirement("U5", "U9", "U10")]


@pytest.fixture(scope="module")
def fresh(release: PodRelease) -> PodRelease:
    """The release as it is right after its installation: these tests come first, or it is installed anew."""
    if len(json.loads(release.helm("history", release.name, "--output=json"))) > 1:
        release.uninstall()
        release.install()
        release.wait_deployed()
    return release


@pytest.mark.requirement("U2", "U11")
def test_every_component_runs_and_status_says_deployed(fresh: PodRelease) -> None:
    release, said = fresh, fresh.wait_deployed()
    assert said.startswith("gputile: Deployed\n")
    rows = [line.split() for line in said.splitlines()]
    assert [GPU_NODE, "ready", "cgpu", "128MiB", "4"] in rows
    assert "1 node has no GPU, and its agent rests." in said
    assert {component: len(release.pods(component)) for component in COMPONENTS} == COMPONENTS
    assert {pod["spec"]["nodeName"] for pod in release.pods("agent")} == {GPU_NODE, PLAIN_NODE}
    node = release.cluster.nodes[GPU_NODE]
    assert node.object()["status"]["allocatable"][GPU_MEMORY] == "480"
    taint = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    release.cluster.wait(lambda: taint in node.object()["spec"].get("taints", []), "the taint of GPU nodes")


@pytest.mark.requirement("U2", "U11")
def test_no_component_lacks_a_right_or_was_restarted(fresh: PodRelease) -> None:
    release = fresh
    for component in COMPONENTS:
        for pod in release.pods(component):
            assert not re.search("forbidden|denied|permitted", release.log(pod), re.IGNORECASE), release.log(pod)
            assert [status["restartCount"] for status in pod["status"]["containerStatuses"]].count(0) == len(
                pod["status"]["containerStatuses"]
            ), release.log(pod)


def components(release: PodRelease) -> dict[str, list[tuple[str, int]]]:
    """Return all of the release's containers, by pod."""
    return {pod["metadata"]["name"]: started(pod) for component in COMPONENTS for pod in release.pods(component)}


def wait_unit(release: PodRelease, unit: str, mib: int) -> None:
    """Wait until the node counts in that unit, and each webhook stamps it."""
    row = [GPU_NODE, "ready", "cgpu", unit, "4"]
    said = f"gputile_webhook_memory_unit_mib {float(mib)}"

    def there() -> bool:
        addresses = [pod["status"]["podIP"] for pod in release.pods("webhook")]
        exported = [text_at(f"http://{address}:8083/metrics").splitlines() for address in addresses]
        return all(said in lines for lines in exported) and row in map(str.split, release.status().stdout.splitlines())

    release.cluster.wait(there, f"a unit of {unit}")


def test_a_new_unit_and_its_rollback_restart_nothing(release: PodRelease) -> None:
    """The pods that run keep their bytes; new ones count in the unit of their time."""
    cluster = release.cluster
    cluster.create(sample_pod("before", 16))
    assert said_by(cluster, "before") == share_of(2048)
    (before,) = cluster.pods("default")
    there = components(release)
    release.upgrade({"gpuMemoryUnit": "256MiB"})
    wait_unit(release, "256MiB", 256)
    cluster.create(sample_pod("after", 16))
    assert said_by(cluster, "after") == share_of(4096)
    release.helm("rollback", release.name)
    wait_unit(release, "128MiB", 128)
    cluster.create(sample_pod("again", 16))
    assert said_by(cluster, "again") == share_of(2048)
    assert components(release) == there
    (same,) = (pod for pod in cluster.pods("default") if pod["metadata"]["name"] == "before")
    assert started(same) == started(before)


def test_running_pods_outlive_gputile_and_are_known_again(release: PodRelease) -> None:
    """Without it they run on; whoever installs it anew finds what they hold."""
    cluster = release.cluster
    cluster.create(sample_pod("stays", 100))
    assert said_by(cluster, "stays") == share_of(12800)
    (before,) = cluster.pods("default")
    release.uninstall()
    (without,) = cluster.pods("default")
    assert started(without) == started(before)
    release.install()
    assert release.status().stdout.startswith("gputile: Deploying: agent, controller, scheduler, webhook")
    release.wait_deployed()
    wait_unit(release, "128MiB", 128)
    cluster.create(*(sample_pod(f"beside-{number}", 100) for number in range(3)))
    for number in range(3):
        assert said_by(cluster, f"beside-{number}") == share_of(12800)
    cluster.create(sample_pod("last", 21))  # not before: whoever kube-scheduler tries first gets what is free
    cluster.wait(lambda: "FailedScheduling" in cluster.kubectl("describe", "pod", "last"), "the last one to be refused")
    (after,) = (pod for pod in cluster.pods("default") if pod["metadata"]["name"] == "stays")
    assert started(after) == started(before)
