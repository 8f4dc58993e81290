"""For which pods nodes are nominated, where, and how each nomination ends."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod, PodCondition, SchedulingGate
from gputile.api.well_known import (
    ALLOCATION_ANNOTATION,
    GANG_NAME_LABEL,
    GANG_SIZE_LABEL,
    GPU_MEMORY,
    NOMINATED_ANNOTATION,
)
from gputile.controlplane.controller.nominations.nominable_pods import NominablePods
from gputile.controlplane.controller.nominations.nominated_cluster import MOST_CANDIDATES
from gputile.controlplane.controller.nominations.nomination_limit import MOST_UNDER_WAY, NominationLimit
from gputile.controlplane.controller.nominations.nomination_planner import (
    LASTS_NS,
    MOST_A_ROUND,
    REST_NS,
    NominationRound,
    Nominations,
)
from gputile.core.devices.reservation import Reservation, encode_reservation
from gputile.core.ledger.events import PodApplied
from gputile.core.placement.steps import at_once
from gputile.core.scheduling.assume import BindTime, assume
from gputile.core.scheduling.decision import Decision
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.kube.objects import Applied, Deleted, Replaced
from tests.corebuilders import allocation_text, gpu_node, ledger_of, pod, share
from tests.unit.controlplane.controller.gangs.test_gang_planner import BORN, NOW, SECOND

pytestmark = pytest.mark.requirement("B3")

REFUSED = (PodCondition(type="PodScheduled", status="False", reason="Unschedulable"),)
UNGATED = (PodCondition(type="PodScheduled", status="False", reason="SchedulingGated"),)


def node(name: str = "n", gpus: int = 4, cpu: str = "99", **spec: Any) -> Node:
    amounts = {"cpu": cpu, "pods": "99", GPU_MEMORY: "999"}
    made = gpu_node(name, mode="cgpu", sizes=[4096] * gpus, allocatable=amounts)
    return msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, **spec))


def waiting(name: str = "p", mem: int = 4, version: int = 1, **more: Any) -> Pod:
    """A pod that kube-scheduler has not looked at yet."""
    asking = pod(name, mem=mem, annotations=more.pop("annotations", {}))
    meta = msgspec.structs.replace(
        asking.metadata,
        creation_timestamp=more.pop("born", BORN),
        resource_version=str(version),
        deletion_timestamp=more.pop("deleted", None),
        labels=more.pop("labels", {}),
    )
    status = msgspec.structs.replace(
        asking.status,
        nominated_node_name=more.pop("nominated", ""),
        conditions=more.pop("conditions", ()),
        phase=more.pop("phase", "Pending"),
    )
    spec = msgspec.structs.replace(asking.spec, **more)
    return msgspec.structs.replace(asking, metadata=meta, spec=spec, status=status)


def later(before: Pod, version: int, nominated: str = "", conditions: tuple[PodCondition, ...] = ()) -> Pod:
    """A newer version of a pod."""
    return msgspec.structs.replace(
        before,
        metadata=msgspec.structs.replace(before.metadata, resource_version=str(version)),
        status=msgspec.structs.replace(before.status, nominated_node_name=nominated, conditions=conditions),
    )


def ours(before: Pod, version: int, name: str, conditions: tuple[PodCondition, ...] = ()) -> Pod:
    """A newer version of a pod, for which the controller has nominated a node."""
    newer = later(before, version, name, conditions)
    annotations = newer.metadata.annotations | {NOMINATED_ANNOTATION: name}
    return msgspec.structs.replace(newer, metadata=msgspec.structs.replace(newer.metadata, annotations=annotations))


def on(before: Pod, name: str, gpu: int = 0, version: int = 9) -> Pod:
    """The pod as it is when it is bound."""
    text = allocation_text(share(f"GPU-{name}-{gpu}", 4096))
    meta = msgspec.structs.replace(
        before.metadata, annotations={ALLOCATION_ANNOTATION: text}, resource_version=str(version)
    )
    return msgspec.structs.replace(before, metadata=meta, spec=msgspec.structs.replace(before.spec, node_name=name))


class Bench:
    """A planner, with time that is set by hand."""

    def __init__(self, *nodes: Node, configuration: Configuration | None = None) -> None:
        self.nominations = Nominations(configuration or Configuration())
        at_once(self.nominations.cluster.state.node_event(Replaced(nodes or [node()])))

    def put(self, *pods: Pod) -> None:
        for each in pods:
            at_once(self.nominations.pod_event(Applied(each)))

    def put_node(self, each: Node) -> None:
        at_once(self.nominations.cluster.state.node_event(Applied(each)))

    def round(self, after_s: float = 0) -> NominationRound:
        return at_once(self.nominations.steps(int((NOW + after_s) * SECOND)))

    def nominate(self, after_s: float = 0) -> dict[str, str]:
        """Run a round whose writes succeed, and of which the watch tells nothing yet; return the nodes by pod."""
        result = self.round(after_s)
        for each, name in result.nominated:
            self.nominations.written(ours(each, int(each.metadata.resource_version) + 1, name))
        return chosen(result)


def chosen(result: NominationRound) -> dict[str, str]:
    return {each.metadata.name: name for each, name in result.nominated}


def cleared(result: NominationRound) -> list[str]:
    return [each.metadata.name for each in result.cleared]


# -- which pods

P = waiting()
RESERVED = encode_reservation(Reservation(plan="x", size=1, pods=1, node="n", expires_ns=(NOW + 60) * SECOND))


@pytest.mark.parametrize(
    ("asking", "eligible"),
    [
        (P, True),
        (waiting(scheduler_name="default-scheduler"), True),
        (waiting(scheduler_name="gputile-scheduler"), True),
        (waiting(conditions=UNGATED), True),
        (waiting(scheduler_name="another"), False),
        (waiting(mem=0), False),
        (waiting(conditions=REFUSED), False),
        (waiting(nominated="n"), False),
        (waiting(node_name="n"), False),
        (waiting(phase="Failed"), False),
        (waiting(deleted=BORN), False),
        (waiting(scheduling_gates=(SchedulingGate(name="theirs"),)), False),
        (waiting(labels={GANG_NAME_LABEL: "g", GANG_SIZE_LABEL: "1"}), False),
        (waiting(annotations={"gputile.io/hold": RESERVED}), False),
    ],
)
def test_a_node_is_nominated_for_a_gpu_pod_that_kube_scheduler_is_still_to_take(asking: Pod, eligible: bool) -> None:
    bench = Bench(configuration=Configuration(scheduler_name="gputile-scheduler"))
    bench.round()
    bench.put(P, asking)
    assert chosen(bench.round()) == ({"p": "n"} if eligible else {}), "whatever it was before"


def test_pods_are_taken_in_the_order_of_kube_scheduler() -> None:
    bench = Bench(node(gpus=3))
    bench.put(
        waiting("young", born="2030-03-17T17:46:41Z"),
        waiting("second", version=7),
        waiting("first", version=5),
        waiting("urgent", born="2030-03-18T00:00:00Z", priority=9),
    )
    assert list(chosen(bench.round())) == ["urgent", "first", "second"]


def test_the_queue_forgets_whoever_waits_no_longer() -> None:
    queue = NominablePods()
    queue.put(waiting("stays"))
    for number in range(1000):
        queue.put(waiting(f"p{number}", version=number))
        queue.drop(f"p{number}")
        queue.put(waiting("stays", version=number))
    assert len(queue) == 1
    assert len(queue._heap) < 200  # noqa: SLF001 - what is kept shows nowhere else
    taken = queue.take()
    assert taken is not None
    assert taken.metadata.resource_version == "999"
    assert queue.take() is None


# -- where


def test_no_two_pods_are_nominated_to_one_place() -> None:
    bench = Bench(node("a", gpus=1), node("b", gpus=1))
    bench.put(waiting("p"), waiting("q"), waiting("r"))
    assert sorted(bench.nominate().values()) == ["a", "b"]
    bench.put(waiting("s"))
    assert bench.nominate() == {}, "nor in the next round"


def test_nominations_of_others_count() -> None:
    bench = Bench(node("a", gpus=1), node("b", gpus=1))
    bench.put(waiting("theirs", nominated="a", conditions=REFUSED), waiting("p"))
    assert chosen(bench.round()) == {"p": "b"}
    bench.put(later(waiting("theirs"), 2, "", REFUSED), waiting("q"))
    assert chosen(bench.round()) == {"q": "a"}, "no longer than they stand"


def test_a_node_that_pods_are_still_to_leave_for_another_is_left_alone() -> None:
    bench = Bench(node("a", gpus=1), node("b", gpus=1))
    bench.put(on(waiting("leaving"), "a"), waiting("theirs", nominated="a", conditions=REFUSED))
    at_once(bench.nominations.pod_event(Deleted(waiting("leaving"))))
    bench.put(waiting("p"), waiting("q"))
    assert chosen(bench.round()) == {"p": "b"}


def test_kube_schedulers_own_checks_decide_too() -> None:
    bench = Bench(node("closed", unschedulable=True), node("poor", cpu="0"), node("fits"))
    asking = waiting(node_selector={})
    resources = msgspec.structs.replace(asking.spec.containers[0].resources, requests={"cpu": "1"})
    containers = (msgspec.structs.replace(asking.spec.containers[0], resources=resources),)
    bench.put(msgspec.structs.replace(asking, spec=msgspec.structs.replace(asking.spec, containers=containers)))
    assert chosen(bench.round()) == {"p": "fits"}


def test_so_many_nodes_are_looked_at_for_a_pod() -> None:
    bench = Bench(*(node(f"n{i}", unschedulable=True) for i in range(MOST_CANDIDATES)), node("beyond"))
    bench.put(waiting())
    assert chosen(bench.round()) == {}, "kube-scheduler finds the node itself"


SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=40)


@given(SIZES, st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(0, 3))
def test_the_pods_of_a_plan_fit_together(sizes: list[int], gpus: list[int], others: int) -> None:
    """They can all be bound where they are nominated, beside those that run, each by the extender's own decision."""
    nodes = [node(f"n{i}", count) for i, count in enumerate(gpus)]
    running = [on(waiting(f"r{i}"), f"n{i}") for i in range(min(others, len(nodes)))]
    bench, ledger = Bench(*nodes), ledger_of(*nodes)
    for each in running:
        bench.put(each)
        ledger.apply(PodApplied(each))
    bench.put(*(waiting(f"p{i}", mem=size) for i, size in enumerate(sizes)))
    engine = PlacementEngine(ledger)
    nominated = [each for _ in range(3) for each in bench.round().nominated]
    for each, name in nominated:
        request = engine.request(each)
        assert request is not None
        assert isinstance(assume(engine, each, request, name, BindTime(NOW * SECOND, 0.0)), Decision)
    taken = {each.metadata.name for each, _ in nominated}
    for i, size in enumerate(sizes):
        request = engine.request(waiting(f"p{i}", mem=size))
        assert request is not None
        assert f"p{i}" in taken or not engine.best_first(request, [f"n{k}" for k in range(len(nodes))])


