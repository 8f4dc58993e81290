"""gputile installed by Helm on the real control plane, with its components as processes.

No container runs there: no registry is reachable, and no kubelet serves the nodes. So each component runs as a process
with exactly what its pod would have: the arguments of the rendered pod, the files of the rendered ConfigMaps, and a
token of its own ServiceAccount, bound to the pod that the real controllers created. Only addresses and ports differ.
"""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from gputile.api.config.v1alpha1 import Configuration, load_configuration
from tests.chart.helmcli import CHART, helm, settings
from tests.e2e.extender import pods_in
from tests.localcluster.client import is_ready, text_at
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.identities import CLUSTER
from tests.localcluster.machine import LOOPBACK, free_ports
from tests.localcluster.processes import Process

GPUTILE = Path(sys.executable).with_name("gputile")


class Installation:
    """One release of the chart. ``name`` is what its objects' names begin with."""

    def __init__(self, plane: ControlPlane, release: str, namespace: str) -> None:
        self.plane = plane
        self.release = release
        self.namespace = namespace
        self.name = release if "gputile" in release else f"{release}-gputile"
        self.directory = plane.directory / f"installation-{release}"
        self.directory.mkdir()
        self.processes: list[Process] = []
        self._health: dict[str, str] = {}  # addresses by container
        self._followers: dict[str, Process] = {}  # by container
        self._unread: dict[str, int] = {}  # how long the log of each was before the configuration became another

    def install(self, values: Mapping[str, Any]) -> None:
        """Install the release; it waits for nothing."""
        self._helm("install", self.release, CHART, "--create-namespace", *settings(values))

    def upgrade(self, values: Mapping[str, Any]) -> None:
        """Change parameters of the release, and its files as the kubelet does some time later."""
        elsewhere = self.lead_webhooks_to(None)
        self._helm("upgrade", self.release, CHART, "--reset-then-reuse-values", *settings(values))
        self.lead_webhooks_to(elsewhere)
        self.mount()

    def uninstall(self) -> None:
        """Remove the release."""
        self._helm("uninstall", self.release)

    def stop(self) -> None:
        """End the processes."""
        for process in reversed(self.processes):
            process.stop()
        self.processes.clear()
        self._followers.clear()

    def _helm(self, verb: str, *arguments: str | Path) -> str:
        access = (f"--kubeconfig={self.plane.kubeconfig()}", f"--namespace={self.namespace}")
        home = {"HELM_CACHE_HOME": str(self.directory / "cache"), "HELM_CONFIG_HOME": str(self.directory / "config")}
        return helm(verb, *arguments, *access, environment=home)

    def get(self, path: str) -> Any:
        """Return an object, or list, of the namespace: ``apps/v1/deployments/x``, ``v1/pods``."""
        group, _, rest = path.rpartition("v1/")
        root = f"/apis/{group}v1" if group else "/api/v1"
        return self.plane.api.get(f"{root}/namespaces/{self.namespace}/{rest}")

    def mount(self) -> Path:
        """Write the ConfigMaps as the kubelet does, each file whole; return their directory."""
        if self._configuration() != self._mounted():
            self._unread = {name: len(process.log_text()) for name, process in self._followers.items()}
        for suffix in ("", "-scheduler"):
            for file, text in self.get(f"v1/configmaps/{self.name}{suffix}")["data"].items():
                beside = self.directory / f".{file}"
                beside.write_text(text)
                beside.replace(self.directory / file)
        return self.directory

    def _mounted(self) -> Configuration | None:
        path = self.directory / "configuration.yaml"
        return load_configuration(yaml.safe_load(path.read_text())) if path.exists() else None

    def _configuration(self) -> Configuration:
        text = self.get(f"v1/configmaps/{self.name}")["data"]["configuration.yaml"]
        return load_configuration(yaml.safe_load(text))

    def unit_mib(self) -> int:
        """Return the memory unit in the ConfigMap."""
        return self._configuration().unit_mib

    def container(self, workload: str, container: str) -> dict[str, Any]:
        """Return a container of the template of ``deployments/x`` or ``daemonsets/x``, from the API server."""
        kind, component = workload.split("/")
        spec = self.get(f"apps/v1/{kind}/{self.name}-{component}")["spec"]["template"]["spec"]
        return next(each for each in spec["containers"] if each["name"] == container)

    def pods_of(self, component: str) -> list[dict[str, Any]]:
        """Return the pods that the controllers created for a component."""
        mark = "app.kubernetes.io/component"
        return [pod for pod in pods_in(self.plane, self.namespace) if pod["metadata"]["labels"].get(mark) == component]

    def token(self, component: str, pod: Mapping[str, Any] | None = None) -> str:
        """Return a token of the component's ServiceAccount, bound to its pod as the kubelet asks for it."""
        bound = pod or self.pods_of(component)[0]
        reference = {
            "kind": "Pod",
            "apiVersion": "v1",
            "name": bound["metadata"]["name"],
            "uid": bound["metadata"]["uid"],
        }
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{self.name}-{component}/token"
        answer = self.plane.api.post(path, {"spec": {"boundObjectRef": reference, "expirationSeconds": 3600}})
        return str(answer["status"]["token"])

    def kubeconfig(self, component: str) -> Path:
        """Return a kubeconfig with such a token."""
        path = self.directory / f"{component}.kubeconfig"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": CLUSTER,
                    "cluster": {"server": self.plane.url, "certificate-authority": str(self.plane.ca)},
                }
            ],
            "users": [{"name": component, "user": {"token": self.token(component)}}],
            "contexts": [
                {
                    "name": CLUSTER,
                    "context": {"cluster": CLUSTER, "user": component, "namespace": self.namespace},
                }
            ],
            "current-context": CLUSTER,
        }
        path.write_text(yaml.safe_dump(document))
        return path

    def run(self, workload: str, container: str, ports: Mapping[str, int], *extra: str) -> Process:
        """Run a gputile container as a process; ``ports`` are by the option that names them."""
        component = workload.partition("/")[2]
        fields = {"$(IDENTITY)": f"{component}-0", "$(NAMESPACE)": self.namespace}
        arguments = []
        for argument in self.container(workload, container)["args"]:
            option, _, value = argument.partition("=")
            if option in ports:
                value = str(ports[option])
            value = fields.get(value, value).replace("/etc/gputile", str(self.directory)).replace("0.0.0.0", LOOPBACK)
            arguments.append(f"{option}={value}" if value else option)
        command = [GPUTILE, *arguments, f"--kubeconfig={self.kubeconfig(component)}", *extra]
        health = f"http://{LOOPBACK}:{ports['--health-port']}"
        process = self.plane.start_process(f"{self.release}-{container}", command, ready=lambda: is_ready(health))
        self.processes.append(process)
        self._health[container] = health
        self._followers[container] = process
        return process

    def wait_followed(self) -> None:
        """Wait until all have read their file; a pod that comes before is stamped with the unit before."""
        for name, seen in self._unread.items():
            follower = self._followers[name]
            self.plane.wait(lambda f=follower, n=seen: "has changed" in f.log_text()[n:], f"{name} to read its file")  # type: ignore[misc]
        self._unread.clear()
        unit = self.unit_mib()
        said = f"gputile_webhook_memory_unit_mib {float(unit)}"
        exported = f"{self._health['webhook']}/metrics"
        self.plane.wait(lambda: said in text_at(exported).splitlines(), f"the webhook to stamp {unit} MiB")
        for name, url in self._health.items():
            self.plane.wait(lambda url=url: is_ready(url), f"{name} to be ready")  # type: ignore[misc]

    def run_scheduler(self) -> tuple[Process, Process]:
        """Run the extender and the kube-scheduler of the scheduler's pod; one of two replicas."""
        self.mount()
        port, health, secure = free_ports(3)
        extender = self.run("deployments/scheduler", "extender", {"--port": port, "--health-port": health})
        configuration = yaml.safe_load((self.directory / "scheduler.yaml").read_text())
        configuration["clientConnection"] = {"kubeconfig": str(self.kubeconfig("scheduler"))}
        prefix = configuration["extenders"][0]["urlPrefix"]
        configuration["extenders"][0]["urlPrefix"] = prefix.replace(":8888", f":{port}")
        file = self.directory / "scheduler.here.yaml"
        file.write_text(yaml.safe_dump(configuration))
        container = self.container("deployments/scheduler", "kube-scheduler")
        assert container["args"] == ["--config=/etc/kube-scheduler/scheduler.yaml", "--secure-port=10259"]
        access = self.kubeconfig("scheduler")
        scheduler = self.plane.start_process(
            f"{self.release}-kube-scheduler",
            [
                self.plane.programs["kube-scheduler"],
                f"--config={file}",
                f"--secure-port={secure}",
                f"--bind-address={LOOPBACK}",
                f"--authentication-kubeconfig={access}",
                f"--authorization-kubeconfig={access}",
            ],
        )
        self.processes.append(scheduler)
        return extender, scheduler

    def run_webhook(self) -> Process:
        """Run the webhook, and let the API server reach it on loopback: no Service leads anywhere here."""
        self.mount()
        port, health = free_ports(2)
        self.lead_webhooks_to(port)
        ports = {"--port": port, "--health-port": health}
        return self.run("deployments/webhook", "webhook", ports, f"--dns-name={LOOPBACK}")

    def run_controller(self) -> Process:
        """Run the controller."""
        self.mount()
        return self.run("deployments/controller", "controller", {"--health-port": free_ports(1)[0]})

    def lead_webhooks_to(self, port: int | None) -> int | None:
        """Have the API server ask a port of this machine, or the Service (None); return where it asked before."""
        before: int | None = None
        service = {"namespace": self.namespace, "name": f"{self.name}-webhook", "port": 443}
        for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
            path = f"/apis/admissionregistration.k8s.io/v1/{kind}/{self.name}"
            webhooks = self.plane.api.get(path)["webhooks"]
            for webhook in webhooks:
                config = webhook["clientConfig"]
                if "url" in config:
                    asked = urlsplit(config.pop("url"))
                    before, way = asked.port, asked.path
                else:
                    way = config.pop("service")["path"]
                config |= {"service": {**service, "path": way}} if port is None else {"url": _url(port, way)}
            self.plane.api.patch(path, {"webhooks": webhooks})
        return before


def _url(port: int, path: str) -> str:
    return f"https://{LOOPBACK}:{port}{path}"


def settle(seconds: float) -> None:
    """Give things that must not happen the time to happen."""
    time.sleep(seconds)
