"""What keeps the controller's event loop free at size: steps that do not grow, and objects that nobody has to walk."""

import asyncio
import contextlib
import gc
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Generator
from typing import Any

import msgspec
import pytest

from gputile.api.config.v1alpha1 import AdmissionConfiguration, Configuration
from gputile.api.core import Node, Pod
from gputile.api.well_known import ALLOCATION_ANNOTATION, GANG_NAME_LABEL, GANG_SIZE_LABEL, GPU_MEMORY
from gputile.controlplane import event_loop_slices
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.gangs.gang_writer import GangWriter
from gputile.controlplane.controller.update_queue import UpdateQueue
from gputile.controlplane.controller.work_queue import WorkQueue
from gputile.controlplane.parallel_requests import AT_ONCE
from gputile.core.devices.gang_membership import GangName
from gputile.core.kube_predicates.pod_requests import HostResources
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.placement.steps import at_once
from gputile.core.scheduling import reserved_place
from gputile.kube.errors import Conflict
from gputile.kube.objects import Applied, Replaced
from tests.calls import calls
from tests.corebuilders import allocation_text, gpu_node, share
from tests.corebuilders import pod as low_pod
from tests.unit.controlplane.controller.gangs.test_gang_planner import NOW, SECOND, Bench, member
from tests.unit.controlplane.test_budgets import budget
from tests.unit.tools.simulator.builders import node, pod


def nodes(count: int) -> list[Node]:
    amounts = {"cpu": "99", "pods": "99", GPU_MEMORY: "999"}
    return [gpu_node(f"n{i}", mode="cgpu", sizes=[4096] * 8, allocatable=amounts) for i in range(count)]


def largest_step(steps: Generator[None, None, Any]) -> int:
    """Return how many functions the step calls that calls most of them."""
    ended, largest = False, 0

    def step() -> None:
        nonlocal ended
        ended = next(steps, "ended") == "ended"

    while not ended:
        largest = max(largest, calls(step))
    return largest


