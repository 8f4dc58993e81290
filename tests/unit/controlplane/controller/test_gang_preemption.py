"""Gangs that preempt: places first, then evictions, then the start; and what ends that half-way."""

import msgspec
import pytest

from gputile.api.config.v1alpha1 import AdmissionConfiguration, Configuration, PreemptionConfiguration
from gputile.api.core import ObjectMeta, PodCondition, PodStatus, Taint
from gputile.api.well_known import GANG_SIZE_LABEL, POD_GROUP_LABEL
from gputile.api.workloads import PodGroup, PodGroupSpec
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.gang_planner import GangPlanner
from gputile.core.devices.allocation import reservation_of
from gputile.kube.objects import Applied, Replaced
from tests.fakes.corebuilders import GIB15, bound, gpu_node, pod
from tests.fakes.coroutines import at_once
from tests.unit.controlplane.controller.preemptinggangs import PreemptingBench
from tests.unit.controlplane.controller.test_gang_planner import BORN, NOW, SECOND, node, placed
from tests.unit.controlplane.test_evictable_pods import budget

pytestmark = pytest.mark.requirement("B5", "M13")


@pytest.mark.anyio
async def test_a_gang_gets_the_places_that_pods_of_lower_priority_leave() -> None:
    bench = PreemptingBench()
    bench.comes("g", 2)
    first = await bench.write()
    assert placed(first) == ["g-0", "g-1"]
    assert bench.reasons(first) == ["GangPreempting"]
    assert not bench.cluster.evicted, "the places are kept first"
    holds = [reservation_of(bench.cluster.pods[name]) for name in ("g-0", "g-1")]
    assert not any(hold is None or hold.first for hold in holds), "nobody may begin the plan"
    second = await bench.write()
    assert len(bench.cluster.evicted) == 2
    assert not second.gates
    assert {reason for _, reason, _ in bench.cluster.said} == {"Preempted", "GangPreempting"}
    bench.ends(bench.cluster.evicted[0])
    assert not (await bench.write()).gates, "one has to leave yet"
    bench.ends(bench.cluster.evicted[1])
    last = await bench.write()
    assert bench.reasons(last) == ["GangPlanned"]
    assert sorted(each.metadata.name for each in (await bench.write()).gates) == ["g-0", "g-1"]
    assert len(bench.cluster.evicted) == 2
    starts = [reservation_of(bench.cluster.pods[name]) for name in ("g-0", "g-1")]
    assert sum(hold is not None and hold.first for hold in starts) == 1
    places = [hold.allocation.gpus[0].uuid for hold in starts if hold is not None and hold.allocation is not None]
    before = [hold.allocation.gpus[0].uuid for hold in holds if hold is not None and hold.allocation is not None]
    assert places == before, "it starts where places were kept for it"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "configuration",
    [
        Configuration(admission=AdmissionConfiguration(gangs=True), preemption=PreemptionConfiguration(enabled=False)),
        Configuration(admission=AdmissionConfiguration(gangs=True)),
    ],
)
async def test_a_gang_that_may_not_preempt_waits(configuration: Configuration) -> None:
    bench = PreemptingBench(configuration)
    bench.comes("g", 2, policy="Never" if configuration.preemption.enabled else "")
    for _ in range(3):
        result = await bench.write(20)
        assert not placed(result)
    assert not bench.cluster.evicted


@pytest.mark.anyio
async def test_a_gang_does_not_preempt_before_the_budgets_are_known() -> None:
    bench = PreemptingBench()
    bench.view.budgets_read = False
    bench.comes("g", 2)
    assert not placed(await bench.write())
    bench.view.budget_event(Replaced([]))
    assert placed(await bench.write()) == ["g-0", "g-1"]


@pytest.mark.anyio
@pytest.mark.parametrize(("size", "leave"), [(0, 4), (4, 4), (3, 1)])
async def test_of_a_pod_group_as_many_leave_as_it_can_do_without(size: int, leave: int) -> None:
    bench = PreemptingBench(labels={POD_GROUP_LABEL: "v"})
    bench.comes("g", 1)
    group = PodGroup(metadata=ObjectMeta(name="v", namespace="default"), spec=PodGroupSpec(min_member=size))
    bench.view.group_event(Replaced([group]))
    for _ in range(2):
        await bench.write()
    assert len(bench.cluster.evicted) == leave


