"""The whole system on this machine: a control plane, gputile with two replicas, a real node, and played ones."""

import contextlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gputile.api.well_known import MODE_LABEL
from tests.e2e.extender import write_cluster
from tests.e2e.node import GpuNode
from tests.e2e.playedagents import PlayedAgents
from tests.fakes import nvml
from tests.fakes.cuda import FakeGpus
from tests.localcluster import binaries
from tests.localcluster.admission import RunningWebhook, installed
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gputile import (
    MANAGED,
    WEIGHT,
    NodeAgent,
    configuration_file,
    described_nodes,
    start_controller,
    start_extender,
    write_configuration,
)
from tests.localcluster.machine import Scratch
from tests.localcluster.node import RealNode
from tests.localcluster.processes import Process, children, command, resident_mib
from tests.soak.system.clocks import Clocks
from tests.soak.system.proxy import Proxies
from tests.soak.system.workload import GROUPS, NAMESPACES, PLAYED, REAL, REAL_NODE, RULES

EXTENDERS, CONTROLLERS = ("extender-a", "extender-b"), ("controller-a", "controller-b")
SCHEDULERS = ("scheduler-a", "scheduler-b")
OURS = (*EXTENDERS, *CONTROLLERS, "webhook", "agent")  # what speaks to the API server through a proxy
UNIT_MIB = 1024
GPUS, GPU_MIB = 4, 15109  # of the real node: T4s, few enough to be full at times
STATE_MIB = 96  # the file system of the agent's state
NODES = """
nodes:
- {name: cgpu, count: 3, mode: cgpu, gpus: {count: 8, model: Tesla T4, memory: 16GiB}, taints: []}
- {name: core, count: 2, mode: core_mem, gpus: {count: 8, model: Tesla T4, memory: 16GiB}, taints: []}
- {name: share, count: 2, mode: share, gpus: {count: 8, model: Tesla T4, memory: 16GiB}, taints: []}
- {name: whole, count: 3, mode: default, gpus: {count: 8, model: Tesla T4, memory: 16GiB}, taints: []}
- {name: linked, count: 2, mode: topology, gpus: {count: 8, model: Tesla T4, memory: 16GiB}, taints: []}
"""


class Plane(ControlPlane):
    """A control plane whose gputile components speak through proxies, and have clocks of their own."""

    proxies: Proxies
    clocks: Clocks

    def start_process(
        self, name: str, command: Sequence[str | Path], *, environment: Mapping[str, str] | None = None, **more: Any
    ) -> Process:
        if name in OURS:
            self.proxies.start(name)
            command = [self._by_proxy(name, str(part)) for part in command]
            environment = {**(environment or {}), **self.clocks.environment(name)}
        return super().start_process(name, command, environment=environment, **more)

    def _by_proxy(self, name: str, argument: str) -> str:
        option, _, value = argument.partition("=")
        if option != "--kubeconfig":
            return argument
        path = self.directory / f"{name}.proxy.kubeconfig"
        path.write_text(Path(value).read_text())
        self.lead(path, name)
        return f"{option}={path}"

    def lead(self, kubeconfig: Path, name: str) -> None:
        """Let a kubeconfig name the proxy of a component as the API server."""
        document = yaml.safe_load(kubeconfig.read_text())
        for entry in document["clusters"]:
            entry["cluster"]["server"] = f"https://127.0.0.1:{self.proxies.by_name[name].port}"
        kubeconfig.write_text(yaml.safe_dump(document))


@dataclass
class System:
    """What runs. ``urls`` are where the components answer for their health and metrics."""

    plane: Plane
    proxies: Proxies
    clocks: Clocks
    webhook: RunningWebhook
    real: GpuNode
    state: Path  # the agent's, on a file system of its own
    gpus: FakeGpus  # those of the real node, for programs
    urls: Mapping[str, str]
    unit_mib: int = UNIT_MIB
    played_nodes: tuple[str, ...] = ()
    down: set[str] = field(default_factory=set)  # what a fault has taken down, and will start again

    def process(self, name: str) -> Process:
        """Return a process by its name."""
        node = self.real.node
        known = {"agent": self.real.agent.process, "kubelet": node.kubelet, "containerd": node.containerd}
        return known[name] if name in known else self.plane.processes[name]

    def names(self) -> list[str]:
        """Return the names of all processes that are to run."""
        return [*self.plane.processes, "agent", "kubelet", "containerd"]

    def arbiters(self) -> list[int]:
        """Return the process IDs of the arbiter, at most one."""
        agents = self.real.agent.pids()[1:]
        return [pid for agent in agents for pid in children(agent) if "gputile.node.arbiter" in command(pid)]

    def memory(self) -> dict[str, tuple[int, float]]:
        """Return the process ID and the MiB in RAM of each of gputile's processes that runs."""
        found: dict[str, tuple[int, float]] = {}
        groups = {name: [self.process(name).pid] for name in OURS if name != "agent" and self.process(name).alive}
        if self.process("agent").alive:
            gateway, *agents = self.real.agent.pids()
            groups |= {"gateway": [gateway], "agent": agents, "arbiter": self.arbiters()}
        for name, pids in groups.items():
            with contextlib.suppress(OSError, IndexError, StopIteration, ValueError):  # it has just died
                found[name] = (pids[0], resident_mib(pids))
        return found

    def configure(self, unit_mib: int) -> None:
        """Change the memory unit that all follow."""
        self.unit_mib = unit_mib
        settings = settings_of(unit_mib)
        for name in (*EXTENDERS, *CONTROLLERS):
            write_configuration(configuration_file(self.plane, name), settings)
        self.webhook.configure(**settings)
        self.real.agent.configure(settings)


