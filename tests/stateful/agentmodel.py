"""An agent between a kubelet and an API server, all in one process, each of which can be stopped, cut off or told late.

The agent's parts are the real ones, put together as ``Agent`` does but for the arbiter, which is told of no
containers and so runs no process. The kubelet's device manager is that of ``tests.fakes``.
"""

import asyncio
import contextlib
import random
import shutil
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Container, Pod
from gputile.api.well_known import (
    ALLOCATION_ANNOTATION,
    GPU_MEMORY,
    MEMORY_UNIT_ANNOTATION,
    MIRROR_ANNOTATION,
    MODE_LABEL,
    Mode,
)
from gputile.kube.errors import (
    AnswerLost,
    Conflict,
    ConnectionFailed,
    Forbidden,
    KubeError,
    ServerError,
    TooManyRequests,
)
from gputile.kube.objects import Applied, Deleted, Replaced, WatchEvent
from gputile.node.agent.advertise import Advertiser, Host
from gputile.node.agent.api_server import NodeInformer, Wakeups
from gputile.node.agent.arbiter_process import ArbiterProcess
from gputile.node.agent.container_start import ContainerPreparation
from gputile.node.agent.device_table import CONTAINER_DIRECTORY, LIMITS_FILE, Limits, by_gpu
from gputile.node.agent.files.allocation_files import NodeFiles, Records
from gputile.node.agent.files.usage_files import UsageFiles
from gputile.node.agent.handler import AllocationHandler
from gputile.node.agent.kubelet import KubeletLink
from gputile.node.agent.metrics import AgentMetrics
from gputile.node.agent.mps import MpsDaemons
from gputile.node.agent.node_status import publish_status, wanted_status
from gputile.node.agent.reconciler import Reconciler
from gputile.node.agent.settings import MPS_DIRECTORY, HostPaths
from gputile.node.agent.time_shares import TimeShares
from gputile.node.arbiter.messages import Assignment
from gputile.node.gateway import kubelet_pb2 as pb
from gputile.node.gateway.link import (
    Advertise,
    Call,
    CallAnswer,
    CallRefused,
    FromAgent,
    FromGateway,
    ListDevices,
    Listed,
    MessageChannel,
    NodeLock,
    State,
    TakeCharge,
)
from gputile.node.nvml.gpu_health import Health
from gputile.node.nvml.gpu_monitor import Observation
from tests.fakes.agentcluster import NODE, FakeCluster
from tests.fakes.devicemanager import CHECKPOINT, AdmissionError, DeviceManager, DevicesUnavailable, Endpoint
from tests.fakes.kubelet import pod_resources
from tests.integration.agent.scene import FixedMonitor, machine
from tests.stateful.filekiller import FileKiller, Killed

LONG_AGO_S = 100.0
CLOSED_FOR_S = 1e-6  # over when it is looked at the second time
PluginCall = Callable[[str, str, bytes], Awaitable[bytes]]


class Died(BaseException):
    """The kubelet was killed while it waited for an answer."""


Watched = Literal["node", "pods"]
Trouble = Literal["unreachable", "silent", "500", "409", "403", "429", "executed, silent", "executed, 500"]


def _error_of(trouble: Trouble) -> KubeError:
    match trouble:
        case "unreachable":
            return ConnectionFailed("the API server is away")
        case "silent" | "executed, silent":
            return AnswerLost("the answer was lost")
        case "500" | "executed, 500":
            return ServerError(500, "InternalError", "etcd is slow")
        case "409":
            return Conflict(409, "Conflict", "somebody else has written")
        case "403":
            return Forbidden(403, "Forbidden", "a policy refuses it")
        case "429":
            return TooManyRequests(429, "TooManyRequests", "later")


