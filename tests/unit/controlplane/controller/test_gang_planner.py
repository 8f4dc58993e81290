"""Whose turn it is, what is said, and what counts as started."""

from typing import Any

import msgspec
import pytest

from gputile.api.config.v1alpha1 import AdmissionConfiguration, Configuration
from gputile.api.core import Node, ObjectMeta, OwnerReference, Pod, ResourceRequirements, SchedulingGate
from gputile.api.well_known import (
    DAEMON_LABEL,
    GANG_GATE,
    GANG_NAME_LABEL,
    GANG_SIZE_LABEL,
    GPU_MEMORY,
    MIRROR_ANNOTATION,
    POD_GROUP_LABEL,
    EventReason,
)
from gputile.api.workloads import PodGroup, PodGroupSpec
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.gang_planner import GangPlanner
from gputile.controlplane.controller.gang_round import GangRound
from gputile.kube.objects import Applied, Deleted, Replaced
from tests.fakes.corebuilders import gpu_node, pod
from tests.fakes.coroutines import at_once

pytestmark = pytest.mark.requirement("M13", "B5")

SECOND = 10**9
NOW = 1_900_000_000
BORN = "2030-03-17T17:46:40Z"  # NOW, as Kubernetes writes it


def node(name: str = "n", gpus: int = 4) -> Node:
    amounts = {"cpu": "99", "pods": "99", GPU_MEMORY: "999"}
    return gpu_node(name, mode="cgpu", sizes=[4096] * gpus, allocatable=amounts)


def member(gang: str, number: int, size: int, **more: Any) -> Pod:
    """A pod that wants a whole GPU's memory."""
    asking = pod(f"{gang}-{number}", mem=4)
    labels = more.get("labels", {GANG_NAME_LABEL: gang, GANG_SIZE_LABEL: str(size)})
    meta = msgspec.structs.replace(
        asking.metadata,
        labels=labels,
        creation_timestamp=more.get("born", BORN),
        resource_version=more.get("version", "1"),
        deletion_timestamp=more.get("deleted"),
    )
    gates = tuple(SchedulingGate(name=name) for name in (GANG_GATE, *more.get("gates", ())))
    spec = msgspec.structs.replace(
        asking.spec, scheduling_gates=gates, priority=more.get("priority"), node_name=more.get("node", "")
    )
    status = msgspec.structs.replace(asking.status, phase=more.get("phase", ""))
    return msgspec.structs.replace(asking, metadata=meta, spec=spec, status=status)


class Bench:
    """A view and a planner, with time that is set by hand."""

    def __init__(self, *nodes: Node, gpus: int = 4) -> None:
        self.view = ClusterState(Configuration(admission=AdmissionConfiguration(gangs=True)))
        self.plans = 0
        self.planner = GangPlanner(self.view.ledger.configuration, self.new_plan)
        at_once(self.view.node_event(Replaced(nodes or [node(gpus=gpus)])))

    def new_plan(self) -> str:
        self.plans += 1
        return str(self.plans)

    def gang(self, name: str, count: int, size: int = 0, **more: Any) -> None:
        for i in range(count):
            at_once(self.view.pod_event(Applied(member(name, i, size or count, **more))))

    def round(self, after: float = 0) -> GangRound:
        """Plan a round, and count what it would write as written."""
        self.view.set_time(int((NOW + after) * SECOND))
        result = self.planner.plan(self.view.snapshot())
        for patch in (patch for patches in result.reservations for patch in patches):
            self.view.assume_write(patch.pod, patch.reservation)
        return result


def placed(result: GangRound) -> list[str]:
    return sorted(w.pod.metadata.name for gang in result.reservations for w in gang if w.reservation is not None)


def said(result: GangRound) -> dict[str, str]:
    return {note.pods[0].metadata.labels.get(GANG_NAME_LABEL, "?"): note.reason for note in result.events}


def test_what_a_round_that_was_given_up_would_have_told_is_told_by_the_next() -> None:
    bench = Bench(gpus=1)
    bench.gang("g", 3)
    told = said(bench.round())
    assert told == {"g": EventReason.GANG_TOO_LARGE}
    bench.planner.abandon()
    assert said(bench.round()) == told
    assert said(bench.round()) == {}


def of_another_node(gang: str, number: int, size: int) -> Applied[Pod]:
    """A static pod as a kubelet reports it, with whatever labels it likes."""
    mirror = member(gang, 1000 + number, size, node="other", phase="Running")
    meta = msgspec.structs.replace(mirror.metadata, annotations={MIRROR_ANNOTATION: "static"})
    return Applied(
        msgspec.structs.replace(mirror, metadata=meta, spec=msgspec.structs.replace(mirror.spec, scheduling_gates=()))
    )


