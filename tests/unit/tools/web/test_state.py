"""The page follows facts: what a tile says, what closes a node, and what readers of its changes get."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.config.v1alpha1 import AdmissionConfiguration, Configuration
from gputile.api.core import Node, NodeCondition, NodeSpec, NodeStatus, ObjectMeta, Pod, Taint
from gputile.api.well_known import ALLOCATION_ANNOTATION, GPU_MEMORY, MIG_PREFIX, WHOLE_GPU, ConditionType
from gputile.tools.web.feed import ChangeLog
from gputile.tools.web.records import Difference, NodeTile, PageContent, TileShare
from gputile.tools.web.state import PageState
from tests.fakes.claimbuilders import claim, result
from tests.fakes.corebuilders import allocation_text, gpu_node, pod, share

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("B7")]


GIB = 1024
GANGS = Configuration(admission=AdmissionConfiguration(gangs=True))
NODES = ("a", "b", "c")


def bound(uid: str, node: str, gpu: int = 0, mib: int = 4 * GIB, percent: int = 0) -> Pod:
    held = {ALLOCATION_ANNOTATION: allocation_text(share(f"GPU-{node}-{gpu}", mib, percent))}
    return pod(uid, node=node, mem=mib // GIB, annotations=held)


def machine(name: str, *, unhealthy: bool = False, taint: bool = False, silent: bool = False) -> Node:
    node = gpu_node(name, mode="cgpu", sizes=[15 * GIB] * 2, unhealthy=[1] if unhealthy else [], unit_mib=GIB)
    taints = (Taint(key="nvidia.com/gpu", value="present", effect="NoSchedule"),) if taint else ()
    said = NodeCondition(type=ConditionType.AGENT_SILENT, status="True", reason="NoNews", message="for 5 minutes")
    status = msgspec.structs.replace(node.status, conditions=(said,) if silent else ())
    return msgspec.structs.replace(node, spec=NodeSpec(taints=taints), status=status)


def page_of(nodes: list[Node], pods: list[Pod]) -> PageContent:
    state = PageState(GANGS)
    state.nodes_replaced(nodes)
    state.pods_replaced(pods)
    state.next_difference()
    return state.page


Step = Callable[[PageState, dict[str, Node], dict[str, Pod]], None]


@st.composite
def steps(draw: st.DrawFn) -> Step:
    name, uid = draw(st.sampled_from(NODES)), draw(st.sampled_from(["p", "q", "r", "s"]))
    kind = draw(st.sampled_from(["node", "no node", "pod", "bound", "no pod", "ended", "lists"]))
    flags = draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))
    gpu, mib = draw(st.integers(0, 2)), draw(st.sampled_from([GIB, 4 * GIB, 15 * GIB]))

    def step(state: PageState, nodes: dict[str, Node], pods: dict[str, Pod]) -> None:
        if kind == "node":
            nodes[name] = machine(name, unhealthy=flags[0], taint=flags[1], silent=flags[2])
            state.node_applied(nodes[name])
        elif kind == "no node" and name in nodes:
            del nodes[name]
            state.node_deleted(name)
        elif kind in ("pod", "bound", "ended"):
            asking = bound(uid, name, gpu, mib) if kind != "pod" else pod(uid, mem=mib // GIB)
            status = msgspec.structs.replace(asking.status, phase="Succeeded" if kind == "ended" else "Running")
            pods[uid] = msgspec.structs.replace(asking, status=status)
            state.pod_applied(pods[uid])
        elif kind == "no pod" and uid in pods:
            del pods[uid]
            state.pod_deleted(uid)
        elif kind == "lists":
            state.nodes_replaced(list(nodes.values()))
            state.pods_replaced(list(pods.values()))

    return step


def applied(page: PageContent, difference: Difference) -> PageContent:
    """Apply a difference to a page, as the browser does."""
    nodes = {**page.nodes, **difference.nodes}
    pending = {**page.pending, **difference.pending}
    for name in difference.nodes_gone:
        nodes.pop(name, None)
    for key in difference.pending_gone:
        pending.pop(key, None)
    return PageContent(nodes, pending)


@given(st.lists(st.lists(steps(), max_size=6), max_size=8), st.none() | st.integers(1, 2))
def test_state_and_differences_are_the_new_state(batches: list[list[Step]], most: int | None) -> None:
    state, nodes, pods = PageState(GANGS), dict[str, Node](), dict[str, Pod]()
    seen = state.page
    for batch in batches:
        for step in batch:
            step(state, nodes, pods)
        while state.differs:
            difference = state.next_difference(most)
            assert most is None or len(difference.nodes) + len(difference.nodes_gone) <= most
            assert most is None or len(difference.pending) + len(difference.pending_gone) <= most
            seen = applied(seen, difference)
            assert seen == state.page
        assert not state.next_difference()
    bound_anew = {uid: each for uid, each in pods.items() if not _unbound_again(each, state)}
    if len(bound_anew) == len(pods):
        assert seen == page_of(list(nodes.values()), list(pods.values()))


def _unbound_again(each: Pod, state: PageState) -> bool:
    """A pod is never unbound: what the ledger keeps of one that was bound is news of before its Binding."""
    tiles = [tile for node in state.page.nodes.values() for tile in node.pods if not tile.reserved]
    return not each.spec.node_name and any(tile.name == each.metadata.name for tile in tiles)


def test_what_a_tile_says() -> None:
    page = page_of([machine("a", unhealthy=True, taint=True, silent=True)], [bound("p", "a", 0, 4 * GIB, 30)])
    node = page.nodes["a"]
    assert (node.mode, node.serves, node.unit) == ("cgpu", "memory", GIB)
    assert node.silent
    assert node.taints == ("nvidia.com/gpu=present:NoSchedule",)
    assert node.problems == ("GPU 1 is unhealthy", "NoNews: for 5 minutes")
    assert [(gpu.total, gpu.booked, gpu.percent, gpu.pods, gpu.healthy) for gpu in node.gpus] == [
        (15 * GIB, 4 * GIB, 30, 1, True),
        (15 * GIB, 0, 0, 0, False),
    ]
    assert [(each.name, each.shares) for each in node.pods] == [("p", (TileShare(0, 4 * GIB, 30),))]


def test_a_pod_whose_gpus_nobody_knows_closes_its_node() -> None:
    page = page_of([machine("a")], [pod("lost", node="a", mem=4)])
    node = page.nodes["a"]
    assert node.serves == ""
    assert node.pods[0].problem.startswith("it was bound without the annotation")
    assert node.pods[0].asked == 4 * GIB
    assert "takes no GPU pods: the GPUs of default/lost are unknown" in node.problems


@pytest.mark.requirement("V1")
@pytest.mark.parametrize("nodes_first", [True, False])
def test_gpus_of_another_system_are_shown_and_pods_stay_where_they_were_assumed(*, nodes_first: bool) -> None:
    labels = {"nvidia.com/gpu.count": "2", "nvidia.com/gpu.memory": "15360", "nvidia.com/gpu.product": "Tesla-T4"}
    node = Node(
        metadata=ObjectMeta(name="n", uid="n", labels=labels),
        status=NodeStatus(capacity={"nvidia.com/gpu": "2"}, allocatable={"nvidia.com/gpu": "2"}),
    )
    pods = [pod(uid, node="n", asks={WHOLE_GPU: 1}) for uid in "ab"]
    state = PageState(GANGS)
    if nodes_first:
        state.nodes_replaced([node])
    state.pods_replaced(pods)
    state.nodes_replaced([node])
    state.pod_deleted("a")
    state.pod_applied(pods[1])
    state.next_difference()
    (block,) = state.page.nodes["n"].pods
    assert (block.name, block.shares) == ("b", (TileShare(1, 15360, 100),))
    meta = msgspec.structs.replace(
        node.metadata, resource_version="2", labels={**labels, "nvidia.com/gpu.memory": "9000"}
    )
    state.node_applied(msgspec.structs.replace(node, metadata=meta))
    state.next_difference()
    assert [each.shares for each in state.page.nodes["n"].pods] == [(TileShare(1, 9000, 100),)]


def test_pending_pods_say_what_for_and_why_they_wait() -> None:
    wrong = pod("wrong", asks={GPU_MEMORY: "1.5"})
    page = page_of([machine("a")], [pod("p", mem=99), pod("plain"), wrong])
    assert set(page.pending) == {"default/p", "default/wrong"}
    assert "asks for 99 GiB" in page.pending["default/p"].asks
    assert page.pending["default/wrong"].asks.startswith("can never be placed: ")


def test_a_pod_of_the_same_name_takes_the_place_of_one_that_is_gone() -> None:
    state = PageState(GANGS)
    old, new = pod("p", mem=4), pod("p", mem=5)
    new = msgspec.structs.replace(new, metadata=msgspec.structs.replace(new.metadata, uid="other"))
    state.pod_applied(old)
    state.next_difference()
    state.pod_applied(new)
    state.pod_deleted("p")
    difference = state.next_difference()
    assert difference.pending["default/p"].asks.startswith("asks for 5 GiB")
    assert difference.pending_gone == ()
    assert state.page.pending.keys() == {"default/p"}


def tile_of(node: Node) -> NodeTile:
    state = PageState(Configuration())
    state.nodes_replaced([node])
    state.next_difference()
    return state.page.nodes["a"]


def test_a_silent_agent_alone_closes_nothing() -> None:
    """The extender places pods where the kubelet offers GPUs, whatever is said of the agent."""
    said = NodeCondition(type=ConditionType.AGENT_SILENT, status="True", reason="NothingOffered", message="of late")
    for units, serves in (("30", "memory"), ("0", "")):
        status = NodeStatus(allocatable={"pods": "110", GPU_MEMORY: units}, conditions=(said,))
        tile = tile_of(msgspec.structs.replace(machine("a"), status=status))
        assert (tile.silent, tile.serves) == (True, serves)


@given(st.lists(st.binary(max_size=30), max_size=40), st.integers(1, 10), st.integers(0, 200), st.integers(-2, 45))
def test_a_reader_gets_all_that_it_has_not_had_or_nothing(
    changes: list[bytes], most: int, most_bytes: int, revision: int
) -> None:
    log = ChangeLog(most, most_bytes)
    for change in changes:
        log.append(change)
    found = log.since(revision)
    if found is not None:
        assert 0 <= revision <= len(changes)
        assert [each.encoded for each in found] == changes[revision:]
        assert [each.revision for each in found] == list(range(revision + 1, len(changes) + 1))
        assert len(found) <= most
        assert sum(len(each.encoded) for each in found) <= most_bytes
    else:
        kept = changes[max(revision, 0) :]
        assert revision < 0 or revision > len(changes) or len(kept) > most or sum(map(len, kept)) > most_bytes


@pytest.mark.requirement("B8")
def test_a_claim_shows_on_its_gpu_until_it_is_gone() -> None:
    state = PageState(Configuration())
    state.nodes_replaced([gpu_node("n", mode="cgpu", claims=True)])
    state.next_difference()
    state.claim_applied(claim("c", result("n", 1, memory="3Gi"), pods=["trainer"], memory="3Gi"))
    (tile,) = state.next_difference().nodes.values()
    assert [(each.name, each.shares) for each in tile.pods] == [("trainer", (TileShare(1, 3 * GIB, 0),))]
    state.claims_replaced([])
    (tile,) = state.next_difference().nodes.values()
    assert not tile.pods
    assert not any(gpu.booked for gpu in tile.gpus)


SMALL = MIG_PREFIX + "1g.5gb"


@pytest.mark.requirement("G3")
def test_a_mig_instance_is_free_when_its_pod_has_ended_gone_or_moved() -> None:
    state = PageState(Configuration())
    allocatable = {"pods": "110", SMALL: "4", WHOLE_GPU: "0"}
    state.node_applied(gpu_node("n", mode="default", sizes=[24 * GIB], allocatable=allocatable))

    def taken() -> int:
        state.next_difference()
        tile = state.page.nodes["n"]
        assert tile.serves == "instances", "also where no whole GPU is offered"
        return tile.instances[0].booked

    state.pod_applied(pod("a", node="n", asks={SMALL: 1}))
    for _ in range(2):
        state.pod_applied(pod("b", node="n", asks={SMALL: 1}))
    assert taken() == 2
    state.pod_applied(pod("a", node="n", asks={SMALL: 1}, phase="Succeeded"))
    assert taken() == 1
    state.pod_deleted("b")
    assert taken() == 0
