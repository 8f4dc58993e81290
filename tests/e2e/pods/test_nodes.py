"""Nodes that reboot, and that are lost and replaced under the same name, with gputile as pods on them."""

import pytest

from gputile.api.well_known import GPU_MEMORY, MODE_LABEL
from tests.e2e.pods.cluster import GPU_NODE, PodCluster
from tests.e2e.pods.release import PodRelease
from tests.e2e.pods.workload import said_by, sample_set, share_of, started
from tests.localcluster.client import ApiError

pytestmark = [pytest.mark.timeout(900), pytest.mark.requirement("G1", "B1")]


def uid_of(cluster: PodCluster, pod: str) -> str:
    """Return a pod's UID with the ID of its container, "" while either is missing."""
    try:
        found = cluster.plane.api.get(f"/api/v1/namespaces/default/pods/{pod}")
        return f"{found['metadata']['uid']} {started(found)}"
    except (ApiError, KeyError):
        return ""


def wait_served(release: PodRelease) -> None:
    """Wait until everything is deployed and the node offers all of its memory."""
    release.wait_deployed()
    node = release.cluster.nodes[GPU_NODE]
    release.cluster.wait(lambda: node.object()["status"]["allocatable"].get(GPU_MEMORY) == "480", "the node's memory")


def test_after_a_reboot_the_same_set_runs_with_the_same_share(release: PodRelease) -> None:
    """All processes of the node are killed at once; its disk stays."""
    cluster = release.cluster
    cluster.create(sample_set("rebooted", 16))
    assert said_by(cluster, "rebooted-0") == share_of(2048)
    before = uid_of(cluster, "rebooted-0")
    cluster.nodes[GPU_NODE].reboot()
    cluster.wait(lambda: uid_of(cluster, "rebooted-0") not in ("", before), "the set's container to start anew")
    assert said_by(cluster, "rebooted-0") == share_of(2048)
    wait_served(release)


def test_a_node_replaced_under_its_name_is_served(release: PodRelease) -> None:
    """Nothing of the lost one counts. Its pods are the new kubelet's at once, which admits them before any device
    plugin is there, and starts their containers without GPUs: an Event says so, and what to do."""
    cluster = release.cluster
    cluster.create(sample_set("moved", 100))
    assert said_by(cluster, "moved-0") == share_of(12800)
    cluster.lose_node(GPU_NODE)
    cluster.start_node(GPU_NODE)
    cluster.kubectl("label", "node", GPU_NODE, f"{MODE_LABEL}=cgpu")
    cluster.wait(lambda: "GpuMissing" in cluster.kubectl("describe", "pod", "moved-0"), "the Event on the lost pod")
    before = uid_of(cluster, "moved-0")
    cluster.kubectl("delete", "pod", "moved-0")
    cluster.wait(lambda: uid_of(cluster, "moved-0") not in ("", before), "another pod of the set")
    assert said_by(cluster, "moved-0") == share_of(12800)
    wait_served(release)
