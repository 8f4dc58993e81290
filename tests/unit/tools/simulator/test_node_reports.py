"""``gputile explain`` tells the truth about GPUs, and the changes that it names would really be enough."""

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from gputile.api.affinity import (
    Affinity,
    LabelSelector,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PodAffinity,
    PodAffinityTerm,
)
from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, NodeSpec, Pod, Taint
from gputile.api.well_known import MEMORY_UNIT_ANNOTATION, MODE_LABEL, MODEL_LABEL
from gputile.core.admission.completion import add_toleration
from gputile.core.admission.legacy_forms import apply_patch, rewrite
from gputile.core.devices.request import RequestError
from gputile.tools.simulator.node_reports import NodeReport, Subject
from gputile.tools.simulator.remedies import Remedy, proposals, remedies
from tests.conftest import examples
from tests.fakes.corebuilders import bound, container, gpu_node, pod

pytestmark = pytest.mark.requirement("B4")

GIB = 1024
ROOMY = {
    "aliyun.com/gpu-mem": "1000",
    "aliyun.com/gpu-core.percentage": "800",
    "nvidia.com/gpu": "8",
    "aliyun.com/gpu": "8",
    "pods": "110",
}


CONFIGURATION = Configuration(max_pods_per_gpu=4)


def admitted(asked: Pod) -> Pod:
    """Return the pod as the webhook stores it: GPU nodes are tainted."""
    rewriting = rewrite(asked)
    add_toleration(asked, rewriting)
    return msgspec.convert(apply_patch(rewriting.operations, msgspec.to_builtins(asked)), Pod)


def explained(asked: Pod, nodes: list[Node], pods: list[Pod]) -> tuple[Subject, list[NodeReport], list[Remedy]]:
    subject = Subject(admitted(asked), nodes, [*pods, asked], CONFIGURATION, 0)
    reports = subject.reports()
    return subject, reports, remedies(subject, reports)


def machine(name: str, mode: str = "cgpu", gpus: int = 2) -> Node:
    return gpu_node(name, mode=mode, sizes=[15 * GIB] * gpus, unit_mib=GIB, allocatable=ROOMY)


def test_every_node_and_gpu_says_why_not_and_who_is_there() -> None:
    pods = [bound("a", "n1", 0, 8), bound("b", "n1", 1, 12), bound("c", "n2", 0, 1)]
    _, reports, _ = explained(pod("new", mem=10), [machine("n2", "share", 1), machine("n1")], pods)
    assert [(report.name, report.fits) for report in reports] == [("n2", True), ("n1", False)]
    n1 = reports[1]
    assert n1.gpu == "GPU 0 has 7 GiB of 15 GiB free; the pod needs 10 GiB on one GPU"
    assert [(gpu.free_mib, gpu.lacks) for gpu in n1.gpus] == [
        (7 * GIB, "has 7 GiB of 15 GiB free; the pod needs 10 GiB on one GPU"),
        (3 * GIB, "has 3 GiB of 15 GiB free; the pod needs 10 GiB on one GPU"),
    ]
    assert [(holder.name, holder.mib) for holder in n1.gpus[0].pods] == [("a", 8 * GIB)]


amounts = st.integers(min_value=1, max_value=17)
held = st.lists(st.tuples(st.integers(0, 1), amounts, st.sampled_from(("a", "b")), st.integers(0, 3)), max_size=8)


def demanding(asked: Pod, **spec: object) -> Pod:
    return msgspec.structs.replace(asked, spec=msgspec.structs.replace(asked.spec, **spec))


def labelled(node: Node, labels: dict[str, str], *, cordoned: bool = False, tainted: bool = False) -> Node:
    taints = (Taint(key="team", value="a", effect="NoSchedule"),) if tainted else ()
    meta = msgspec.structs.replace(node.metadata, labels=node.metadata.labels | labels)
    return msgspec.structs.replace(node, metadata=meta, spec=NodeSpec(unschedulable=cordoned, taints=taints))


def model_is(operator: str, *values: str) -> Affinity:
    term = NodeSelectorTerm(match_expressions=(NodeSelectorRequirement(MODEL_LABEL, operator, values),))
    return Affinity(node_affinity=NodeAffinity(required=NodeSelector((term,))))


def beside(**labels: str) -> Affinity:
    term = PodAffinityTerm(LabelSelector(match_labels=labels), "kubernetes.io/hostname")
    return Affinity(pod_affinity=PodAffinity((term,)))


DEMANDS: tuple[dict[str, object], ...] = (
    {},
    {"node_selector": {MODEL_LABEL: "V100"}},
    {"node_selector": {MODEL_LABEL: "V100", "aliyun.accelerator/nvidia_count": "8"}},
    {"node_selector": {MODEL_LABEL: "V100", "aliyun.accelerator/nvidia_mem": "2048MiB"}},
    {"affinity": model_is("NotIn", "T4")},
    {"affinity": model_is("In", "P100", "V100")},
    {"affinity": model_is("Gt", "5")},
    {"affinity": beside(app="cache")},
    {"node_selector": {"zone": "b"}},
)


