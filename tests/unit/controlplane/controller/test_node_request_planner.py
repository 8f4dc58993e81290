"""For which pods nodes are asked for, how long, and what is said; on a cluster state, round by round."""

import itertools
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod, PodCondition, PodStatus
from gputile.api.well_known import (
    GANG_NAME_LABEL,
    GANG_SIZE_LABEL,
    GPU_MEMORY,
    KARPENTER_POOL_LABEL,
    NODE_TYPE_ANNOTATION,
)
from gputile.controlplane.controller.api_server import ApiServerWriter
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.gang_planner import GangPlanner
from gputile.controlplane.controller.gang_round import GangRound
from gputile.controlplane.controller.node_request_planner import MOST_PODS, NodeRequestPlanner
from gputile.controlplane.controller.placeholders import NodeRequestRound, Placeholders
from gputile.core.devices.allocation import reservation_of
from gputile.core.devices.gang_membership import GangName
from gputile.core.devices.node_type import node_types_of
from gputile.kube.errors import KubeError
from gputile.kube.objects import Applied, Deleted, Replaced
from tests.fakes.corebuilders import GIB15, allocation_text, bound, gpu_node, pod, share
from tests.fakes.coroutines import at_once
from tests.unit.controlplane.controller.test_gang_planner import BORN, NOW, SECOND, member
from tests.unit.core.devices.test_node_type import configured, described
from tests.unit.core.scheduling.test_new_nodes import tolerant

pytestmark = pytest.mark.requirement("U8", "B5")

TYPE = "pool=gpu"
WAIT = 900  # seconds; the default of autoscaling.waitSeconds
HOSTNAME = "kubernetes.io/hostname"
ALLOCATION = "gputile.io/allocation"


