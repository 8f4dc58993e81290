"""``gputile status`` as a user runs it, against an API server over a real socket."""

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from typer.testing import CliRunner

from gputile.api.conversion import micro_timestamp_of
from gputile.cli.app import app
from tests.fakes.apiserver import FakeApiServer, status_body

pytestmark = pytest.mark.requirement("U11")

run = CliRunner()
DEPLOYMENTS = "/apis/apps/v1/namespaces/gputile/deployments"
CONFIG_MAPS = "/api/v1/namespaces/gputile/configmaps"
PODS = "/api/v1/namespaces/gputile/pods"


LABELS = {
    "app.kubernetes.io/component": "webhook",
    "app.kubernetes.io/instance": "gputile",
    "app.kubernetes.io/name": "gputile",
}


def webhook(available: int) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "gputile-webhook",
            "generation": 1,
            "labels": dict(LABELS),
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
        {"name": "webhook", "kind": "Deployment", "state": "Ready", "ready": 1, "wanted": 1, "reason": "", "remedy": ""}
    ]
    selectors = {request.query.get("labelSelector") for request in server.requests}
    assert "app.kubernetes.io/name=gputile,app.kubernetes.io/instance=gputile" in selectors


def test_who_waits_outlasts_an_api_server_that_fails(
    server: FakeApiServer, kubeconfig: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.store[DEPLOYMENTS]["gputile-webhook"] = webhook(0)

    def fail(_: float) -> None:
        server.refused[DEPLOYMENTS] = 500, "InternalError"
        monkeypatch.setattr(time, "sleep", recover)

    def recover(_: float) -> None:
        server.refused.clear()
        server.store[DEPLOYMENTS]["gputile-webhook"] = webhook(1)

    monkeypatch.setattr(time, "sleep", fail)
    found = run.invoke(app, ["status", "--kubeconfig", kubeconfig, "--wait", "10m"])
    assert (found.exit_code, found.stdout.splitlines()[0]) == (0, "gputile: Deployed")


@pytest.mark.requirement("U11")
def test_a_configuration_that_is_refused_is_named(server: FakeApiServer, kubeconfig: str) -> None:
    """What runs keeps its former settings, and a component that starts anew has none: the upgrade failed."""
    server.store[CONFIG_MAPS]["gputile"] = {
        "metadata": {"name": "gputile"},
        "data": {"configuration.yaml": "maxPodsPerGpu: x"},
    }
    server.store[DEPLOYMENTS]["gputile-webhook"] = webhook(1)
    result = run.invoke(app, ["status", "--kubeconfig", kubeconfig, "-o", "json"])
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["phase"], answer["unitMib"]) == (3, "Failed", 0)
    assert [component["state"] for component in answer["components"]] == ["Ready"]
    (problem,) = answer["problems"]
    assert problem["object"] == "configuration"
    assert "helm upgrade" in problem["remedy"]


def test_programs_outside_of_pods_are_recognised(server: FakeApiServer, kubeconfig: str) -> None:
    """By their Leases and their webhook configuration, which a user need not be allowed to read."""
    leases = "/apis/coordination.k8s.io/v1/namespaces/gputile/leases"
    now = micro_timestamp_of(datetime.now(UTC))
    held = {"metadata": {"name": "gputile-controller"}, "spec": {"holderIdentity": "controller", "renewTime": now}}
    server.store[leases] = {"gputile-controller": held}
    words = ["status", "--kubeconfig", kubeconfig]
    first = run.invoke(app, [*words, "-o", "json"])
    assert (first.exit_code, json.loads(first.stdout)["phase"]) == (0, "OutsideOfPods")
    assert json.loads(first.stdout)["traces"] == ["controller holds the Lease gputile-controller"]
    assert run.invoke(app, [*words, "--release", "gputlie"]).exit_code == 3
    del server.store[leases]["gputile-controller"]
    assert run.invoke(app, words).stdout == "gputile: NotInstalled\n"