def test_so_many_nominations_are_under_way() -> None:
    bench = Bench(node(gpus=4), *(node(f"n{i}", gpus=64) for i in range(10)))
    bench.put(*(waiting(f"p{i}", version=i) for i in range(MOST_UNDER_WAY + 50)))
    counts = []
    while found := bench.nominate():
        counts.append(len(found))
    assert max(counts) == MOST_A_ROUND
    assert sum(counts) == MOST_UNDER_WAY
    has_work = bench.nominations.has_work
    bench.put(on(waiting("p0"), "n"))
    assert (has_work, bench.nominations.has_work) == (False, True)
    assert list(bench.nominate()) == [f"p{MOST_UNDER_WAY}"]


def test_fewer_are_under_way_where_those_before_have_expired() -> None:
    bench, lasts = Bench(*(node(f"n{i}", gpus=64) for i in range(10))), LASTS_NS / SECOND
    bench.put(*(waiting(f"p{i}", version=i + 1) for i in range(2 * MOST_UNDER_WAY)))
    while bench.nominate():
        pass
    for old in bench.round(lasts).cleared:
        bench.nominations.written(later(old, 5000))
    assert bench.nominations.under_way == 0
    while bench.nominate(lasts):
        pass
    assert bench.nominations.under_way == MOST_UNDER_WAY // 2