class SlowCluster(FakeCluster):
    """``undelivered`` are the events that each of the agent's watches has not told yet, ``seen`` the pods as told.

    ``troubles`` are what the next requests meet, one each.
    """

    def __init__(self, configuration: Configuration, labels: Mapping[str, str]) -> None:
        super().__init__(configuration, labels)
        self.undelivered: dict[Watched, deque[Callable[[], None]]] = {"node": deque(), "pods": deque()}
        self.seen: dict[str, Pod] = {}
        self.watched = False
        self.troubles: deque[Trouble] = deque()
        self.news: NodeInformer | None = None
        self.on_pods = self._pods
        self.on_node = lambda event: self.news.on_node(event) if self.news is not None and self.watched else None

    def attach(self, news: NodeInformer) -> None:
        """A new agent's watches; they say nothing before ``relist``."""
        self.news, self.watched = news, False

    def relist(self, *, behind: bool) -> None:
        """The watch begins anew with a list; ``behind``: an old one, which misses what has not been delivered."""
        if self.down or self.news is None:
            return
        if not behind:
            for about in self.undelivered:
                self.deliver(about, len(self.undelivered[about]))
        self.watched = True
        self.news.on_node(Replaced([self.node]))
        self.news.on_pods(Replaced(list(self.seen.values())))

    def deliver(self, about: Watched, most: int) -> None:
        """Have a watch tell the next events, in their order."""
        if not self.down:
            for _ in range(min(most, len(self.undelivered[about]))):
                self.undelivered[about].popleft()()

    def _pods(self, event: WatchEvent[Pod]) -> None:
        match event:
            case Applied(pod):
                self.seen[pod.key] = pod
            case Deleted(pod):
                self.seen.pop(pod.key, None)
        if self.news is not None and self.watched:
            self.news.on_pods(event)

    def _tell(self, news: Callable[[], None], about: Watched = "pods") -> None:
        self.undelivered[about].append(news)

    async def _answer(self) -> None:
        await asyncio.sleep(0)
        if self.down:
            raise ConnectionFailed("the API server is away")
        if self.troubles and not self.troubles[0].startswith("executed"):
            raise _error_of(self.troubles.popleft())

    def _after(self) -> None:
        """Meet what comes after a request was executed."""
        if self.troubles:
            raise _error_of(self.troubles.popleft())

    async def pod(self, namespace: str, name: str, within: float) -> Pod | None:
        found = await super().pod(namespace, name, within)
        self._after()
        return found

    async def bound_pods(self) -> list[Pod]:
        found = await super().bound_pods()
        self._after()
        return found

    async def annotate(self, pod: Pod, annotations: Mapping[str, str | None]) -> Pod:
        changed = await super().annotate(pod, annotations)
        self._after()
        return changed

    async def patch_node(self, patch: Mapping[str, Any]) -> None:
        await super().patch_node(patch)
        self._after()


class AgentsEnd(MessageChannel[FromGateway]):
    """The agent's end of a connection in memory."""

    def __init__(self, receive: Callable[[FromAgent], None]) -> None:
        self._receive = receive
        self._waiting: asyncio.Queue[FromGateway | None] = asyncio.Queue()
        self.open = True

    def send(self, message: FromAgent | FromGateway) -> None:
        if self.open:
            self._receive(cast(FromAgent, message))

    def give(self, message: FromGateway) -> None:
        """Have the agent receive a message."""
        self._waiting.put_nowait(message)

    async def messages(self) -> AsyncIterator[FromGateway]:
        while (message := await self._waiting.get()) is not None:
            yield message

    def close(self) -> None:
        self.open = False


@dataclass
class Living:
    """A container that was started. ``ended``: it was an init container, and does not run any more. ``crashed``: it is
    to be started again.

    ``directory`` is where its limits are, and ``limits`` those that it started with; "" and None where it has none.
    """

    pod: Pod
    container: Container
    phase: str
    directory: str
    limits: Limits | None
    ended: bool = False
    crashed: bool = False

    @property
    def runs(self) -> bool:
        return not self.ended and not self.crashed

    def end_init(self) -> None:
        """An init container has done its work."""
        self.ended = self.phase == "init"


@dataclass
class Seen:
    """A pod as the kubelet has it.

    ``reason`` is why it was refused. ``crowded_out``: only since this kubelet had too few devices, after its own start,
    or after a change of the unit for a pod that nobody has booked.
    """

    pod: Pod
    phase: str = "Pending"
    reason: str = ""
    crowded_out: bool = False
    admitted: bool = False
    containers: dict[str, Living] = field(default_factory=dict)


