"""An agent, a kubelet and an API server around one node, each of which can be stopped and started on its own."""

import asyncio
import contextlib
import secrets
import shutil
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.api.well_known import MODE_LABEL, Mode
from gputile.core.devices.allocation import AllocationError, decode_allocation
from gputile.node.agent.advertise import Host
from gputile.node.agent.agent import Agent
from gputile.node.agent.allocation import VISIBLE_DEVICES
from gputile.node.agent.device_table import by_gpu
from gputile.node.agent.mps import MpsDaemons
from gputile.node.agent.rules import SHARED_RESOURCES
from gputile.node.agent.settings import MPS_DIRECTORY, HostPaths
from gputile.node.gateway.gateway import Gateway
from gputile.node.gateway.link import FROM_GATEWAY, MessageChannel, NodeLock
from gputile.node.nvml.gpu_health import Health
from gputile.node.nvml.gpu_monitor import GpuMonitor, Observation
from gputile.node.nvml.probe import GpuReading, Mig, MigInstance, ProbedGpu, ProbedMachine
from tests.conftest import HANGS_S
from tests.fakes.agentcluster import NODE, FakeCluster
from tests.fakes.kubelet import Kubelet, Seen
from tests.localcluster.nosuid import nosuid_directory, with_pipes

CLOSED_FOR_S = 0.05  # nothing is on its way for longer here