def test_the_limit_is_between_two_bounds_and_grows_again() -> None:
    limit = NominationLimit()
    seen = []
    for _ in range(2000):
        limit.ended(expired=True)
        seen.append(limit.most)
    assert (max(seen), min(seen), seen[-1]) == (MOST_UNDER_WAY, 16, 16)
    for number in range(2000):
        limit.ended(expired=number % 20 == 0)
    assert limit.most == MOST_UNDER_WAY


# -- how they end


def test_a_bound_pod_needs_no_further_write() -> None:
    bench = Bench()
    bench.put(P)
    bench.nominate()
    bench.put(on(P, "n"))
    assert bench.nominations.under_way == 0
    assert cleared(bench.round(100)) == []


def test_a_nomination_of_which_nothing_comes_is_cleared_and_rests() -> None:
    bench, lasts, rests = Bench(node(gpus=1)), LASTS_NS / SECOND, REST_NS / SECOND
    bench.put(P)
    bench.nominate()
    assert cleared(bench.round(lasts - 1)) == []
    (old,) = bench.round(lasts).cleared
    assert old.status.nominated_node_name == "n"
    assert cleared(bench.round(lasts)) == ["p"], "as long as it stands"
    bench.nominations.written(later(old, 3))
    bench.put(waiting("q"))
    assert bench.nominate(lasts) == {"q": "n"}, "the room is free"
    bench.put(on(waiting("q"), "n"), waiting("q", phase="Succeeded", node_name="n", version=10))
    assert bench.nominate(lasts + rests - 1) == {}
    assert bench.nominate(lasts + rests) == {"p": "n"}


