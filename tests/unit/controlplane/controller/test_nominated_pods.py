"""A pod that kube-scheduler preempts for has GPUs reserved while its victims leave, whatever these have."""

import msgspec
import pytest

from gputile.api.config.v1alpha1 import Configuration, PreemptionConfiguration
from gputile.api.core import PodCondition, PodStatus
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.gang_planner import GangPlanner
from gputile.kube.objects import Applied, Replaced
from tests.fakes.corebuilders import GIB15, allocation_text, gpu_node, pod, share
from tests.fakes.coroutines import at_once
from tests.unit.controlplane.controller.test_gang_planner import BORN, NOW, SECOND

pytestmark = pytest.mark.requirement("B5")


@pytest.mark.parametrize("victim_has_gpus", [False, True])
def test_gpus_are_reserved_while_a_victim_leaves_that_only_has_cpus(victim_has_gpus: bool) -> None:
    configuration = Configuration(preemption=PreemptionConfiguration(enabled=True))
    state = ClusterState(configuration)
    offers = {"cpu": "8", "pods": "99", "aliyun.com/gpu-mem": "30"}
    at_once(state.node_event(Replaced([gpu_node("n", mode="cgpu", sizes=[GIB15] * 2, allocatable=offers)])))
    state.budget_event(Replaced([]))
    others = [
        pod(
            f"low-{i}",
            mem=7,
            node="n",
            annotations={"gputile.io/allocation": allocation_text(share(f"GPU-n-{i}", 7168))},
        )
        for i in range(2 if victim_has_gpus else 1)
    ]
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
