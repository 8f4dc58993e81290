"""The chart on a real API server: accepted, sufficient, changed while pods run, removed.

The components run as processes with the rendered settings and their ServiceAccounts' tokens: see ``installation.py``.
"""

import json
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import yaml

from gputile.api.well_known import ACK_ALLOCATION, GPU_MEMORY
from tests.chart.helmcli import CHART, helm, settings
from tests.e2e.extender import assert_nothing_over_allocated, bound, pod_body, pods_in, write_cluster
from tests.e2e.installation import GPUTILE, Installation, settle
from tests.localcluster.client import STRATEGIC_PATCH
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gputile import described_nodes
from tests.walk.documents import document_yaml

pytestmark = [pytest.mark.timeout(900), pytest.mark.requirement("U2", "U5", "U9", "U10", "U11", "B2", "M13")]

CLUSTER = """
gpuMemoryUnit: 1GiB
nodes:
- {name: t4, mode: share, gpus: {count: 4, model: Tesla T4, memory: 15GiB}}
- {name: other, mode: share, gpus: {count: 1, model: Tesla T4, memory: 15GiB}}
- {name: plain}
"""


@pytest.fixture(scope="module")
def cluster(
    control_plane: ControlPlane, helm_programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """Two GPU nodes and a plain one, and a scheduler for ordinary pods."""
    specs = described_nodes(write_cluster(tmp_path_factory.mktemp("chart"), CLUSTER))
    control_plane.nodes.create_nodes(specs)
    with control_plane.start_scheduler(name="chart-default-scheduler"):
        yield control_plane
    control_plane.nodes.delete_all_nodes()


@pytest.fixture(scope="module")
def installed(cluster: ControlPlane) -> Iterator[Installation]:
    """The release ``chart``, its scheduler, extender and webhook running."""
    installation = Installation(cluster, "chart", "chart-system")
    installation.install({})
    try:
        for component in ("scheduler", "webhook", "controller"):
            cluster.wait(lambda c=component: len(installation.pods_of(c)) == 2, f"the pods of {component}")  # type: ignore[misc]
        cluster.wait(lambda: len(installation.pods_of("agent")) == 3, "the pods of the agent")
        installation.run_scheduler()
        installation.run_controller()
        installation.run_webhook()
        yield installation
    finally:
        installation.stop()
        installation.uninstall()


@pytest.mark.parametrize(
    "values",
    [
        {},
        {
            "scheduler.mode": "own",
            "networkPolicies.enabled": True,
            "networkPolicies.metricsFrom": [{"podSelector": {}}],
        },
        {"agent.mps": True, "agent.cdiDir": "/var/run/cdi", "agent.driverDir": "/opt/nvidia", "agent.affinity": {}},
        {"features": {"sharing": False, "topology": False, "batch": False}, "podDisruptionBudgets.enabled": False},
    ],
    ids=["defaults", "own", "agent", "little"],
)
def test_the_api_server_accepts_every_object(cluster: ControlPlane, namespace: str, values: dict[str, Any]) -> None:
    """Server-side: the schema, the defaults and the CEL of every object are checked, and nothing is stored."""
    rendered = helm("template", "dry", CHART, f"--namespace={namespace}", "--kube-version=v1.36.2", *settings(values))
    answer = cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", input=rendered)
    assert answer.count("created (server dry run)") == sum(bool(d) for d in yaml.safe_load_all(rendered))


def test_what_is_allowed_but_the_agent_fits_the_strictest_pod_security(cluster: ControlPlane, namespace: str) -> None:
    """Pod Security: every other component's pods are created under "restricted"; status names what keeps the agent."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}})
    installation = Installation(cluster, "strict", namespace)
    installation.install({"webhook.replicas": 1, "policies.enabled": False})
    try:
        for component, count in (("scheduler", 2), ("controller", 2), ("webhook", 1)):
            cluster.wait(lambda c=component, n=count: len(installation.pods_of(c)) == n, component)  # type: ignore[misc]

        def agent() -> dict[str, Any]:
            answer = status(installation, "-o", "json")
            assert answer.returncode == 3
            found: dict[str, Any] = next(c for c in json.loads(answer.stdout)["components"] if c["name"] == "agent")
            return found

        cluster.wait(lambda: "FailedCreate" in agent()["reason"], "the agent's reason")
        assert 'violates PodSecurity "restricted' in agent()["reason"]
        assert agent()["state"] == "Failed"
    finally:
        installation.uninstall()


def status(installation: Installation, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``gputile status``."""
    own = [f"--installed-in={installation.namespace}", f"--release={installation.release}"]
    access = f"--kubeconfig={installation.plane.kubeconfig()}"
    return subprocess.run([GPUTILE, "status", *own, access, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.requirement("U11")
def test_deploying_then_deployed(installed: Installation) -> None:
    """The kubelets' part is played here: pods become ready one component after the other."""
    answer = status(installed)
    assert answer.returncode == 3
    assert answer.stdout.startswith("gputile: Deploying: agent, controller, scheduler, webhook"), answer.stdout
    for component in ("agent", "controller", "scheduler", "webhook"):
        for pod in installed.pods_of(component):
            report_ready(installed, pod)
    answer = status(installed, "--wait", "120")
    assert answer.returncode == 0, answer.stdout
    assert answer.stdout.startswith("gputile: Deployed\n")
    assert [line.split()[:4] for line in answer.stdout.splitlines() if line.startswith("t4 ")] == [
        ["t4", "ready", "share", "1GiB"]
    ]


def report_ready(installed: Installation, pod: dict[str, Any]) -> None:
    installed.plane.nodes.set_pod_phase(installed.namespace, pod["metadata"]["name"], "Running")


@pytest.mark.requirement("U3")
def test_the_documents_statefulset_runs_unmodified_through_the_installed_scheduler(
    installed: Installation, namespace: str
) -> None:
    """The webhook stamps the unit and names the scheduler; the rights of the ServiceAccounts suffice."""
    plane = installed.plane
    plane.kubectl(
        "-n", namespace, "apply", "-f", "-", input=document_yaml("001")[0].replace("gpu-mem: 16", "gpu-mem: 2")
    )
    plane.wait(lambda: len(bound(pods_in(plane, namespace))) == 1, "the pod to be bound")
    (pod,) = pods_in(plane, namespace)
    assert pod["spec"]["schedulerName"] == "gputile-scheduler"
    assert pod["metadata"]["annotations"]["gputile.io/memory-unit-mib"] == "1024"
    assert json.loads(pod["metadata"]["annotations"][ACK_ALLOCATION])["0"]
    assert installed.get("coordination.k8s.io/v1/leases/gputile-extender")["spec"]["holderIdentity"] == "scheduler-0"
    for process in installed.processes:
        process.check()
        assert "forbidden" not in process.log_text().lower(), f"{process.name} lacks a right"


@pytest.mark.requirement("U5", "U9", "U10")
def test_a_new_unit_restarts_nothing_and_keeps_what_runs(installed: Installation, namespace: str) -> None:
    """Helm upgrade while GPU pods run; bytes per pod stay, new pods count in the new unit."""
    plane, path = installed.plane, f"/api/v1/namespaces/{namespace}/pods"
    plane.api.post(path, pod_body("before", {GPU_MEMORY: 10}))
    plane.wait(lambda: "before" in bound(pods_in(plane, namespace)), "the first pod to be bound")
    workloads = ("deployments/scheduler", "deployments/controller", "deployments/webhook", "daemonsets/agent")
    generation = {workload: workload_generation(installed, workload) for workload in workloads}
    pids = [process.pid for process in installed.processes]
    installed.upgrade({"gpuMemoryUnit": "128MiB"})
    for node in ("t4", "other"):
        play_agent(plane, node, 128)

    def stamped() -> str:
        created = plane.api.post(f"{path}?dryRun=All", pod_body("probe", {GPU_MEMORY: 16}))
        return str(created["metadata"]["annotations"]["gputile.io/memory-unit-mib"])

    plane.wait(lambda: stamped() == "128", "the webhook to take the new unit in")
    plane.api.post(path, pod_body("after", {GPU_MEMORY: 16}))
    plane.wait(lambda: "after" in bound(pods_in(plane, namespace)), "a pod in the new unit to be bound")
    mib = {p["metadata"]["name"]: allocated(p) for p in pods_in(plane, namespace)}
    assert mib == {"before": 10 * 1024, "after": 16 * 128}
    assert_nothing_over_allocated(plane)
    assert {w: workload_generation(installed, w) for w in generation} == generation, "a pod template has changed"
    assert [process.pid for process in installed.processes] == pids
    for process in installed.processes:
        process.check()


def workload_generation(installed: Installation, workload: str) -> int:
    kind, component = workload.split("/")
    return int(installed.get(f"apps/v1/{kind}/{installed.name}-{component}")["metadata"]["generation"])


def play_agent(plane: ControlPlane, node: str, unit: int) -> None:
    """Publish the new unit as the node's agent does, and its counts."""
    annotations = plane.api.get(f"/api/v1/nodes/{node}")["metadata"]["annotations"]
    inventory = json.loads(annotations["gputile.io/inventory"]) | {"unit_mib": unit}
    plane.nodes.annotate(node, {"gputile.io/inventory": json.dumps(inventory)})
    units = sum(gpu["mib"] // unit for gpu in inventory["cards"])
    plane.nodes.set_capacity(node, {GPU_MEMORY: str(units)})


def allocated(pod: dict[str, Any]) -> int:
    return sum(gpu["mib"] for gpu in json.loads(pod["metadata"]["annotations"]["gputile.io/allocation"])["cards"])


def on(node: str) -> dict[str, str]:
    return {"kubernetes.io/hostname": node}


def agents(installation: Installation) -> dict[str, str]:
    """Return the UIDs of the agents' pods that are to stay, by node."""
    there = [pod for pod in installation.pods_of("agent") if not pod["metadata"].get("deletionTimestamp")]
    return {pod["spec"].get("nodeName", ""): pod["metadata"]["uid"] for pod in there}


@pytest.mark.requirement("M1", "M3", "M12")
def test_an_agent_stays_whatever_labels_come_and_go(installed: Installation) -> None:
    """The DaemonSet controller's own decision; a node without any label of GPUs has an agent too."""
    nodes = installed.plane.nodes
    installed.plane.wait(lambda: agents(installed).keys() == {"t4", "other", "plain"}, "an agent on each node")
    before = agents(installed)
    try:
        nodes.label("t4", {"ack.node.gpu.schedule": None})
        nodes.create_node("virtual", labels={"type": "virtual-kubelet"})
        nodes.create_node("late")
        installed.plane.wait(lambda: "late" in agents(installed), "an agent on the node that has just joined")
        settle(5)
        assert {name: uid for name, uid in agents(installed).items() if name != "late"} == before
    finally:
        nodes.label("t4", {"ack.node.gpu.schedule": "share"})
        for name in ("late", "virtual"):
            nodes.delete_node(name)


@pytest.mark.requirement("B2")
def test_an_agent_writes_on_its_own_node_only(installed: Installation, namespace: str) -> None:
    """RBAC cannot say so; the chart's policy does, by the node that the API server knows of the token's pod."""
    plane = installed.plane
    plane.wait(
        lambda: {p["spec"].get("nodeName") for p in installed.pods_of("agent")} == {"t4", "other", "plain"}, "agents"
    )
    own = next(pod for pod in installed.pods_of("agent") if pod["spec"]["nodeName"] == "t4")
    headers = {"Authorization": f"Bearer {installed.token('agent', own)}", "Content-Type": STRATEGIC_PATCH}
    condition = {"type": "gputile.io/Probe", "status": "False", "reason": "Probe", "message": "written by a test"}
    patch = {"metadata": {"labels": {"model.gputile.io/x": "1"}}, "status": {"conditions": [condition]}}
    for node in ("t4", "other"):
        body = pod_body(f"on-{node}", {"cpu": 1}, nodeName=node)
        plane.api.post(f"/api/v1/namespaces/{namespace}/pods", body)
    trusted = ssl.create_default_context(cafile=plane.ca)
    with httpx.Client(base_url=plane.url, verify=trusted, headers=headers, trust_env=False, timeout=30.0) as agent:
        assert agent.get("/api/v1/nodes?fieldSelector=metadata.name%3Dt4").status_code == 200
        assert agent.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dt4").status_code == 200
        assert agent.patch("/api/v1/nodes/t4/status", json=patch).status_code == 200
        refused = agent.patch("/api/v1/nodes/other/status", json=patch)
        assert (refused.status_code, "may write on its own node" in refused.text) == (422, True), refused.text
        assert agent.patch("/api/v1/nodes/t4", json=patch).status_code == 403
        note = {"metadata": {"annotations": {"gputile.io/allocation": "{}"}}}
        pods = f"/api/v1/namespaces/{namespace}/pods"
        assert agent.patch(f"{pods}/on-t4", json=note).status_code == 200
        assert agent.patch(f"{pods}/on-other", json=note).status_code == 422
        assert agent.get("/api/v1/secrets").status_code == 403


def test_uninstalling_leaves_running_pods_running(cluster: ControlPlane, namespace: str) -> None:
    """The pods, their nodes and their GPUs stay; what remains of gputile is what it wrote on them."""
    installation = Installation(cluster, "leaving", f"{namespace}-system")
    installation.install(
        {
            "webhook.enabled": False,
            "controller.enabled": False,
            "features.batch": False,
            "policies.enabled": False,
            "agent.enabled": False,
            "scheduler.name": "leaving",
            "criticalPodsQuota.enabled": False,
        }
    )
    cluster.wait(lambda: len(installation.pods_of("scheduler")) == 2, "the scheduler's pods")
    try:
        installation.run_scheduler()
        path = f"/api/v1/namespaces/{namespace}/pods"
        cluster.api.post(path, pod_body("stays", {"nvidia.com/gpu": 0, "cpu": 1}, schedulerName="leaving"))
        cluster.wait(lambda: "stays" in bound(pods_in(cluster, namespace)), "the pod to be bound")
        before = pods_in(cluster, namespace)
    finally:
        installation.stop()
        installation.uninstall()
    settle(2)
    after = pods_in(cluster, namespace)
    assert [(p["metadata"]["uid"], p["spec"]["nodeName"]) for p in after] == [
        (p["metadata"]["uid"], p["spec"]["nodeName"]) for p in before
    ]
    assert not [p for p in after if p["metadata"].get("deletionTimestamp")]
    left = cluster.kubectl("get", "clusterroles,clusterrolebindings", "-l", "app.kubernetes.io/instance=leaving")
    assert left == ""
    cluster.api.delete(f"/api/v1/namespaces/{installation.namespace}")