@pytest.mark.parametrize("why", ["cordoned", "gone", "refused"])
def test_a_nomination_that_is_of_no_use_is_cleared_at_once(why: str) -> None:
    bench = Bench()
    bench.put(P)
    bench.nominate()
    if why == "cordoned":
        bench.put_node(node(unschedulable=True))
    elif why == "gone":
        at_once(bench.nominations.cluster.state.node_event(Deleted(node())))
    else:
        bench.put(ours(P, 3, "n", REFUSED))
        assert cleared(bench.round(1)) == [], "it may turn out to be kube-scheduler's own"
    assert cleared(bench.round(3)) == ["p"]


@pytest.mark.parametrize(("priority", "after_refusal"), [(1, []), (0, ["p"])])
def test_a_node_that_pods_of_lower_priority_leave_for_a_refused_pod_stays_nominated_for_a_while(
    priority: int, after_refusal: list[str]
) -> None:
    """kube-scheduler may preempt on the node that was nominated already; others leave it for reasons of their own."""
    bench, lasts = Bench(), LASTS_NS / SECOND
    low, asking = pod("low", node="n"), waiting(priority=priority)
    bench.put(low, asking)
    bench.nominate()
    bench.put(ours(asking, 3, "n", REFUSED))
    bench.round(1)
    bench.put(msgspec.structs.replace(low, metadata=msgspec.structs.replace(low.metadata, deletion_timestamp=BORN)))
    assert [cleared(bench.round(after)) for after in (3, lasts - 1, lasts)] == [after_refusal, after_refusal, ["p"]]


