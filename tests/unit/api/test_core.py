"""The slim objects read what the API server writes, and write what it reads."""

from datetime import UTC, datetime

import msgspec
import pytest

from gputile.api.core import Node, NodeCondition, Pod, changed_conditions, is_older

POD = b"""{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "b", "uid": "u",
 "creationTimestamp": null, "managedFields": [{"x": 1}], "ownerReferences": [{"kind": "Job", "controller": true}]},
 "spec": {"nodeName": "n", "priority": 7, "hostNetwork": true,
  "initContainers": [{"name": "s", "restartPolicy": "Always"}],
  "containers": [{"name": "c", "image": "i", "resources": {"limits": {"aliyun.com/gpu-mem": "16", "x": 0.5}}}]},
 "status": {"phase": "Running", "conditions": []}}"""


def test_a_pod_keeps_what_gputile_reads_and_skips_the_rest() -> None:
    pod = msgspec.json.decode(POD, type=Pod)
    assert pod.key == "b/a"
    assert pod.spec.node_name == "n"
    assert pod.spec.priority == 7
    assert pod.spec.init_containers[0].restart_policy == "Always"
    assert pod.spec.containers[0].resources.limits == {"aliyun.com/gpu-mem": "16", "x": 0.5}
    assert pod.metadata.owner_references[0].controller


@pytest.mark.requirement("U4")
@pytest.mark.parametrize(
    ("phase", "finished"),
    [("Pending", False), ("Running", False), ("Unknown", False), ("", False), ("Succeeded", True), ("Failed", True)],
)
def test_only_a_pod_whose_containers_have_stopped_is_finished_u4(phase: str, finished: bool) -> None:
    assert msgspec.json.decode(f'{{"status": {{"phase": "{phase}"}}}}', type=Pod).finished is finished


def test_a_node_tells_its_internal_ip() -> None:
    addresses = '[{"type": "Hostname", "address": "h"}, {"type": "InternalIP", "address": "1.2.3.4"}]'
    assert msgspec.json.decode(f'{{"status": {{"addresses": {addresses}}}}}', type=Node).internal_ip == "1.2.3.4"
    assert Node().internal_ip == ""


@pytest.mark.parametrize(
    ("version", "known", "older"),
    [
        ("9", "10", True),
        ("10", "9", False),
        ("10", "10", False),
        ("", "10", False),
        ("9", "", False),
        ("a", "b", False),
    ],
)
def test_versions_compare_as_numbers_where_they_are_some(version: str, known: str, *, older: bool) -> None:
    assert is_older(version, known) is older


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TIME = "2026-01-02T03:04:05Z"
BEFORE = NodeCondition(type="GpuHealthy", status="True", reason="AllWell", message="2 GPUs")


def test_a_condition_is_written_when_it_changes_and_has_its_transition_when_its_status_does() -> None:
    assert changed_conditions([BEFORE], [BEFORE], NOW) == []
    (new,) = changed_conditions([], [BEFORE], NOW)
    assert new == {
        "type": "GpuHealthy",
        "status": "True",
        "reason": "AllWell",
        "message": "2 GPUs",
        "lastHeartbeatTime": TIME,
        "lastTransitionTime": TIME,
    }
    (other,) = changed_conditions([BEFORE], [msgspec.structs.replace(BEFORE, message="3 GPUs")], NOW)
    assert (other["message"], "lastTransitionTime" in other) == ("3 GPUs", False)
    (worse,) = changed_conditions([BEFORE], [msgspec.structs.replace(BEFORE, status="False")], NOW)
    assert worse["lastTransitionTime"] == TIME
