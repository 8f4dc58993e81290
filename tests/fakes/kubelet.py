"""A kubelet that speaks the real device plugin and PodResources APIs over unix sockets, and runs no containers.

It admits pods one at a time, starts their containers in order and keeps the environment that each would have.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from grpc import aio

from gputile.api.core import Container, Pod
from gputile.node.gateway import kubelet_pb2 as pb
from tests.fakes.devicemanager import AdmissionError, DeviceManager, Endpoint
from tests.fakes.grpcservices import Stub, handlers

QPS, BURST = 100.0, 10  # of the PodResources service


def pod_resources(pods: Iterable[Pod], manager: DeviceManager) -> pb.ListPodResourcesResponse:
    """Return what PodResources lists of these pods: no init containers but sidecars."""
    answer = pb.ListPodResourcesResponse()
    for pod in pods:
        entry = answer.pod_resources.add(name=pod.metadata.name, namespace=pod.metadata.namespace)
        sidecars = [c for c in pod.spec.init_containers if c.restart_policy == "Always"]
        for container in (*sidecars, *pod.spec.containers):
            shown = entry.containers.add(name=container.name)
            for resource, given in manager.given.get((pod.metadata.uid, container.name), {}).items():
                shown.devices.add(resource_name=resource, device_ids=sorted(given.ids))
    return answer


@dataclass
class Running:
    """A container that was started: with which environment, mounts and device IDs."""

    environment: dict[str, str]
    mounts: dict[str, str]
    ids: dict[str, frozenset[str]]
    phase: str


@dataclass
class Seen:
    """What became of a pod. ``reason`` is why it failed."""

    pod: Pod
    phase: str = "Pending"
    reason: str = ""
    containers: dict[str, Running] = field(default_factory=dict)
    admitted: bool = False


class Kubelet:
    """One kubelet process; another one on the same directories is its successor.

    ``status`` is told whenever a pod's phase changes, by UID, phase and reason.
    """

    def __init__(
        self,
        device_plugins: Path,
        pod_resources: Path,
        status: Callable[[str, str, str], None],
        seed: int = 0,
    ) -> None:
        self.pods: dict[str, Seen] = {}
        self._directory = device_plugins
        self._socket = pod_resources
        self._status = status
        self._choice = random.Random(seed)
        self.manager = DeviceManager(device_plugins, self._choice, self._active)
        self._servers: list[aio.Server] = []
        self._channels: list[aio.Channel] = []
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._tokens, self._filled = float(BURST), time.monotonic()
        self._starting: set[str] = set()
        self._incoming: dict[str, Pod] = {}
        self._known: dict[str, Seen] = {}
        self.listings = 0  # how often it was asked for its list

    # -- life

    async def start(self, known: dict[str, Seen] | None = None) -> None:
        """Start as the kubelet does: sockets are removed, the checkpoint read; ``known`` are pods with containers."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        for path in self._directory.iterdir():
            if path.is_socket():
                path.unlink()
        self.manager.read()
        self.manager.running = lambda uid, container: container in self._containers(uid)
        self._known = known or {}
        registration = aio.server()
        registration.add_generic_rpc_handlers((handlers("v1beta1", "Registration", self),))
        registration.add_insecure_port(f"unix:{self._directory / 'kubelet.sock'}")
        self._socket.unlink(missing_ok=True)
        resources = aio.server()
        resources.add_generic_rpc_handlers((handlers("v1", "PodResourcesLister", self),))
        resources.add_insecure_port(f"unix:{self._socket}")
        self._servers = [registration, resources]
        for server in self._servers:
            await server.start()
        self._spawn(self._admit_forever())

    def _containers(self, uid: str) -> dict[str, Running]:
        seen = self._known.get(uid)
        if seen is None or seen.phase in ("Failed", "Succeeded"):
            return {}
        return {name: each for name, each in seen.containers.items() if each.phase != "init"}

    async def kill(self) -> dict[str, Seen]:
        """Stop at once, in whatever is going on; return the pods, whose containers run on."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for server in self._servers:
            await server.stop(grace=None)
        for channel in self._channels:
            await channel.close()
        return self.pods

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Kubelet"]:
        await self.start()
        try:
            yield self
        finally:
            await self.kill()

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- pods

    def sync(self, pods: list[Pod]) -> None:
        """The pods that were there when this kubelet started, oldest first; then its sources are ready."""
        self.manager.sources_ready = False
        for pod in sorted(pods, key=lambda p: (p.metadata.creation_timestamp or "", p.metadata.name)):
            self.add(pod)
        self._queue.put_nowait("")

    def add(self, pod: Pod) -> None:
        """A pod was bound to this node."""
        uid = pod.metadata.uid
        if uid in self.pods or uid in self._starting or pod.finished:
            return
        self._starting.add(uid)
        self._incoming[uid] = pod
        self._queue.put_nowait(uid)

    def remove(self, uid: str) -> None:
        """A pod object is gone: its containers are killed."""
        self.pods.pop(uid, None)
        self._incoming.pop(uid, None)

    def finish(self, uid: str, phase: str = "Succeeded") -> None:
        """A pod's containers have stopped."""
        seen = self.pods.get(uid)
        if seen is not None:
            self._set(seen, phase, "")

    def environment(self, uid: str, container: str) -> dict[str, str]:
        return self.pods[uid].containers[container].environment

    @property
    def streams(self) -> frozenset[asyncio.Task[None]]:
        """Who follows which devices there are: one task a registration, the latest of each resource."""
        return frozenset(self._streams.values())

    @property
    def idle(self) -> bool:
        return self._queue.empty() and not self._starting

    def _active(self) -> set[str]:
        return {uid for uid, seen in self.pods.items() if seen.phase not in ("Failed", "Succeeded")}

    def _set(self, seen: Seen, phase: str, reason: str) -> None:
        seen.phase, seen.reason = phase, reason
        self._status(seen.pod.metadata.uid, phase, reason)

    async def _admit_forever(self) -> None:
        while True:
            uid = await self._queue.get()
            if not uid:
                self.manager.sources_ready = True
                continue
            pod = self._incoming.pop(uid, None)
            try:
                if pod is not None:
                    await self._admit(pod)
            finally:
                self._starting.discard(uid)

    async def _admit(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        known = self._known.get(uid)
        seen = self.pods[uid] = Seen(pod, containers=dict(known.containers) if known else {})
        if known is not None and known.phase in ("Failed", "Succeeded"):
            seen.phase = known.phase
            return
        try:
            for container in (*pod.spec.init_containers, *pod.spec.containers):
                await self.manager.allocate(pod, container)
        except AdmissionError as error:
            self._set(seen, "Failed", f"UnexpectedAdmissionError: {error}")
            return
        finally:
            self.manager.pending = ""
        seen.admitted = True
        if known is not None and known.phase == "Running":
            seen.phase = "Running"
            return
        self._spawn(self._run(seen))

    async def _run(self, seen: Seen) -> None:
        pod = seen.pod
        for container in (*pod.spec.init_containers, *pod.spec.containers):
            phase = "app"
            if container in pod.spec.init_containers:
                phase = "sidecar" if container.restart_policy == "Always" else "init"
            if container.name in seen.containers:
                continue
            pause = 0.05
            while not await self._prestart(pod, container):
                if pod.metadata.uid not in self.pods:
                    return
                await asyncio.sleep(pause)
                pause = min(1.0, pause * 2)
            self._start(seen, container, phase)
        if pod.metadata.uid in self.pods and seen.phase == "Pending":
            self._set(seen, "Running", "")

    async def _prestart(self, pod: Pod, container: Container) -> bool:
        given = self.manager.given.get((pod.metadata.uid, container.name), {})
        for resource, gave in list(given.items()):
            endpoint = self.manager.endpoints.get(resource)
            if endpoint is None:
                return False
            if not endpoint.options.pre_start_required:
                continue
            try:
                await endpoint.stub.PreStartContainer(
                    pb.PreStartContainerRequest(devices_ids=sorted(gave.ids)), timeout=30.0
                )
            except aio.AioRpcError:
                return False
        return True

    def _start(self, seen: Seen, container: Container, phase: str) -> None:
        environment: dict[str, str] = {}
        mounts: dict[str, str] = {}
        given = self.manager.given.get((seen.pod.metadata.uid, container.name), {})
        for gave in given.values():
            environment |= dict(gave.answer.envs)
            mounts |= {mount.container_path: mount.host_path for mount in gave.answer.mounts}
        ids = {resource: gave.ids for resource, gave in given.items()}
        seen.containers[container.name] = Running(environment, mounts, ids, phase)

    # -- v1beta1.Registration

    async def Register(self, request: pb.RegisterRequest, context: aio.ServicerContext) -> pb.Empty:  # type: ignore[type-arg]
        resource, path = request.resource_name, self._directory / request.endpoint
        channel = aio.insecure_channel(
            f"unix:{path}", options=(("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
        )
        stub = Stub("v1beta1", "DevicePlugin", channel)
        options = await stub.GetDevicePluginOptions(pb.Empty(), timeout=10.0)
        self._channels.append(channel)
        self.manager.endpoints[resource] = Endpoint(stub, options)
        self.manager.healthy.setdefault(resource, set())
        self._streams[resource] = asyncio.get_running_loop().create_task(self._listen(resource, stub))
        self._tasks.add(self._streams[resource])
        return pb.Empty()

    async def _listen(self, resource: str, stub: Stub) -> None:
        """Follow a plugin. In older kubelets the end of a former one ends the present one (runClient in handler.go)."""
        with contextlib.suppress(aio.AioRpcError):
            async for devices in stub.ListAndWatch(pb.Empty()):
                if self.manager.endpoints[resource].stub is stub:
                    self.manager.update(resource, devices)
        present = self._streams[resource]
        if present is not asyncio.current_task():
            present.cancel()
        self.manager.disconnected(resource)

    # -- v1.PodResourcesLister

    async def List(
        self,
        request: pb.ListPodResourcesRequest,
        context: aio.ServicerContext,  # type: ignore[type-arg]
    ) -> pb.ListPodResourcesResponse:
        self.listings += 1
        now = time.monotonic()
        self._tokens = min(float(BURST), self._tokens + (now - self._filled) * QPS)
        self._filled = now
        if self._tokens < 1:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        self._tokens -= 1
        self.manager.collect()
        return pod_resources((self.pods[uid].pod for uid in self._active()), self.manager)