def test_a_node_on_which_gpus_are_kept_for_the_pod_stays_nominated() -> None:
    """gputile's preemption chose the node that was nominated already."""
    bench, lasts = Bench(), LASTS_NS / SECOND
    bench.put(P)
    bench.nominate()
    kept = {"gputile.io/hold": RESERVED, NOMINATED_ANNOTATION: "n"}
    bench.put(waiting(version=3, nominated="n", conditions=REFUSED, annotations=kept))
    assert [cleared(bench.round(after)) for after in (3, lasts, 2 * lasts)] == [[], [], []]


def test_a_late_nomination_of_a_refused_pod_is_not_taken_for_a_lost_write() -> None:
    bench, lasts = Bench(), LASTS_NS / SECOND
    bench.put(P)
    bench.nominate()
    (old,) = bench.round(lasts).cleared
    bench.nominations.written(later(old, 3))
    bench.put(old, later(P, 4, "n", REFUSED))
    assert cleared(bench.round(lasts + 5)) == []


def test_a_nomination_that_others_have_replaced_is_theirs() -> None:
    bench = Bench(node("a", gpus=1), node("b", gpus=1))
    bench.put(P)
    (name,) = bench.nominate().values()
    bench.put(later(ours(P, 2, name), 3, "b" if name == "a" else "a", REFUSED))
    assert cleared(bench.round(100)) == []
    bench.put(waiting("q"))
    assert bench.nominate(100) == {"q": name}


def test_a_clock_that_is_set_back_lets_none_stand_for_ever() -> None:
    bench, lasts = Bench(), LASTS_NS / SECOND
    bench.put(P)
    bench.nominate()
    bench.round(-5000)
    assert cleared(bench.round(-5000 + lasts)) == ["p"]


def test_a_failed_clearing_is_tried_again_after_a_pause() -> None:
    bench, lasts = Bench(), LASTS_NS / SECOND
    bench.put(P)
    bench.nominate()
    (old,) = bench.round(lasts).cleared
    bench.nominations.not_cleared(old)
    assert cleared(bench.round(lasts + 0.1)) == []
    assert cleared(bench.round(lasts + 1)) == ["p"]


# -- what the writes and the watch tell


def test_a_write_that_came_too_late_is_known_by_the_next_version() -> None:
    bench = Bench(node(gpus=1))
    bench.put(P)
    assert chosen(bench.round()) == {"p": "n"}
    bench.put(later(P, 2))
    assert bench.nominations.under_way == 0
    assert chosen(bench.round()) == {"p": "n"}


def test_an_old_version_says_nothing() -> None:
    bench = Bench()
    bench.put(P)
    bench.nominate()
    bench.put(P)
    assert bench.nominations.under_way == 1
    assert chosen(bench.round()) == {}


def test_a_write_without_an_answer_is_known_by_the_watch_however_late() -> None:
    bench, lasts = Bench(node(gpus=1)), LASTS_NS / SECOND
    bench.put(P)
    bench.round()
    assert cleared(bench.round(lasts)) == [], "there is nothing to clear, as far as is known"
    assert bench.nominations.under_way == 0
    bench.put(ours(P, 2, "n"))
    assert cleared(bench.round(lasts + 1)) == ["p"]


def test_an_older_version_frees_no_place() -> None:
    bench = Bench(node(gpus=1))
    bench.put(P)
    bench.nominate()
    bench.put(P, waiting("q"))
    assert bench.nominate() == {}
    at_once(bench.nominations.pod_event(Replaced([P, waiting("q")])))
    assert bench.nominate() == {}


