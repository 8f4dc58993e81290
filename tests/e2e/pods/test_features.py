"""Features switched off and on in an installation that runs: each component does its work with the rights it has left.

Their rights go and come with a feature at once, the configuration after it, in the same processes.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from gputile.api.well_known import GANG_NAME_LABEL, GANG_SIZE_LABEL
from tests.e2e.pods.release import COMPONENTS, PodRelease
from tests.e2e.pods.workload import said_by, sample_pod, share_of
from tests.localcluster.client import text_at

pytestmark = [pytest.mark.timeout(900), pytest.mark.requirement("U2", "U11")]
NODE_TYPE = {"label": "pool=shared", "gpus": {"count": 4, "memory": "15GiB"}, "mode": "cgpu"}
LACKS_RIGHT = re.compile("forbidden|denied|not permitted", re.IGNORECASE)
CONTAINERS = {"controller": "controller", "scheduler": "extender", "webhook": "webhook"}  # whose rights differ
DNS = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}]
API_SERVER = [{"ipBlock": {"cidr": "10.0.0.0/8"}}]
NETWORK = {"networkPolicies.apiServerTo": API_SERVER, "networkPolicies.dnsTo": DNS}  # no network here enforces them
BEFORE_MIB = 128
GPU_MIB, GPUS = 15 * 1024, 4
PRIORITIES = {"low": 1, "high": 1000}


@pytest.fixture
def changing(release: PodRelease) -> Iterator[PodRelease]:
    """The release; it has the settings of before again when the test has ended."""
    cluster = release.cluster
    for name, value in PRIORITIES.items():
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
        cluster.create(kind | {"metadata": {"name": name}, "value": value})
    revision = max(each["revision"] for each in json.loads(release.helm("history", release.name, "--output=json")))
    yield release
    cluster.clear()
    cluster.kubectl("delete", "priorityclasses", *PRIORITIES)
    release.helm("rollback", release.name, str(revision))
    wait_in_force(release, BEFORE_MIB)


def lines_since(release: PodRelease, mib: int) -> list[str] | None:
    """Return what these containers wrote since their configuration has that unit; None while one has not read it.

    What it did with the former one until then may have taken rights that it had no longer.
    """
    mark, found = f'"unit_mib":{mib}}}', list[str]()
    for component, container in CONTAINERS.items():
        for pod in release.pods(component):
            said = release.cluster.logs(release.namespace, pod["metadata"]["name"], f"--container={container}")
            _before, read, since = said.rpartition(mark)
            if not read:
                return None
            found += since.splitlines()
    return found


def wait_in_force(release: PodRelease, mib: int) -> None:
    """Wait until all components have read the configuration with that unit."""
    release.wait_deployed()
    release.cluster.wait(lambda: lines_since(release, mib) is not None, f"all to read the unit of {mib} MiB")


def switch(release: PodRelease, mib: int, values: dict[str, Any]) -> None:
    """Switch features; the unit, another at each step, shows that it is in force."""
    release.upgrade(values | {"gpuMemoryUnit": f"{mib}MiB"})
    wait_in_force(release, mib)


def assert_nothing_lacks(release: PodRelease, mib: int) -> None:
    lines = lines_since(release, mib)
    assert lines is not None
    assert [line for line in lines if LACKS_RIGHT.search(line)] == []
    for pod in release.pods("controller"):
        text = text_at(f"http://{pod['status']['podIP']}:8082/metrics")
        assert re.findall(r"^gputile_controller_failed_writes_total (\S+)$", text, re.MULTILINE) == ["0.0"]


def assert_network_narrowed(release: PodRelease) -> None:
    path = f"/apis/networking.k8s.io/v1/namespaces/{release.namespace}/networkpolicies"
    policies = release.cluster.plane.api.get(path)["items"]
    assert {each["metadata"]["name"] for each in policies} == {f"{release.name}-{name}" for name in COMPONENTS}
    assert all([rule["to"] for rule in each["spec"]["egress"]] == [API_SERVER, DNS] for each in policies)


def prioritized(name: str, units: int, priority: str) -> dict[str, Any]:
    pod = sample_pod(name, units)
    pod["spec"]["priorityClassName"] = priority
    return pod


def fill(release: PodRelease, mib: int, share: int) -> None:
    """Let a pod of low priority take ``share`` MiB of each GPU, more than half of it."""
    names = [f"low-{number}" for number in range(GPUS)]
    release.cluster.create(*(prioritized(name, share // mib, "low") for name in names))
    for name in names:
        assert said_by(release.cluster, name) == share_of(share)


def test_each_component_has_the_rights_of_its_features(changing: PodRelease) -> None:
    release, cluster = changing, changing.cluster

    switch(release, 256, {"preemption.enabled": False, "features.batch": False} | NETWORK)
    assert_network_narrowed(release)
    fill(release, 256, GPU_MIB)
    cluster.create(prioritized("by-kube-scheduler", GPU_MIB // 256, "high"))  # its own preemption needs none of ours
    assert said_by(cluster, "by-kube-scheduler") == share_of(GPU_MIB)
    assert_nothing_lacks(release, 256)
    cluster.clear()

    switch(release, 512, {"preemption.enabled": True, "features.batch": True})
    fill(release, 512, 10 * 1024)  # the node has room for one more, and no GPU has
    cluster.create(prioritized("by-gputile", GPU_MIB // 512, "high"))
    assert said_by(cluster, "by-gputile") == share_of(GPU_MIB)
    for name in ("gang-0", "gang-1"):
        pod = prioritized(name, GPU_MIB // 512, "high")
        pod["metadata"]["labels"] = {GANG_NAME_LABEL: "gang", GANG_SIZE_LABEL: "2"}
        cluster.create(pod)
    for name in ("gang-0", "gang-1"):
        assert said_by(cluster, name) == share_of(GPU_MIB)
    assert_nothing_lacks(release, 512)
    cluster.clear()

    scaling = {"enabled": True, "nodeTypes": [NODE_TYPE]}
    switch(release, 2048, {"features.batch": False, "preemption.enabled": False, "autoscaling": scaling})
    fill(release, 2048, 8 * 1024)
    cluster.create(prioritized("waits", 6, "low"))

    def jobs() -> bool:
        return bool(cluster.plane.api.get(f"/apis/batch/v1/namespaces/{release.namespace}/jobs")["items"])

    cluster.wait(jobs, "a placeholder for a node")
    cluster.kubectl("delete", "pod", "waits")
    cluster.wait(lambda: not jobs(), "the placeholder to be gone")
    assert_nothing_lacks(release, 2048)
