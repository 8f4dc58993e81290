"""gputile's own parts in a local cluster: simulated GPU nodes as cluster descriptions say, and the extender."""

import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

from gputile.api.core import Node
from gputile.api.well_known import GPU_RESOURCES, LEGACY_GPU
from gputile.tools.simulator.scenario import load_scenario
from tests.localcluster.client import is_ready
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.nodes import NodeSpec
from tests.localcluster.ports import free_ports
from tests.localcluster.processes import Process
from tests.localcluster.schedulerconfig import ManagedResource

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SERVICE_ACCOUNT = "system:serviceaccount:gputile:gputile-extender"
CONTROLLER_ACCOUNT = "system:serviceaccount:gputile:gputile-controller"
SERVICE_ACCOUNT_GROUPS = ["system:serviceaccounts", "system:serviceaccounts:gputile", "system:authenticated"]
WEIGHT = 200  # as in examples/extender/scheduler.yaml
# kube-scheduler takes no name of kubernetes.io here; the old one is rewritten before it ever sees a pod.
MANAGED: list[ManagedResource] = [{"name": name} for name in GPU_RESOURCES if name != LEGACY_GPU]


def described_nodes(*files: Path) -> list[NodeSpec]:
    """Return the nodes that cluster descriptions describe, ready to be created."""
    return [node_spec(node) for node in load_scenario([str(file) for file in files]).nodes]


def node_spec(node: Node) -> NodeSpec:
    """Return a node as the control plane's helper creates it."""
    return NodeSpec(
        name=node.metadata.name,
        labels=node.metadata.labels,
        annotations=node.metadata.annotations,
        capacity={name: str(amount) for name, amount in node.status.allocatable.items()},
        address=node.internal_ip or "127.0.0.1",
        taints=[{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in node.spec.taints],
    )


def start_extender(
    plane: ControlPlane,
    name: str = "extender",
    *,
    unit: str = "1GiB",
    lease_seconds: int = 0,
    arguments: tuple[str, ...] = (),
    settings: Mapping[str, object] | None = None,
) -> tuple[Process, str]:
    """Start an extender with exactly the rights that its example manifest grants; return it and its URL.

    ``unit`` is the cluster's memory unit, ``settings`` are more of its configuration. It is ready when it has listed
    the cluster.
    """
    plane.kubectl("apply", "-f", str(EXAMPLES / "extender" / "rbac.yaml"))
    port = free_ports(1)[0]
    configuration = configuration_file(plane, name)
    write_configuration(configuration, {"gpuMemoryUnit": unit, **(settings or {})})
    url = f"http://127.0.0.1:{port}"
    command: list[str | Path] = [
        Path(sys.executable).with_name("gputile"),
        "extender",
        f"--port={port}",
        f"--config={configuration}",
        f"--kubeconfig={plane.kubeconfig(SERVICE_ACCOUNT, SERVICE_ACCOUNT_GROUPS)}",
        "--lease-namespace=gputile",
        f"--lease-seconds={lease_seconds}",
        f"--identity={name}",
        *arguments,
    ]
    return plane.start_process(name, command, ready=lambda: is_ready(url)), url


def start_controller(
    plane: ControlPlane,
    name: str = "controller",
    *,
    lease_seconds: int = 3,
    settings: Mapping[str, object] | None = None,
) -> tuple[Process, str]:
    """Start a controller with exactly the rights that its example manifest grants; return it and its health URL.

    ``settings`` is its configuration. It is ready when it has listed the cluster, whether it acts or stands by.
    """
    plane.kubectl("apply", "-f", str(EXAMPLES / "controller" / "rbac.yaml"))
    port = free_ports(1)[0]
    configuration = configuration_file(plane, name)
    write_configuration(configuration, settings or {})
    url = f"http://127.0.0.1:{port}"
    command: list[str | Path] = [
        Path(sys.executable).with_name("gputile"),
        "controller",
        f"--health-port={port}",
        f"--config={configuration}",
        f"--kubeconfig={plane.kubeconfig(CONTROLLER_ACCOUNT, SERVICE_ACCOUNT_GROUPS)}",
        "--lease-namespace=gputile",
        "--lease=gputile-controller",
        f"--lease-seconds={lease_seconds}",
        f"--identity={name}",
    ]
    return plane.start_process(name, command, ready=lambda: is_ready(url)), url


def configuration_file(plane: ControlPlane, extender: str) -> Path:
    """Return the file that the extender of that name follows."""
    return plane.directory / f"{extender}.configuration.yaml"


def write_configuration(path: Path, settings: Mapping[str, object]) -> None:
    """Write gputile's configuration with these settings, for processes that follow the file too."""
    body = {"apiVersion": "gputile.io/v1alpha1", "kind": "Configuration", **settings}
    unfinished = path.with_suffix(".new")
    unfinished.write_text(yaml.safe_dump(body), encoding="utf-8")
    unfinished.rename(path)
