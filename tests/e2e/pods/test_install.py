"""The chart as people install it: every component a pod on real nodes, out of the image that a release has."""

import json
import re

import pytest

from gputile.api.well_known import ALLOCATION_ANNOTATION, GPU_MEMORY
from tests.e2e.pods.cluster import GPU_NODE, PLAIN_NODE
from tests.e2e.pods.release import COMPONENTS, PodRelease
from tests.e2e.pods.workload import said_by, sample_pod, share_of
from tests.localcluster.client import text_at
from tests.walk.documents import document_yaml

pytestmark = [pytest.mark.timeout(900), pytest.mark.requirement("U2", "U11")]


@pytest.fixture(scope="module")
def fresh(release: PodRelease) -> PodRelease:
    """The release as it is right after its installation, whatever other tests have done to it."""
    release.uninstall()
    release.install()
    release.wait_deployed()
    return release


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


def test_no_component_lacks_a_right_or_was_restarted(fresh: PodRelease) -> None:
    release = fresh
    for component in COMPONENTS:
        for pod in release.pods(component):
            assert not re.search("forbidden|denied|permitted", release.log(pod), re.IGNORECASE), release.log(pod)
            assert [status["restartCount"] for status in pod["status"]["containerStatuses"]].count(0) == len(
                pod["status"]["containerStatuses"]
            ), release.log(pod)


@pytest.mark.requirement("U3")
def test_the_documents_statefulset_runs_unmodified_with_its_share(release: PodRelease) -> None:
    """Sixteen units of 128 MiB: seen by the program, enforced on it, and in the ledger."""
    cluster = release.cluster
    cluster.kubectl("apply", "-f", "-", input=document_yaml("001")[0])
    try:
        assert said_by(cluster, "binpack-0") == share_of(2048)
        (pod,) = cluster.pods("default", app="binpack-1")
        (gpu,) = json.loads(pod["metadata"]["annotations"][ALLOCATION_ANNOTATION])["cards"]
        assert gpu["mib"] == 2048
        assert gpu["uuid"] in {each.uuid for each in cluster.nodes[GPU_NODE].machine.gpus}
    finally:
        cluster.kubectl("delete", "statefulset", "binpack", "--namespace=default")


@pytest.mark.requirement("B7")
def test_top_shows_what_a_pod_uses_as_its_agent_measures_it(release: PodRelease) -> None:
    """The agent is asked through the API server's proxy, past the chart's NetworkPolicies."""
    cluster = release.cluster
    cluster.create(sample_pod("uses", 16))
    assert said_by(cluster, "uses") == share_of(2048)
    cluster.wait(lambda: release.pods_used().get("uses") is not None, "the agent to measure the pod")
    text = text_at(f"http://{release.agent(GPU_NODE)['status']['podIP']}:8085/metrics")
    (measured,) = re.findall(r'^gputile_agent_container_memory_used_bytes{.*pod="uses".*} (\S+)$', text, re.MULTILINE)
    assert release.pods_used()["uses"] == -(-int(float(measured)) // (1 << 20))
