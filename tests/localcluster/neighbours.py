"""What people run beside gputile: Karpenter, Kueue's kinds, and a Prometheus.

Karpenter's provider is kwok: it adds Node objects, and whoever tests plays what is on these machines. What Kueue's
controllers write to pods is played too: a pod has a gate of Kueue's or not. Prometheus is Debian's.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx2 as httpx
import yaml

from tests.localcluster.binaries import COMPONENTS, debian_program, skip_or_fail
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gomodule import MODULES, ComponentMissing, module_directory
from tests.localcluster.machine import free_ports
from tests.localcluster.processes import Process

POOL_LABEL: Final = "karpenter.sh/nodepool"
_CLASS: Final = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
_BATCH: Final = {"BATCH_IDLE_DURATION": "200ms", "BATCH_MAX_DURATION": "1s"}
GATE: Final = "kueue.x-k8s.io/admission"


def instance_type(name: str, resources: Mapping[str, int], price: float) -> dict[str, Any]:
    """Return a type of machine, with ``resources`` beside those of an ordinary one."""
    requirements = [
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
        {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-a"]},
    ]
    ordinary = {"cpu": "16", "memory": "64Gi", "ephemeral-storage": "1Ti", "pods": "100"}
    return {
        "name": name,
        "offerings": [{"Price": price, "Available": True, "Requirements": requirements}],
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": ordinary | {resource: str(count) for resource, count in resources.items()},
    }


def node_pool(name: str, instance: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return a NodePool of GPU nodes of one type of machine, which Karpenter never removes."""
    requirements = [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [instance]}]
    taints = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    template = {"nodeClassRef": _CLASS, "requirements": requirements, "taints": taints, "expireAfter": "Never"}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": {
            "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"},
            "template": {"metadata": {"labels": dict(labels)}, "spec": template},
        },
    }


@contextmanager
def karpenter(plane: ControlPlane, program: Path, instance_types: list[dict[str, Any]]) -> Iterator[Process]:
    """Run Karpenter with these types of machines and no NodePool, for as long as the context lasts."""
    plane.kubectl("apply", "--server-side", *(f"--filename={definition}" for definition in _karpenter_definitions()))
    _wait_established(plane)
    types = plane.directory / "instance-types.json"
    types.write_text(json.dumps(instance_types))
    node_class = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": _CLASS["kind"], "metadata": {"name": "default"}}
    plane.kubectl("apply", "-f", "-", input=yaml.safe_dump(node_class))
    metrics, health = free_ports(2)
    environment = {
        **os.environ,
        **_BATCH,
        "KUBECONFIG": str(plane.kubeconfig()),
        "INSTANCE_TYPES_FILE_PATH": str(types),
        "METRICS_PORT": str(metrics),
        "HEALTH_PROBE_PORT": str(health),
        "DISABLE_LEADER_ELECTION": "true",
        "SYSTEM_NAMESPACE": "kube-system",
    }
    with plane.start_process("karpenter", [program], environment=environment) as process:
        yield process


def _wait_established(plane: ControlPlane) -> None:
    """Wait until all kinds are served. `kubectl wait` fails if a definition has no conditions yet."""

    def are_established() -> bool:
        found = plane.api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
        conditions = [each.get("status", {}).get("conditions") or [] for each in found]
        return all(any(c["type"] == "Established" and c["status"] == "True" for c in each) for each in conditions)

    plane.wait(are_established, "all kinds to be served")


def remove_kinds(plane: ControlPlane) -> None:
    """Delete the CustomResourceDefinitions and all objects of their kinds: later tests compare what is served."""
    plane.kubectl(
        "delete", "--ignore-not-found", *(f"--filename={definition}" for definition in _karpenter_definitions())
    )


def _karpenter_definitions() -> list[Path]:
    """Return the CustomResourceDefinitions, which are files of Karpenter's module."""
    directory = module_directory(COMPONENTS, "sigs.k8s.io/karpenter")
    return sorted([*directory.glob("pkg/apis/crds/karpenter.sh_*.yaml"), *directory.glob("kwok/apis/crds/*.yaml")])


@contextmanager
def kueue_kinds(plane: ControlPlane) -> Iterator[None]:
    """Serve Kueue's kinds for as long as the context lasts; they and all objects of them are gone at the end."""
    definitions = [f"--filename={definition}" for definition in _kueue_definitions()]
    plane.kubectl("apply", "--server-side", *definitions)
    try:
        _wait_established(plane)
        yield
    finally:
        plane.kubectl("delete", "--ignore-not-found", *definitions)


def ungate(plane: ControlPlane, namespace: str, pod: str) -> None:
    """Remove Kueue's gate from a pod, and no other."""
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
    gates = [gate for gate in plane.api.get(path)["spec"]["schedulingGates"] if gate["name"] != GATE]
    plane.api.patch(path, {"spec": {"schedulingGates": gates}})


def _kueue_definitions() -> list[Path]:
    """Return the CustomResourceDefinitions, which are files of Kueue's module."""
    return sorted(module_directory(MODULES / "kueue", "sigs.k8s.io/kueue").glob("config/components/crd/bases/*.yaml"))


class Prometheus:
    """A running Prometheus; ``url`` is where it is asked."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str, at_s: float | None = None) -> list[dict[str, Any]]:
        """Return what an instant query finds: labels as ``metric``, and ``value``; ``at_s`` is Unix time, else now.

        Raises:
            AssertionError: Prometheus does not take the query.
        """
        asked = {"query": expression} if at_s is None else {"query": expression, "time": f"{at_s:.3f}"}
        answer = httpx.get(f"{self.url}/api/v1/query", params=asked, timeout=30.0)
        body = json.loads(answer.text)
        assert body["status"] == "success", (expression, body)
        found: list[dict[str, Any]] = body["data"]["result"]
        return found

    def down(self) -> list[str]:
        """Return the jobs that it cannot scrape."""
        return [each["metric"]["job"] for each in self.query("up == 0")]


@contextmanager
def scraping(directory: Path, targets: Mapping[str, str], node: str) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes ``targets`` (addresses by job) each second, as the chart's PodMonitors have it.

    ``node`` is the label that the chart takes from the pod. Without the package the test fails on CI, and is skipped
    elsewhere.
    """
    try:
        program = debian_program("prometheus")
    except ComponentMissing as missing:
        skip_or_fail(missing)
    jobs = [
        {
            "job_name": job,
            "honor_labels": True,
            "static_configs": [{"targets": [address], "labels": {"node": node}}],
        }
        for job, address in targets.items()
    ]
    configuration = directory / "prometheus.yml"
    configuration.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command: list[str | Path] = [
        program,
        f"--config.file={configuration}",
        f"--storage.tsdb.path={directory / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with Process("prometheus", command, directory / "prometheus.log") as process:
        process.start()
        process.wait_ready(lambda: _is_ready(url))
        yield Prometheus(url)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", timeout=5.0).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
