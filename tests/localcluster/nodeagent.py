"""gputile's agent, behind its gateway, on a real node: machine of the fake NVML, rights of the example manifest."""

import base64
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.fakes import nvml
from tests.fakes.hardware import with_gpu
from tests.localcluster.client import is_ready, text_at
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gputile import EXAMPLES, write_configuration
from tests.localcluster.node import RealNode
from tests.localcluster.nosuid import with_pipes
from tests.localcluster.ports import free_ports
from tests.localcluster.processes import Process
from tests.localcluster.processtree import children, command

NAMESPACE, ACCOUNT = "gputile", "gputile-agent"
TOKEN_SECONDS = 7200
Line = Callable[[Sequence[str]], Sequence[str]]


class NodeAgent:
    """The agent of ``node``. ``process`` is the gateway, which may be killed, agent and all, and started again.

    ``configure`` changes what the agent follows. It finds programs in ``programs`` first. ``environment`` is added to
    its own. ``line_of`` returns its command line as it is for another release.
    """

    def __init__(
        self,
        node: RealNode,
        machine: nvml.FakeMachine,
        settings: Mapping[str, object],
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        line_of: Line = list,
    ) -> None:
        self.node = node
        self.machine = machine
        self._configuration = node.directory / "configuration.yaml"
        self.configure(settings)
        plane, (port,) = node.plane, free_ports(1)
        plane.kubectl("apply", "-f", str(EXAMPLES / "agent" / "rbac.yaml"))
        self.url = f"http://127.0.0.1:{port}"
        self.kubeconfig = node.directory / "agent.kubeconfig"
        write_token_kubeconfig(self.kubeconfig, plane, NAMESPACE, ACCOUNT)
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
        self.process = Process("agent", line_of(self._line), node.directory / "agent.log", self._environment)

    def successor(self, line_of: Line = list) -> tuple[Process, str]:
        """Return another agent of the node, which takes over once it is started, and its address."""
        (port,) = free_ports(1)
        own = [f"--health-port={port}" if part.startswith("--health-port") else part for part in self._line]
        line = line_of(own)
        return Process(f"agent-{port}", line, self.process.log, self._environment), f"http://127.0.0.1:{port}"

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


def write_token_kubeconfig(path: Path, plane: ControlPlane, namespace: str, account: str) -> None:
    """Write a kubeconfig with a new token of a ServiceAccount."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
    answer = plane.api.post(
        f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token",
        {**request, "spec": {"expirationSeconds": TOKEN_SECONDS}},
    )
    authority = base64.b64encode(plane.ca.read_bytes()).decode()
    parts: dict[str, Any] = {
        "cluster": {"server": plane.url, "certificate-authority-data": authority},
        "user": {"token": answer["status"]["token"]},
        "context": {"cluster": "x", "user": "x"},
    }
    document: dict[str, Any] = {"apiVersion": "v1", "kind": "Config", "current-context": "x"}
    document |= {f"{kind}s": [{"name": "x", kind: part}] for kind, part in parts.items()}
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