@pytest.mark.anyio
async def test_nobody_leaves_for_a_gang_that_would_not_be_whole_and_none_of_its_own_priority() -> None:
    bench = PreemptingBench()
    bench.comes("five", 5)
    bench.comes("equal", 2, priority=0)
    for _ in range(3):
        assert not placed(await bench.write(20))
    assert not bench.cluster.evicted
    bench.comes("six", 5, size=4)
    await bench.write(20)
    await bench.write()
    assert len(bench.cluster.evicted) == 4, "as many as start together"


@pytest.mark.anyio
@pytest.mark.parametrize("change", ["cordoned", "tainted", "no CPU", "larger gang", "smaller budget"])
async def test_nobody_leaves_when_the_plan_is_not_enough_any_more(change: str) -> None:
    """The places are kept, and nobody has been evicted yet."""
    bench = PreemptingBench(gpus=2, labels={"app": "x"})
    bench.view.budget_event(Applied(budget(2)))
    bench.comes("g", 3, size=2)
    if change == "no CPU":
        for each in [each for each in bench.cluster.pods.values() if each.metadata.name.startswith("g-")]:
            (container,) = each.spec.containers
            limits = {**container.resources.limits, "cpu": "20"}
            resources = msgspec.structs.replace(container.resources, limits=limits, requests=limits)
            asking = (msgspec.structs.replace(container, resources=resources),)
            spec = msgspec.structs.replace(each.spec, containers=asking)
            bench.watch(bench.cluster.store(msgspec.structs.replace(each, spec=spec)))
    assert len(placed(await bench.write())) == 2
    there = node(gpus=2)
    if change == "cordoned":
        cordoned = msgspec.structs.replace(there.spec, unschedulable=True)
        at_once(bench.view.node_event(Applied(msgspec.structs.replace(there, spec=cordoned))))
    elif change == "tainted":
        tainted = msgspec.structs.replace(there.spec, taints=(Taint(key="x", effect="NoSchedule"),))
        at_once(bench.view.node_event(Applied(msgspec.structs.replace(there, spec=tainted))))
    elif change == "no CPU":
        bench.watch(bench.cluster.store(pod("other", node="n", asks={"cpu": "90"})))
    elif change == "larger gang":
        for each in [each for each in bench.cluster.pods.values() if each.metadata.name.startswith("g-")]:
            labels = {**each.metadata.labels, GANG_SIZE_LABEL: "3"}
            meta = msgspec.structs.replace(each.metadata, labels=labels)
            bench.watch(bench.cluster.store(msgspec.structs.replace(each, metadata=meta)))
    else:
        bench.view.budget_event(Applied(budget(1)))
    seen = [reason for _ in range(3) for reason in bench.reasons(await bench.write())]
    assert not bench.cluster.evicted
    assert "PreemptionEnded" in seen
    assert not bench.reserved()


@pytest.mark.anyio
async def test_no_node_is_asked_for_while_pods_leave() -> None:
    bench = PreemptingBench()
    bench.comes("g", 2)
    await bench.write()
    assert not bench.planner.without_room


@pytest.mark.parametrize("victim_has_gpus", [False, True])
def test_gpus_are_reserved_while_a_victim_leaves_that_only_has_cpus(victim_has_gpus: bool) -> None:
    """A pod that kube-scheduler preempts for gets the GPUs, whatever its victims have."""
    configuration = Configuration(preemption=PreemptionConfiguration(enabled=True))
    state = ClusterState(configuration)
    offers = {"cpu": "8", "pods": "99", "aliyun.com/gpu-mem": "30"}
    at_once(state.node_event(Replaced([gpu_node("n", mode="cgpu", sizes=[GIB15] * 2, allocatable=offers)])))
    state.budget_event(Replaced([]))
    others = [bound(f"low-{i}", "n", i, 7) for i in range(2 if victim_has_gpus else 1)]
    leaving = [pod("cpus", asks={"cpu": "8"}, node="n"), *others[1:]]
    for each in leaving:
        meta = msgspec.structs.replace(each.metadata, deletion_timestamp=BORN)
        at_once(state.pod_event(Applied(msgspec.structs.replace(each, metadata=meta))))
    at_once(state.pod_event(Applied(others[0])))
    asking = pod("p", mem=10, asks={"cpu": "4"})
    refused = PodCondition(type="PodScheduled", status="False", reason="Unschedulable")
    status = PodStatus(nominated_node_name="n", conditions=(refused,))
    spec = msgspec.structs.replace(asking.spec, priority=1000)
    at_once(state.pod_event(Applied(msgspec.structs.replace(asking, spec=spec, status=status))))
    state.set_time(NOW * SECOND)
    ((write,),) = GangPlanner(configuration, lambda: "x").plan(state.snapshot()).reservations
    assert write.reservation is not None
    assert write.reservation.node == "n"