def test_static_pods_of_another_node_make_no_gang_start_in_part() -> None:
    bench = Bench(node("n", 4), node("other", 0))
    bench.gang("g", 8)
    for number in range(7):
        at_once(bench.view.pod_event(of_another_node("g", number, 8)))
    result = bench.round()
    assert (placed(result), said(result)) == ([], {"g": EventReason.GANG_TOO_LARGE})


@pytest.mark.parametrize("daemon", [False, True])
def test_only_what_daemon_sets_take_makes_a_gang_too_large(daemon: bool) -> None:
    """Another tenant's pod may have the label that those of DaemonSets have."""
    bench = Bench()
    for number in range(4):
        asking = member("g", number, 4)
        asking.spec.containers[0].resources.requests = {"cpu": "20"}
        at_once(bench.view.pod_event(Applied(asking)))
    taking = pod("other", asks={"cpu": "90"}, node="n")
    taking.metadata.labels = {DAEMON_LABEL: "1"}
    if daemon:
        taking.metadata.owner_references = (OwnerReference("apps/v1", "DaemonSet", "d", "d", True),)
    at_once(bench.view.pod_event(Applied(taking)))
    assert said(bench.round())["g"] == (EventReason.GANG_TOO_LARGE if daemon else EventReason.GANG_WAITING)


def test_priority_goes_before_age_and_age_before_the_rest() -> None:
    bench = Bench(gpus=2)
    bench.gang("young", 2)
    bench.gang("old", 2, born="2030-03-17T17:00:00Z")
    assert placed(bench.round()) == ["old-0", "old-1"]
    bench = Bench(gpus=2)
    bench.gang("old", 2, born="2030-03-17T17:00:00Z")
    bench.gang("urgent", 2, priority=9)
    assert placed(bench.round()) == ["urgent-0", "urgent-1"]


def launcher(gang: str, size: int, node_name: str = "cpu") -> Pod:
    """A pod of a gang that asks for no GPU: it has no gate, and runs when there is a node for it."""
    alone = pod(f"{gang}-launcher", node=node_name, phase="Running")
    labels = {GANG_NAME_LABEL: gang, GANG_SIZE_LABEL: str(size)}
    meta = msgspec.structs.replace(alone.metadata, labels=labels, creation_timestamp=BORN, resource_version="1")
    return msgspec.structs.replace(alone, metadata=meta)


def test_a_pod_without_a_gpu_brings_its_gang_no_nearer_to_the_front() -> None:
    """Anybody can have one run at any time; a gang has begun when pods of it have got places."""
    bench = Bench(gpus=2)
    bench.gang("old", 2, born="2030-03-17T17:00:00Z")
    at_once(bench.view.pod_event(Applied(launcher("young", 3))))
    bench.gang("young", 2, 3)
    assert placed(bench.round()) == ["old-0", "old-1"]


def without_gpu(gang: str, number: int, size: int, cpu: str) -> Pod:
    """A pod that waits for a node, of a gang that another scheduler's plugin may start."""
    waits = launcher(gang, size, "")
    resources = ResourceRequirements(requests={"cpu": cpu})
    containers = (msgspec.structs.replace(waits.spec.containers[0], resources=resources),)
    meta = msgspec.structs.replace(waits.metadata, name=f"{gang}-{number}", uid=f"{gang}-{number}")
    spec = msgspec.structs.replace(waits.spec, containers=containers)
    return msgspec.structs.replace(waits, metadata=meta, spec=spec)


def test_a_gang_without_gpus_is_left_to_others_and_delays_nobody() -> None:
    """kube-scheduler binds its pods, one by one: nothing waits behind a gate."""
    bench = Bench()
    other = without_gpu("x", 0, 1, "60")
    runs = msgspec.structs.replace(other.spec, node_name="n")
    meta = msgspec.structs.replace(other.metadata, labels={})
    at_once(bench.view.pod_event(Applied(msgspec.structs.replace(other, spec=runs, metadata=meta))))
    at_once(bench.view.pod_event(Applied(without_gpu("alone", 0, 1, "60"))))
    result = bench.round()
    assert (result.events, result.reservations) == ([], [])
    bench.round(601)
    bench.gang("late", 4)
    assert placed(bench.round(602)) == [f"late-{i}" for i in range(4)]


def test_a_pod_without_a_gpu_that_waits_takes_part_in_the_plan_of_its_gang() -> None:
    bench = Bench()
    at_once(bench.view.pod_event(Applied(without_gpu("g", 9, 3, "90"))))
    bench.gang("g", 2, 3)
    assert placed(bench.round()) == ["g-0", "g-1", "g-9"]