class ModelKubelet:
    """Admits pods one at a time and starts their containers in order. ``call`` asks the device plugin."""

    def __init__(
        self, directory: Path, choice: random.Random, call: PluginCall, status: Callable[[Pod, str], None]
    ) -> None:
        self.directory = directory
        self.choice = choice
        self.call = call
        self.status = status
        self.unit_mib: Callable[[], int] = lambda: 0  # the unit in force
        self.cut_off: Callable[[], bool] = lambda: False  # whether the agent has no API server
        self.has_forgotten = False
        self.pods: dict[str, Seen] = {}
        self.known: dict[str, Seen] = {}
        self.queue: deque[Pod | None] = deque()
        self.offered: dict[str, bytes] = {}
        self.manager = self._manager()

    def _manager(self) -> DeviceManager:
        manager = DeviceManager(self.directory, self.choice, self.active)
        manager.running = self._runs
        return manager

    def active(self) -> set[str]:
        return {uid for uid, seen in self.pods.items() if seen.phase not in ("Failed", "Succeeded")}

    def _runs(self, uid: str, container: str) -> bool:
        known = self.known.get(uid)
        return known is not None and container in known.containers and known.containers[container].runs

    def restart(self, pods: list[Pod], *, forgets: bool) -> None:
        """Another kubelet, for which the containers run on; ``forgets``: it has lost its checkpoint."""
        if forgets:
            (self.directory / CHECKPOINT).unlink(missing_ok=True)
            self.has_forgotten = True
        self.known, self.pods = {**self.known, **self.pods}, {}
        for each in self.living():
            if self.choice.random() < 0.5:
                each.end_init()
        self.manager = self._manager()
        self.manager.read()
        self.manager.sources_ready = False
        for resource in self.offered:
            self.advertise(resource, self.offered[resource])
        self.queue = deque((*pods, None))

    def advertise(self, resource: str, message: bytes) -> None:
        """A plugin says which devices there are."""
        self.offered[resource] = message
        options = pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)
        self.manager.endpoints[resource] = Endpoint(Stub(resource, self.call), options)
        self.manager.update(resource, pb.ListAndWatchResponse.FromString(message))

    def remove(self, uid: str) -> None:
        """The pod is gone, and its containers are killed."""
        self.pods.pop(uid, None)
        self.known.pop(uid, None)
        self.queue = deque(pod for pod in self.queue if pod is None or pod.metadata.uid != uid)

    def add(self, pod: Pod) -> None:
        """A pod was bound to this node."""
        if MIRROR_ANNOTATION not in pod.metadata.annotations:
            self.queue.append(pod)

    async def admit(self) -> None:
        """Admit the next pod."""
        pod = self.queue.popleft() if self.queue else None
        if pod is None:
            self.manager.sources_ready = True
            return
        uid = pod.metadata.uid
        known = self.known.get(uid)
        seen = self.pods[uid] = known or Seen(pod)
        seen.admitted = False
        if seen.phase in ("Failed", "Succeeded"):
            return
        try:
            for container in (*pod.spec.init_containers, *pod.spec.containers):
                await self.manager.allocate(pod, container)
        except AdmissionError as error:
            seen.reason, seen.crowded_out = str(error), self._crowded_out(error, pod)
            seen.containers.clear()
            self.finish(seen, "Failed")
            return
        finally:
            self.manager.pending = ""
        seen.admitted = True

    def _crowded_out(self, error: AdmissionError, pod: Pod) -> bool:
        """Return whether the kubelet had too few devices for a pod though the node has what it asks for.

        The unit has become larger since the pod was created, so that there are fewer devices and none for a pod that
        nobody has booked, or the devices of pods that are gone are kept until all are known, or this kubelet has
        forgotten what runs and has given init containers that have ended devices anew. An agent without an API server
        goes on with what was offered; where the kubelet has forgotten pods, that can be fewer devices than are free.
        """
        if not isinstance(error, DevicesUnavailable):
            return False
        smaller = int(pod.metadata.annotations[MEMORY_UNIT_ANNOTATION]) < self.unit_mib()
        if error.resource == GPU_MEMORY and smaller and ALLOCATION_ANNOTATION not in pod.metadata.annotations:
            return True
        again = [
            gave[error.resource].ids
            for (uid, name), gave in self.manager.given.items()
            if error.resource in gave and uid in self.pods and self.has_init_anew(self.pods[uid], name)
        ]
        if (
            self.has_forgotten
            and self.cut_off()
            and len(self.manager.healthy[error.resource]) < 2 * 8 * 1024 // self.unit_mib()
        ):
            return True
        if self.manager.sources_ready:
            return sum(map(len, again)) >= error.lacking
        there = self.active() | {pod.metadata.uid for pod in self.queue if pod is not None}
        gone = [gave for (uid, _), gave in self.manager.given.items() if uid not in there]
        return sum(len(gave[error.resource].ids) for gave in gone if error.resource in gave) >= error.lacking

    def has_init_anew(self, seen: Seen, name: str) -> bool:
        """Return whether this ended init container has devices beside containers whose devices are forgotten."""
        given, uid = self.manager.given, seen.pod.metadata.uid
        ended = name in seen.containers and seen.containers[name].ended
        return ended and any(
            not each.ended and each.limits is not None and not given.get((uid, other))
            for other, each in seen.containers.items()
        )

    def finish(self, seen: Seen, phase: str) -> None:
        seen.phase = phase
        seen.containers.clear()
        self.status(seen.pod, phase)

    def startable(self) -> list[tuple[Seen, Container]]:
        """Return the container of each pod that comes next, first one that has crashed.

        No kubelet starts a container again whose devices it has forgotten.
        """
        found = []
        for seen in self.pods.values():
            crashed = [each.container for each in seen.containers.values() if each.crashed]
            every = (*seen.pod.spec.init_containers, *seen.pod.spec.containers)
            new = [each for each in every if each.name not in seen.containers]
            if seen.admitted and seen.phase in ("Pending", "Running") and (crashed or new):
                comes = (crashed or new)[0]
                asks = bool(comes.resources.limits)
                if comes in new or not asks or (seen.pod.metadata.uid, comes.name) in self.manager.given:
                    found.append((seen, comes))
        return found

    async def start(self, seen: Seen, container: Container) -> str:
        """Try to start a container; return why it does not."""
        uid = seen.pod.metadata.uid
        given = self.manager.given.get((uid, container.name), {})
        mounts: dict[str, str] = {}
        for resource, gave in list(given.items()):
            request = pb.PreStartContainerRequest(devices_ids=sorted(gave.ids))
            try:
                await self.call("PreStartContainer", resource, request.SerializeToString())
            except Refused as error:
                return str(error)
            mounts |= {mount.container_path: mount.host_path for mount in gave.answer.mounts}
        if self.pods.get(uid) is not seen:
            return "it has gone"
        phase = "app"
        if container in seen.pod.spec.init_containers:
            phase = "sidecar" if container.restart_policy == "Always" else "init"
        directory, limits = mounts.get(CONTAINER_DIRECTORY, ""), None
        if directory:
            limits = msgspec.json.decode((Path(directory) / LIMITS_FILE).read_bytes(), type=Limits)
        if container.name not in seen.containers:
            for each in seen.containers.values():
                each.end_init()
        seen.containers[container.name] = Living(seen.pod, container, phase, directory, limits)
        if len(seen.containers) == len(seen.pod.spec.init_containers) + len(seen.pod.spec.containers):
            seen.phase = "Running"
            self.status(seen.pod, "Running")
        return ""

    def living(self) -> list[Living]:
        """Return the containers that run."""
        every = {**self.known, **self.pods}.values()
        return [each for seen in every for each in seen.containers.values() if each.runs]

    def list(self) -> pb.ListPodResourcesResponse:
        """Return PodResources' answer."""
        self.manager.collect()
        return pod_resources((self.pods[uid].pod for uid in self.active()), self.manager)


