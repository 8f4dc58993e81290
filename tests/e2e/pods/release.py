"""A release of the chart whose components run as pods, installed and asked about as people do it: helm and gputile."""

import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from release.artefacts import Release, build_chart
from release.sources import Sources

from tests.chart.helmcli import helm, settings
from tests.e2e.pods.cluster import GPUTILE_IMAGE, PodCluster, is_ready
from tests.localcluster.gputile_image import EPOCH, REFERENCE, ROOT

GPUTILE = Path(sys.executable).with_name("gputile")
# Everything that can be switched on without other software. The pods request little CPU: on a busy machine an answer of
# the webhook takes seconds.
VALUES = {"gpuMemoryUnit": "128MiB", "networkPolicies.enabled": True, "webhook.timeoutSeconds": 30}
COMPONENTS = {"agent": 2, "controller": 2, "scheduler": 2, "webhook": 2}  # on two nodes
DEPLOYED_WITHIN_S = 600
_COMPONENT = "app.kubernetes.io/component"


class PodRelease:
    """The release ``gputile`` in a namespace of its own, of the chart's archive that people take."""

    name = namespace = "gputile"

    def __init__(self, cluster: PodCluster) -> None:
        self.cluster = cluster
        self._home = cluster.plane.directory / "helm"
        self._home.mkdir()
        (self._chart,) = build_chart(
            Release(Sources(ROOT, EPOCH, ""), platform.machine(), GPUTILE_IMAGE, ""), self._home
        )

    def install(self) -> None:
        """Install it with VALUES; as without --wait, it waits for nothing."""
        self.helm("install", self.name, self._chart, "--create-namespace", *_settings(VALUES))

    def uninstall(self) -> None:
        """Uninstall it, and wait until its components are gone."""
        self.helm("uninstall", self.name)
        self.cluster.wait(lambda: not self.cluster.pods(self.namespace), "all components to be gone")

    def upgrade(self, values: Mapping[str, Any], *options: str) -> None:
        """Change parameters."""
        self.helm("upgrade", self.name, self._chart, "--reset-then-reuse-values", *_settings(values), *options)

    def helm(self, verb: str, *arguments: str | Path) -> str:
        """Run helm on the release's namespace."""
        return helm(verb, *arguments, *self._access(), environment=self._environment())

    def _access(self) -> tuple[str, str]:
        return f"--kubeconfig={self.cluster.plane.kubeconfig()}", f"--namespace={self.namespace}"

    def _environment(self) -> dict[str, str]:
        return {"HELM_CACHE_HOME": str(self._home / "cache"), "HELM_CONFIG_HOME": str(self._home / "config")}

    def status(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``gputile status``."""
        command: list[str | Path] = [GPUTILE, "status", f"--kubeconfig={self.cluster.plane.kubeconfig()}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def pods_used(self) -> dict[str, int | None]:
        """Return what ``gputile top`` says that pods use, MiB by their names."""
        command: list[str | Path] = [GPUTILE, "top", "-o", "json", f"--kubeconfig={self.cluster.plane.kubeconfig()}"]
        said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        return {each["name"]: each["usedMib"] for each in said["pods"]}

    def reasons(self) -> dict[str, str]:
        """Return what ``gputile status`` says of the components that are not ready."""
        said = json.loads(self.status("-o", "json").stdout)
        return {each["name"]: each["reason"] for each in said["components"] if each["state"] != "Ready"}

    def wait_deployed(self) -> str:
        """Wait until ``gputile status`` says Deployed; return all that it says.

        Raises:
            AssertionError: it did not in time; with what it says instead, and the ends of the pods' logs.
        """
        said = self.status("--wait", str(DEPLOYED_WITHIN_S))
        assert said.returncode == 0, f"{said.stdout}{said.stderr}\n{self.complaints()}"
        return said.stdout

    def pods(self, component: str) -> list[dict[str, Any]]:
        """Return the pods of a component."""
        return self.cluster.pods(self.namespace, **{_COMPONENT: component})

    def agent(self, node: str) -> dict[str, Any]:
        """Return the agent's pod on a node."""
        (found,) = (pod for pod in self.pods("agent") if pod["spec"].get("nodeName") == node)
        return found

    def complaints(self) -> str:
        """Return the end of what each pod that is not ready has written, and the Events of the namespace."""
        lines = [self.cluster.kubectl("get", "events", f"--namespace={self.namespace}", "--sort-by=.lastTimestamp")]
        for pod in self.cluster.pods(self.namespace):
            if not is_ready(pod):
                lines.append(self.log(pod)[-3000:])
        return "\n".join(lines)

    def images(self) -> set[str]:
        """Return which images of gputile the pods of its components have."""
        containers = [c for pod in self.cluster.pods(self.namespace) for c in pod["spec"]["containers"]]
        return {container["image"] for container in containers if container["name"] != "kube-scheduler"}

    def log(self, pod: Mapping[str, Any]) -> str:
        """Return what all containers of a pod have written."""
        name = pod["metadata"]["name"]
        return self.cluster.logs(self.namespace, name, "--all-containers", "--prefix")


def _settings(values: Mapping[str, Any]) -> list[str]:
    return settings({"image.repository": REFERENCE.rpartition(":")[0], **values})
