"""What may go wrong with an installation: ``gputile status`` names it, and what runs runs on."""

import json
from collections.abc import Callable, Iterator

import pytest

from tests.chart.helmcli import HelmFailed
from tests.e2e.node import probe_pod
from tests.e2e.pods.cluster import GPU_NODE
from tests.e2e.pods.release import PodRelease
from tests.e2e.pods.workload import said_by, sample_pod, share_of, started

pytestmark = [pytest.mark.timeout(900), pytest.mark.requirement("U11")]


@pytest.fixture(autouse=True)
def running(release: PodRelease) -> Iterator[None]:
    """A GPU pod that runs before, and still runs afterwards."""
    cluster = release.cluster
    cluster.create(sample_pod("running", 16))
    assert said_by(cluster, "running") == share_of(2048)
    (before,) = cluster.pods("default")
    yield
    (after,) = (pod for pod in cluster.pods("default") if pod["metadata"]["name"] == "running")
    assert started(after) == started(before)


def wait_reason(release: PodRelease, component: str, fits: Callable[[str], bool]) -> None:
    """Wait until ``gputile status`` gives such a reason for a component."""
    try:
        release.cluster.wait(lambda: fits(release.reasons().get(component, "")), f"the reason of {component}")
    except TimeoutError as error:
        raise AssertionError(release.status().stdout) from error


def test_an_upgrade_to_an_image_that_is_not_there_is_named_until_it_is_taken_back(release: PodRelease) -> None:
    """Helm gave up waiting, and the components of before run on, so a new GPU pod runs too."""
    with pytest.raises(HelmFailed):
        release.upgrade({"image.tag": "missing"}, "--wait", "--timeout=5s")
    for component in ("agent", "controller", "scheduler", "webhook"):
        wait_reason(release, component, lambda reason: "localhost/gputile:missing" in reason)
    said = release.status()
    assert said.returncode == 3
    assert said.stdout.startswith("gputile: Failed: agent, controller, scheduler, webhook")
    assert "Helm release gputile: Helm reports that revision" in said.stdout
    assert "helm rollback gputile --namespace gputile" in said.stdout
    release.cluster.create(sample_pod("meanwhile", 16))
    assert said_by(release.cluster, "meanwhile") == share_of(2048)
    release.helm("rollback", release.name)
    assert "Helm release" not in release.wait_deployed()


def test_a_namespace_that_admits_no_agent_is_named(release: PodRelease) -> None:
    """Pod Security's profile "restricted": the agent mounts directories of its node. All other pods fit it."""
    cluster, label = release.cluster, "pod-security.kubernetes.io/enforce"
    own = f"--namespace={release.namespace}"
    cluster.kubectl("label", "namespace", release.namespace, f"{label}=restricted")
    try:
        cluster.kubectl("delete", "pods", own, "--selector=app.kubernetes.io/component!=agent")
        release.wait_deployed()
        cluster.kubectl("delete", "pod", own, release.agent(GPU_NODE)["metadata"]["name"])
        wait_reason(release, "agent", lambda reason: 'violates PodSecurity "restricted' in reason)
    finally:
        cluster.kubectl("label", "namespace", release.namespace, f"{label}-")
    release.wait_deployed()


def test_a_webhook_without_the_right_to_its_certificates_is_named(release: PodRelease) -> None:
    """The Secret is gone, and nobody may write another one."""
    cluster, own = release.cluster, f"--namespace={release.namespace}"
    role = cluster.kubectl("get", "rolebinding", "gputile-webhook", own, "-o", "json")
    cluster.kubectl("delete", "rolebinding", "gputile-webhook", own)
    try:
        cluster.kubectl("rollout", "restart", "deployment", "gputile-webhook", own)
        wait_reason(release, "webhook", lambda reason: "secrets" in reason and "forbidden" in reason)
        cluster.create(sample_pod("meanwhile", 16))
        assert said_by(cluster, "meanwhile") == share_of(2048)
    finally:
        cluster.kubectl("apply", "-f", "-", input=role)
    release.wait_deployed()


@pytest.mark.requirement("G6")
def test_another_device_plugin_on_the_node_is_named(release: PodRelease) -> None:
    """Both would hand out the same GPUs, so gputile offers none until the other one has left."""
    labels, tolerations = {"name": "nvidia-device-plugin-ds"}, [{"operator": "Exists"}]
    volumes = [{"name": "plugins", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}]
    spec = {"nodeName": GPU_NODE, "hostNetwork": False, "tolerations": tolerations, "volumes": volumes}
    release.cluster.create(probe_pod("nvidia-device-plugin-x7k2p", {}, labels=labels, **spec))
    told = "pod default/nvidia-device-plugin-x7k2p belongs to it"
    release.cluster.wait(lambda: "OtherPluginFound" in release.status().stdout, "the node's row to name the plugin")
    said = release.status("-o", "json")
    (node,) = (each for each in json.loads(said.stdout)["nodes"] if each["name"] == GPU_NODE)
    assert [problem for problem in node["problems"] if told in problem]
    release.cluster.kubectl("delete", "pod", "nvidia-device-plugin-x7k2p", "--namespace=default")
    release.cluster.wait(lambda: "OtherPluginFound" not in release.status().stdout, "gputile to serve the node again")
    release.cluster.create(sample_pod("afterwards", 16))
    assert said_by(release.cluster, "afterwards") == share_of(2048)