def test_no_step_of_a_round_grows_with_the_gang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when a gang is planned, and not when its plan is looked at again."""
    monkeypatch.setattr(reserved_place, "_A_STEP", 8)
    largest = {}
    for size in (50, 400):
        bench = Bench(*nodes(60))
        bench.gang("g", size)
        largest[size] = [largest_step(bench.planner.steps(NOW * SECOND)) for _ in range(2)]
    grown = [after - before for before, after in zip(largest[50], largest[400], strict=True)]
    assert max(grown) < 10 * 350, "a few calls a pod at most"


def preempting_bench(size: int, victims: str) -> Bench:
    """Return a cluster in which each GPU has a pod, and a gang of ``size`` pods that are more important."""
    bench = Bench(*nodes(size // 8))
    gang = {GANG_NAME_LABEL: "v", GANG_SIZE_LABEL: str(size)} if victims == "of one gang" else {"app": "x"}
    at_once(bench.view.budget_event(Replaced([budget(size, name="b")] if victims == "guarded" else [])))
    for number in range(size):
        text = allocation_text(share(f"GPU-n{number // 8}-{number % 8}", 3072))
        held = low_pod(f"v{number}", mem=3, node=f"n{number // 8}", annotations={ALLOCATION_ANNOTATION: text})
        held.metadata.labels = gang
        at_once(bench.view.pod_event(Applied(held)))
    bench.gang("g", size, priority=9)
    return bench


@pytest.fixture
def only_new_objects() -> None:
    """Leave out what tests before keep, where a test often has the garbage collector walk all objects, or lists them.

    It stays left out: what is taken back would come with all tests that were collected (see the root's conftest).
    """
    gc.collect()
    gc.freeze()


@pytest.mark.parametrize("victims", ["alone", "of one gang", "guarded"])
def test_no_step_grows_with_the_pods_that_leave_for_a_gang(monkeypatch: pytest.MonkeyPatch, victims: str) -> None:
    """Not when they are chosen, and not when it is seen whether they have to leave yet."""
    monkeypatch.setattr(reserved_place, "_A_STEP", 8)
    largest = {}
    for size in (24, 96):
        bench = preempting_bench(size, victims)
        largest[size] = [largest_step(bench.planner.steps(NOW * SECOND)) for _ in range(2)]
        plan = bench.planner.preemption.plan_of(GangName("default", "g", False))
        assert plan is not None
        assert len(plan.victims) == size
    grown = [after - before for before, after in zip(largest[24], largest[96], strict=True)]
    assert max(grown) < 40 * 72, "a few calls a pod at most"


@pytest.mark.usefixtures("only_new_objects")
def test_the_collector_walks_nothing_of_the_pods_that_leave_for_a_gang() -> None:
    """Ten thousands may leave for thousands: what counts grows with the gang's own pods, of which it has a few each."""
    walked = {}
    for size in (24, 96):
        bench = preempting_bench(size, "alone")
        gc.collect()
        before, most = len(gc.get_objects()), 0
        for _ in range(2):
            for number, _ in enumerate(bench.planner.steps(NOW * SECOND)):
                if number % 10 == 0:
                    gc.collect()
                    most = max(most, len(gc.get_objects()) - before)
        walked[size] = most
    assert walked[96] - walked[24] < 8 * 72


@pytest.mark.parametrize("victims", ["alone", "of one gang", "guarded"])
def test_the_choice_of_victims_costs_in_proportion_to_them(victims: str) -> None:
    costs = {}
    for size in (24, 96):
        bench = preempting_bench(size, victims)
        costs[size] = calls(bench.round)
    assert costs[96] < 10 * costs[24], "the nodes are more, too"


def test_a_question_about_one_node_looks_at_one_node() -> None:
    asked = {}
    for count in (4, 400):
        predicates = Predicates([node(f"n{i}", {"zone": "a"}) for i in range(count)])
        asking = pod("nodeSelector: {zone: a}")
        asked[count] = calls(lambda: list(predicates.reason(asking, "n1")))  # noqa: B023 - called at once
    assert asked[4] == asked[400]


@pytest.mark.usefixtures("only_new_objects")
def test_a_search_keeps_no_list_of_all_nodes_for_each_pod() -> None:
    """Thousands of pods with thousands of names each are what the garbage collector would walk."""
    bench = Bench(*nodes(100))
    bench.gang("g", 60)
    most = 0
    for number, _ in enumerate(bench.planner.steps(NOW * SECOND)):
        if number % 10 == 0:
            most = max(most, sum(type(each) is list and 90 < len(each) < 110 for each in gc.get_objects()))
    assert most < 30


def test_the_collector_walks_no_pod_of_the_cluster() -> None:
    full = pod(
        "{tolerations: [{key: k, operator: Exists}], initContainers: [{name: i}], "
        "containers: [{name: c, resources: {limits: {aliyun.com/gpu-mem: 1}}}], "
        "topologySpreadConstraints: [{topologyKey: zone, labelSelector: {matchLabels: {app: x}}}]}",
        labels={"app": "x"},
    )
    full = msgspec.structs.replace(full, spec=msgspec.structs.replace(full.spec, node_name="n1"))
    text = msgspec.json.encode(full)
    view = ClusterState(Configuration(admission=AdmissionConfiguration(gangs=True)))
    at_once(view.node_event(Replaced(nodes(4))))
    gc.collect()
    before = len(gc.get_objects())
    pods = []
    for number in range(1000):
        each = msgspec.json.decode(text, type=Pod)
        each.metadata.uid = each.metadata.name = str(number)
        pods.append(each)
    at_once(view.pod_event(Replaced(pods)))
    assert len(list(view.ledger.bookings())) == 1000
    gc.collect()
    assert len(gc.get_objects()) - before < 100


class Server:
    """The API server: it stores everything, each write after a moment. It counts the tasks that there are."""

    def __init__(self) -> None:
        self.written: Counter[str] = Counter()
        self.most_tasks = 0

    async def reserve(self, pod: Pod, text: str | None) -> Pod:
        return await self._store(pod, "hold")

    async def ungate(self, pod: Pod) -> Pod:
        return await self._store(pod, "ungate")

    async def pod(self, namespace: str, name: str) -> Pod | None:
        raise AssertionError(f"no write of {namespace}/{name} has failed")

    async def evict(self, namespace: str, name: str, uid: str, why: str) -> None:
        raise AssertionError(f"{namespace}/{name} is in nobody's way")

    def record(self, about: Pod | Node, reason: str, message: str, *, warning: bool) -> None:
        pass

    async def _store(self, pod: Pod, what: str) -> Pod:
        self.most_tasks = max(self.most_tasks, len(asyncio.all_tasks()))
        await asyncio.sleep(0)
        self.written[what] += 1
        return pod


@pytest.mark.anyio
async def test_the_writes_of_a_gang_are_not_a_task_each() -> None:
    bench, server, before = Bench(*nodes(60)), Server(), len(asyncio.all_tasks())
    bench.gang("g", 400)
    keeper = GangWriter(bench.view, bench.planner, server, lambda: True, lambda: NOW * SECOND, UpdateQueue())
    await keeper.run_round()
    assert server.written == {"hold": 400}
    assert server.most_tasks - before <= 3 * AT_ONCE


class Turns:
    """How often others have had their turn on the event loop."""

    def __init__(self) -> None:
        self.taken = 0

    async def count(self) -> None:
        while True:
            self.taken += 1
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def counting_turns() -> AsyncIterator[Turns]:
    turns = Turns()
    task = asyncio.create_task(turns.count())
    try:
        yield turns
    finally:
        task.cancel()


class Conflicting(Server):
    """Somebody else has written to each pod that the controller writes to."""

    async def reserve(self, pod: Pod, text: str | None) -> Pod:
        raise Conflict(409, "Conflict", f"{pod.key} has changed")

    async def pod(self, namespace: str, name: str) -> Pod | None:
        return member("g", int(name[2:]), 200, version="2")


@pytest.mark.anyio
@pytest.mark.parametrize("lost", ["the first pod", "the Lease"])
async def test_what_is_not_written_is_not_taken_back_in_one_go(monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    monkeypatch.setattr(event_loop_slices, "SLICE_SECONDS", 0.0)  # others get their turn after each step
    bench, most, reserved = Bench(*nodes(40)), Counter[int](), 0
    bench.gang("g", 200)

    def may_act() -> bool:
        nonlocal reserved
        reserved = max(reserved, sum(booking.reserved for booking in bench.view.ledger.bookings()))
        return lost != "the Lease" or reserved < 200

    keeper = GangWriter(bench.view, bench.planner, Conflicting(), may_act, lambda: NOW * SECOND, UpdateQueue())
    async with counting_turns() as turns:
        plain = bench.view.not_written

        def counted(pod: Pod) -> None:
            most[turns.taken] += 1
            plain(pod)

        monkeypatch.setattr(bench.view, "not_written", counted)
        await keeper.run_round()
    assert reserved == 200
    assert most.total() >= 200
    assert max(most.values()) <= 2
    assert not list(bench.view.ledger.bookings())


@pytest.mark.anyio
async def test_thousands_of_keys_are_not_worked_on_in_one_go() -> None:
    most, workers, done = Counter[int](), 4, asyncio.Event()

    async def work(key: str) -> None:
        most[turns.taken] += 1
        if key == "999":
            done.set()

    queue = WorkQueue(work)
    async with counting_turns() as turns:
        for number in range(1000):
            queue.add(str(number))
        working = asyncio.create_task(queue.run(workers))
        await done.wait()
        working.cancel()
    assert max(most.values()) <= 2 * workers


def test_nothing_is_imported_in_the_middle_of_a_round() -> None:
    """Modules that are loaded when they are first used hold the loop for as long as that takes."""
    program = """
import sys
from gputile.controlplane.controller import controller
from tests.unit.controlplane.controller.gangs.test_gang_planner import Bench, node
bench = Bench(node("n"), node("m"))
assert "numpy.ma" not in sys.modules, "the test's own imports"
for number, size in enumerate((2, 3, 9, 1)):
    bench.gang(f"g{number}", size)
    bench.round()
assert "numpy.ma" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_bookings_that_differ_in_their_version_only_are_equal() -> None:
    view = ClusterState(Configuration(admission=AdmissionConfiguration(gangs=True)))
    at_once(view.node_event(Replaced(nodes(1))))
    at_once(view.pod_event(Applied(member("g", 0, 1, node="n0"))))
    booking = next(view.ledger.bookings())
    assert msgspec.structs.replace(booking, version="9") == booking
    assert hash(msgspec.structs.replace(booking, version="9")) == hash(booking)
    assert msgspec.structs.replace(booking, host=HostResources(9, 9)) != booking
    assert booking != "a booking"
