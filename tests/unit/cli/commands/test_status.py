"""``gputile status`` as a user runs it, against an API server over a real socket."""

import json
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gputile.cli.app import app
from tests.fakes.apiserver import FakeApiServer, status_body

pytestmark = pytest.mark.requirement("U11")

run = CliRunner()
DEPLOYMENTS = "/apis/apps/v1/namespaces/gputile/deployments"
CONFIG_MAPS = "/api/v1/namespaces/gputile/configmaps"
PODS = "/api/v1/namespaces/gputile/pods"


def webhook(available: int) -> dict[str, object]:
    return {
        "metadata": {
            "name": "gputile-webhook",
            "generation": 1,
            "labels": {"app.kubernetes.io/component": "webhook", "app.kubernetes.io/name": "gputile"},
        },
        "spec": {"replicas": 1},
        "status": {
            "observedGeneration": 1,
            "replicas": 1,
            "updatedReplicas": 1,
            "availableReplicas": available,
        },
    }


def test_deploying_then_deployed(server: FakeApiServer, kubeconfig: str) -> None:
    unit = "gpuMemoryUnit: 128MiB"
    server.store[CONFIG_MAPS]["gputile"] = {"metadata": {"name": "gputile"}, "data": {"configuration.yaml": unit}}
    server.store[DEPLOYMENTS]["gputile-webhook"] = webhook(0)
    first = run.invoke(app, ["status", "--kubeconfig", kubeconfig])
    assert (first.exit_code, first.stdout.splitlines()[0]) == (3, "gputile: Deploying: webhook")
    server.store[DEPLOYMENTS]["gputile-webhook"] = webhook(1)
    second = run.invoke(app, ["status", "--kubeconfig", kubeconfig, "-o", "json", "--release", "gputile"])
    assert second.exit_code == 0
    answer = json.loads(second.stdout)
    assert (answer["phase"], answer["unitMib"]) == ("Deployed", 128)
    assert answer["components"] == [
        {"name": "webhook", "kind": "Deployment", "state": "Ready", "ready": 1, "wanted": 1, "reason": ""}
    ]
    selectors = {request.query.get("labelSelector") for request in server.requests}
    assert "app.kubernetes.io/name=gputile,app.kubernetes.io/instance=gputile" in selectors


@pytest.mark.requirement("U11")
@pytest.mark.parametrize("text", ["gpuMemoryUnit: 2026-13-01", "maxPodsPerGpu: !!int x", "[" * 100_000], ids=range(3))
def test_a_configuration_that_cannot_be_read_tells_no_unit(server: FakeApiServer, kubeconfig: str, text: str) -> None:
    """What is deployed is said all the same."""
    server.store[CONFIG_MAPS]["gputile"] = {"metadata": {"name": "gputile"}, "data": {"configuration.yaml": text}}
    server.store[DEPLOYMENTS]["gputile-webhook"] = webhook(1)
    result = run.invoke(app, ["status", "--kubeconfig", kubeconfig, "-o", "json"])
    assert (result.exit_code, json.loads(result.stdout)["unitMib"]) == (0, 0)


def test_programs_outside_of_pods_are_recognised(server: FakeApiServer, kubeconfig: str) -> None:
    """By their Leases and their webhook configuration, which a user need not be allowed to read."""
    leases = "/apis/coordination.k8s.io/v1/namespaces/gputile/leases"
    held = {"metadata": {"name": "gputile-controller"}, "spec": {"holderIdentity": "controller"}}
    server.store[leases] = {"gputile-controller": held}
    words = ["status", "--kubeconfig", kubeconfig]
    first = run.invoke(app, [*words, "-o", "json"])
    assert (first.exit_code, json.loads(first.stdout)["phase"]) == (3, "OutsideOfPods")
    assert json.loads(first.stdout)["traces"] == ["controller holds the Lease gputile-controller"]
    del server.store[leases]["gputile-controller"]
    assert run.invoke(app, words).stdout == "gputile: NotInstalled\n"


def test_it_waits_for_what_it_is_told_to(server: FakeApiServer, kubeconfig: str) -> None:
    server.store[DEPLOYMENTS]["gputile-webhook"] = webhook(0)
    timer = threading.Timer(0.3, lambda: server.store[DEPLOYMENTS].update({"gputile-webhook": webhook(1)}))
    timer.start()
    result = run.invoke(app, ["status", "--kubeconfig", kubeconfig, "--wait", "60"])
    timer.join()
    assert (result.exit_code, result.stdout.splitlines()[0]) == (0, "gputile: Deployed")


def unready(name: str) -> dict[str, object]:
    return {
        "metadata": {"name": name, "labels": {"app.kubernetes.io/component": "webhook"}},
        "spec": {"containers": [{"ports": [{"name": "https"}, {"name": "metrics", "containerPort": 8083}]}]},
        "status": {"phase": "Running"},
    }


@pytest.mark.requirement("U11")
def test_a_pod_that_is_not_ready_says_why_itself(server: FakeApiServer, kubeconfig: str) -> None:
    """The kubelet knows only that its probe got a 503."""
    server.store[DEPLOYMENTS]["gputile-webhook"] = webhook(0)
    server.store[PODS]["gputile-webhook-0"] = unready("gputile-webhook-0")
    path = f"{PODS}/gputile-webhook-0:8083/proxy/readyz"
    server.proxied[path] = 503, b"the certificates cannot be looked after"
    result = run.invoke(app, ["status", "--kubeconfig", kubeconfig, "-o", "json"])
    (component,) = json.loads(result.stdout)["components"]
    assert component["reason"] == "pod gputile-webhook-0: the certificates cannot be looked after"
    for answer in ((503, json.dumps(status_body(503, "ServiceUnavailable")).encode()), (200, b"")):
        server.proxied[path] = answer
        result = run.invoke(app, ["status", "--kubeconfig", kubeconfig, "-o", "json"])
        (component,) = json.loads(result.stdout)["components"]
        assert component["reason"] == "its pods are starting"


CONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c}}]
clusters: [{name: c, cluster: {server: "SERVER"}}]
"""


def test_an_unreachable_cluster_is_no_status(tmp_path: Path) -> None:
    result = run.invoke(app, ["status", "--kubeconfig", str(tmp_path / "none")])
    assert result.exit_code == 2, "a kubeconfig that is not there is input that cannot be used"
    assert "cannot read the cluster" in result.stderr
    refusing = tmp_path / "refusing"
    refusing.write_text(CONFIG.replace("SERVER", "http://127.0.0.1:1"))
    result = run.invoke(app, ["status", "--kubeconfig", str(refusing)])
    assert result.exit_code == 1
    assert "no connection to 127.0.0.1:1: Connection refused" in result.stderr
