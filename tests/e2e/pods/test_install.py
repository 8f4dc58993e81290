"""What a GPU pod gets from the chart as people install it, and what is seen of it."""

import json
import re

import pytest

from gputile.api.well_known import ALLOCATION_ANNOTATION
from tests.e2e.pods.cluster import GPU_NODE
from tests.e2e.pods.release import PodRelease
from tests.e2e.pods.workload import said_by, sample_pod, share_of
from tests.localcluster.client import text_at
from tests.localcluster.documents import document_yaml

pytestmark = [pytest.mark.timeout(900), pytest.mark.requirement("U2", "U11")]


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
