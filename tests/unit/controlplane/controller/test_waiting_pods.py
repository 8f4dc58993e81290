"""Which pods are looked at for a new node."""

from typing import Any

import msgspec
import pytest

from gputile.api.config.autoscaling import AutoscalingConfiguration
from gputile.api.config.v1alpha1 import AdmissionConfiguration, Configuration
from gputile.api.core import Pod, PodCondition, PodStatus, SchedulingGate
from gputile.api.well_known import GANG_NAME_LABEL, GANG_SIZE_LABEL, PLACEHOLDER_LABEL
from gputile.controlplane.controller.waiting_pods import WaitingPods
from gputile.core.devices.node_type import PLACEHOLDER_SCHEDULER
from tests.unit.controlplane.controller.test_node_request_planner import waits

pytestmark = pytest.mark.requirement("U8")


def changed(pod: Pod, *, spec: dict[str, Any] | None = None, meta: dict[str, Any] | None = None, **more: Any) -> Pod:
    return msgspec.structs.replace(
        pod,
        spec=msgspec.structs.replace(pod.spec, **(spec or {})),
        metadata=msgspec.structs.replace(pod.metadata, **(meta or {})),
        **more,
    )


def waiting(*pods: Pod, gangs: bool = False) -> list[str]:
    configuration = Configuration(
        admission=AdmissionConfiguration(gangs=gangs), autoscaling=AutoscalingConfiguration(enabled=True)
    )
    found = WaitingPods(configuration, "gputile")
    for pod in pods:
        found.pod_applied(pod)
    return list(found.refused)


P = waits("p", mem=1)
GATED = PodCondition(type="PodScheduled", status="False", reason="SchedulingGated")  # and its gate has just gone
GANG = {"labels": {GANG_NAME_LABEL: "g", GANG_SIZE_LABEL: "2"}}


@pytest.mark.parametrize(
    ("pod", "looked_at"),
    [
        (P, True),
        (waits("p", asks={"nvidia.com/gpu": 1}), True),
        (waits("p", asks={"cpu": 1}), False),
        (changed(P, status=msgspec.structs.replace(P.status, conditions=())), False),
        (changed(P, status=PodStatus(conditions=(GATED,))), False),
        (changed(P, status=msgspec.structs.replace(P.status, nominated_node_name="n")), False),
        (changed(P, spec={"node_name": "n"}), False),
        (changed(P, spec={"scheduling_gates": (SchedulingGate(name="theirs"),)}), False),
        (changed(P, meta={"deletion_timestamp": "2030-03-17T17:46:40Z"}), False),
        (
            changed(P, spec={"scheduler_name": PLACEHOLDER_SCHEDULER}, meta={"labels": {PLACEHOLDER_LABEL: "x"}}),
            False,
        ),
        (changed(P, meta=GANG), True),
    ],
)
def test_only_a_gpu_pod_that_kube_scheduler_refused_is_looked_at(pod: Pod, looked_at: bool) -> None:
    assert waiting(pod) == (["p"] if looked_at else [])
    assert waiting(P, pod) == (["p"] if looked_at else []), "whatever it was before"


def test_pods_of_gangs_are_left_to_the_plans_where_there_are_any() -> None:
    assert waiting(changed(P, meta=GANG), gangs=True) == []


def test_of_pods_that_are_deleted_nothing_is_kept() -> None:
    found = WaitingPods(Configuration(autoscaling=AutoscalingConfiguration(enabled=True)), "gputile")
    found.pod_applied(P)
    assert (list(found.refused), list(found.preemptors)) == (["p"], ["p"])
    found.pod_deleted("p")
    assert (found.refused, found.preemptors) == ({}, {})
