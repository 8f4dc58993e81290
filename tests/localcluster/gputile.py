"""gputile's own parts in a local cluster: extender, controller, agent, and simulated GPU nodes as described.

An agent runs behind its gateway on a real node, with the machine of the fake NVML. Each part has exactly the rights of
its example manifest.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from gputile.api.core import Node
from gputile.api.well_known import GPU_RESOURCES, LEGACY_GPU
from gputile.tools.simulator.scenario import load_scenario
from tests.fakes import nvml
from tests.fakes.hardware import with_gpu
from tests.localcluster.client import is_ready, text_at
from tests.localcluster.commands import ManagedResource
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.identities import write_kubeconfig
from tests.localcluster.machine import free_ports
from tests.localcluster.node import RealNode
from tests.localcluster.nodes import NodeSpec
from tests.localcluster.nosuid import with_pipes
from tests.localcluster.processes import Process, children, command

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SERVICE_ACCOUNT = "system:serviceaccount:gputile:gputile-extender"
SERVICE_ACCOUNT_GROUPS = ["system:serviceaccounts", "system:serviceaccounts:gputile", "system:authenticated"]
WEIGHT = 200  # as in examples/extender/scheduler.yaml
# kube-scheduler takes no name of kubernetes.io here; the old one is rewritten before it ever sees a pod.
MANAGED: list[ManagedResource] = [{"name": name} for name in GPU_RESOURCES if name != LEGACY_GPU]
TOKEN_SECONDS = 7200


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
    settings: Mapping[str, object] | None = None,
) -> tuple[Process, str]:
    """Start an extender with exactly the rights that its example manifest grants; return it and its URL.

    ``unit`` is the cluster's memory unit, ``settings`` are more of its configuration. It is ready when it has listed
    the cluster.
    """
    own = {"gpuMemoryUnit": unit, **(settings or {})}
    return _start(plane, name, "extender", "--port", lease_seconds, own)


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
    return _start(plane, name, "controller", "--health-port", lease_seconds, settings or {})


def _start(
    plane: ControlPlane, name: str, component: str, port_option: str, lease_seconds: int, settings: Mapping[str, object]
) -> tuple[Process, str]:
    plane.kubectl("apply", "-f", str(EXAMPLES / component / "rbac.yaml"))
    (port,) = free_ports(1)
    configuration = configuration_file(plane, name)
    write_configuration(configuration, settings)
    account = f"system:serviceaccount:gputile:gputile-{component}"
    line: list[str | Path] = [
        Path(sys.executable).with_name("gputile"),
        component,
        f"{port_option}={port}",
        f"--config={configuration}",
        f"--kubeconfig={plane.kubeconfig(account, SERVICE_ACCOUNT_GROUPS)}",
        "--lease-namespace=gputile",
        *(["--lease=gputile-controller"] if component == "controller" else []),
        f"--lease-seconds={lease_seconds}",
        f"--identity={name}",
    ]
    url = f"http://127.0.0.1:{port}"
    return plane.start_process(name, line, ready=lambda: is_ready(url)), url


def configuration_file(plane: ControlPlane, extender: str) -> Path:
    """Return the file that the extender of that name follows."""
    return plane.directory / f"{extender}.configuration.yaml"


def write_configuration(path: Path, settings: Mapping[str, object]) -> None:
    """Write gputile's configuration with these settings, for processes that follow the file too."""
    body = {"apiVersion": "gputile.io/v1alpha1", "kind": "Configuration", **settings}
    unfinished = path.with_suffix(".new")
    unfinished.write_text(yaml.safe_dump(body), encoding="utf-8")
    unfinished.rename(path)


class NodeAgent:
    """The agent of ``node``. ``process`` is the gateway, which may be killed, agent and all, and started again.

    ``configure`` changes what the agent follows. It finds programs in ``programs`` first. ``environment`` is added to
    its own.
    """

    def __init__(
        self,
        node: RealNode,
        machine: nvml.FakeMachine,
        settings: Mapping[str, object],
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.node = node
        self.machine = machine
        self._configuration = node.directory / "configuration.yaml"
        self.configure(settings)
        plane, (port,) = node.plane, free_ports(1)
        plane.kubectl("apply", "-f", str(EXAMPLES / "agent" / "rbac.yaml"))
        self.url = f"http://127.0.0.1:{port}"
        self.kubeconfig = node.directory / "agent.kubeconfig"
        asked = {"spec": {"expirationSeconds": TOKEN_SECONDS}}
        answer = plane.api.post("/api/v1/namespaces/gputile/serviceaccounts/gputile-agent/token", asked)
        write_kubeconfig(self.kubeconfig, plane.url, plane.ca, {"token": answer["status"]["token"]})
        line: list[str | Path] = [
            Path(sys.executable).with_name("gputile"),
            "agent",
            f"--node-name={node.name}",
            f"--config={self._configuration}",
            f"--kubeconfig={self.kubeconfig}",
            f"--device-plugin-dir={node.device_plugins}",
            f"--pod-resources-socket={node.pod_resources}",
            f"--state-dir={with_pipes(node.directory / 'state')}",
            f"--usage-dir={node.usage}",
            f"--machine-root={with_gpu(node.directory / 'hardware')}",
            f"--health-port={port}",
            "--log-format=text",
            *options,
        ]
        self.programs = node.directory / "bin"
        self.programs.mkdir()
        own = {"PATH": f"{self.programs}:{os.environ['PATH']}", **nvml.environment(machine.path)}
        self._environment = {**own, **(environment or {})}
        self._line = [str(part) for part in line]
        self.process = Process("agent", self._line, node.directory / "agent.log", self._environment)

    def successor(self, environment: Mapping[str, str] | None = None) -> tuple[Process, str]:
        """Return another agent of the node, which takes over once it is started, and its address."""
        (port,) = free_ports(1)
        line = [f"--health-port={port}" if part.startswith("--health-port") else part for part in self._line]
        environment = {**self._environment, **(environment or {})}
        return Process(f"agent-{port}", line, self.process.log, environment), f"http://127.0.0.1:{port}"

    def configure(self, settings: Mapping[str, object]) -> None:
        """Write the configuration, which the agent takes in within some seconds."""
        write_configuration(self._configuration, settings)

    def is_ready(self) -> bool:
        """Return whether it says that the node is served."""
        return is_ready(self.url)

    def metrics(self) -> str:
        """Return what it exports."""
        return text_at(f"{self.url}/metrics")

    def pids(self) -> list[int]:
        """Return the process IDs of the gateway and of the agent behind it, if one runs."""
        gateway = self.process.pid
        return [gateway, *(pid for pid in children(gateway) if "gputile.node.agent" in command(pid))]

    def kill_agent(self) -> None:
        """Kill the agent; its gateway stays, and starts another one."""
        for pid in self.pids()[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
