"""What is known of bound pods goes with them."""

from gputile.api.core import Pod
from gputile.api.well_known import POD_GROUP_LABEL
from gputile.controlplane.bound_pods import BoundPods
from gputile.core.devices.gang_membership import GangName
from tests.unit.controlplane.extender.builders import gpu_pod


def member(name: str, gang: str = "g") -> Pod:
    pod = gpu_pod(name)
    pod.spec.node_name = "n"
    pod.metadata.labels = {POD_GROUP_LABEL: gang}
    return pod


def test_bound_pods_with_gpus_are_known_by_their_gang_until_they_are_gone() -> None:
    pods, gang = BoundPods(lambda uid: uid != "uid-plain"), GangName("default", "g", True)
    waiting = member("waiting")
    waiting.spec.node_name = ""
    for pod in (member("a"), member("b"), member("plain"), waiting):
        pods.pod_applied(pod)
    assert pods.gangs == {gang: {"uid-a", "uid-b"}}
    pods.pod_applied(member("a", "h"))
    assert pods.gangs[gang] == {"uid-b"}
    pods.pod_applied(member("c"))
    pods.pod_deleted("uid-a")
    assert pods.uids() == {"uid-b", "uid-c"}
    assert pods.gangs == {gang: {"uid-b", "uid-c"}}
    for uid in ("uid-b", "uid-c", "uid-c"):
        pods.pod_deleted(uid)
    assert (pods.facts, pods.gangs) == ({}, {})
