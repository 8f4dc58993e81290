"""A node takes a pod by its cordon, labels, taints, readiness and what its kubelet offers, as they are now."""

import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, NodeCondition, Pod, PodSpec, Taint, Toleration
from gputile.core.ledger.ledger import Ledger
from gputile.core.scheduling.pod_filter import accepts_now
from tests.fakes.corebuilders import gpu_node, ledger_of

pytestmark = pytest.mark.requirement("B5")

CORDON = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def changed(*taints: Taint, cordoned: bool = False, ready: str = "True", offered: str = "") -> Node:
    node = gpu_node(mode="cgpu")
    node.spec.taints, node.spec.unschedulable = taints, cordoned
    node.status.conditions = (NodeCondition(type="Ready", status=ready),)
    if offered:
        node.status.allocatable = {"cpu": "8", "aliyun.com/gpu-mem": offered}
    return node


TOLERATING = PodSpec(tolerations=(Toleration(operator="Exists"),))


@pytest.mark.parametrize(
    ("node", "spec", "takes"),
    [
        pytest.param(changed(), PodSpec(), True, id="as it should be"),
        pytest.param(changed(offered="8"), PodSpec(), True, id="offers GPUs"),
        pytest.param(changed(CORDON, cordoned=True), PodSpec(), False, id="cordoned"),
        pytest.param(changed(CORDON, cordoned=True), TOLERATING, True, id="cordoned, and tolerated"),
        pytest.param(changed(Taint(key="x", effect="NoSchedule")), PodSpec(), False, id="taint"),
        pytest.param(changed(Taint(key="x", effect="PreferNoSchedule")), PodSpec(), True, id="soft taint"),
        pytest.param(changed(), PodSpec(node_selector={"pool": "a"}), False, id="other labels"),
        pytest.param(changed(ready="Unknown"), TOLERATING, False, id="not ready, without a taint yet"),
        pytest.param(changed(offered="0"), PodSpec(), False, id="its kubelet offers no GPUs"),
    ],
)
def test_a_node_is_judged_as_it_is_now(node: Node, spec: PodSpec, takes: bool) -> None:
    ledger, pod, name = ledger_of(node), Pod(spec=spec), node.metadata.name
    assert accepts_now(ledger, pod, name) == takes


def test_a_node_that_is_gone_takes_nobody() -> None:
    ledger = Ledger(Configuration())
    assert not accepts_now(ledger, Pod(), "gone")


def test_of_a_node_without_gpus_nothing_is_remembered() -> None:
    node = Node()
    node.metadata.name = "cpu"
    node.spec.taints = (CORDON,)
    ledger = ledger_of(node)
    info = ledger.node_info(ledger.row_of["cpu"])
    assert info is not None
    assert info.checked is None
    assert accepts_now(ledger, Pod(), "cpu")