def settings_of(unit_mib: int) -> dict[str, object]:
    """Return the configuration that everything runs with."""
    return {
        "gpuMemoryUnit": f"{unit_mib}MiB",
        "maxPodsPerGpu": RULES.pods_per_gpu,
        "trust": {"by": "namespace", "groups": GROUPS},
        "admission": {"gangs": True},
        "gangs": {"holdSeconds": 20, "patienceSeconds": 60},
    }


@contextmanager
def whole_system(say: Any) -> Iterator[System]:
    """Start everything; ``say`` is told what is being started.

    Raises:
        ComponentMissing: something that it needs cannot be had here; says what.
    """
    settings = settings_of(UNIT_MIB)
    with ExitStack() as stack:
        say("the programs")
        programs = binaries.find(binaries.CONTROL_PLANE) | binaries.find(binaries.NODE)
        state = stack.enter_context(_file_system())
        say("the control plane")
        plane = stack.enter_context(Plane(programs))
        plane.proxies = proxies = stack.enter_context(Proxies(int(plane.url.rpartition(":")[2])))
        plane.clocks = Clocks(plane.directory)
        for namespace in NAMESPACES:
            plane.create_namespace(namespace)
        nodes = described_nodes(write_cluster(plane.directory, NODES))
        plane.nodes.create_nodes(nodes)
        for node in nodes:
            plane.nodes.label(node.name, PLAYED)
        say("gputile and the schedulers")
        urls = {}
        for extender, scheduler in zip(EXTENDERS, SCHEDULERS, strict=True):
            _, url = start_extender(plane, extender, lease_seconds=5, settings=settings)
            urls[extender] = url
            options = {"bind": True, "preempt": True, "managed_resources": MANAGED, "weight": WEIGHT}
            plane.start_scheduler(url, name=scheduler, lease_seconds=15, **options)  # type: ignore[arg-type]
        for controller in CONTROLLERS:
            _, urls[controller] = start_controller(plane, controller, settings=settings)
        webhook = stack.enter_context(installed(plane))
        webhook.configure(**settings)
        urls["webhook"] = f"http://127.0.0.1:{webhook.health_port}"
        say("a node with a kubelet, containerd and runc")
        gpus = FakeGpus(plane.directory, (GPU_MIB,) * GPUS)
        real = stack.enter_context(_real_node(plane, programs, settings, state, gpus.uuids))
        urls["agent"] = real.agent.url
        system = System(plane, proxies, plane.clocks, webhook, real, state, gpus, urls)
        system.played_nodes = tuple(node.name for node in nodes)
        agents = PlayedAgents(plane.api, lambda: system.unit_mib, set(system.played_nodes).__contains__, 3.0)
        stack.enter_context(agents)
        yield system


@contextmanager
def _real_node(
    plane: Plane, programs: Mapping[str, Path], settings: Mapping[str, object], state: Path, uuids: Sequence[str]
) -> Iterator[GpuNode]:
    with RealNode(plane, programs, REAL_NODE, {MODE_LABEL: "cgpu", **REAL}) as node:
        machine = nvml.MACHINES["t4"](node.directory / "machine")
        machine.rename(uuids)
        environment = plane.clocks.environment("agent")
        agent = NodeAgent(node, machine, settings, (f"--state-dir={state}",), environment)
        plane.proxies.start("agent")
        plane.lead(agent.kubeconfig, "agent")
        with agent.process:
            agent.process.start()
            agent.process.wait_ready(agent.is_ready)
            yield GpuNode(plane, node, agent, EXTENDERS[0])


@contextmanager
def _file_system() -> Iterator[Path]:
    """A small file system of its own for the agent's state; mounted before the node's mount namespace is made."""
    scratch = Scratch("gputile-state-", _unmount)
    try:
        directory = scratch.path / "state"
        directory.mkdir()
        options = ["-t", "tmpfs", "-o", f"size={STATE_MIB}m,mode=755", "tmpfs", str(directory)]
        subprocess.run(["mount", *options], check=True)
        yield directory
    finally:
        scratch.remove()


def _unmount(path: Path) -> None:
    subprocess.run(["umount", "--lazy", str(path / "state")], check=False, capture_output=True)
