"""What keeps event loops free at size: steps that do not grow, and objects that nobody has to walk."""

import gc
from collections.abc import Generator
from typing import Any

import msgspec
import pytest

from gputile.api.config.v1alpha1 import AdmissionConfiguration, Configuration
from gputile.api.core import Node, Pod
from gputile.api.well_known import ALLOCATION_ANNOTATION, GANG_NAME_LABEL, GANG_SIZE_LABEL, GPU_MEMORY
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.core.devices.gang_membership import GangName
from gputile.core.kube_predicates.pod_requests import HostResources
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.ledger.snapshot import node_state
from gputile.core.placement.steps import at_once
from gputile.core.scheduling import reserved_place
from gputile.kube.objects import Applied, Replaced
from tests.costs.calls import calls
from tests.fakes.corebuilders import allocation_text, book, gpu_node, ledger_of, share
from tests.fakes.corebuilders import pod as low_pod
from tests.unit.controlplane.controller.gangs.test_gang_planner import NOW, SECOND, Bench, member
from tests.unit.controlplane.test_evictable_pods import budget
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


def test_a_question_about_one_node_looks_at_one_node() -> None:
    asked = {}
    for count in (4, 400):
        predicates = Predicates([node(f"n{i}", {"zone": "a"}) for i in range(count)])
        asking = pod("nodeSelector: {zone: a}")
        asked[count] = calls(lambda: list(predicates.reason(asking, "n1")))  # noqa: B023 - called at once
    assert asked[4] == asked[400]


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


def test_bookings_that_differ_in_their_version_only_are_equal() -> None:
    view = ClusterState(Configuration(admission=AdmissionConfiguration(gangs=True)))
    at_once(view.node_event(Replaced(nodes(1))))
    at_once(view.pod_event(Applied(member("g", 0, 1, node="n0"))))
    booking = next(view.ledger.bookings())
    assert msgspec.structs.replace(booking, version="9") == booking
    assert hash(msgspec.structs.replace(booking, version="9")) == hash(booking)
    assert msgspec.structs.replace(booking, host=HostResources(9, 9)) != booking
    assert booking != "a booking"


def look(pods: int) -> int:
    """Return how many functions are called to look at a node as if all its pods were gone."""
    ledger = ledger_of(gpu_node("n", mode="share", sizes=[1 << 20] * 8))
    for number in range(pods):
        book(ledger, f"p{number}", "n", share(f"GPU-n-{number % 8}", 1024))
    row = ledger.row_of["n"]
    info, everybody = ledger.node_info(row), frozenset(booking.uid for booking in ledger.bookings())
    assert info is not None
    assert len(everybody) == pods
    assert all(gpu.empty for gpu in node_state(ledger, row, info, everybody).gpus)
    return calls(lambda: node_state(ledger, row, info, everybody))


def test_a_look_at_a_node_without_its_pods_goes_through_them_once() -> None:
    assert look(128) - look(16) < 10 * 112
