"""An installation that changes while GPU pods run: helm upgrade, rollback, uninstall."""

import pytest

from tests.e2e.pods.cluster import GPU_NODE
from tests.e2e.pods.release import COMPONENTS, PodRelease
from tests.e2e.pods.workload import said_by, sample_pod, share_of, started
from tests.localcluster.client import text_at

pytestmark = [pytest.mark.timeout(900), pytest.mark.requirement("U5", "U9", "U10")]


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
    release.wait_deployed()
    wait_unit(release, "128MiB", 128)
    cluster.create(*(sample_pod(f"beside-{number}", 100) for number in range(3)))
    for number in range(3):
        assert said_by(cluster, f"beside-{number}") == share_of(12800)
    cluster.create(sample_pod("last", 21))  # not before: whoever kube-scheduler tries first gets what is free
    cluster.wait(lambda: "FailedScheduling" in cluster.kubectl("describe", "pod", "last"), "the last one to be refused")
    (after,) = (pod for pod in cluster.pods("default") if pod["metadata"]["name"] == "stays")
    assert started(after) == started(before)
