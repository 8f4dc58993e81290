"""An agent whose API server goes away, lags and loses answers, and whose kubelet and predecessor die and forget.

Containers crash, and are started again. The memory unit changes.

What must hold after every step: the limits of the containers that run never add up to more than a GPU has, each has
the limits of its own pod and its own amounts, and no two have one allocation directory. When all is quiet and everybody
answers, each pod runs whose GPU has room for it, nothing is kept under a stand-in, and the annotations say what the
kubelet has given. With all pods gone nothing is left.
"""

import asyncio
import fcntl
import os
import struct
import tempfile
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Container, Pod
from gputile.api.well_known import (
    ALLOCATION_ANNOTATION,
    GPU_CORE,
    GPU_COUNT_LABEL,
    GPU_MEMORY,
    MEMORY_UNIT_ANNOTATION,
    MIRROR_ANNOTATION,
    MODE_LABEL,
    Mode,
)
from gputile.core.devices.allocation import decode_allocation
from gputile.core.devices.request import parse_request
from gputile.node.agent import handler, holdings, kubelet
from gputile.node.agent.device_table import LIMITS_FILE, by_gpu
from gputile.node.native_layouts import USAGE_LOCK_SLOTS
from tests.conftest import examples
from tests.fakes.agentcluster import NODE, simple_pod
from tests.fakes.corebuilders import container
from tests.localcluster.nosuid import nosuid_directory
from tests.stateful.agentmodel import ON_SEVERAL, Crash, Damage, Died, ModelNode, Seen, Trouble, Watched

pytestmark = pytest.mark.requirement("B1", "G1", "M4")

GPU_MIB = 8 * 1024
NAMES = ("a", "b", "c", "d", "e")
QUIET_ROUNDS = 8
# The kubelet chose so: such a container never starts.
SPREAD = ("asks for one GPU", "asks for 2 GPUs", "is on other GPUs than its", ON_SEVERAL)
TROUBLES: tuple[Trouble, ...] = get_args(Trouble)
WATCHES: tuple[Watched, ...] = get_args(Watched)
DAMAGES: tuple[Damage, ...] = get_args(Damage)
T = TypeVar("T")

Shape = tuple[tuple[str, int], ...]  # the kind and the GiB of each container; "two": the pod asks for two GPUs
SHAPES: tuple[Shape, ...] = (
    (("app", 2),),
    (("app", 5),),
    (("app", 1), ("app", 3)),
    (("app", 2), ("app", 2)),
    (("init", 2), ("app", 2)),
    (("init", 3), ("app", 1), ("app", 2)),
    (("init", 1), ("app", 4)),
    (("sidecar", 1), ("app", 2)),
    (("init", 2), ("sidecar", 1), ("app", 2)),
    (("none", 0), ("app", 3)),
    (("app", 2), ("none", 0)),
    (("two", 0), ("app", 4)),
    (("two", 0), ("init", 6), ("app", 4), ("app", 4)),
)
crashes = st.none() | st.builds(Crash, st.integers(0, 4), st.booleans(), st.booleans(), st.booleans())
# How many writes there are before each of some agents is killed.
deaths: st.SearchStrategy[list[int]] = st.just([]) | st.lists(st.integers(0, 12), min_size=1, max_size=3)


def pod_of(name: str, shape: Shape, mode: Mode, unit_mib: int) -> Pod:
    """Return a pod with containers of these kinds, as admission stamps it."""
    init: list[Container] = []
    apps: list[Container] = []
    labels = {GPU_COUNT_LABEL: "2"} if ("two", 0) in shape else {}
    for place, (kind, gib) in enumerate(each for each in shape if each[0] != "two"):
        asks = {} if kind == "none" else {GPU_MEMORY: gib * 1024 // unit_mib}
        if asks and mode is Mode.CORE_MEM:
            asks[GPU_CORE] = gib * 10
        made = container(f"c{place}", sidecar=kind == "sidecar", asks=asks)
        (init if kind in ("init", "sidecar") else apps).append(made)
    pod = simple_pod(name, *apps, init=tuple(init), labels=labels)
    stamp = {MEMORY_UNIT_ANNOTATION: str(unit_mib)}
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=stamp))


