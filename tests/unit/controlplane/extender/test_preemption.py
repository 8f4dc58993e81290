"""Pods of lower priority leave a GPU for one of higher priority, and nobody else gets it meanwhile."""

from typing import Any

import pytest

from gputile.api.affinity import LabelSelector
from gputile.api.core import ObjectMeta, Pod, Taint
from gputile.api.webhooks import ExtenderPreemptionArgs, MetaPod, MetaVictims
from gputile.api.workloads import PodDisruptionBudget
from gputile.core.placement.free_memory import overallocated_gpus
from tests.unit.controlplane.extender.preempting import PreemptingWorld

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("B5")]


async def two_full_gpus() -> PreemptingWorld:
    """10 of 15 GiB of each of two GPUs are in use: no pod of 12 fits, and the node has 10 in sum."""
    world = PreemptingWorld()
    await world.run("low0", 10)
    world.pass_time(60)
    await world.run("low1", 10)
    return world


async def preempting(world: PreemptingWorld, gib: int = 12, priority: int = 10) -> Pod:
    """Have a pod refused that preempts others, and then a round."""
    high = world.add("high", gib, priority)
    assert not await world.schedule("high")
    await world.seen_round()
    return high


async def test_a_place_is_kept_before_the_pod_is_evicted_that_has_it() -> None:
    world = await two_full_gpus()
    high = await preempting(world)
    assert len(world.leaving()) == 1
    (victim,) = world.leaving()
    assert high.status.nominated_node_name == "a"
    world.add("successor", 10)
    world.watch_all()
    assert overallocated_gpus(world.extender.ledger) == 0, "the pod does not have its place yet"
    assert not await world.schedule("high")
    assert not await world.schedule("successor")
    world.end(victim)
    assert not await world.schedule("successor")
    assert await world.schedule("high")
    assert not await world.schedule("successor")
    world.check()
    assert world.said("Preempted") == ["preempted by pod default/high on node a"]
    assert len(world.said("Preempting")) == 1
    world.watch_all()
    await world.seen_round()
    assert not world.said("PreemptionEnded")


async def test_kube_scheduler_evicts_nobody_else_for_a_pod_that_has_a_place() -> None:
    world = await two_full_gpus()
    high = await preempting(world)
    world.watch("high")
    other = {"a": MetaVictims(pods=[MetaPod(uid="uid-x")], num_pdb_violations=0)}
    asked = ExtenderPreemptionArgs(pod=high, node_name_to_meta_victims=other)
    assert (await world.extender.handlers.preempt(asked)).node_name_to_meta_victims == {}


@pytest.mark.parametrize("policy", ["Never", ""])
async def test_equal_pods_and_pods_that_never_preempt_wait(policy: str) -> None:
    world = await two_full_gpus()
    high = world.add("high", 12, 10 if policy else 0)
    high.spec.preemption_policy = policy
    await world.schedule("high")
    await world.seen_round()
    assert not world.leaving()
    assert not world.has_reservation("high")


async def test_a_place_is_given_up_when_the_first_eviction_is_refused() -> None:
    world = await two_full_gpus()
    world.cluster.refused_evictions = {"low0", "low1"}
    await preempting(world)
    assert not world.has_reservation("high")
    assert not world.leaving()
    assert world.said("PreemptionRefused")
    assert world.said("PreemptionEnded")


def used_up_budget(world: PreemptingWorld) -> PodDisruptionBudget:
    """Have a budget forbid the eviction of pods with the label app: low."""
    budget = PodDisruptionBudget(metadata=ObjectMeta(name="b", namespace="default"))
    budget.spec.selector = LabelSelector(match_labels={"app": "low"})
    world.set_budget(budget)
    return budget


