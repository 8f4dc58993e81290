"""The agent as a process of its own: its command, an HTTP API server, NVML's real binding on a fake library."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod
from gputile.api.resource_claims import RESOURCE_SLICES_PATH
from gputile.api.well_known import MODE_LABEL, Mode
from gputile.kube.objects import Applied, Deleted, WatchEvent
from gputile.node.nvml.gpu_health import Health
from gputile.node.nvml.gpu_monitor import Observation
from tests.fakes import nvml
from tests.fakes.agentcluster import NODE
from tests.fakes.apiserver import FakeApiServer, Object, Refused, Request
from tests.fakes.hardware import with_gpu
from tests.integration.agent.scene import Scene, machine
from tests.localcluster.processes import children, command

PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
_RUN = "import typer; from gputile.cli.commands.services import agent; typer.run(agent)"


class ClusterApi(FakeApiServer):
    """The API server in front of a scene's cluster."""

    def __init__(self, scene: Scene) -> None:
        super().__init__()
        self.cluster = scene.cluster
        self.store = {PODS: {}, NODES: {}, RESOURCE_SLICES_PATH: {}}
        self.on_node(Applied(self.cluster.node))
        self.cluster.on_pods, self.cluster.on_node = self.on_pods, self.on_node

    def on_pods(self, event: WatchEvent[Pod]) -> None:
        match event:
            case Applied(pod):
                self.put(PODS, msgspec.to_builtins(pod))
            case Deleted(pod):
                held = self.store[PODS].get(pod.metadata.name)
                if held is not None and held["metadata"]["uid"] == pod.metadata.uid:
                    FakeApiServer.delete(self, PODS, pod.metadata.name)

    def on_node(self, event: WatchEvent[Node]) -> None:
        if isinstance(event, Applied):
            self.put(NODES, msgspec.to_builtins(event.object))

    def execute(self, request: Request) -> tuple[int, Object]:
        path, name = request.path, request.path.rpartition("/")[2]
        if "/events" in path:
            body: dict[str, Any] = request.json()
            self.cluster.events.append(("", body.get("reason", ""), body.get("message", "")))
            return 201, {**body, "metadata": {"name": "event", **body.get("metadata", {})}}
        if path.startswith(NODES + "/"):
            if request.method == "PATCH":
                self.cluster.patch_node_now(request.json())
            return 200, self.store[NODES][NODE]
        if "/namespaces/" in path:
            stored = self.store[PODS].get(name)
            if stored is None:
                raise Refused(404, "NotFound")
            if request.method == "PATCH":
                meta = request.json()["metadata"]
                if any(meta[key] != stored["metadata"][key] for key in ("uid", "resourceVersion")):
                    raise Refused(409, "Conflict")
                namespace = stored["metadata"].get("namespace", "")
                self.cluster.annotated(self.cluster.pods[f"{namespace}/{name}"], meta["annotations"])
            return 200, self.store[PODS][name]
        return super().execute(request)


class ProcessScene(Scene):
    """A scene whose gateway and agent are processes."""

    api: ClusterApi
    process: asyncio.subprocess.Process | None = None
    options: tuple[str, ...] = ()

    @property
    def hardware(self) -> Path:
        """Where the agent looks for what the kernel shows of the machine."""
        return self.host_paths.state.parent / "hardware"

    def mode(self) -> Mode:
        return Mode(self.cluster.node.metadata.labels.get(MODE_LABEL, Mode.EXCLUSIVE.value))

    async def start_agent(self) -> None:
        directory = self.host_paths.state.parent
        kubeconfig = directory / "kubeconfig.json"
        entry = {"name": "x", "cluster": {"server": self.api.url}, "user": {}, "context": {"cluster": "x", "user": "x"}}
        named = {f"{kind}s": [{"name": "x", kind: entry[kind]}] for kind in ("cluster", "user", "context")}
        kubeconfig.write_text(json.dumps({"kind": "Config", "current-context": "x", **named}))
        config = directory / "config.json"
        config.write_text(json.dumps(msgspec.to_builtins(self.cluster.configuration)))
        arguments = ["--node-name", NODE, "--kubeconfig", kubeconfig, "--config", config, "--log-format", "text"]
        arguments += ["--device-plugin-dir", self.host_paths.device_plugins, "--state-dir", self.host_paths.state]
        arguments += ["--pod-resources-socket", self.host_paths.pod_resources, "--usage-dir", self.host_paths.usage]
        arguments += ["--machine-root", self.hardware, *self.options]
        programs = directory / "bin"
        programs.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (programs / "nvidia-cuda-mps-control").symlink_to(self.mps_program)
        path = {"PATH": f"{programs}:{os.environ['PATH']}"}
        self.log = (directory / "agent.log").open("a")
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            _RUN,
            *map(str, arguments),
            env=os.environ | path | nvml.environment(directory / "machine"),
            stdout=self.log,
            stderr=self.log,
        )

    async def until(self, true: Callable[[], bool], what: str = "") -> None:
        def runs_and_true() -> bool:
            assert self.process is None or not self.process.returncode, Path(self.log.name).read_text()
            return true()

        await super().until(runs_and_true, what)

    async def stop_agent(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            await process.wait()
            self.log.close()

    def kill_agent(self) -> list[int]:
        """Kill the agent; its gateway starts another one. Return its process ID, or none where it is being executed."""
        killed = self.pids()[1:]
        for pid in killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return killed

    def pids(self) -> list[int]:
        """Return the process IDs of the gateway and, behind it, the agent."""
        assert self.process is not None
        gateway = self.process.pid
        return [gateway, *(pid for pid in children(gateway) if "gputile.node.agent" in command(pid))]


@asynccontextmanager
async def process_scene(
    directory: Path,
    labels: dict[str, str],
    sizes: list[int],
    configuration: Configuration,
    seed: int = 0,
    *,
    visible: bool = True,
    options: tuple[str, ...] = (),
) -> AsyncIterator[ProcessScene]:
    """A scene with these GPUs, which the kernel shows if they are ``visible``."""
    gpus = [nvml.FakeGpu(f"GPU-{i}", "Tesla T4", mib, f"00000000:{i + 1:02X}:00.0") for i, mib in enumerate(sizes)]
    nvml.FakeMachine(directory / "machine", gpus).write()
    here = ProcessScene(directory, configuration, labels, Observation(machine(sizes), Health()), seed)
    here.options = options
    if visible:
        with_gpu(here.hardware)
    await here.start_kubelet()
    here.api = ClusterApi(here)
    async with here.api.running():
        await here.start_agent()
        try:
            yield here
        finally:
            await here.stop_agent()
            await here.stop_kubelet()
            for path in (here.host_paths.usage, (here.host_paths.state / "mps").resolve()):
                shutil.rmtree(path, ignore_errors=True)