class Node(RuleBasedStateMachine):
    """The node and its API server."""

    def __init__(self) -> None:
        super().__init__()
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr(handler, "PATIENCE_S", 0.0)
        self.patched.setattr(handler, "READ_AGAIN_S", 0.0)
        self.patched.setattr(kubelet, "LONGEST_BUSY_S", 0.0)
        self.loop = asyncio.new_event_loop()
        self.mirrors = 0
        self.mirrored: dict[str, str] = {}  # the UID by which the kubelet has a static pod, by that of its mirror

    @initialize(mode=st.sampled_from([Mode.CGPU, Mode.CORE_MEM, Mode.SHARE]), seed=st.integers(0, 9))
    def begin(self, mode: Mode, seed: int) -> None:
        self.mode = mode
        self.node = ModelNode(Path(tempfile.mkdtemp(prefix="gputile-agent-")), nosuid_directory(), mode, seed)
        self.do(self.node.start_agent())
        self.calm()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(60.0):
                try:
                    return await work
                finally:
                    if hasattr(self, "node"):
                        await self.node.settled()

        return self.loop.run_until_complete(bounded())

    def calm(self) -> None:
        """Let everybody hear and say everything."""
        node = self.node
        for _ in range(3):
            node.cluster.relist(behind=False)
            self.do(node.agent.compare())
            self.do(node.agent.tell())

    # -- pods

    @rule(name=st.sampled_from(NAMES), shape=st.sampled_from(SHAPES), bound=st.booleans())
    def create(self, name: str, shape: Shape, bound: bool) -> None:
        pod = pod_of(name, shape, self.mode, self.node.cluster.configuration.unit_mib)
        if pod.key in self.node.cluster.pods or pod.key in self.node.static:
            return
        if self.node.static and not self.spare(pod):
            return  # the scheduler does not know what static pods have
        self.node.cluster.create(pod, node=NODE if bound and self.spare(pod) else "")

    def spare(self, pod: Pod) -> bool:
        """Return whether all pods fit, wherever they go: one that nobody has scheduled is on no more than is free."""
        return sum(self.units(each) for each in (*self.pods(), pod)) <= GPU_MIB // 1024

    def pods(self) -> list[Pod]:
        mirrored = [p for p in self.node.cluster.pods.values() if MIRROR_ANNOTATION not in p.metadata.annotations]
        return [pod for pod in (*mirrored, *self.node.static.values()) if not pod.finished]

    def units(self, pod: Pod) -> int:
        request = parse_request(pod, 1024, self.node.cluster.configuration.trust_group)
        return request.shape.mib * request.shape.gpus // 1024 if request else 0

    @rule(name=st.sampled_from(NAMES), shape=st.sampled_from(SHAPES))
    def create_static(self, name: str, shape: Shape) -> None:
        pod = pod_of(name, shape, self.mode, self.node.cluster.configuration.unit_mib)
        if pod.key in self.node.cluster.pods or pod.key in self.node.static or not self.spare(pod):
            return
        meta = msgspec.structs.replace(pod.metadata, uid=f"config-{self.mirrors}", creation_timestamp="2026-01-01")
        self.mirrors += 1
        self.node.static[pod.key] = pod = msgspec.structs.replace(pod, metadata=meta)
        self.node.kubelet.add(pod)

    @rule()
    def mirror(self) -> None:
        for key, pod in self.node.static.items():
            if key not in self.node.cluster.pods and not self.node.cluster.down:
                annotations = {**pod.metadata.annotations, MIRROR_ANNOTATION: pod.metadata.uid}
                meta = msgspec.structs.replace(pod.metadata, annotations=annotations)
                made = self.node.cluster.create(msgspec.structs.replace(pod, metadata=meta), static=True)
                self.mirrored[made.metadata.uid] = pod.metadata.uid

    @rule(name=st.sampled_from(NAMES), again=st.none() | st.sampled_from(SHAPES))
    def delete(self, name: str, again: Shape | None) -> None:
        key = f"default/{name}"
        static = self.node.static.pop(key, None)
        if static is not None:
            self.node.kubelet.remove(static.metadata.uid)
        if key in self.node.cluster.pods:
            self.node.cluster.delete(key)
        if again is not None:
            self.create(name, again, False)

    @rule(name=st.sampled_from(NAMES))
    def finish(self, name: str) -> None:
        pod = self.node.cluster.pods.get(f"default/{name}")
        seen = self.node.kubelet.pods.get(pod.metadata.uid) if pod is not None else None
        if seen is not None and seen.phase == "Running":
            self.node.kubelet.finish(seen, "Succeeded")

    @rule(every=st.integers(1, 3))
    def crash_containers(self, every: int) -> None:
        """Some containers end by an error; the kubelet is to start them again, with the answer that it has."""
        for each in self.node.kubelet.living()[::every]:
            each.crashed = True

    # -- the kubelet

    @rule(crash=crashes, beside=st.booleans(), deaths=deaths)
    def admit(self, crash: Crash | None, beside: bool, deaths: Sequence[int] = ()) -> None:
        self.node.killer.arm(deaths)
        self.guarded(self.node.kubelet.admit(), crash, beside)

    @rule(crash=crashes, beside=st.booleans(), deaths=deaths)
    def start(self, crash: Crash | None, beside: bool, deaths: Sequence[int] = ()) -> None:
        self.node.killer.arm(deaths)

        async def all_of_them() -> None:
            for seen, each in self.node.kubelet.startable():
                await self.node.kubelet.start(seen, each)

        self.guarded(all_of_them(), crash, beside)

    def guarded(self, work: Coroutine[Any, Any, None], crash: Crash | None, beside: bool) -> None:
        """Do what the kubelet does, who may be killed; ``beside`` the agent compares meanwhile."""
        node = self.node
        node.crash = crash
        if crash is not None and crash.agent and node.cluster.down:
            crash.forgets = False  # nobody could tell what the node offers

        async def both() -> None:
            comparing = asyncio.ensure_future(node.agent.compare()) if beside else None
            try:
                await work
            except Died:
                node.restart_kubelet(forgets=crash is not None and crash.forgets)
            if comparing is not None:
                await comparing

        self.do(both())
        node.crash = None

    @rule(forgets=st.booleans())
    def restart_kubelet(self, forgets: bool) -> None:
        self.node.restart_kubelet(forgets=forgets)

    @rule()
    def fall_silent(self) -> None:
        self.node.silent = True

    @rule()
    def speak_again(self) -> None:
        self.node.silent = False

    @rule()
    def kubelet_has_had_its_time(self) -> None:
        if not self.node.kubelet.queue:
            self.node.epoch -= 100.0
            self.node.tell_state()

    # -- the API server

    @rule(down=st.booleans())
    def cut_off(self, down: bool) -> None:
        self.node.cluster.down = down

    @rule(troubles=st.lists(st.sampled_from(TROUBLES), min_size=1, max_size=4))
    def answer_falsely(self, troubles: list[Trouble]) -> None:
        self.node.cluster.troubles.extend(troubles)

    @rule(about=st.sampled_from(WATCHES), most=st.integers(1, 10))
    def deliver(self, about: Watched, most: int) -> None:
        self.node.cluster.deliver(about, most)

    @rule(behind=st.booleans())
    def relist(self, behind: bool) -> None:
        self.node.cluster.relist(behind=behind)

    # -- the agent

    @rule(unit=st.sampled_from(["512MiB", "1GiB"]))
    def change_unit(self, unit: str) -> None:
        self.node.configure(Configuration(gpu_memory_unit=unit))

    @rule(deaths=deaths)
    def compare(self, deaths: Sequence[int] = ()) -> None:
        self.node.killer.arm(deaths)
        self.do(self.node.agent.compare())

    @rule(mode=st.sampled_from([Mode.CGPU, Mode.SHARE]))
    def change_mode(self, mode: Mode) -> None:
        """It comes into force when no GPU pod is left. Pods that ask for compute stay in the mode that they came in."""
        if self.mode is not Mode.CORE_MEM:
            self.mode = mode
            self.node.cluster.label(**{MODE_LABEL: mode.value})

    @rule(damage=st.sampled_from(DAMAGES))
    def restart_agent(self, damage: Damage) -> None:
        """Nobody could tell what the node offers if its checkpoint were spoiled while the API server is away."""
        self.do(self.node.start_agent(damage="none" if self.node.cluster.down else damage))

    @rule(
        create=st.tuples(st.sampled_from(NAMES), st.sampled_from(SHAPES), st.booleans()),
        crash=crashes,
        deaths=st.tuples(deaths, deaths),
        beside=st.tuples(st.booleans(), st.booleans()),
        heard=st.integers(0, 3),
    )
    def a_pod_comes_and_starts(
        self,
        create: tuple[str, Shape, bool],
        crash: Crash | None,
        deaths: tuple[Sequence[int], Sequence[int]],
        beside: tuple[bool, bool],
        heard: int,
    ) -> None:
        """As it would without any trouble; the agent hears of it at some time or other."""
        self.create(*create)
        self.deliver("pods", 10 if heard == 1 else 0)
        self.admit(crash, beside[0], deaths[0])
        while self.node.kubelet.queue:
            self.admit(None, beside[0])
        self.deliver("pods", 10 if heard == 2 else 0)
        for _ in range(3):
            self.start(None, beside[1], deaths[1])

    # -- what must hold

    @invariant()
    def no_gpu_is_over_allocated_and_no_pod_is_refused(self) -> None:
        if not hasattr(self, "node"):
            return
        directories = Counter[str]()
        for each in self.node.kubelet.living():
            unit_mib = int(each.pod.metadata.annotations[MEMORY_UNIT_ANNOTATION])
            asked = int(str(each.container.resources.limits.get(GPU_MEMORY, 0))) * unit_mib
            shares = each.limits.gpus if each.limits is not None else ()
            if each.limits is not None:
                uid = self.mirrored.get(each.limits.uid, each.limits.uid)
                assert uid == each.pod.metadata.uid, each.limits
            assert sum(share.mib for share in shares) == asked, (each.pod.key, each.container.name, each.limits)
            directories[each.directory] += each.directory != ""
            assert not each.directory or (Path(each.directory) / LIMITS_FILE).exists(), (each.pod.key, each.directory)
        assert all(mib <= GPU_MIB for mib in self.used().values()), self.used()
        assert all(count <= 1 for count in directories.values()), directories
        refused = [seen for seen in self.node.kubelet.pods.values() if seen.reason and not seen.crowded_out]
        reasons = {seen.pod.key: seen.reason for seen in refused}
        failed = {key: reason for key, reason in reasons.items() if not any(each in reason for each in SPREAD)}
        assert not failed, failed

    def teardown(self) -> None:
        try:
            if hasattr(self, "node"):
                try:
                    self.in_the_end()
                finally:
                    self.do(self.node.close())
        finally:
            self.loop.close()
            self.patched.undo()

    def in_the_end(self) -> None:
        node = self.node
        node.crash, node.silent = None, False
        node.cluster.down = False
        node.cluster.troubles.clear()
        node.killer.disarm()
        self.mirror()
        self.patched.setattr(holdings, "UNKNOWN_FOR_NS", 1)
        waiting: dict[str, str] = {}
        for number in range(QUIET_ROUNDS):
            if number == 1:
                self.crash_containers(every=1)
            quiet = number > 0 and not node.kubelet.queue and not node.kubelet.startable()
            while node.kubelet.queue:
                self.do(node.kubelet.admit())
            self.kubelet_has_had_its_time()
            self.calm()
            waiting = {}
            for seen, each in node.kubelet.startable():
                if why := self.do(node.kubelet.start(seen, each)):
                    waiting[seen.pod.key] = why
            self.no_gpu_is_over_allocated_and_no_pod_is_refused()
            if quiet:
                break
        full, spread = self.full(), {key for key, why in waiting.items() if any(each in why for each in SPREAD)}
        for seen, _ in node.kubelet.startable():
            assert seen.pod.key in spread or self.gpus(seen) & full, (seen.pod.key, waiting)
        held = {key for key, gave in node.kubelet.manager.given.items() if gave}
        table = node.agent.state.device_table
        assert not [each.uid for each in table if node.agent.state.pod_of(each) is None]
        for uuid, mib in self.used().items():
            assert table.mib(uuid) >= mib, (uuid, "containers run that the agent counts no memory for")
        for pod in node.cluster.pods.values():
            there_is = node.kubelet.pods.get(self.kubelet_uid(pod))
            if there_is is None or there_is.reason or pod.key in spread or self.forgotten(there_is):
                continue  # refused before it had a mirror that says so, or running on with what nobody knows any more
            text = pod.metadata.annotations.get(ALLOCATION_ANNOTATION, "")
            for container_name in [name for uid, name in held if uid == self.kubelet_uid(pod) and not pod.finished]:
                gave = node.kubelet.manager.given[self.kubelet_uid(pod), container_name]
                there = {uuid for given in gave.values() for uuid in by_gpu(given.ids)}
                booked = {share.uuid for share in decode_allocation(text).containers[container_name]}
                inherited = GPU_COUNT_LABEL in pod.metadata.labels  # from an init container, in any order
                assert there == booked or (inherited and there < booked), (pod.key, container_name)
        for name in NAMES:
            self.delete(name, None)
        for _ in range(3):
            self.calm()
        assert not list(node.agent.state.device_table)
        assert not list((node.directory / "state" / "allocations").iterdir())

    def used(self) -> Counter[str]:
        """Return the MiB of each GPU that running containers may use, by their limits."""
        shares = (share for each in self.node.kubelet.living() if each.limits for share in each.limits.gpus)
        used = Counter[str]()
        for share in shares:
            used[share.uuid] += share.mib
        return used

    def forgotten(self, seen: Seen) -> bool:
        """Return whether the kubelet has forgotten the devices of a container that runs, as ``GpuForgotten`` says."""
        given, uid = self.node.kubelet.manager.given, seen.pod.metadata.uid
        return any(each.limits is not None and not given.get((uid, name)) for name, each in seen.containers.items())

    def kubelet_uid(self, pod: Pod) -> str:
        return pod.metadata.annotations.get(MIRROR_ANNOTATION, pod.metadata.uid)

    def gpus(self, seen: Seen) -> set[str]:
        """Return the GPUs that a pod is on, those of containers whose devices the kubelet has forgotten included."""
        gave = [g for (uid, _), g in self.node.kubelet.manager.given.items() if uid == seen.pod.metadata.uid]
        started = [each.limits.gpus for each in seen.containers.values() if each.limits is not None and not each.ended]
        given_to_it = {uuid for each in gave for given in each.values() for uuid in by_gpu(given.ids)}
        return given_to_it | {share.uuid for shares in started for share in shares}

    def full(self) -> set[str]:
        """Return the GPUs that the pods on them do not all fit on: some wait for others rightly.

        An init container that got devices anew, as the kubelet had forgotten them, hands on none of these.
        """
        used: Counter[str] = Counter()
        kubelet = self.node.kubelet
        for seen in kubelet.pods.values():
            if seen.phase in ("Pending", "Running"):
                for uuid in self.gpus(seen):
                    used[uuid] += self.units(seen.pod)
                for name, each in seen.containers.items():
                    if kubelet.has_init_anew(seen, name) and each.limits is not None:
                        used.update({share.uuid: share.mib // 1024 for share in each.limits.gpus})
        return {uuid for uuid, units in used.items() if units > GPU_MIB // 1024}


Node.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None, database=None)
TestAgent = Node.TestCase


@pytest.fixture
def node() -> Iterator[Node]:
    """A node on which a test tells a story of its own; its state is checked and torn down at the end."""
    node = Node()
    yield node
    node.teardown()


@pytest.mark.parametrize("lost", ["an answer", "the pod"])
def test_an_init_container_finds_its_limits_in_the_directory_that_it_mounts(node: Node, lost: str) -> None:
    """Nobody knew the pod when it was admitted; then a kubelet dies before it has written an answer down, or the
    agent's next list is older than the pod."""
    node.begin(Mode.CGPU, 0)
    node.answer_falsely(["unreachable"])
    node.create("d", (("init", 2), ("app", 2)), False)
    if lost == "an answer":
        node.admit(Crash(at=2, agent=False, answered=True, forgets=False), False)
    node.admit(None, False)
    if lost == "the pod":
        node.relist(True)
    node.start(None, False)
    node.no_gpu_is_over_allocated_and_no_pod_is_refused()


@pytest.mark.parametrize("mode", [Mode.CGPU, Mode.CORE_MEM])
@pytest.mark.parametrize("seed", range(4))
def test_containers_that_inherit_ids_on_two_gpus_leave_others_their_memory(node: Node, mode: Mode, seed: int) -> None:
    """The kubelet hands the IDs of an init container on in any order."""
    node.begin(mode, seed)
    shapes: dict[str, Shape] = {"a": SHAPES[-1], "b": (("app", 4),), "c": (("app", 4),)}
    for name, shape in shapes.items():
        node.create(name, shape, False)
        node.calm()
        node.admit(None, False)
        node.calm()
        while node.node.kubelet.startable():
            node.start(None, False)
    assert set(node.used().values()) == {GPU_MIB}


def test_a_repeated_call_leaves_a_started_container_its_usage_file(node: Node) -> None:
    """The first call waits for the process of a deleted pod, and its kubelet has ended."""
    node.begin(Mode.CGPU, 0)
    here, store = node.node, node.node.agent.records.store
    for name in ("a", "b"):
        node.create(name, (("app", 8),), False)
        node.admit(None, False)
        node.start(None, False)
    directory = next(name for name, limits in store.records().items() if limits.pod == "a")
    process = os.open(store.usage.file(directory), os.O_RDWR)
    fcntl.fcntl(process, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, USAGE_LOCK_SLOTS, 1, 0))
    node.delete("a", None)
    node.create("c", (("app", 8),), False)
    node.admit(None, False)
    node.calm()
    ((seen, each),) = here.kubelet.startable()

    async def both() -> None:
        first, second = (asyncio.ensure_future(here.kubelet.start(seen, each)) for _ in range(2))
        await asyncio.sleep(0.05)
        os.close(process)
        assert sorted(map(bool, await asyncio.gather(first, second))) == [False, True]

    node.do(both())


@pytest.mark.parametrize("heard", [True, False], ids=["the agent has heard of the pods", "its watch is late"])
def test_a_larger_unit_leaves_pods_that_are_bound_their_devices(node: Node, heard: bool) -> None:
    """They have been bound before the change and are admitted after it: 20 device IDs, where the unit makes 16."""
    node.begin(Mode.CGPU, 0)
    node.change_unit("512MiB")
    node.calm()
    for name in ("a", "b"):
        node.create(name, (("app", 5),), False)
    if heard:
        node.calm()
    node.change_unit("1GiB")
    node.calm()
    node.create("c", (("app", 3),), False)  # what is left of a GPU
    for _ in range(3):
        node.admit(None, False)
        node.compare()
    node.start(None, False)
    node.no_gpu_is_over_allocated_and_no_pod_is_refused()
    manager = node.node.kubelet.manager
    assert len(manager.healthy[GPU_MEMORY]) - len(manager.allocated[GPU_MEMORY]) == 3


def test_a_larger_unit_waits_until_it_is_known_which_pods_are_bound(node: Node) -> None:
    node.begin(Mode.CGPU, 0)
    node.change_unit("512MiB")
    node.calm()
    for name in ("a", "b"):
        node.create(name, (("app", 5),), False)
    node.cut_off(True)
    node.change_unit("1GiB")
    node.compare()
    assert node.node.agent.state.node_config.effective_mode.unit_mib == 512
    node.cut_off(False)
    node.compare()
    assert node.node.agent.state.node_config.effective_mode.unit_mib == 1024
    for _ in range(2):
        node.admit(None, False)
    node.no_gpu_is_over_allocated_and_no_pod_is_refused()


def test_a_container_that_kubelet_and_agent_have_forgotten_counts(node: Node) -> None:
    """Both have lost what they had written down of it, and its limits are there."""
    node.begin(Mode.CORE_MEM, 0)
    node.a_pod_comes_and_starts(("a", (("app", 5),), False), None, ([], []), (False, False), 0)
    node.restart_kubelet(True)
    node.restart_agent("lost")
    (uuid,) = node.used()
    assert node.node.agent.state.device_table.mib(uuid) == 5 * 1024


def test_containers_that_crash_before_the_kubelet_forgets_share_no_directory_with_one_that_runs(
    node: Node,
) -> None:
    """Both had been let start, and only the kubelet's next list tells which containers do not run."""
    node.begin(Mode.CGPU, 0)
    for name, shape in (("a", (("app", 2), ("app", 2))), ("b", (("app", 2),))):
        node.a_pod_comes_and_starts((name, shape, False), None, ([], []), (False, False), 0)
    node.crash_containers(2)
    node.restart_kubelet(True)
    node.no_gpu_is_over_allocated_and_no_pod_is_refused()


def test_an_init_container_of_an_unknown_pod_that_asks_again_gets_its_own_devices(
    node: Node,
) -> None:
    """The kubelet has forgotten all, the API server is away, and the agent dies while it answers."""
    node.begin(Mode.CGPU, 0)
    node.a_pod_comes_and_starts(("a", (("init", 1), ("app", 4)), False), None, ([], []), (False, False), 0)
    node.cut_off(True)
    node.restart_kubelet(True)
    node.admit(None, False, [0])
    node.no_gpu_is_over_allocated_and_no_pod_is_refused()


def test_an_init_container_that_asks_again_gets_no_devices_of_a_pod_that_runs(node: Node) -> None:
    """The kubelet has forgotten all, and leaves the pod alone that it admits first, since its container runs."""
    node.begin(Mode.CGPU, 0)
    for name, shape in (("a", (("app", 3),)), ("b", (("init", 3), ("app", 1)))):
        node.a_pod_comes_and_starts((name, shape, False), None, ([], []), (False, False), 0)
    node.restart_agent("none")
    node.restart_kubelet(True)
    for _ in range(2):
        node.admit(None, False)
    (given,) = node.node.kubelet.manager.given.values()
    held = node.node.agent.state.device_table.holders(GPU_MEMORY, given[GPU_MEMORY].ids)
    assert {pod.key for pod, _ in held} == {"default/b"}


def test_a_pod_does_not_start_with_the_limits_of_the_one_before_while_the_api_server_is_away(node: Node) -> None:
    """It was created again under its name; the agent, which has not heard of that, dies before it starts."""
    node.begin(Mode.CGPU, 0)
    node.a_pod_comes_and_starts(("d", (("app", 2),), False), None, ([], []), (False, False), 0)
    node.cut_off(True)
    node.delete("d", (("init", 2), ("app", 2)))
    node.restart_kubelet(True)
    node.admit(None, False)
    node.restart_agent("none")
    for _ in range(2):
        node.start(None, False)
        node.no_gpu_is_over_allocated_and_no_pod_is_refused()


def test_the_mode_does_not_change_under_a_static_pod_while_the_kubelet_lists_nothing(node: Node) -> None:
    """An agent that has lost its checkpoint hears neither from the kubelet nor from the API server of the pod."""
    node.begin(Mode.SHARE, 0)
    node.fall_silent()
    node.change_mode(Mode.CGPU)
    node.restart_agent("none")
    node.create_static("a", (("app", 2),))
    node.admit(None, False)
    node.restart_agent("lost")
    for _ in range(3):
        node.compare()
    assert node.node.agent.state.node_config.mode is Mode.SHARE
    node.speak_again()
    for _ in range(3):
        node.compare()
    assert node.node.agent.state.node_config.mode is Mode.SHARE, "the kubelet lists it, and it has no mirror yet"