async def waiting_for_a_gpu(waited_s: int, *nodes: str) -> PreemptingWorld:
    """All GPUs are in use by pods that stay, and a pod of 12 GiB has waited for so long. Nobody leaves for it."""
    world = PreemptingWorld(*nodes)
    for i in range(2 * len(nodes)):
        await world.run(f"top{i}", 10, 100)
    await world.run("tiny", 1)
    world.add("high", 12, 10)
    for _ in range(waited_s // 20):
        assert not await world.schedule("high")
        await world.seen_round(20)
    assert not world.has_reservation("high")
    return world


async def taken_by(world: PreemptingWorld, node: str, name: str, priority: int = 0) -> Pod:
    """Have a pod of 13 GiB take a GPU of the node that becomes free, while nobody asks for the one that waits."""
    bookings = {booking.name: booking for booking in world.extender.ledger.on_node(node)}
    (in_use,) = bookings["tiny"].gpus if "tiny" in bookings else (None,)
    staying = (b for key, b in bookings.items() if key.startswith("top"))
    world.end(next(each.name for each in staying if in_use is None or each.gpus[0].uuid != in_use.uuid))
    pod = await world.run(name, 13, priority)
    assert pod.spec.node_name == node
    return pod


async def preempted_by_kube_scheduler(world: PreemptingWorld, victim: Pod) -> None:
    """Have kube-scheduler refuse the pod that waits, choose the victim and nominate its node."""
    high = world.pod("high")
    assert high is not None
    assert not await world.schedule("high")
    chosen = {victim.spec.node_name: MetaVictims(pods=[MetaPod(uid=victim.metadata.uid)], num_pdb_violations=0)}
    asked = ExtenderPreemptionArgs(pod=high, node_name_to_meta_victims=chosen)
    assert (await world.extender.handlers.preempt(asked)).node_name_to_meta_victims
    high.status.nominated_node_name = victim.spec.node_name
    world.change(high)


@pytest.mark.parametrize("waited_s", [0, 20, 120])
async def test_what_kube_scheduler_s_victims_leave_is_reserved_however_long_the_pod_has_waited(waited_s: int) -> None:
    """Its victim is gone at once, shortly after a search that found nobody: its successor gets nothing."""
    world = await waiting_for_a_gpu(waited_s, "a")
    await preempted_by_kube_scheduler(world, await taken_by(world, "a", "low"))
    world.end("low")
    for _ in range(3):
        await world.seen_round(1)
    assert world.has_reservation("high")
    world.add("successor", 13)
    assert not await world.schedule("successor")
    assert await world.schedule("high")


async def test_a_nomination_that_comes_to_nothing_keeps_the_pod_from_preempting_for_a_while_only() -> None:
    """kube-scheduler nominated a node and evicted nobody: others leave after 30 s, however often it is refused."""
    world = await waiting_for_a_gpu(120, "a")
    await preempted_by_kube_scheduler(world, await taken_by(world, "a", "low"))
    for _ in range(14):
        await world.seen_round()
        await world.schedule("high")
    assert world.cluster.evicted == []
    for _ in range(4):
        await world.seen_round()
        await world.schedule("high")
    assert world.cluster.evicted == ["low"]


async def test_a_place_is_kept_for_as_long_as_those_need_that_leave_it_by_themselves() -> None:
    """Beside the victim, which never ends, a pod leaves the GPU in half an hour."""
    world = PreemptingWorld()
    await world.run("full", 15, 100)
    await world.run("leaving", 3, 100)
    await world.run("victim", 12)
    leaving = world.pod("leaving")
    assert leaving is not None
    leaving.metadata.deletion_timestamp = world.stamp(1800)
    world.change(leaving)
    await preempting(world, 15)
    await world.seen_round(120 + 1800 - 10)
    assert world.has_reservation("high")
    await world.seen_round(20)
    assert not world.has_reservation("high")


async def test_a_place_for_lower_priority_goes_to_higher_priority() -> None:
    world = await two_full_gpus()
    await preempting(world)
    world.watch_all()
    (victim,) = world.leaving()
    world.add("higher", 15, 20)
    other = next(name for name in ("low0", "low1") if name != victim)
    pod = world.pod(other)
    assert pod is not None
    pod.spec.priority = 30
    world.watch_all()
    await world.schedule("higher")
    for _ in range(3):
        await world.seen_round()
        world.watch_all()
    assert world.has_reservation("higher")
    assert not world.has_reservation("high")
    assert world.leaving() == {victim}


CORDONED = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
UNREACHABLE = Taint(key="node.kubernetes.io/unreachable", effect="NoExecute")


def close(world: PreemptingWorld, node: str, how: str) -> None:
    """Have a node take the pod that preempts no longer."""
    if how == "other labels":
        world.change_node(node, pool="others")
    else:
        world.change_node(
            node, UNREACHABLE if how == "unreachable" else CORDONED, cordoned=how == "cordoned", pool="gpus"
        )


CLOSED = ["cordoned", "unreachable", "other labels"]


async def full_nodes(*nodes: str) -> PreemptingWorld:
    """Each node has a pod that stays and one that may leave, from the first node first; a pod of 12 GiB is to come."""
    world = PreemptingWorld(*nodes)
    for name in nodes:
        world.change_node(name, pool="gpus")
    for name in nodes:
        await world.run(f"top-{name}", 10, 100)
        await world.run(f"low-{name}", 10, nodes.index(name))
    high = world.add("high", 12, 10)
    high.spec.node_selector = {"pool": "gpus"}
    return world


@pytest.mark.parametrize("how", CLOSED)
async def test_nobody_is_evicted_on_a_node_that_has_closed_since_the_pod_was_refused(how: str) -> None:
    """At first nobody may leave. When one may, the node takes the pod no longer, and kube-scheduler has not asked."""
    world = await full_nodes("a")
    low = world.pod("low-a")
    assert low is not None
    low.metadata.labels = {"app": "low"}
    world.watch_all()
    budget = used_up_budget(world)
    assert not await world.schedule("high")
    await world.seen_round()
    close(world, "a", how)
    budget.status.disruptions_allowed = 1
    world.set_budget(budget)
    for _ in range(10):
        await world.seen_round(10)
    assert world.cluster.evicted == []
    world.change_node("a", pool="gpus")
    await world.seen_round(40)
    assert world.cluster.evicted == ["low-a"]


@pytest.mark.parametrize("how", CLOSED)
async def test_a_reservation_on_a_node_that_closes_is_given_up(how: str) -> None:
    """Whoever leaves it leaves in vain: the pod preempts on another node."""
    world = await full_nodes("a", "b")
    await preempting_on(world, "a")
    close(world, "a", how)
    await world.seen_round()
    assert not world.has_reservation("high")
    assert world.said("PreemptionEnded")
    world.watch_all()
    assert not await world.schedule("high")
    await world.seen_round(15)
    assert world.cluster.evicted == ["low-a", "low-b"]
    world.end("low-b")
    world.nodes = ("b",)
    assert await world.schedule("high")
    world.check()


async def preempting_on(world: PreemptingWorld, node: str) -> None:
    """Have the pod refused, and GPUs of the node reserved for it."""
    assert not await world.schedule("high")
    await world.seen_round()
    high = world.pod("high")
    assert high is not None
    assert high.status.nominated_node_name == node
    assert world.has_reservation("high")


@pytest.mark.parametrize("asked", ["gputile.io/isolation", "gputile.io/gpu-model"])
async def test_nobody_leaves_for_a_pod_that_may_not_run_there_and_one_like_it_has_its_turn(asked: str) -> None:
    world = PreemptingWorld()
    shared: dict[str, Any] = {"ack.node.gpu.schedule": "share"}
    world.change_node("a", **shared)
    for name in ("low0", "low1"):
        await world.run(name, 10)
    for second, name in enumerate(("high", "like-it")):
        world.add(name, 12, 10).metadata.creation_timestamp = f"2027-01-15T00:00:0{second}Z"
    world.cluster.pods["default", "high"].metadata.annotations = {asked: "memory"}
    for name in ("high", "like-it"):
        assert not await world.schedule(name)
    for _ in range(4):
        await world.seen_round(7)
    assert (world.has_reservation("high"), world.has_reservation("like-it")) == (False, True)