ON_SEVERAL = "the kubelet chose IDs of several GPUs"


class Refused(Exception):
    """The plugin refuses a call."""


def _ids_of(allocation: bytes) -> list[str]:
    return [each for one in pb.AllocateRequest.FromString(allocation).container_requests for each in one.devices_ids]


class Stub:
    """A plugin as the kubelet's device manager calls it."""

    def __init__(self, resource: str, call: PluginCall) -> None:
        self._resource = resource
        self._call = call

    async def Allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        body = await self._call("Allocate", self._resource, request.SerializeToString())
        return pb.AllocateResponse.FromString(body)

    async def GetPreferredAllocation(self, request: pb.PreferredAllocationRequest) -> pb.PreferredAllocationResponse:
        body = await self._call("GetPreferredAllocation", self._resource, request.SerializeToString())
        return pb.PreferredAllocationResponse.FromString(body)


class ModelAgent:
    """One agent. ``directory`` is what outlives it."""

    def __init__(self, directory: Path, usage: Path, cluster: SlowCluster, seen: Observation, end: AgentsEnd) -> None:
        paths = HostPaths(directory / "dp", directory / "pr", directory / "state", usage=usage)
        claim = NodeLock(paths.claim, "the agent")
        store = NodeFiles(paths.state, claim, UsageFiles(paths.usage))
        self.records = Records(store, paths.device_plugins)
        self.kubelet = KubeletLink(end)
        self.cluster, self.monitor = cluster, FixedMonitor(seen)
        configuration, self.metrics, self.wakeups = cluster.configuration, AgentMetrics(), Wakeups()
        mps = MpsDaemons(paths.state / MPS_DIRECTORY, "none")
        self.host = Host(NODE, paths, self.monitor, mps)
        self.state = self.records.starting_state(self.host.machine(), configuration)
        arbiter = ArbiterProcess(store, lambda _: TimeShares(Assignment(), {}, {}))
        files = ContainerPreparation(store, mps, None, arbiter)
        self.advertiser = Advertiser(
            self.state, self.host, self.kubelet, self.records, cluster, self.wakeups, CLOSED_FOR_S
        )
        self.handler = AllocationHandler(self.advertiser, files, self.metrics)
        self.reconciler = Reconciler(self.advertiser, self.metrics, arbiter)
        self.news = NodeInformer(self.state, self.wakeups)
        self.running: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Take the node over, as ``Agent`` does."""
        self.running = asyncio.get_running_loop().create_task(self.kubelet.run(self.handler.answer))
        await self.kubelet.state_received.wait()
        await self.kubelet.take_charge()
        self.records.take_over(self.state)
        self.records.read(self.state, time.time_ns())
        await self.advertiser.renew()
        await self.tell()

    async def tell(self) -> None:
        """Say on the node what it offers."""
        if self.state.node is not None:
            with contextlib.suppress(KubeError, Killed):
                wanted = wanted_status(self.state, self.host.machine(), "")
                await publish_status(self.cluster, self.state.node, wanted, datetime.now(UTC))

    async def compare(self) -> None:
        """Compare once."""
        with contextlib.suppress(KubeError, Killed):
            await self.reconciler.round()

    async def die(self) -> None:
        """End at once."""
        if self.running is not None:
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)


Damage = Literal["none", "lost", "half", "garbage"]


@dataclass
class Crash:
    """Who dies of the call number ``at`` from now on, before or after the agent has worked it out."""

    at: int
    agent: bool
    answered: bool
    forgets: bool


class ModelNode:
    """The node, with a gateway between kubelet and agent that repeats calls which an agent died of.

    While it is ``silent`` the kubelet calls the device plugins and answers no ``List``.
    """

    def __init__(self, directory: Path, usage: Path, mode: Mode, seed: int) -> None:
        self.directory, self.usage = directory, usage
        (directory / "dp").mkdir(parents=True)
        self.cluster = SlowCluster(Configuration(), {MODE_LABEL: mode.value})
        self.seen = Observation(machine((8 * 1024, 8 * 1024)), Health())
        self.kubelet = ModelKubelet(directory / "dp", random.Random(seed), self.call, self._status)
        self.kubelet.cut_off = lambda: self.cluster.down
        self.kubelet.unit_mib = lambda: self.agent.state.node_config.effective_mode.unit_mib
        self.kubelet.manager.report = self.cluster.report
        self.cluster.on_bound, self.cluster.on_gone = self.kubelet.add, self.kubelet.remove
        self.static: dict[str, Pod] = {}
        self.crash: Crash | None = None
        self.silent = False
        self.epoch = time.monotonic() - LONG_AGO_S
        self.agent: ModelAgent
        self._end: AgentsEnd
        self._calls: dict[int, tuple[Call, asyncio.Future[CallAnswer | CallRefused]]] = {}
        self._last = 0
        self._starting = asyncio.Lock()
        self._reviving: asyncio.Task[None] | None = None
        self.killer = FileKiller((directory / "state", usage), self._was_killed)

    def _was_killed(self) -> None:
        """The agent is killed in the middle of writing: the kubelet hears nothing of it any more."""
        self._end.close()
        self._reviving = asyncio.get_running_loop().create_task(self.start_agent())

    async def settled(self) -> None:
        """Return when an agent that was killed has a successor."""
        while self._reviving is not None and not self._reviving.done():
            await self._reviving
        if self._reviving is not None:
            self._reviving.result()

    async def start_agent(self, *, damage: Damage = "none") -> None:
        """Start the next agent, and another one where that is killed before it has begun.

        ``damage`` is what has become of its checkpoint.
        """
        async with self._starting:
            with self.killer.unwatched():
                self._spoil(damage)
            while True:
                self.killer.revive()
                try:
                    await self._start_agent()
                except Killed:
                    continue
                return

    def _spoil(self, damage: Damage) -> None:
        """Spoil the checkpoint, and what allocation directories say of containers that were not let start."""
        self._spoil_file(self.directory / "state" / "checkpoint.json", damage)
        for path in self.directory.glob("state/allocations/*/limits.json"):
            if not (path.parent / "boot").exists():
                self._spoil_file(path, damage)

    @staticmethod
    def _spoil_file(checkpoint: Path, damage: Damage) -> None:
        if damage == "lost":
            checkpoint.unlink(missing_ok=True)
        elif damage == "half" and checkpoint.exists():
            checkpoint.write_bytes(checkpoint.read_bytes()[: checkpoint.stat().st_size // 2])
        elif damage == "garbage":
            checkpoint.write_bytes(b"\0" * 100)

    async def _start_agent(self) -> None:
        if hasattr(self, "agent"):
            await self.agent.die()
        end = AgentsEnd(lambda message: self._received(end, message))
        self._end = end
        self.agent = ModelAgent(self.directory, self.usage, self.cluster, self.seen, end)
        self.cluster.attach(self.agent.news)
        self.cluster.relist(behind=False)
        self.tell_state()
        await self.agent.begin()
        for call, _ in self._calls.values():
            end.give(call)

    def configure(self, configuration: Configuration) -> None:
        """Everybody reads another configuration."""
        self.cluster.configuration = self.cluster.ledger.configuration = configuration
        self.agent.news.configure(configuration)

    def tell_state(self) -> None:
        self._end.give(State(in_charge=True, registered=True, epoch=self.epoch, listening=True))

    def _received(self, end: AgentsEnd, message: FromAgent) -> None:
        match message:
            case TakeCharge():
                self.tell_state()
            case Advertise(_, changed):
                for resource, body in changed.items():
                    self.kubelet.advertise(resource, body)
            case ListDevices(number, _):
                end.give(Listed(number, None if self.silent else self.kubelet.list().SerializeToString()))
            case CallAnswer(number) | CallRefused(number):
                _, waiting = self._calls.get(number, (None, None))
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)

    async def call(self, method: str, resource: str, body: bytes) -> bytes:
        """Call the agent for the kubelet."""
        self._last += 1
        number, crash = self._last, self._crash()
        if crash is not None and not crash.agent and not crash.answered:
            raise Died
        if crash is not None and crash.agent and not crash.answered:
            await self.start_agent(damage="lost" if crash.forgets else "none")
        answer = await self._ask(Call(number, method, resource, body))
        if crash is not None and crash.answered:
            if not crash.agent:
                raise Died
            await self.start_agent(damage="lost" if crash.forgets else "none")
            answer = await self._ask(Call(number, method, resource, body))
        if isinstance(answer, CallRefused):
            spread = method == "Allocate" and len(by_gpu(_ids_of(body))) > 1
            raise Refused(f"{answer.details} ({ON_SEVERAL})" if spread else answer.details)
        return answer.body

    async def _ask(self, call: Call) -> CallAnswer | CallRefused:
        waiting: asyncio.Future[CallAnswer | CallRefused] = asyncio.get_running_loop().create_future()
        self._calls[call.number] = call, waiting
        self._end.give(call)
        try:
            return await waiting
        finally:
            del self._calls[call.number]

    def _crash(self) -> Crash | None:
        if self.crash is None:
            return None
        self.crash.at -= 1
        if self.crash.at >= 0:
            return None
        crash, self.crash = self.crash, None
        return crash

    def _status(self, pod: Pod, phase: str) -> None:
        there = self.cluster.pods.get(pod.key)
        if there is not None:
            self.cluster.status(there.metadata.uid, phase, "")

    # -- the kubelet

    def restart_kubelet(self, *, forgets: bool) -> None:
        """Another kubelet on the same node."""
        bound = [
            p
            for p in self.cluster.pods.values()
            if p.spec.node_name and MIRROR_ANNOTATION not in p.metadata.annotations
        ]
        pods = sorted((*bound, *self.static.values()), key=lambda p: (p.metadata.creation_timestamp or "", p.key))
        self.kubelet.restart([pod for pod in pods if not pod.finished], forgets=forgets)
        self.kubelet.manager.report = self.cluster.report
        self.epoch = time.monotonic()
        self.tell_state()

    async def close(self) -> None:
        await self.agent.die()
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.rmtree(self.usage, ignore_errors=True)