def test_since_when_the_gang_has_waited_that_has_waited_longest() -> None:
    bench = Bench()
    bench.gang("small", 1)
    bench.round()
    assert bench.planner.reports.waiting_since() == 0, "it has its place"
    bench.gang("one", 5)
    bench.round(20)
    bench.gang("two", 5)
    bench.round(500)
    assert bench.planner.reports.waiting_since() == NOW + 20
    for i in range(5):
        at_once(bench.view.pod_event(Deleted(member("one", i, 5))))
    bench.round(510)
    assert bench.planner.reports.waiting_since() == NOW + 500


@pytest.mark.parametrize("by_object", [False, True])
def test_a_gang_of_which_a_quota_lets_in_some_pods_keeps_nothing_and_says_so(by_object: bool) -> None:
    """Pods are created one by one, and a ResourceQuota refuses the last ones: for how long, nobody knows."""
    bench, labels = Bench(), {POD_GROUP_LABEL: "g"} if by_object else _labels("g", 4)
    bench.view.group_event(Replaced([PodGroup(ObjectMeta(name="g", namespace="default"), PodGroupSpec(4))]))
    bench.gang("g", 3, labels=labels)
    told = [event for after in range(0, 7200, 60) for event in bench.round(after).events]
    assert [event.reason for event in told] == ["GangIncomplete"]
    assert "3 of the 4 pods that start together exist" in told[0].message
    assert "a ResourceQuota" in told[0].message
    assert ("spec.minMember" in told[0].message) is by_object
    assert not list(bench.view.ledger.bookings())
    bench.gang("other", 4)
    assert len(placed(bench.round(7200))) == 4, "it delays nobody"
    for i in range(4):
        at_once(bench.view.pod_event(Deleted(member("other", i, 4))))
    bench.gang("g", 4, labels=labels)
    assert len(placed(bench.round(7300))) == 4, "the quota lets the last one in"


def test_a_pod_that_somebody_else_holds_back_is_not_planned() -> None:
    bench = Bench()
    bench.gang("g", 2)
    at_once(bench.view.pod_event(Applied(member("g", 1, 2, version="2", gates=("other.example.com/gate",)))))
    result = bench.round(6)
    assert not result.reservations
    assert said(result) == {"g": "GangIncomplete"}


def test_a_pod_group_says_the_size() -> None:
    bench, labels = Bench(), {POD_GROUP_LABEL: "job"}
    bench.gang("job", 2, labels=labels)
    assert not bench.round().events, "whether there are PodGroups is not known yet"
    bench.view.group_event(Replaced([]))
    assert "PodGroup default/job does not exist" in bench.round().events[0].message
    group = PodGroup(ObjectMeta(name="job", namespace="default"), PodGroupSpec(2))
    bench.view.group_event(Applied(group))
    assert placed(bench.round()) == ["job-0", "job-1"]
    bench.view.group_event(Deleted(group))
    assert not bench.round().gates, "a gang of unknown size goes no further"


def test_a_request_that_breaks_a_rule_is_named() -> None:
    bench = Bench()
    asking = pod("odd", mem=3, count=2)
    meta = msgspec.structs.replace(
        asking.metadata, labels=asking.metadata.labels | _labels("g", 1), creation_timestamp=BORN
    )
    at_once(bench.view.pod_event(Applied(msgspec.structs.replace(asking, metadata=meta))))
    assert said(bench.round()) == {"g": "InvalidGPURequest"}


def _labels(gang: str, size: int) -> dict[str, str]:
    return {GANG_NAME_LABEL: gang, GANG_SIZE_LABEL: str(size)}


class SilentWriter:
    """Writes nothing: no gang has room here."""

    def record(self, *_: object, **__: object) -> None:
        return


@pytest.mark.parametrize("phase", ["Pending", "Failed"])
def test_a_list_is_believed_whatever_its_versions_are(phase: str) -> None:
    """etcd was restored from a backup, where the pod is unbound, or has failed, at an older version."""
    bench, booked = Bench(), member("g", 0, 1, node="n", version="9")
    at_once(bench.view.pod_event(Applied(booked)))
    assert bench.view.ledger.booking(booked.metadata.uid) is not None
    restored = member("g", 0, 1, node="" if phase == "Pending" else "n", phase=phase, version="5")
    at_once(bench.view.pod_event(Applied(restored)))
    assert bench.view.ledger.booking(booked.metadata.uid) is not None, "a watch that is behind changes nothing"
    at_once(bench.view.pod_event(Replaced([restored])))
    assert bench.view.ledger.booking(booked.metadata.uid) is None
