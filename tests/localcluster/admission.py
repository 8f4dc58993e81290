"""gputile's webhook and policies on a local control plane, and verdicts about pods."""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.localcluster.client import Api, ApiError, is_ready, text_at
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gputile import EXAMPLES, SERVICE_ACCOUNT_GROUPS, configuration_file, write_configuration
from tests.localcluster.machine import free_ports
from tests.localcluster.processes import Process

MANIFESTS = EXAMPLES / "webhook"
ACCOUNT = "system:serviceaccount:gputile:gputile-webhook"
AGENT = "system:serviceaccount:gputile:gputile-agent"
OPEN = {"gputile.io/unsafe-gpu-access": "allowed"}

Json = dict[str, Any]


class RunningWebhook:
    """One replica, its ports, and the configuration file that it follows."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.name = "webhook"
        self.port, self.health_port = free_ports(2)
        self.configuration = configuration_file(plane, self.name)

    def configure(self, **settings: Any) -> None:
        """Write the configuration file."""
        write_configuration(self.configuration, settings)

    def start(self) -> Process:
        """Start it with exactly the rights that its example manifest grants, and wait until it is ready."""
        command: list[str | Path] = [
            Path(sys.executable).with_name("gputile"),
            "webhook",
            f"--config={self.configuration}",
            "--host=127.0.0.1",
            f"--port={self.port}",
            "--installed-in=gputile",
            "--service=gputile-webhook",
            "--secret=gputile-webhook",
            "--configuration=gputile",
            f"--health-port={self.health_port}",
            f"--kubeconfig={self.plane.kubeconfig(ACCOUNT, SERVICE_ACCOUNT_GROUPS)}",
        ]
        return self.plane.start_process(self.name, command, ready=self.is_ready)

    def is_ready(self) -> bool:
        """Return whether it says that it is ready."""
        return is_ready(f"http://127.0.0.1:{self.health_port}")

    def metric(self, name: str) -> float:
        """Return a number that it exports; 0 where it does not yet."""
        text = text_at(f"http://127.0.0.1:{self.health_port}/metrics")
        return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name} ")), 0.0)


def manifest_of(port: int) -> str:
    """Return the example's configurations for a webhook on a port of this machine, which may be slow."""
    text = (MANIFESTS / "webhook.yaml").read_text(encoding="utf-8")
    return text.replace("port: 443", f"port: {port}").replace("timeoutSeconds: 5", "timeoutSeconds: 30")


@contextmanager
def installed(plane: ControlPlane, settings: Mapping[str, object] | None = None) -> Iterator[RunningWebhook]:
    """Install the example manifests and run the webhook that they point at; remove them at the end.

    ``settings`` is the webhook's configuration. The one thing that differs from a cluster is the Service: it leads to
    this machine, as there is no pod network.
    """
    webhook = RunningWebhook(plane)
    webhook.configure(**(settings or {}))
    for manifest in ("rbac.yaml", "policies.yaml"):
        plane.kubectl("apply", "-f", str(MANIFESTS / manifest))
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "gputile-webhook", "namespace": "gputile"},
        "spec": {"type": "ExternalName", "externalName": "localhost"},
    }
    for text in (yaml.safe_dump(service), manifest_of(webhook.port)):
        plane.kubectl("apply", "-f", "-", input=text)
    try:
        webhook.start()
        wait_in_force(plane)
        yield webhook
    finally:
        if webhook.name in plane.processes:  # whichever start of it was the last
            plane.processes[webhook.name].stop()
        kinds = "mutatingwebhookconfiguration,validatingwebhookconfiguration"
        plane.kubectl("delete", kinds, "gputile", "--ignore-not-found")
        plane.kubectl("delete", "-n", "gputile", "service,secret", "gputile-webhook", "--ignore-not-found")
        plane.kubectl("delete", "-f", str(MANIFESTS / "policies.yaml"), "--ignore-not-found")
        probe = pod("out-of-force", {"nvidia.com/gpu": "x/y"})
        plane.wait(lambda: "gputile" not in verdict(plane.api, "default", probe), "admission to be out of force")


def wait_in_force(plane: ControlPlane) -> None:
    """Wait until the API server asks the webhook, and keeps the policies."""
    wrong = pod("in-force", {"nvidia.com/gpu": "1", "aliyun.com/gpu-mem": "1"})
    plane.wait(lambda: "[gpu-amount]" in verdict(plane.api, "default", wrong), "the webhook to be asked")
    forged = pod("in-force", meta={"annotations": {"gputile.io/allocation": "{}"}})
    escape = pod("in-force", container={"env": [{"name": "GPUTILE_LIMITS", "value": "x"}]})
    for body in (forged, escape):
        plane.wait(lambda body=body: "gputile" in verdict(plane.api, "default", body), "the policies")  # type: ignore[misc]


def pod(
    name: str,
    limits: Mapping[str, Any] | None = None,
    *,
    container: Json | None = None,
    meta: Json | None = None,
    **spec: Any,
) -> Json:
    """Return a pod of one container."""
    resources: Json = {"resources": {"limits": limits}} if limits else {}
    main = {"name": "main", "image": "registry.example.com/x:1", **resources, **(container or {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **(meta or {})},
        "spec": {"containers": [main], **spec},
    }


def verdict(api: Api, namespace: str, body: Json) -> str:
    """Return why the API server would not create a pod, "" where it would; nothing is stored."""
    try:
        api.request("POST", f"/api/v1/namespaces/{namespace}/pods", body, query={"dryRun": "All"})
    except ApiError as error:
        return str(error)
    return ""


def refusal(api: Api, method: str, path: str, body: Json | None = None, content_type: str = "application/json") -> str:
    """Return why the API server does not do what it is asked, "" where it has done it."""
    try:
        api.request(method, path, body, content_type=content_type)
    except ApiError as error:
        return str(error)
    return ""


def kubectl_create(plane: ControlPlane, namespace: str, bodies: Iterable[Json]) -> tuple[set[str], str]:
    """Create pods with one run of kubectl; return the names of those that were created, and what it wrote to stderr."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(bodies)})
    kubeconfig = f"--kubeconfig={plane.kubeconfig()}"
    command = [str(plane.programs["kubectl"]), kubeconfig, "-n", namespace, "create", "-f", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    return {line.split()[0].removeprefix("pod/") for line in lines if line.endswith(" created")}, done.stderr
