"""A pod that a quota kept from being created is explained by its controller's event."""

import msgspec
import pytest

from gputile.api.workloads import Event
from gputile.tools.simulator.explanation import creation_refusal

pytestmark = pytest.mark.requirement("B4", "B5")

QUOTA = (
    'Error creating: pods "train-x" is forbidden: exceeded quota: team-gpus, requested: '
    "requests.aliyun.com/gpu-mem=60, used: requests.aliyun.com/gpu-mem=60, limited: requests.aliyun.com/gpu-mem=100"
)


def event(controller: str, message: str, reason: str = "FailedCreate", when: str = "") -> Event:
    body = {"involvedObject": {"kind": "ReplicaSet", "name": controller}, "reason": reason, "message": message}
    return msgspec.convert({**body, "lastTimestamp": when or None}, Event)


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        (
            "failed quota: team-cpu: must specify limits.cpu for: main",
            "ResourceQuota team-cpu counts a resource that the pod does not set: set it, or add a LimitRange default",
        ),
        (
            "maximum aliyun.com/gpu-mem usage per Container is 8, but limit is 9",
            "a LimitRange of the namespace holds it: change what the pod asks for, or the LimitRange",
        ),
    ],
)
def test_a_remedy_is_given_for_each_rule_of_the_namespace(message: str, remedy: str) -> None:
    said = creation_refusal("train", [event("train", f'pods "train-x" is forbidden: {message}')])
    assert said is not None
    assert said.endswith(f"{message}; {remedy}")


def test_the_latest_refusal_counts_and_others_are_given_as_they_are() -> None:
    events = [event("train", QUOTA, when="2026-01-01T00:00:00Z"), event("train", "denied", when="2026-01-02T00:00:00Z")]
    assert creation_refusal("train-x7f2q-0", events) == "ReplicaSet train could not create it: denied"


def test_nothing_is_said_of_pods_that_nobody_tried_to_create() -> None:
    events = [event("train", QUOTA, reason="SuccessfulCreate"), event("trainer", QUOTA), event("", QUOTA)]
    assert creation_refusal("train-x", events) is None