@pytest.mark.parametrize("known", ["gone", "bound and over", "newer"])
def test_an_answer_that_comes_after_the_watch_has_told_more_says_nothing(known: str) -> None:
    """There would be nobody to tell that the pod is gone, or is not nominated any more."""
    bench = Bench(node(gpus=1))
    bench.put(P)
    assert chosen(bench.round()) == {"p": "n"}
    if known == "gone":
        at_once(bench.nominations.pod_event(Deleted(P)))
    elif known == "newer":
        bench.put(waiting(version=3, scheduler_name="another"))
    else:
        bench.put(waiting(version=3, node_name="n", phase="Succeeded"))
    bench.nominations.written(ours(P, 2, "n"))
    assert (bench.nominations.under_way, bench.nominations.cluster.nominated) == (0, {})
    bench.put(waiting("q"))
    assert bench.nominate() == {"q": "n"}


def test_a_pod_that_is_gone_is_forgotten() -> None:
    bench = Bench(node(gpus=1))
    bench.put(P, waiting("q"))
    bench.nominate()
    at_once(bench.nominations.pod_event(Deleted(P)))
    bench.put(waiting("q"))
    assert bench.nominate() == {"q": "n"}
    at_once(bench.nominations.pod_event(Replaced([waiting("r")])))
    assert bench.nominate() == {"r": "n"}


# -- who leads


def test_the_next_leader_takes_over_what_is_gputiles() -> None:
    bench, lasts = Bench(node(gpus=9)), LASTS_NS / SECOND
    kept = {"gputile.io/hold": RESERVED, NOMINATED_ANNOTATION: "n"}
    others = (
        later(waiting("preempts"), 1, "n", REFUSED),
        waiting("kept", nominated="n", annotations=kept),
        waiting("moved", nominated="n", annotations={NOMINATED_ANNOTATION: "m"}),
        waiting("theirs", nominated="n"),
    )
    bench.put(ours(waiting("ours"), 1, "n"), ours(waiting("refused"), 1, "n", REFUSED), *others)
    bench.put(ours(waiting("left", scheduler_name="another"), 1, "n"))
    assert cleared(bench.round()) == []
    bench.put(waiting("since", nominated="n"))
    assert cleared(bench.round(2)) == ["refused"]
    assert set(cleared(bench.round(lasts))) == {"ours", "refused", "left"}, "what others nominate is theirs"


@pytest.mark.parametrize("conditions", [(), REFUSED])
def test_a_late_write_of_the_leader_before_is_looked_after(conditions: tuple[PodCondition, ...]) -> None:
    bench, lasts = Bench(node(gpus=2)), LASTS_NS / SECOND
    asking = later(P, 1, "", conditions)
    bench.put(asking)
    bench.round()
    bench.put(ours(asking, 2, "n", conditions))
    bench.round()
    assert cleared(bench.round(lasts)) == ["p"]


def test_a_late_write_of_the_leader_before_may_name_another_node() -> None:
    bench, lasts = Bench(node("a", gpus=1), node("b", gpus=1)), LASTS_NS / SECOND
    bench.put(P)
    (name,) = chosen(bench.round()).values()
    bench.put(ours(P, 2, "b" if name == "a" else "a"))
    assert cleared(bench.round(lasts)) == ["p"]
    bench.put(waiting("q"))
    assert bench.nominate(lasts) == {"q": name}


def test_a_replica_that_leads_no_longer_clears_nothing() -> None:
    bench, lasts = Bench(node(gpus=2)), LASTS_NS / SECOND
    bench.put(P, waiting("unsent"))
    result = bench.round()
    bench.nominations.written(ours(P, 2, "n"))
    assert set(chosen(result)) == {"p", "unsent"}
    at_once(bench.nominations.stand_by())
    assert bench.nominations.under_way == 0
    bench.put(on(P, "n"))
    assert bench.nominate(lasts) == {"unsent": "n"}
    assert cleared(bench.round(lasts)) == []
