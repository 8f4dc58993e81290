"""``gputile explain`` tells the truth about cards, and the changes that it names would really be enough."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, ObjectMeta, Pod, PodSpec, SchedulingGate
from gputile.api.well_known import ALLOCATION_ANNOTATION, GANG_GATE, GANG_NAME_LABEL, GANG_SIZE_LABEL
from gputile.core.placement.fit import card_fits, same_unit, serves
from gputile.core.placement.shortage import card_shortages
from gputile.core.scheduling.decision import Decision
from gputile.tools.simulator.explanation import NodeReport, Subject, asks, waiting_for
from gputile.tools.simulator.remedies import Remedy, remedies
from tests.corebuilders import allocation_text, gpu_node, pod, share

pytestmark = pytest.mark.requirement("B4")

GIB = 1024
ROOMY = {"aliyun.com/gpu-mem": "1000", "aliyun.com/gpu-core.percentage": "800", "nvidia.com/gpu": "8", "pods": "110"}


def bound(name: str, node: str, mem: int, card: int, *, namespace: str = "default", core: int = 0) -> Pod:
    """Return a pod that holds ``mem`` GiB, and ``core`` percent, of one card."""
    asked = pod(name, mem=mem, namespace=namespace, asks={"core": core} if core else {})
    text = allocation_text(share(f"GPU-{node}-{card}", mem * GIB, core))
    annotations = asked.metadata.annotations | {ALLOCATION_ANNOTATION: text}
    return msgspec.structs.replace(
        asked,
        metadata=msgspec.structs.replace(asked.metadata, annotations=annotations),
        spec=msgspec.structs.replace(asked.spec, node_name=node),
    )


def explained(asked: Pod, nodes: list[Node], pods: list[Pod]) -> tuple[Subject, list[NodeReport], list[Remedy]]:
    subject = Subject(asked, nodes, [*pods, asked], Configuration(max_pods_per_gpu=4), 0)
    reports = subject.reports()
    return subject, reports, remedies(subject, reports)


def machine(name: str, mode: str = "cgpu", cards: int = 2) -> Node:
    return gpu_node(name, mode=mode, sizes=[15 * GIB] * cards, unit_mib=GIB, allocatable=ROOMY)


def test_every_node_and_card_says_why_not_and_who_is_there() -> None:
    pods = [bound("a", "n1", 8, 0), bound("b", "n1", 12, 1), bound("c", "n2", 1, 0)]
    _, reports, _ = explained(pod("new", mem=10), [machine("n2", "share", 1), machine("n1")], pods)
    assert [(report.name, report.fits) for report in reports] == [("n2", True), ("n1", False)]
    n1 = reports[1]
    assert n1.gpu == "GPU 0 has 7 of 15 units free; the pod needs 10 on one card"
    assert [(card.free_mib, card.lacks) for card in n1.cards] == [
        (7 * GIB, "has 7 of 15 units free; the pod needs 10 on one card"),
        (3 * GIB, "has 3 of 15 units free; the pod needs 10 on one card"),
    ]
    assert [(holder.name, holder.mib) for holder in n1.cards[0].pods] == [("a", 8 * GIB)]


def test_the_pod_itself_is_not_in_its_own_way() -> None:
    _, reports, changes = explained(bound("new", "n1", 10, 0), [machine("n1")], [bound("a", "n1", 5, 0)])
    assert reports[0].fits
    assert changes == []


def test_less_would_fit_and_one_unit_more_would_not() -> None:
    pods = [bound("a", "n1", 8, 0), bound("b", "n1", 12, 1)]
    subject, _, changes = explained(pod("new", mem=10), [machine("n1")], pods)
    assert changes[0] == Remedy("pod default/new asks for no more than 7 units of 1024 MiB", ["n1"])
    assert subject.request is not None


def test_the_fewest_and_smallest_pods_are_named() -> None:
    pods = [bound("a", "n1", 8, 0), bound("b", "n1", 12, 1), bound("c", "n2", 4, 0), bound("d", "n2", 6, 0)]
    _, _, changes = explained(pod("new", mem=10), [machine("n1"), machine("n2", cards=1)], pods)
    assert changes[1] == Remedy("pod default/d ends, or moves to another node", ["n2"])


def test_several_pods_where_one_is_not_enough() -> None:
    pods = [bound(f"p{i}", "n1", 5, 0) for i in range(3)]
    _, _, changes = explained(pod("new", mem=12), [machine("n1", cards=1)], pods)
    assert changes[0].change == "pods default/p0, default/p1, default/p2 end, or move to other nodes"


def test_what_kube_scheduler_itself_forbids_is_named_where_the_cards_have_room() -> None:
    tainted = machine("n1")
    tainted = msgspec.structs.replace(tainted, spec=msgspec.structs.replace(tainted.spec, unschedulable=True))
    _, reports, changes = explained(pod("new", mem=10), [tainted], [])
    assert reports[0].in_tree
    assert changes[0].nodes == ["n1"]
    assert "the GPUs there have room" in changes[0].change


def test_what_no_node_could_ever_take_needs_another_node() -> None:
    _, reports, changes = explained(pod("new", mem=16), [machine("n1")], [])
    assert reports[0].unresolvable
    assert [remedy.change for remedy in changes] == [
        "pod default/new asks for no more than 15 units of 1024 MiB",
        "a node with one GPU of 16 units of 1024 MiB or more comes, labelled ack.node.gpu.schedule=cgpu or "
        "ack.node.gpu.schedule=share or ack.node.gpu.schedule=mps",
    ]


def test_compute_is_the_shortage() -> None:
    taken = bound("a", "n1", 1, 0, core=60)
    _, _, changes = explained(pod("new", mem=1, core=50), [machine("n1", "core_mem", 1)], [taken])
    assert changes[0] == Remedy("pod default/new asks for no more than 40 percent of compute", ["n1"])
    assert changes[1] == Remedy("pod default/a ends, or moves to another node", ["n1"])


def test_whole_cards() -> None:
    asked = pod("new", asks={"nvidia.com/gpu": 3})
    subject, _, changes = explained(asked, [machine("n1", "default")], [])
    assert asks(subject.request) == "asks for 3 of nvidia.com/gpu"
    assert [remedy.change for remedy in changes] == [
        "pod default/new asks for no more than 2 of nvidia.com/gpu",
        "a node with 3 GPUs comes, labelled ack.node.gpu.schedule=default",
    ]


def test_a_pod_without_gpus_is_none_of_gputiles_business() -> None:
    subject, reports, changes = explained(pod("new"), [machine("n1")], [])
    assert "no GPU" in asks(subject.request)
    assert reports[0].fits
    assert changes == []


def test_gates_are_named_with_the_gang_behind_them() -> None:
    labels = {GANG_NAME_LABEL: "train", GANG_SIZE_LABEL: "4"}
    gated = Pod(
        metadata=ObjectMeta(name="w", namespace="default", labels=labels),
        spec=PodSpec(scheduling_gates=(SchedulingGate(name=GANG_GATE),)),
    )
    assert "gang default/train" in waiting_for(gated)
    other = Pod(spec=PodSpec(scheduling_gates=(SchedulingGate(name="example.com/quota"),)))
    assert "example.com/quota" in waiting_for(other)
    assert waiting_for(Pod()) == ""


amounts = st.integers(min_value=1, max_value=17)
held = st.lists(st.tuples(st.integers(0, 1), amounts, st.sampled_from(("a", "b")), st.integers(0, 3)), max_size=8)


@given(
    st.sampled_from(("cgpu", "share", "core_mem", "mps", "default")), held, amounts, st.sampled_from((0, 25, 100)),
    st.integers(1, 2),
)  # fmt: skip
def test_what_is_said_of_a_card_is_what_decides_of_it_and_each_change_is_enough(
    mode: str, taken: list[tuple[int, int, str, int]], mem: int, core: int, count: int
) -> None:
    nodes = [machine("n1", mode), machine("n2", mode, 1)]
    pods = [
        bound(f"p{i}", "n1", units, card, namespace=namespace, core=5 * percent)
        for i, (card, units, namespace, percent) in enumerate(taken)
    ]
    more = {"core": core * count} if core else {}
    subject, reports, changes = explained(pod("new", mem=mem * count, count=count, asks=more), nodes, pods)
    request = subject.request
    assert request is not None
    shape, group = request.shape, subject.ledger.group_number(request.shape.trust_group)
    for name in ("n1", "n2"):
        state = subject.engine.state(name)
        assert state is not None
        if serves(state.serving_mode, shape) and same_unit(state.info, shape):
            for card in state.cards:
                lacking = list(card_shortages(card, shape, state.info, group))
                assert (not lacking) == card_fits(card, shape, state.info, group)
                assert all(shortage.text(shape, state.info) for shortage in lacking)
    fitting = [report.name for report in reports if report.fits]
    assert sorted(fitting) == [n for n in ("n1", "n2") if n in subject.engine.filter(request, ["n1", "n2"]).feasible]
    assert bool(changes) == (not fitting)
    for remedy in changes:
        if " end" in remedy.change and " more " not in remedy.change:
            gone = frozenset(p.metadata.uid for p in pods if p.key in remedy.change.replace(",", "").split())
            assert isinstance(subject.engine.decide(request, remedy.nodes[0], 0, gone), Decision)