def unready(name: str) -> dict[str, object]:
    return {
        "metadata": {"name": name, "labels": dict(LABELS)},
        "spec": {"containers": [{"ports": [{"name": "https"}, {"name": "metrics", "containerPort": 8083}]}]},
        "status": {"phase": "Running"},
    }


@pytest.mark.requirement("U11")
def test_a_pod_that_is_not_ready_says_why_itself(server: FakeApiServer, kubeconfig: str) -> None:
    """The kubelet knows only that its probe got a 503."""
    server.store[DEPLOYMENTS]["gputile-webhook"] = webhook(0)
    server.store[PODS]["gputile-webhook-0"] = unready("gputile-webhook-0")
    path = f"{PODS}/gputile-webhook-0:8083/proxy/readyz"
    server.proxied[path] = 503, b"the certificate cannot be maintained"
    result = run.invoke(app, ["status", "--kubeconfig", kubeconfig, "-o", "json"])
    (component,) = json.loads(result.stdout)["components"]
    assert component["reason"] == "pod gputile-webhook-0: the certificate cannot be maintained"
    for answer in ((503, json.dumps(status_body(503, "ServiceUnavailable")).encode()), (200, b"")):
        server.proxied[path] = answer
        result = run.invoke(app, ["status", "--kubeconfig", kubeconfig, "-o", "json"])
        (component,) = json.loads(result.stdout)["components"]
        assert component["reason"] == "its pods are starting"


SECRETS = "/api/v1/namespaces/gputile/secrets"


@pytest.mark.parametrize("release", [[], ["--release", "gputile"]], ids=["any", "named"])
def test_an_upgrade_that_failed_is_named_though_every_component_is_ready(
    server: FakeApiServer, kubeconfig: str, release: list[str]
) -> None:
    server.store[DEPLOYMENTS]["gputile-webhook"] = webhook(1)
    for number, status in ((1, "deployed"), (2, "failed")):
        labels = {"owner": "helm", "name": "gputile", "version": str(number), "status": status}
        name = f"sh.helm.release.v1.gputile.v{number}"
        server.put(SECRETS, {"metadata": {"name": name, "labels": labels}, "data": {"release": "SDRz"}})
    words = ["status", "--kubeconfig", kubeconfig, *release]
    first = run.invoke(app, words)
    assert (first.exit_code, first.stdout.splitlines()[0]) == (3, "gputile: Failed: Helm release gputile")
    assert "helm rollback gputile --namespace gputile" in first.stdout
    selectors = {request.query["labelSelector"] for request in server.requests if request.path == SECRETS}
    assert all(selector.startswith("owner=helm,") for selector in selectors), "no Secret of anybody else is read"
    server.refused[SECRETS] = 403, "Forbidden"
    assert run.invoke(app, words).exit_code == 0, "who may not read Secrets is told what the components say"


ACCOUNTS = "/api/v1/namespaces/gputile/serviceaccounts"


def test_a_component_that_is_gone_is_named(server: FakeApiServer, kubeconfig: str) -> None:
    labels = {"app.kubernetes.io/component": "agent", "app.kubernetes.io/name": "gputile"}
    unit = "schedulerName: gputile-scheduler"
    server.store[DEPLOYMENTS]["gputile-webhook"] = webhook(1)
    server.put(ACCOUNTS, {"metadata": {"name": "gputile-agent", "labels": labels}})
    server.put(CONFIG_MAPS, {"metadata": {"name": "gputile"}, "data": {"configuration.yaml": unit}})
    words = ["status", "--kubeconfig", kubeconfig]
    first = run.invoke(app, words)
    assert (first.exit_code, first.stdout.splitlines()[0]) == (3, "gputile: Deploying: agent, scheduler")
    server.refused[ACCOUNTS] = 403, "Forbidden"
    second = run.invoke(app, words)
    assert (second.exit_code, second.stdout.splitlines()[0]) == (3, "gputile: Deploying: scheduler")
