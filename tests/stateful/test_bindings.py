"""No GPU is ever given away twice, whatever becomes of Bindings and of the extenders that sent them.

Bindings get lost, are executed and not answered, or are executed at any later time: by an API server that stood still,
from a socket that somebody else's proxy kept. Meanwhile extenders are killed, follow one another with another
configuration, or lose the Lease without knowing it. What counts is what the API server has in the end.
"""

import contextlib
import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Binding, Pod
from gputile.controlplane.extender.binder import Binder, BindError, NoLongerActive, PodApi
from gputile.controlplane.extender.fence import fence_off
from gputile.core.ledger.ledger import Ledger
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.kube.errors import KubeError
from tests.conftest import examples
from tests.fakes.corebuilders import mib_on_gpus
from tests.unit.controlplane.extender.builders import gpu_node, gpu_pod
from tests.unit.controlplane.extender.cluster import Fate, ModelCluster

pytestmark = pytest.mark.requirement("B1")

GPU_MIB = 15 * 1024
PODS = 8
STEPS = (
    *("bind",) * 6,
    *("watch", "settle", "late", "touch", "delete", "blind", "mute", "change", "kill", "die", "die", "zombie"),
    *("recreate", "recreate", "gone", "node"),
)
FATES = (*Fate, *(Fate.LOST_LATE,) * 6)


class View(PodApi):
    """The API server as one extender reaches it: without the Lease it sends nothing."""

    def __init__(self, cluster: ModelCluster) -> None:
        self.cluster = cluster
        self.active = True

    async def bind(self, binding: Binding) -> None:
        if not self.active:
            raise NoLongerActive("the Lease was lost")
        await self.cluster.bind(binding)

    async def pod(self, namespace: str, name: str) -> Pod | None:
        return await self.cluster.pod(namespace, name)

    async def fence(self, namespace: str, name: str) -> Pod | None:
        return await self.cluster.fence(namespace, name)

    async def unbound(self) -> list[Pod]:
        return await self.cluster.unbound()


class Extender:
    """A ledger and a binder; ``begin`` is what one does that takes the Lease."""

    def __init__(self, cluster: ModelCluster) -> None:
        self.view = View(cluster)
        self.ready = False
        self.ledger = Ledger(Configuration())
        for name in "ab":
            self.ledger.apply_node(gpu_node(name))
        self.binder = Binder(PlacementEngine(self.ledger), self.view, lambda: 0.0, lambda: 1)

    async def begin(self, fence: bool) -> None:
        async def never(_: float) -> None:
            raise TimeoutError

        try:
            if fence:
                await fence_off(self.view, lambda: 0.0, never)
        except (KubeError, TimeoutError):
            return  # asked again, it tries again
        self.ledger.replace_pods([copy.deepcopy(pod) for pod in self.view.cluster.pods.values()])
        self.ready = True


class World:
    """One API server, the extender that is active, and those that were."""

    def __init__(self, fates: list[Fate]) -> None:
        script = iter(fates)
        self.cluster = ModelCluster(lambda: next(script, Fate.OK))
        self.seen: dict[str, Pod] = {}
        for i in range(PODS):
            pod = gpu_pod(f"p{i}", 8 + i % 8)
            self.cluster.add(pod)
            self.seen[pod.metadata.name] = copy.deepcopy(pod)  # as kube-scheduler knows it
        self.former: list[Extender] = []
        self.active = Extender(self.cluster)

    async def bind(self, extender: Extender, number: int) -> None:
        if not extender.ready:
            await extender.begin(fence=True)
        pod = self.seen.get(f"p{number}")
        if pod is None or not extender.ready:
            return
        with contextlib.suppress(BindError):
            await extender.binder.bind(copy.deepcopy(pod), "ab"[number % 2])

    async def succeed(self, *, orderly: bool) -> None:
        """Let another one be the active extender. One that ends in order says so, if all is settled."""
        settled = orderly and self.active.ready and await self.active.binder.conclude()
        self.active.view.active = False
        self.former.append(self.active)
        self.active = Extender(self.cluster)
        if settled:
            await self.active.begin(fence=False)

    async def do(self, step: str, number: int) -> None:
        key = ("default", f"p{number}")
        pod = self.cluster.pods.get(key)
        match step:
            case "bind":
                await self.bind(self.active, number)
            case "zombie" if self.former:
                await self.bind(self.former[number % len(self.former)], number)
            case "watch" if pod is not None:
                self.seen[pod.metadata.name] = copy.deepcopy(pod)
                self.active.ledger.apply_pod(copy.deepcopy(pod))
            case "settle":
                await self.active.binder.resolve_unconfirmed()
            case "late":
                self.cluster.execute_late()
            case "touch" if pod is not None:
                self.cluster.touch(pod)
            case "delete" if pod is not None:
                del self.cluster.pods[key]
                self.active.ledger.remove_pod(pod.metadata.uid)
            case "recreate":  # another pod has the name, and no watch has told anybody yet
                again = gpu_pod(f"p{number}", 8 + number % 8, uid=f"uid-p{number}-{self.cluster.version}")
                self.cluster.add(again)
            case "gone":
                there = {pod.metadata.uid for pod in self.cluster.pods.values()}
                for uid in {booking.uid for booking in self.active.ledger.bookings()} - there:
                    self.active.ledger.remove_pod(uid)
            case "node":  # deleted, and made again
                name = "ab"[number % 2]
                self.active.ledger.remove_node(name)
                self.active.ledger.apply_node(gpu_node(name))
            case "blind":
                self.cluster.readable = not self.cluster.readable
            case "mute":
                self.cluster.writable = not self.cluster.writable
            case "change":
                await self.succeed(orderly=True)
            case "kill":
                await self.succeed(orderly=False)
            case "die":  # in the middle of a Binding
                writable, self.cluster.writable = self.cluster.writable, False
                fate, self.cluster.next_fate = self.cluster.next_fate, lambda: Fate.LOST_LATE
                await self.bind(self.active, number)
                self.cluster.writable, self.cluster.next_fate = writable, fate
                await self.succeed(orderly=False)

    def no_gpu_is_given_away_twice(self) -> None:
        held = mib_on_gpus(self.cluster.pods.values())
        assert all(mib <= GPU_MIB for mib in held.values()), held


@pytest.mark.anyio
@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, PODS - 1)), max_size=60),
    st.lists(st.sampled_from(FATES), max_size=30),
)
async def test_no_gpu_is_given_away_twice(steps: list[tuple[str, int]], fates: list[Fate]) -> None:
    world = World(fates)
    for step, number in steps:
        await world.do(step, number)
        world.no_gpu_is_given_away_twice()
    world.cluster.execute_late()
    world.no_gpu_is_given_away_twice()


@pytest.mark.anyio
async def test_all_is_settled_once_the_api_server_answers() -> None:
    """A configuration changes while a Binding has no answer; then the API server executes it (the GPU has room)."""

    async def scenario(orderly: bool) -> None:
        world = World([Fate.LOST_LATE])
        world.cluster.writable = False
        await world.active.begin(fence=False)
        await world.bind(world.active, 7)
        await world.succeed(orderly=orderly)
        await world.bind(world.active, 5)
        assert not world.active.ready, "it may not decide before the Binding of the one before is out of the world"
        world.cluster.writable = True
        for number in (5, 3, 1):
            await world.bind(world.active, number)
        world.cluster.execute_late()
        world.no_gpu_is_given_away_twice()
        bound = {pod.metadata.name for pod in world.cluster.pods.values() if pod.spec.node_name}
        assert bound == {"p5", "p3"}

    for orderly in (True, False):
        await scenario(orderly)