def node(name: str, *, type_: str = "", gpus: int = 2, mib: int = GIB15, born: str = BORN) -> Node:
    """A node with GPUs, or without a report of any (0)."""
    units = gpus * (mib // 1024)
    amounts = {"cpu": "99", "pods": "99", "aliyun.com/gpu-mem": str(units)}
    found = gpu_node(name, mode="cgpu", sizes=[mib] * gpus, allocatable=amounts, inventory=None if gpus else "")
    labels = found.metadata.labels | {HOSTNAME: name} | ({"pool": type_.partition("=")[2]} if type_ else {})
    meta = msgspec.structs.replace(found.metadata, uid=f"uid-{name}", labels=labels, creation_timestamp=born)
    return msgspec.structs.replace(found, metadata=meta)


class Bench:
    """A controller's parts, with time and API server played by hand."""

    def __init__(
        self, *nodes: Node, gangs: bool = False, configuration: Configuration | None = None, **scaling: Any
    ) -> None:
        configuration = configuration or configured(described(count=2))
        scaled = msgspec.structs.replace(configuration.autoscaling, **scaling)
        admission = msgspec.structs.replace(configuration.admission, gangs=gangs)
        configuration = msgspec.structs.replace(configuration, autoscaling=scaled, admission=admission)
        self.state = ClusterState(configuration, namespace="gputile")
        self.waiting = self.state.waiting
        self.now = 0.0
        self.gates: list[Pod] = []
        self.gangs = GangPlanner(configuration, lambda: "x")
        self.writer = Writer(self)
        names = itertools.count()
        wait_seconds = configuration.autoscaling.wait_seconds
        self.placeholders = Placeholders(
            self.writer, lambda: self.waiting.placeholders, wait_seconds, lambda: str(next(names))
        )
        self.planner = NodeRequestPlanner(configuration, self.gangs, self.placeholders)
        at_once(self.state.node_event(Replaced(nodes)))

    def put(self, *pods: Pod) -> None:
        for each in pods:
            at_once(self.state.pod_event(Applied(each)))

    def drop(self, *pods: Pod) -> None:
        for each in pods:
            at_once(self.state.pod_event(Deleted(each)))

    def join(self, *nodes: Node) -> None:
        """Have nodes join now, or change; one with a creation of its own has that."""
        for each in nodes:
            before = self.state.nodes.get(each.metadata.name)
            born = before.metadata.creation_timestamp if before is not None else stamp(self.now)
            own = each.metadata.creation_timestamp != BORN
            joining = each if own else changed_meta(each, creation_timestamp=born)
            at_once(self.state.node_event(Applied(joining)))

    def plan_gangs(self, after: float) -> None:
        """Run a round of gangs, ``after`` so many seconds; ``gates`` are of the pods that it starts."""
        self._tick(after)
        if self.state.ledger.configuration.admission.gangs:
            self.gates = self.round_of_gangs(after).gates

    def round_of_gangs(self, after: float) -> GangRound:
        self._tick(after)
        result = self.gangs.plan(self.state.snapshot())
        for patch in (patch for patches in result.reservations for patch in patches):
            self.state.assume_write(patch.pod, patch.reservation)
        return result

    def plan(self, after: float) -> NodeRequestRound:
        """Plan a round of node requests only."""
        self._tick(after)
        return self.planner.plan(self.state.snapshot())

    def _tick(self, after: float) -> None:
        self.now = after
        self.state.set_time(int((NOW + after) * SECOND))

    def round(self, after: float = 10) -> NodeRequestRound:
        """Run a round, and have the API server and the Job controller do what they do; ``after`` is in seconds."""
        self.plan_gangs(after)
        return self.request(after)

    def request(self, after: float) -> NodeRequestRound:
        """Ask for nodes only."""
        result = self.plan(after)
        at_once(self.placeholders.write(result))
        return result


class Writer(ApiServerWriter):
    """Notes what it is to write, and does it, or fails as it is told."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.created: list[Mapping[str, Any]] = []
        self.deleted: list[str] = []
        self.marked: list[str] = []
        self.said: list[str] = []
        self.error: KubeError | None = None

    async def create_placeholder(self, job: Mapping[str, Any]) -> None:
        self.created.append(job)
        self._fail()
        self.bench.put(placeholder(job, self.bench.now))

    async def delete_placeholder(self, job: str) -> None:
        self.deleted.append(job)
        self._fail()
        self.bench.drop(*(each for each in self.bench.waiting.placeholders.values() if each.metadata.name == job))

    async def mark_unschedulable(self, pod: Pod, message: str) -> None:
        self.marked.append(pod.metadata.name)
        self._fail()

    def record(self, about: Pod | Node, reason: str, message: str, *, warning: bool) -> None:
        self.said.append(reason)

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error


def stamp(after: float) -> str:
    return datetime.fromtimestamp(NOW + after, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def changed_meta(node: Node, **more: Any) -> Node:
    return msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, **more))


def placeholder(job: Any, born: float) -> Pod:
    """The pod that the Job controller creates of a placeholder's Job."""
    template, name = job["spec"]["template"], job["metadata"]["name"]
    labels = template["metadata"]["labels"] | {"batch.kubernetes.io/job-name": name}
    created = msgspec.convert(template, Pod)
    meta = msgspec.structs.replace(
        created.metadata, name=name, uid=name, namespace="gputile", labels=labels, creation_timestamp=stamp(born)
    )
    return msgspec.structs.replace(created, metadata=meta)


def waits(name: str, born: str = BORN, **asked: Any) -> Pod:
    """A pod that kube-scheduler found no node for."""
    asking = tolerant(pod(name, **asked))
    status = PodStatus(conditions=(PodCondition(type="PodScheduled", status="False"),))
    meta = msgspec.structs.replace(asking.metadata, creation_timestamp=born, resource_version="1")
    return msgspec.structs.replace(asking, metadata=meta, status=status)


def fragmented(*, gangs: bool = False, **scaling: Any) -> Bench:
    """One node of two GPUs with 15 units each, 8 of them free on each."""
    bench = Bench(node("n"), gangs=gangs, **scaling)
    bench.put(bound("a", "n", 0, 7), bound("b", "n", 1, 7))
    return bench


def asked(bench: Bench) -> int:
    return bench.planner.requested


def said(result: NodeRequestRound) -> dict[str, str]:
    return {event.pods[0].metadata.name: event.reason for event in result.events}


def test_a_pod_that_no_gpu_takes_though_the_node_would_brings_one_node() -> None:
    bench = fragmented()
    bench.put(waits("p", mem=10))
    result = bench.round()
    assert said(result) == {"p": "NodeRequested"}
    (job,) = bench.writer.created
    template = job["spec"]["template"]
    assert template["metadata"]["annotations"] == {NODE_TYPE_ANNOTATION: TYPE}
    assert template["spec"]["nodeSelector"] == {"pool": "gpu"}
    assert template["spec"]["containers"][0]["resources"]["limits"] == {"aliyun.com/gpu-mem": "30"}
    assert bench.round(11).created == [], "it is asked for once"


@pytest.mark.parametrize("gang", [False, True])
def test_a_pod_for_which_the_autoscaler_adds_none_keeps_no_other_pod_from_a_node(gang: bool) -> None:
    """A volume of it is missing, say. Its node would take a gang too, or a pod that fits the sum of another one."""
    bench = Bench(gangs=True) if gang else fragmented()
    bench.put(waits("p", mem=10), tolerant_member(0, 1) if gang else waits("q", mem=9))
    bench.round()
    assert asked(bench) == 0
    bench.round(WAIT + 1)
    assert asked(bench) == 1


def test_a_pod_of_another_namespace_is_asked_for_before_a_crowd_of_less_important_ones() -> None:
    """The crowd's pods are harder to place, and of another type; there are always more of them than nodes."""
    first, second = described(count=2, label="pool=x"), described(count=2, label="pool=y")
    bench = Bench(
        node("x0", type_="pool=x"), node("y0", type_="pool=y"), configuration=configured(first, second), most_nodes=3
    )
    for on in ("x0", "y0"):
        bench.put(*(bound(f"{on}-{gpu}", on, gpu, 7) for gpu in range(2)))

    def wanting(name: str, pool: str, priority: int, namespace: str, units: int) -> Pod:
        asking = waits(name, mem=units)
        spec = msgspec.structs.replace(asking.spec, node_selector={"pool": pool}, priority=priority)
        meta = msgspec.structs.replace(asking.metadata, namespace=namespace)
        return msgspec.structs.replace(asking, metadata=meta, spec=spec)

    bench.put(*(wanting(f"c{i:02}", "x", 0, "crowd", 14) for i in range(20)))
    bench.put(wanting("q", "y", 1000, "other", 10))
    for after in (10, 11):
        bench.round(after)
    types = [each.metadata.annotations[NODE_TYPE_ANNOTATION] for each in bench.waiting.placeholders.values()]
    assert types.count("pool=y") == 1


def test_a_pod_that_no_type_takes_is_told_and_brings_none() -> None:
    bench = fragmented()
    bench.put(waits("p", mem=20))
    result = bench.round()
    assert (result.created, said(result)) == ([], {"p": "NoNodeTypeFits"})
    assert "15 units of 1024 MiB" in result.events[0].message
    assert bench.planner.refused == 1
    assert bench.round(11).events == [], "it is said once"


def tolerant_member(number: int, size: int = 3) -> Pod:
    asking = member("g", number, size)
    sized = pod(asking.metadata.name, mem=15)
    spec = msgspec.structs.replace(asking.spec, containers=sized.spec.containers)
    return tolerant(msgspec.structs.replace(asking, spec=spec))


def test_a_job_without_a_pod_counts_until_it_would_have_ended_and_then_its_type_has_failed() -> None:
    """Nobody creates its pod: a quota refuses it, say."""
    bench = fragmented()
    bench.put(waits("p", mem=10))

    def round_(after: float) -> tuple[int, dict[str, str]]:
        result = bench.request(after)
        bench.drop(*bench.waiting.placeholders.values())
        return len(result.created), said(result)

    assert [round_(after)[0] for after in (10, 11, 500)] == [1, 0, 0]
    assert round_(10 + WAIT) == (0, {"p": "NodeNotAdded"})
    assert round_(10 + 2 * WAIT + 1)[0] == 1


@pytest.mark.parametrize(("mode", "resource"), [("default", "nvidia.com/gpu"), ("topology", "aliyun.com/gpu")])
@pytest.mark.parametrize(("wanted", "told"), [(1, {}), (2, {"p": "NodeNotAdded"}), (3, {"p": "NoNodeTypeFits"})])
def test_whole_gpus_are_sums_that_the_autoscaler_sees(
    mode: str, resource: str, wanted: int, told: dict[str, str]
) -> None:
    """One of two is in use. A pod that asks for two is seen by the autoscaler itself; no type has three."""
    bench = Bench(configuration=configured(described(mode, 2)))
    (kind,) = node_types_of(bench.state.ledger.configuration)
    bench.join(kind.node("n"))
    text = allocation_text(share("n/0", kind.gpus[0].mib), whole=True)
    bench.put(pod("r", asks={resource: 1}, node="n", annotations={ALLOCATION: text}))
    bench.put(waits("p", asks={resource: wanted}))
    result = bench.round(WAIT + 100)
    assert (result.created, said(result)) == ([], told)


def test_a_leader_that_takes_over_finds_the_placeholders() -> None:
    bench = fragmented()
    bench.put(waits("p", mem=10))
    bench.round()
    bench.planner.forget()
    assert bench.round(12).created == []
    assert bench.writer.marked == ["gputile-placeholder-0"] * 2, "nobody has marked it yet for the autoscaler"


@pytest.mark.parametrize("why", ["cordoned", "in use", "without units"])
def test_no_placeholder_stands_on_a_node_that_takes_none(why: str) -> None:
    """It would bring a node too many. A pod that tolerates the GPUs' taint does not run on a cordoned node."""
    bench, there = fragmented(), node("there", type_=TYPE)
    if why == "cordoned":
        there = msgspec.structs.replace(there, spec=msgspec.structs.replace(there.spec, unschedulable=True))
    bench.join(there if why != "without units" else arrived("there", units=None))
    if why == "in use":
        bench.put(*(bound(f"u{gpu}", "there", gpu, 7) for gpu in range(2)))
    bench.put(waits("p", mem=10))
    bench.round(WAIT + 10)
    (job,) = bench.writer.created
    assert job["spec"]["template"]["spec"]["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]


@pytest.mark.parametrize("gangs", [False, True])
def test_pods_that_no_node_helps_keep_no_other_namespace_from_a_node(gangs: bool) -> None:
    bench = fragmented(gangs=gangs)

    def put(name: str, units: int, namespace: str, born: str) -> None:
        asking = waits(name, mem=units)
        labels = {GANG_NAME_LABEL: name, GANG_SIZE_LABEL: "1"} if gangs else {}
        meta = msgspec.structs.replace(
            asking.metadata, namespace=namespace, creation_timestamp=born, labels=asking.metadata.labels | labels
        )
        bench.put(msgspec.structs.replace(asking, metadata=meta))

    for i in range(MOST_PODS + 1):
        put(f"h{i}", 20, "crowd", BORN)
    bench.round()
    put("p", 10, "other", "2030-03-17T19:00:00Z")
    assert bench.round(7300).created != []
    assert bench.round(7310).deleted == [], "and keeps its turn"


def arrived(name: str, *, units: int | None, unhealthy: tuple[int, ...] = ()) -> Node:
    """A node of the type with two GPUs, whose kubelet offers ``units`` of memory, None for no such resource."""
    amounts = {"cpu": "99", "pods": "99"} | ({GPU_MEMORY: str(units)} if units is not None else {})
    found = gpu_node(name, mode="cgpu", sizes=[GIB15] * 2, allocatable=amounts, unhealthy=unhealthy)
    labels = found.metadata.labels | {"pool": "gpu"}
    meta = msgspec.structs.replace(found.metadata, uid=f"uid-{name}", labels=labels, creation_timestamp=BORN)
    return msgspec.structs.replace(found, metadata=meta)


@pytest.mark.parametrize(("labels", "taken"), [({}, 1), ({KARPENTER_POOL_LABEL: "gpu"}, 2)])
def test_the_idle_nodes_of_a_gang_have_placeholders_until_it_starts(labels: dict[str, str], taken: int) -> None:
    """One of two nodes stays without GPUs. Karpenter would put a placeholder there as well as on the good one."""
    bench, bare = Bench(gangs=True), node("bare", type_=TYPE, gpus=0)
    bench.put(*(tolerant_member(number, 4) for number in range(4)))
    bench.round(10)
    meta = msgspec.structs.replace(bare.metadata, labels=bare.metadata.labels | labels)
    bench.join(node("good", type_=TYPE, gpus=0), msgspec.structs.replace(bare, metadata=meta))
    bench.round(60)
    bench.join(node("good", type_=TYPE))
    bench.round(70)
    assert (asked(bench), len(bench.waiting.placeholders)) == (0, 2), "the autoscaler would remove the good one"
    bench.round(60 + WAIT)
    assert (asked(bench), len(bench.waiting.placeholders)) == (1, 1 + taken)
    bench.join(node("new", type_=TYPE))
    bench.round(WAIT + 100)
    assert all(reservation_of(each) for each in bench.state.members.pods(GangName("default", "g", by_object=False)))
    bench.round(WAIT + 110)
    assert bench.waiting.placeholders == {}


def test_no_more_nodes_are_asked_for_than_may_be() -> None:
    bench = Bench(gangs=True, most_nodes=3)
    bench.put(*(tolerant_member(number, 20) for number in range(20)))
    assert len(bench.round().created) == 3
    bench.join(node("new", type_=TYPE, gpus=0))
    bench.round(60)
    assert (asked(bench), len(bench.waiting.placeholders)) == (3, 4)


def test_of_a_gang_that_is_gone_no_placeholder_stays() -> None:
    bench = Bench(gangs=True)
    bench.put(*(tolerant_member(number, 4) for number in range(4)))
    bench.round(10)
    bench.drop(*(tolerant_member(number, 4) for number in range(4)))
    bench.round(80)
    assert bench.waiting.placeholders == {}


EFA = "vpc.amazonaws.com/efa"


def with_adapters(**more: Any) -> Bench:
    """A fragmented node with plenty of network adapters; new ones have the resources in ``more``."""
    there = node("n")
    status = msgspec.structs.replace(there.status, allocatable={**there.status.allocatable, EFA: "32"})
    there = msgspec.structs.replace(there, status=status)
    bench = Bench(there, configuration=configured(described(count=2) | {"resources": more}))
    bench.put(bound("a", "n", 0, 7), bound("b", "n", 1, 7))
    return bench


@pytest.mark.parametrize(
    ("offered", "wanted", "told"),
    [
        ({EFA: 4}, {EFA: 4}, "NodeRequested"),
        ({EFA: 4}, {EFA: 5}, f"could not run the pod: Insufficient {EFA}"),
        ({}, {EFA: 1}, f"could not run the pod: Insufficient {EFA}"),
        ({"cpu": "8"}, {"cpu": "9"}, "could not run the pod: Insufficient cpu"),
    ],
)
def test_what_a_type_is_said_to_offer_counts(offered: dict[str, Any], wanted: dict[str, Any], told: str) -> None:
    bench = with_adapters(**offered)
    bench.put(waits("p", mem=10, asks=wanted))
    result = bench.round()
    (event,) = result.events
    assert bool(result.created) is (told == "NodeRequested")
    assert told in f"{event.reason} {event.message}"