@settings(max_examples=examples(300))
@given(
    st.sampled_from(("cgpu", "share", "core_mem", "mps", "default", "topology")), held, amounts,
    st.sampled_from(("aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "nvidia.com/gpu", "aliyun.com/gpu")),
    st.integers(1, 3), st.integers(1, 3), st.sampled_from(DEMANDS), st.sampled_from((0, 0, 512, 1024)),
    st.booleans(), st.booleans(), st.sampled_from((True, True, False)),
)  # fmt: skip
def test_each_remedy_applied_makes_the_pod_fit(
    mode: str, taken: list[tuple[int, int, str, int]], mem: int, resource: str, count: int, parts: int,
    demand: dict[str, object], stamped: int, cordoned: bool, tainted: bool, admit: bool,
) -> None:  # fmt: skip
    """In a cluster of its own: another node, fewer pods, a pod that asks for less or that is created anew."""
    nodes = [
        labelled(machine("n1", mode), {MODEL_LABEL: "T4", "zone": "a"}, cordoned=cordoned),
        labelled(machine("n2", mode, 1), {MODEL_LABEL: "V100"}, tainted=tainted),
    ]
    pods = [bound(f"p{i}", "n1", gpu, units, namespace=group) for i, (gpu, units, group, _) in enumerate(taken)]
    shared = resource.startswith("aliyun.com/gpu-")
    asks = {"aliyun.com/gpu-mem": mem * count} if shared else {resource: mem}
    asks |= {resource: 25 * count} if "core" in resource else {}
    asked = pod(
        "new", *(container(f"c{i}", asks=asks) for i in range(parts)), count=count if shared else None,
        annotations={MEMORY_UNIT_ANNOTATION: str(stamped)} if stamped else {},
    )  # fmt: skip
    asked = demanding(admitted(asked) if admit else asked, **demand)
    try:
        subject = Subject(asked, nodes, pods, CONFIGURATION, 0)
    except RequestError:
        event("refused for good")
        return
    reports = subject.reports()
    found = proposals(subject, reports)
    event("fits" if any(report.fits for report in reports) else f"{len(found)} remedies")
    assert [proposal.remedy for proposal in found] == remedies(subject, reports)
    for each in found:
        left = [other for other in pods if other.metadata.uid not in each.removed]
        for name in each.remedy.nodes:
            there, changed = nodes, each.pod
            if each.resolved:  # what kube-scheduler's rules about nodes have against the pod is done away with
                there = [msgspec.structs.replace(node, spec=NodeSpec()) for node in nodes]
                changed = demanding(each.pod, node_selector={}, affinity=None)
            assert name in fits_on(changed, there, left)
        for node in each.new_nodes:
            assert node.metadata.name in fits_on(each.pod, [*nodes, node], left)
        assert each.remedy.nodes or each.new_nodes


def fits_on(asked: Pod, nodes: list[Node], pods: list[Pod]) -> list[str]:
    return [report.name for report in Subject(asked, nodes, pods, CONFIGURATION, 0).reports() if report.fits]


def test_a_job_for_a_model_is_told_of_nodes_of_that_model() -> None:
    job = demanding(pod("job", asks={"nvidia.com/gpu": 1}), node_selector={MODEL_LABEL: "Tesla-V100"})
    _, _, changes = explained(job, [labelled(machine("n1", "default"), {MODEL_LABEL: "T4"})], [])
    assert [remedy.change for remedy in changes] == [
        "kube-scheduler's reason \"node(s) didn't match Pod's node affinity/selector\" is resolved; enough GPU "
        "capacity is free there",
        "a node with one GPU comes, labelled ack.node.gpu.schedule=default and "
        "aliyun.accelerator/nvidia_name=Tesla-V100",
    ]


def test_a_node_that_comes_has_to_offer_all_that_the_pod_asks_for() -> None:
    """A pod of HAMi's would not start on just any node with a GPU."""
    both = pod("both", asks={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192})
    _, _, changes = explained(both, [machine("n1", "share")], [])
    assert changes[-1].change == (
        "a node with one GPU and nvidia.com/gpumem comes, labelled ack.node.gpu.schedule=default"
    )


@pytest.mark.parametrize(("mode", "named"), [("cgu", []), ("topology", []), ("mps", ["mps"])])
def test_a_node_that_comes_is_in_a_mode_that_serves_the_pod(mode: str, named: list[str]) -> None:
    choosy = demanding(pod("choosy", mem=2), node_selector={MODE_LABEL: mode})
    _, _, changes = explained(choosy, [machine("n1", "default")], [])
    coming = [each.change.rpartition("=")[2] for each in changes if each.change.startswith("a node with")]
    assert coming == named


def test_a_pod_that_is_older_than_the_webhook_is_to_be_created_anew() -> None:
    """It does not tolerate the taint of GPU nodes, and nobody adds that to a pod that is there."""
    tainted = msgspec.structs.replace(
        machine("n1"), spec=NodeSpec(taints=(Taint(key="nvidia.com/gpu", value="present", effect="NoSchedule"),))
    )
    subject = Subject(pod("early", mem=2), [tainted], [], CONFIGURATION, 0)
    changes = remedies(subject, subject.reports())
    assert Remedy("pod default/early is deleted and created anew", ["n1"]) in changes
    assert not any("a node with" in remedy.change for remedy in changes), "that would be tainted too"