async def cancelled(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for _ in range(3):
        await asyncio.sleep(0)  # one that has not begun, in a task of one of them too, closes nothing of its own
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class FixedMonitor(GpuMonitor):
    """Sees the machine that the test sets."""

    def __init__(self, seen: Observation) -> None:
        self.seen = seen
        self.readings: tuple[GpuReading, ...] = ()
        self.xids: Mapping[tuple[str, int], int] = {}
        self.changed = False
        self.hangs = threading.Lock()  # locked while the driver hangs
        self._clock = time.monotonic

    def step(self, seconds: float) -> bool:
        with self.hangs:
            pass
        changed, self.changed = self.changed, False
        if not changed:
            time.sleep(min(seconds, 0.02))  # as the real ones, which wait and burn no processor
        return changed

    def close(self) -> None:
        pass


def machine(sizes: Sequence[int], mig: Mapping[int, Sequence[MigInstance]] | None = None) -> ProbedMachine:
    gpus = []
    for index, mib in enumerate(sizes):
        instances = tuple((mig or {}).get(index, ()))
        state = Mig.ON if instances else Mig.OFF
        gpus.append(
            ProbedGpu(
                index,
                f"GPU-{index}",
                "Tesla T4",
                mib,
                f"0000:{index:02x}:00.0",
                mig=state,
                instances=instances,
            )
        )
    return ProbedMachine(gpus=tuple(gpus), driver="580.1", cuda=(13, 0))


class Scene:
    """The node. ``cluster``, ``kubelet`` and ``agent`` are the present ones."""

    def __init__(
        self, directory: Path, configuration: Configuration, labels: Mapping[str, str], seen: Observation, seed: int
    ) -> None:
        self.cluster = FakeCluster(configuration, labels)
        self.monitor = FixedMonitor(seen)
        self.host_paths = HostPaths(
            directory / "dp",
            directory / "pr" / "kubelet.sock",
            with_pipes(directory / "state"),
            cdi=directory / "cdi",
            usage=nosuid_directory(),
        )
        self.mps_program = directory / "mps-control"
        self.install_mps()
        self.kubelet: Kubelet
        self.agent: Agent
        self.failed: dict[str, str] = {}
        self._seed = seed
        self._tasks: list[asyncio.Task[None]] = []
        self._behind: tuple[Gateway, NodeLock]

    async def start_kubelet(self, after: str = "") -> None:
        """Start the next kubelet; it hears of its pods at once, or after a plugin of ``after`` has registered."""
        known = getattr(self, "kubelet", None)
        former: dict[str, Seen] = known.pods if known is not None else {}
        self._seed += 1
        self.kubelet = Kubelet(self.host_paths.device_plugins, self.host_paths.pod_resources, self._status, self._seed)
        self.kubelet.manager.sources_ready = False
        self.kubelet.manager.report = self.cluster.report
        await self.kubelet.start(former)
        if after:
            await self.until(lambda: bool(self.kubelet.manager.healthy.get(after)))
        self.cluster.on_bound = self.kubelet.add
        self.cluster.on_gone = self.kubelet.remove
        self.kubelet.sync([pod for pod in self.cluster.pods.values() if pod.spec.node_name == NODE])

    def install_mps(self, does: str = "exec sleep 3600") -> None:
        """Install something that runs as NVIDIA's control daemon does."""
        self.mps_program.parent.mkdir(parents=True, exist_ok=True)
        self.mps_program.write_text(f'#!/bin/sh\nenv > "$CUDA_MPS_LOG_DIRECTORY/env"\n{does}\n')
        self.mps_program.chmod(0o755)

    def _status(self, uid: str, phase: str, reason: str) -> None:
        if phase == "Failed":
            self.failed[uid] = reason
        self.cluster.status(uid, phase, reason)

    async def stop_kubelet(self) -> None:
        await self.kubelet.kill()

    async def start_agent(self) -> None:
        """Start an agent, in this process: behind the gateway that has lost its own, or behind one of its own."""
        if not self._tasks:
            claim = NodeLock(self.host_paths.claim, secrets.token_hex(8))
            gateway = Gateway(self.host_paths.device_plugins, self.host_paths.pod_resources, claim)
            self._behind = gateway, claim
            self._tasks = [asyncio.create_task(gateway.run())]
        gateway, claim = self._behind
        ours, theirs = socket.socketpair()
        link = MessageChannel(*await asyncio.open_connection(sock=theirs), FROM_GATEWAY)
        daemons = MpsDaemons(self.host_paths.state / MPS_DIRECTORY, str(self.mps_program))
        configuration = self.cluster.configuration
        host = Host(NODE, self.host_paths, self.monitor, daemons)
        self.agent = Agent(host, self.cluster, configuration, link, claim, CLOSED_FOR_S)
        self.cluster.connect(self.agent.news.on_pods, self.agent.news.on_node)
        attending = gateway.attend(*await asyncio.open_connection(sock=ours))
        self._tasks += [asyncio.create_task(work) for work in (self.agent.run(), attending)]

    async def start_younger_agent(self) -> None:
        """Start another agent behind a gateway of its own, while the present one runs; ``running`` are its tasks."""
        self._tasks = []
        await self.start_agent()

    async def lose_agent(self) -> None:
        """Stop the agent; its gateway stays."""
        await cancelled(self._tasks[1:])
        del self._tasks[1:]

    async def hung_up(self) -> None:
        """Wait until the gateway has hung up on the agent."""
        await asyncio.wait(self._tasks[1:], return_when=asyncio.ALL_COMPLETED)

    async def stop_agent(self) -> None:
        """Stop in the middle of whatever is going on."""
        await cancelled(self.running())
        self._tasks = []

    def running(self) -> list[asyncio.Task[None]]:
        """Return the tasks of the present agent and its gateway."""
        return self._tasks

    async def until(self, true: Callable[[], bool], what: str = "") -> None:
        deadline = asyncio.get_running_loop().time() + HANGS_S
        while not true():
            for task in self._tasks:
                if task.done():
                    task.result()
            assert asyncio.get_running_loop().time() < deadline, what or "it did not come true"
            await asyncio.sleep(0.02)

    def mode(self) -> Mode:
        """Return the mode that is in force."""
        return self.agent.allocation_state.node_config.mode

    async def until_offered(self, resource: str, amount: int) -> None:
        def offered() -> bool:
            found = self.kubelet.manager.allocatable()
            both = self.mode() is Mode.CORE_MEM and resource in SHARED_RESOURCES and amount > 0
            return found.get(resource) == amount and (not both or all(found.get(each) for each in SHARED_RESOURCES))

        try:
            await self.until(offered)
        except AssertionError as error:
            raise AssertionError(f"{resource} is {self.kubelet.manager.allocatable()}, not {amount}") from error

    async def until_running(self, count: int) -> None:
        def running() -> int:
            return sum(pod.status.phase == "Running" for pod in self.cluster.pods.values())

        try:
            await self.until(lambda: running() == count)
        except AssertionError as error:
            raise AssertionError(f"{count} pods should run: {self.summary()}") from error

    def summary(self) -> str:
        stuck = {pod.key: pod.status.phase for pod in self.cluster.pods.values() if pod.status.phase != "Running"}
        some, reasons = dict(list(stuck.items())[:5]), list(self.failed.values())[:3]
        offered = self.kubelet.manager.allocatable()
        return f"{len(stuck)} do not, as {some}; {len(self.failed)} failed, as {reasons}; offered: {offered}"

    # -- what must be true

    def pod(self, key: str) -> Pod:
        return self.cluster.pods[key]

    def environment(self, key: str, container: str = "main") -> dict[str, str]:
        return self.kubelet.environment(self.pod(key).metadata.uid, container)

    def gpus(self, key: str, container: str = "main") -> tuple[str, ...]:
        return tuple(self.environment(key, container)[VISIBLE_DEVICES].split(","))

    def disagreements(self) -> list[str]:
        """Return the started containers whose environment, device IDs and annotation do not name the same GPUs."""
        wrong = []
        for uid, seen in self.kubelet.pods.items():
            if seen.phase != "Running":
                continue
            pod = self.cluster.pods[seen.pod.key]
            if pod.metadata.uid != uid:
                continue
            text = pod.metadata.annotations.get("gputile.io/allocation")
            for name, container in seen.containers.items():
                if not container.ids:
                    continue
                assigned = {uuid for ids in container.ids.values() for uuid in by_gpu(ids)}
                visible = set(container.environment[VISIBLE_DEVICES].split(","))
                booked: set[str] = set()
                with contextlib.suppress(AllocationError, KeyError):
                    booked = {share.uuid for share in decode_allocation(text or "").containers[name]}
                if not assigned == visible == booked:
                    wrong.append(f"{pod.key}/{name}: IDs {assigned}, environment {visible}, annotation {booked}")
        return wrong

    def overbooked(self) -> list[str]:
        """Return the GPUs on which the running pods' bookings add up to more than there is."""
        used: dict[str, int] = {}
        for pod in self.cluster.pods.values():
            text = pod.metadata.annotations.get("gputile.io/allocation")
            if text is not None and not pod.finished:
                for share in decode_allocation(text).gpus:
                    used[share.uuid] = used.get(share.uuid, 0) + share.mib
        sizes = {gpu.uuid: gpu.mib for gpu in self.monitor.seen.machine.gpus}
        return [f"{uuid}: {mib} of {sizes[uuid]}" for uuid, mib in used.items() if mib > sizes[uuid]]


@asynccontextmanager
async def scene(
    directory: Path,
    mode: str = "share",
    sizes: Sequence[int] = (15 * 1024,) * 4,
    *,
    configuration: Configuration | None = None,
    labels: Mapping[str, str] | None = None,
    mig: Mapping[int, Sequence[MigInstance]] | None = None,
    seed: int = 0,
) -> AsyncIterator[Scene]:
    """A node whose kubelet and agent have started."""
    found = {**({MODE_LABEL: mode} if mode else {}), **(labels or {})}
    seen = Observation(machine(sizes, mig), Health())
    here = Scene(directory, configuration or Configuration(), found, seen, seed)
    await here.start_kubelet()
    await here.start_agent()
    try:
        yield here
    finally:
        await here.stop_agent()
        await here.stop_kubelet()
        for path in (here.host_paths.usage, (here.host_paths.state / "mps").resolve()):
            shutil.rmtree(path, ignore_errors=True)
